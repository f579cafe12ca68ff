from __future__ import annotations

import json
from typing import Any

import pytest
from rlrun_gateway.chat_request import ChatCall, parse_chat
from rlrun_gateway.settings import GatewaySettings

from rlrun.errors import InvalidRequest
from rlrun.proto import common_pb2, session_pb2

SETTINGS = GatewaySettings(admin_key="a", max_messages=4, max_tools=2)
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}


def parse(**fields: Any) -> ChatCall:
    return parse_chat(json.dumps({"messages": [USER]} | fields).encode(), SETTINGS)


def test_every_sampling_option_reaches_the_request():
    call = parse(
        temperature=0,
        top_p=0.5,
        top_k=20,
        presence_penalty=1,
        frequency_penalty=-0.5,
        repetition_penalty=1.5,
        seed=-3,
        stop=["a", "b"],
        stop_token_ids=[1, 2],
        ignore_eos=True,
        max_completion_tokens=9,
        max_total_tokens=99,
        logprobs=True,
        top_logprobs=2,
    )
    sampling = common_pb2.SamplingParams(
        temperature=0,
        top_p=0.5,
        top_k=20,
        presence_penalty=1,
        frequency_penalty=-0.5,
        repetition_penalty=1.5,
        seed=-3,
        stop=["a", "b"],
        stop_token_ids=[1, 2],
        ignore_eos=True,
    )
    assert call.request.sampling == sampling
    assert call.request.sampling.HasField("temperature")
    assert (call.request.max_new_tokens, call.request.max_total_tokens) == (9, 99)
    assert (call.request.logprobs, call.request.top_logprobs) == (True, 2)
    assert call.ignored == ()


def test_null_means_absent():
    names = """temperature top_p top_k presence_penalty frequency_penalty seed stop max_tokens max_completion_tokens max_total_tokens n
        tools tool_choice stream stream_options logprobs top_logprobs response_format chat_template_kwargs store extra_body model"""
    fields = dict.fromkeys(names.split())
    assert parse(**fields).request == parse().request
    request = parse().request
    assert not request.sampling.HasField("temperature")
    assert not request.HasField("max_new_tokens")
    assert request.store is True


def test_store_false_is_honoured():
    assert parse(store=False).request.store is False
    assert parse(store=True).request.store is True


def test_both_spellings_of_the_token_limit_mean_the_same():
    assert parse(max_tokens=5).request.max_new_tokens == parse(max_completion_tokens=5).request.max_new_tokens == 5


def test_a_stop_string_is_a_list_of_one():
    assert list(parse(stop="x").request.sampling.stop) == ["x"]
    assert len(parse(stop=["x"] * 16).request.sampling.stop) == 16


def test_messages_stay_the_bytes_that_were_sent():
    body = '{"messages": [ {"role":"user", "content":"\\u00e9 é", "extra": [1.0]} ]}'.encode()
    assert list(parse_chat(body, SETTINGS).request.messages) == ['{"role":"user", "content":"\\u00e9 é", "extra": [1.0]}'.encode()]


def test_escaped_pairs_are_text():
    body = b'{"messages": [{"role": "user", "content": "\\ud83d\\ude00"}]}'
    assert list(parse_chat(body, SETTINGS).request.messages) == [b'{"role": "user", "content": "\\ud83d\\ude00"}']


def test_what_agents_replay_is_accepted():
    history = [
        {"role": "developer", "content": [{"type": "text", "text": "be kind"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
    ]
    assert len(parse(messages=history).request.messages) == 3


def test_tools_and_their_choice():
    call = parse(tools=[TOOL], tool_choice="none")
    assert json.loads(call.request.tools) == [TOOL]
    assert call.request.tool_choice == session_pb2.TOOL_CHOICE_NONE
    assert parse(tools=[TOOL]).request.tool_choice == session_pb2.TOOL_CHOICE_AUTO
    assert parse(tools=[]).request.tools == b""


def test_template_arguments_come_from_either_place():
    assert json.loads(parse(chat_template_kwargs={"enable_thinking": False}).request.chat_template_kwargs) == {"enable_thinking": False}
    nested = parse(extra_body={"chat_template_kwargs": {"a": 1}, "top_k": 3, "odd": 1})
    assert json.loads(nested.request.chat_template_kwargs) == {"a": 1}
    assert nested.request.sampling.top_k == 3
    assert nested.ignored == ("odd",)


def test_options_without_effect_are_named():
    assert parse(user="u", metadata={}, parallel_tool_calls=False, service_tier="auto").ignored == (
        "user",
        "metadata",
        "parallel_tool_calls",
        "service_tier",
    )
    strict = {"type": "function", "function": {"name": "f", "strict": True}}
    assert parse(tools=[strict]).ignored == ("tools.function.strict",)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": [{}]}, "messages[0]"),
        ({"messages": [USER, 5]}, "messages[1]"),
        ({"messages": [None]}, "messages[0]"),
        ({"messages": [[]]}, "messages[0]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": None, "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]}, "messages[0].tool_calls[0]"),
        ({"messages": [USER] * 5}, "messages"),
        ({"model": 5}, "model"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": 1e-5}, "temperature"),
        ({"temperature": 1e-300}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_p": []}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_k": -2}, "top_k"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": "x"}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty"),
        ({"seed": 1.5}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"n": 2}, "n"),
        ({"n": 0}, "n"),
        ({"n": "1"}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 2**40}, "max_tokens"),
        ({"max_completion_tokens": "5"}, "max_completion_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens"),
        ({"max_total_tokens": 0}, "max_total_tokens"),
        ({"stop": 5}, "stop"),
        ({"stop": [5]}, "stop[0]"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream": "true"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"store": "no"}, "store"),
        ({"tools": {}}, "tools"),
        ({"tools": "x"}, "tools"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [{"type": "custom", "function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools[0].function.parameters"),
        ({"tools": [TOOL] * 3}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"response_format": "text"}, "response_format"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"extra_body": 5}, "extra_body"),
    ],
    ids=lambda value: json.dumps(value)[:50],
)
def test_a_wrong_field_is_named(fields, param):
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    assert caught.value.param == param
    assert param.split("[")[0].split(".")[0] in caught.value.message
    # The same with an unknown field beside it, which takes the slower way through the parser.
    with pytest.raises(InvalidRequest) as again:
        parse(**fields, unknown=1)
    assert again.value.param == param


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"[]",
        b"5",
        b"null",
        b'"x"',
        b"{}",
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "x", "skipped": "\xff"}]}',
        b'{"messages": [{"role": "user", "content": "x", "skipped": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "a\nb"}]}',
        b'{"messages": [{"role": "user", "content": "x"}]} trailing',
        b"[" * 100_000,
        b'{"messages": [{"role": "user", "content": "x", "extra": ' + b"[" * 5000 + b"]" * 5000 + b"}]}",
        b'{"messages": [{"role": "user", "content": "x"}], "unknown": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
    ids=lambda body: body[:30],
)
def test_a_malformed_body_is_refused(body):
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(body, SETTINGS)
    assert caught.value.message


def test_the_place_where_json_breaks_off_is_told():
    with pytest.raises(InvalidRequest, match="byte 14"):
        parse_chat(b'{"messages": [x]}', SETTINGS)


def test_the_default_token_limit_is_used_when_none_is_given():
    settings = GatewaySettings(admin_key="a", default_max_new_tokens=512)
    assert parse_chat(json.dumps({"messages": [USER]}).encode(), settings).request.max_new_tokens == 512

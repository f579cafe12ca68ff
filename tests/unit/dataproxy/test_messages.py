from __future__ import annotations

import json
from typing import Any

import pytest
from rlrun_dataproxy.messages import answer_digest, parse_message, parse_template_kwargs, parse_tools

from rlrun.errors import InvalidRequest


def digest(value: Any) -> bytes:
    return parse_message(json.dumps(value).encode(), 0).digest


def call(arguments: Any, **more: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}, **more}


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "a"}]}),
        ({"role": "user", "content": "a"}, {"content": "a", "role": "user", "name": None, "cache_control": {"type": "ephemeral"}}),
        ({"role": "system", "content": "a"}, {"role": "developer", "content": "a"}),
        ({"role": "assistant", "content": ""}, {"role": "assistant"}),
        ({"role": "assistant", "content": None, "tool_calls": []}, {"role": "assistant", "refusal": None, "audio": None}),
        ({"role": "assistant", "content": "a", "reasoning_content": "because"}, {"role": "assistant", "content": "a"}),
        (
            {"role": "assistant", "tool_calls": [call('{"a": 1, "b": 2}')]},
            {"role": "assistant", "tool_calls": [call('{"b":2,"a":1}', index=0)]},
        ),
        ({"role": "assistant", "tool_calls": [call({"a": 1})]}, {"role": "assistant", "tool_calls": [call('{"a": 1}')]}),
        ({"role": "assistant", "tool_calls": [call("")]}, {"role": "assistant", "tool_calls": [call("{}")]}),
        (
            {"role": "tool", "tool_call_id": "c", "content": "x"},
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "x"}]},
        ),
    ],
)
def test_the_same_turn_in_other_words_is_the_same(left: Any, right: Any) -> None:
    assert digest(left) == digest(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"role": "user", "content": "a"}, {"role": "user", "content": "a "}),
        ({"role": "user", "content": "a"}, {"role": "system", "content": "a"}),
        ({"role": "user", "content": "a"}, {"role": "user", "content": "a", "name": "bob"}),
        ({"role": "assistant", "tool_calls": [call('{"a": 1}')]}, {"role": "assistant", "tool_calls": [call('{"a": 2}')]}),
        ({"role": "assistant", "tool_calls": [call("{}")]}, {"role": "assistant"}),
        ({"role": "assistant", "tool_calls": [call("{}")]}, {"role": "assistant", "tool_calls": [call("{}", id="d")]}),
        ({"role": "tool", "tool_call_id": "c", "content": "x"}, {"role": "tool", "tool_call_id": "d", "content": "x"}),
    ],
)
def test_another_turn_is_another(left: Any, right: Any) -> None:
    assert digest(left) != digest(right)


def test_an_answer_is_the_message_that_clients_send_back_for_it() -> None:
    assert answer_digest("a", []) == digest({"role": "assistant", "content": "a"})
    assert answer_digest("", [("c", "f", '{"a": 1}')]) == digest({"role": "assistant", "content": None, "tool_calls": [call('{"a":1}')]})


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"{", "messages[3]"),
        (b"[" * 100_000, "messages[3]"),
        (b"null", "messages[3]"),
        (b'"x"', "messages[3]"),
        (b"{}", "messages[3].role"),
        (b'{"role": 5}', "messages[3].role"),
        (b'{"role": "function", "content": "x"}', "messages[3].role"),
        (b'{"role": "user", "content": {"a": 1}}', "messages[3].content"),
        (b'{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}', "messages[3].content"),
        (b'{"role": "user", "content": [{"type": "text"}]}', "messages[3].content"),
        (b'{"role": "user", "content": ["x"]}', "messages[3].content"),
        (b'{"role": "user", "content": "x", "name": 5}', "messages[3].name"),
        (b'{"role": "user", "content": "x", "tool_calls": [{}]}', "messages[3].tool_calls"),
        (b'{"role": "assistant", "tool_calls": {}}', "messages[3].tool_calls"),
        (b'{"role": "assistant", "tool_calls": [{}]}', "messages[3].tool_calls"),
        (b'{"role": "assistant", "tool_calls": [{"function": {}}]}', "messages[3].tool_calls"),
        (b'{"role": "assistant", "reasoning_content": 1}', "messages[3].reasoning_content"),
    ],
)
def test_a_wrong_message_names_its_field(raw: bytes, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_message(raw, 3)
    assert caught.value.param == param


def test_the_template_gets_text_and_arguments_as_objects() -> None:
    message = parse_message(
        json.dumps(
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "a"}, {"type": "output_text", "text": "b"}],
                "reasoning_content": "why",
                "tool_calls": [call('{"a": 1}')],
            }
        ).encode(),
        0,
    )
    assert message.for_template == {
        "role": "assistant",
        "content": "a\nb",
        "reasoning_content": "why",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
    }


@pytest.mark.parametrize(("raw", "param"), [(b"{}", "tools"), (b"x", "tools"), (b"[5]", "tools[0]")])
def test_wrong_tools_are_named(raw: bytes, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_tools(raw)
    assert caught.value.param == param


@pytest.mark.parametrize("raw", [b"", b"[]", b"null"])
def test_no_tools_are_none(raw: bytes) -> None:
    assert parse_tools(raw) is None


def test_template_arguments_are_an_object() -> None:
    assert parse_template_kwargs(b'{"enable_thinking": false}') == {"enable_thinking": False}
    assert parse_template_kwargs(b"") == parse_template_kwargs(b"null") == {}
    with pytest.raises(InvalidRequest, match="must be an object"):
        parse_template_kwargs(b"[1]")

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import pytest
from rlrun_dataproxy.options import DataProxyOptions
from rlrun_dataproxy.plan import Plan, Planner
from rlrun_dataproxy.prompt import PromptBuilder
from rlrun_dataproxy.tokenizer import ChatTokenizer
from rlrun_dataproxy.tree import ConversationTree

from rlrun.errors import InvalidRequest
from rlrun.proto import common_pb2, session_pb2


def planner(tokenizer: ChatTokenizer, **options: Any) -> Planner:
    return Planner(tokenizer, PromptBuilder(tokenizer), options=DataProxyOptions(member_id="dp", **options))


def request(*messages: dict[str, Any], **fields: Any) -> session_pb2.GenerateRequest:
    return session_pb2.GenerateRequest(messages=[json.dumps(one).encode() for one in messages], store=True, **fields)


USER, ANSWER, MORE = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}


def answered(plans: Planner, tree: ConversationTree, output: list[int]) -> None:
    plan = plans.plan(plans.locate(tree, request(USER)), request(USER))
    record = session_pb2.InteractionRecord(
        id="i0",
        new_messages=[json.dumps(USER).encode()],
        new_prompt_ids=plan.new_prompt.ids,
        output_ids=array("i", output).tobytes(),
        content="b",
    )
    tree.add(record, parent=None, link=plan.link, key_link=plan.key_link)


def second_turn(tokenizer: ChatTokenizer) -> Plan:
    plans, tree = planner(tokenizer), ConversationTree()
    answered(plans, tree, [7])
    asked = request(USER, ANSWER, MORE)
    return plans.plan(plans.locate(tree, asked), asked)


def test_a_child_extends_its_parent(tokenizer: ChatTokenizer) -> None:
    plan = second_turn(tokenizer)
    assert plan.parent is not None
    assert plan.prompt_ids.startswith(plan.parent.token_ids())
    assert (plan.num_parent_messages, plan.forked) == (2, False)


def test_a_template_that_cannot_be_aligned_makes_a_counted_root(write_model: Any, tmp_path: Path) -> None:
    template = "{%- for m in messages %}{{- m.role + ': ' + m.content + '\\n' }}{%- endfor %}"
    plan = second_turn(ChatTokenizer.load(write_model(tmp_path, template=template)))
    assert plan.forked
    assert plan.parent is None
    assert plan.num_parent_messages == 0
    assert plan.prompt_ids == plan.new_prompt.ids


@pytest.mark.parametrize(
    "changed",
    [
        {"max_new_tokens": 3},
        {"max_total_tokens": 300},
        {"logprobs": True},
        {"top_logprobs": 1},
        {"tool_choice": session_pb2.TOOL_CHOICE_NONE},
        {"sampling": common_pb2.SamplingParams(temperature=0.0)},
        {"sampling": common_pb2.SamplingParams(seed=0)},
        {"tools": b"[{}]"},
        {"chat_template_kwargs": b'{"x": 1}'},
    ],
)
def test_every_parameter_is_part_of_the_requests_identity(tokenizer: ChatTokenizer, changed: dict[str, Any]) -> None:
    plans, tree = planner(tokenizer), ConversationTree()
    plain = plans.locate(tree, request(USER)).request_hash
    assert plans.locate(tree, request(USER, **changed)).request_hash != plain
    assert plans.locate(tree, request(USER, request_id="r", idempotency_key="k", retry_count=3)).request_hash == plain


def test_no_messages_are_refused(tokenizer: ChatTokenizer) -> None:
    with pytest.raises(InvalidRequest, match="messages is empty"):
        planner(tokenizer).locate(ConversationTree(), request())


@pytest.mark.parametrize(
    ("options", "fields", "parsed"),
    [
        ({}, {"tools": b"[{}]"}, True),
        ({}, {}, False),
        ({}, {"tools": b"[{}]", "tool_choice": session_pb2.TOOL_CHOICE_NONE}, False),
        ({"parse_tool_calls": False}, {"tools": b"[{}]"}, False),
    ],
)
def test_calls_are_parsed_where_there_are_tools(tokenizer: ChatTokenizer, options: Any, fields: Any, parsed: bool) -> None:
    plans, tree = planner(tokenizer, **options), ConversationTree()
    asked = request(USER, **fields)
    assert plans.plan(plans.locate(tree, asked), asked).reading.parse_calls is parsed

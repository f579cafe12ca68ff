from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import pytest
from rlrun_dataproxy.messages import Message, parse_message
from rlrun_dataproxy.prompt import PromptBuilder, TailMode
from rlrun_dataproxy.tokenizer import ChatTokenizer, TemplateRefusal

from rlrun.errors import ConfigError

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}


def messages(*values: dict[str, Any]) -> list[Message]:
    return [parse_message(json.dumps(value).encode(), i) for i, value in enumerate(values)]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def packed(ids: list[int]) -> bytes:
    return array("i", ids).tobytes()


def whole(tokenizer: ChatTokenizer, history: list[Message], tools: list[Any] | None, kwargs: dict[str, Any]) -> bytes:
    shown = [one.for_template for one in history]
    return packed(tokenizer.encode(tokenizer.render(shown, tools=tools, add_generation_prompt=True, template_kwargs=kwargs)))


SYSTEM = {"role": "system", "content": "Be short."}


@pytest.mark.parametrize("kwargs", [{}, {"enable_thinking": True}])
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize(
    ("before", "answer", "tail"),
    [
        ([user("Hi")], assistant("Hello"), [user("And now?")]),
        ([SYSTEM, user("Hi")], assistant("Grüße 😀"), [user("東京?")]),
        ([user("Hi")], assistant("", tool_calls=[CALL]), [{"role": "tool", "tool_call_id": "c1", "content": "rain"}]),
        (
            [user("Hi")],
            assistant("Let me see", tool_calls=[CALL, CALL]),
            [{"role": "tool", "tool_call_id": "c1", "content": "rain"}, {"role": "tool", "content": "sun"}],
        ),
        ([user("Hi"), assistant("x"), user("y")], assistant("z"), [user("a"), assistant("put in by the agent"), user("b")]),
        ([user("Hi")], assistant("Hello"), [{"role": "system", "content": "Mind the time."}, user("b")]),
        ([user("Hi")], assistant("Hello"), []),
    ],
)
def test_parent_ids_and_tail_are_what_the_whole_conversation_templates_to(
    tokenizer: ChatTokenizer,
    prompts: PromptBuilder,
    before: list[dict[str, Any]],
    answer: dict[str, Any],
    tail: list[dict[str, Any]],
    tools: list[Any] | None,
    kwargs: dict[str, Any],
) -> None:
    conversation = messages(*before, answer, *tail)
    split = len(before) + 1
    shown = tokenizer.render(
        [one.for_template for one in conversation[:split]], tools=tools, add_generation_prompt=False, template_kwargs=kwargs
    )
    parent = packed(tokenizer.encode(shown.removesuffix("\n")))
    new = prompts.child(parent, conversation[split:], history=None, tools=None, template_kwargs=kwargs)
    assert new is not None
    assert parent + new.ids == whole(tokenizer, conversation, tools, kwargs)
    assert new.opened_thinking == (kwargs == {"enable_thinking": True})


def test_the_template_is_found_to_allow_the_cheap_way(prompts: PromptBuilder, tokenizer: ChatTokenizer) -> None:
    assert prompts.tail_mode is TailMode.DUMMY_BASE
    assert tokenizer.decode([prompts.turn_end_id]) == "<|im_end|>"


@pytest.mark.parametrize("last", ["Hello", "Hello<|endoftext|>"])
def test_an_output_without_the_turns_end_gets_it_in_the_childs_prompt(tokenizer: ChatTokenizer, prompts: PromptBuilder, last: str) -> None:
    new = prompts.child(packed(tokenizer.encode(last)), messages(user("go on")), history=None, tools=None, template_kwargs={})
    assert new is not None
    text = tokenizer.decode(array("i", new.ids))
    assert text == "<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"


def test_a_turn_costs_what_it_adds(prompts: PromptBuilder, tokenizer: ChatTokenizer) -> None:
    ended = packed([prompts.turn_end_id])
    long = messages(user("long " * 10_000), assistant("a"), user("b"))
    new = prompts.child(ended, long[2:], history=None, tools=None, template_kwargs={})
    assert new is not None
    assert new.num_characters < 100


CHATML = """\
{%- for m in messages %}{{- '<|im_start|>' + m.role + PLACE + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
NUMBERED = CHATML.replace("PLACE", "(loop.index0 | string)")
WITH_TOOL_COUNT = CHATML.replace("PLACE", "((tools or []) | length | string)")
WITHOUT_END = "{%- for m in messages %}{{- m.role + ': ' + m.content + '\\n' }}{%- endfor %}"
TWICE = CHATML.replace("PLACE", "''").replace("m.content", "(m.content | upper)")


def test_a_template_that_counts_messages_is_rendered_as_a_whole(write_model: Any, tmp_path: Path) -> None:
    tokenizer = ChatTokenizer.load(write_model(tmp_path, template=NUMBERED))
    prompts = PromptBuilder(tokenizer)
    assert prompts.tail_mode is TailMode.FULL
    history = messages(user("a"), assistant("b"), user("c"))
    new = prompts.child(packed([prompts.turn_end_id]), history[2:], history=history[:2], tools=None, template_kwargs={})
    assert new is not None
    assert tokenizer.decode(array("i", new.ids)) == "\n<|im_start|>user2\nc<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_whose_turns_depend_on_tools_gets_the_tools(write_model: Any, tmp_path: Path) -> None:
    assert PromptBuilder(ChatTokenizer.load(write_model(tmp_path, template=WITH_TOOL_COUNT))).tail_mode is TailMode.DUMMY_BASE_WITH_TOOLS


def test_a_template_without_an_end_of_turn_cannot_be_extended(write_model: Any, tmp_path: Path) -> None:
    prompts = PromptBuilder(ChatTokenizer.load(write_model(tmp_path, template=WITHOUT_END)))
    history = messages(user("a"), assistant("b"), user("c"))
    assert prompts.child(packed([1]), history[2:], history=history[:2], tools=None, template_kwargs={}) is None


def test_a_template_that_changes_answers_is_refused_or_forked(write_model: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not show the content"):
        PromptBuilder(ChatTokenizer.load(write_model(tmp_path, template=TWICE)))


def test_a_refusing_template_is_the_clients_mistake(write_model: Any, tmp_path: Path) -> None:
    template = "{%- if messages[0].content == 'bad' %}{{- raise_exception('no bad words') }}{%- endif %}" + CHATML.replace("PLACE", "''")
    prompts = PromptBuilder(ChatTokenizer.load(write_model(tmp_path, template=template)))
    with pytest.raises(TemplateRefusal, match="no bad words"):
        prompts.root(messages(user("bad")), tools=None, template_kwargs={})


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{{ messages[0].content.__class__.__mro__ }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(write_model: Any, tmp_path: Path, template: str) -> None:
    tokenizer = ChatTokenizer.load(write_model(tmp_path, template=template))
    for _ in range(2):  # what the first render learned must not open the second
        with pytest.raises(TemplateRefusal):
            tokenizer.render([user("x")], tools=None, add_generation_prompt=True, template_kwargs={})

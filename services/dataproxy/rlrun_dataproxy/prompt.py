"""Conversations -> prompt ids, token in, token out.

A root's prompt is the whole conversation through the chat template. A child's prompt is its parent's prompt and output, as the engine
saw and gave them, and the ids of what is new; text that the model produced is never tokenised again. What is new is rendered behind a
fixed dummy conversation, so that a turn costs what it adds, and cut out after the dummy answer's end token.

Not every template allows this. At load, sample conversations show whether the text of new turns depends on what stands before them.
If it does, the whole conversation is rendered with a mark in the place of the parent's answer; where the mark does not come
back followed by the end token, the call becomes a root ("fork"): never guess.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

import msgspec

from rlrun.errors import ConfigError
from rlrun_dataproxy.messages import Message
from rlrun_dataproxy.tokenizer import ChatTokenizer, TemplateRefusal

# Random, so that no client can write it into a message.
_MARK = f"answer-{secrets.token_hex(8)}"
_THINK = "<think>"

Rendered = Mapping[str, Any]


class TailMode(Enum):
    """How the text of new turns is found, cheapest first."""

    DUMMY_BASE = auto()
    DUMMY_BASE_WITH_TOOLS = auto()
    FULL = auto()


class NewPrompt(msgspec.Struct, frozen=True):
    """Ids that a call adds. `num_characters`: text that was tokenised for it. `opened_thinking`: it ends with an open <think>."""

    ids: bytes
    num_characters: int
    opened_thinking: bool


class PromptBuilder:
    """Pure; one per model."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self.turn_end_id, self._turn_end = _find_turn_end(tokenizer)
        self.tail_mode = self._choose_mode() if self._turn_end else TailMode.FULL

    def root(self, messages: Sequence[Message], *, tools: list[Any] | None, template_kwargs: Mapping[str, Any]) -> NewPrompt:
        text = self._tokenizer.render(
            [one.for_template for one in messages], tools=tools, add_generation_prompt=True, template_kwargs=template_kwargs
        )
        return self._tokenized(text, b"")

    def child(
        self,
        parent_output: bytes,
        tail: Sequence[Message],
        *,
        history: Sequence[Message] | None,
        tools: list[Any] | None,
        template_kwargs: Mapping[str, Any],
    ) -> NewPrompt | None:
        """Ids that follow the parent's output. None: the template cannot be aligned, make a root.

        Args:
            history: the messages before `tail`, the last one being the parent's answer; needed when `needs_history`.
            tools: needed when `needs_tools`.
        """
        shown = [one.for_template for one in tail]
        if self.tail_mode is TailMode.FULL:
            assert history is not None
            before = [one.for_template for one in history]
            text = self._tail_text(before, shown, tools=tools, template_kwargs=template_kwargs)
        else:
            with_tools = tools if self.tail_mode is TailMode.DUMMY_BASE_WITH_TOOLS else None
            text = self._tail_text(_dummy_base(shown), shown, tools=with_tools, template_kwargs=template_kwargs)
        if text is None:
            return None
        # Cut by length, by a stop string or by another end token: the template's own end of a turn is missing.
        ended = array("i", parent_output[-4:])
        return self._tokenized(text, b"" if ended and ended[0] == self.turn_end_id else array("i", [self.turn_end_id]).tobytes())

    @property
    def needs_history(self) -> bool:
        return self.tail_mode is TailMode.FULL

    @property
    def needs_tools(self) -> bool:
        return self.tail_mode is not TailMode.DUMMY_BASE

    def opened_thinking(self, new_prompt_ids: bytes) -> bool:
        """Whether a recorded prompt ended with an open <think>."""
        ids = array("i", new_prompt_ids[-4 * 16 :])
        return self._tokenizer.decode(ids).rstrip().endswith(_THINK)

    def _tokenized(self, text: str, before: bytes) -> NewPrompt:
        return NewPrompt(before + self._tokenizer.encode_packed(text), len(text), text.rstrip().endswith(_THINK))

    def _tail_text(
        self, before: Sequence[Rendered], tail: Sequence[Rendered], *, tools: list[Any] | None, template_kwargs: Mapping[str, Any]
    ) -> str | None:
        """What follows the end token of the last message of `before`."""
        if not self._turn_end:
            return None
        marked = [*before[:-1], {**before[-1], "content": _MARK}, *tail]
        try:
            text = self._tokenizer.render(marked, tools=tools, add_generation_prompt=True, template_kwargs=template_kwargs)
        except TemplateRefusal:
            if self.tail_mode is TailMode.FULL:
                raise
            return None
        at = text.rfind(_MARK)
        end = text.find(self._turn_end, at) if at >= 0 else -1
        return text[end + len(self._turn_end) :] if end >= 0 else None

    def _choose_mode(self) -> TailMode:
        self.tail_mode = TailMode.DUMMY_BASE
        for mode in (TailMode.DUMMY_BASE, TailMode.DUMMY_BASE_WITH_TOOLS):
            if all(self._agrees(mode, *sample) for sample in _samples()):
                return mode
        return TailMode.FULL

    def _agrees(self, mode: TailMode, before: list[Rendered], tail: list[Rendered], tools: list[Any] | None) -> bool:
        for kwargs in ({}, {"enable_thinking": False}):
            whole = self._tail_text(before, tail, tools=tools, template_kwargs=kwargs)
            with_tools = tools if mode is TailMode.DUMMY_BASE_WITH_TOOLS else None
            if whole is None:  # the template takes no such conversation at all
                continue
            if whole != self._tail_text(_dummy_base(tail), tail, tools=with_tools, template_kwargs=kwargs):
                return False
        return True


def _dummy_base(tail: Sequence[Rendered]) -> list[Rendered]:
    """A conversation that `tail` may follow: with the calls that leading tool results answer, since some templates look for them."""
    answer: dict[str, Any] = {"role": "assistant", "content": _MARK}
    calls = []
    for message in tail:
        if message["role"] != "tool":
            break
        calls.append(_sample_call(message.get("tool_call_id", "call_0"), message.get("name", "tool")))
    return [{"role": "user", "content": "question"}, {**answer, "tool_calls": calls} if calls else answer]


def _find_turn_end(tokenizer: ChatTokenizer) -> tuple[int, str]:
    """The end token that the template writes after an answer; empty text: it writes none, so no prompt can be extended."""
    text = tokenizer.render(
        [*_user("question"), {"role": "assistant", "content": _MARK}, *_user("next")],
        tools=None,
        add_generation_prompt=True,
        template_kwargs={},
    )
    at = text.rfind(_MARK)
    if at < 0:
        raise ConfigError("The chat template does not show the content of assistant messages", param="model")
    after = text[at + len(_MARK) :]
    ends = [(token, shown) for token in tokenizer.eos_ids if (shown := tokenizer.decode([token])) and shown in after]
    ends = [(token, shown) for token, shown in ends if tokenizer.encode(shown) == [token]]
    return min(ends, key=lambda one: after.index(one[1]), default=(tokenizer.eos_ids[0], ""))


def _user(text: str) -> list[Rendered]:
    return [{"role": "user", "content": text}]


def _sample_call(call_id: str, name: str) -> Rendered:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": {"city": "Oslo"}}}


def _samples() -> list[tuple[list[Rendered], list[Rendered], list[Any] | None]]:
    """Conversations up to an answer, what follows it, tools: the shapes that agents produce."""
    system: list[Rendered] = [{"role": "system", "content": "Be short."}]
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "weather", "description": "Weather", "parameters": parameters}}]
    answer: Rendered = {"role": "assistant", "content": "answer"}
    calling: Rendered = {**answer, "tool_calls": [_sample_call("call_1", "weather"), _sample_call("call_2", "weather")]}
    results: list[Rendered] = [
        {"role": "tool", "tool_call_id": "call_1", "name": "weather", "content": "rain"},
        {"role": "tool", "tool_call_id": "call_2", "name": "weather", "content": "sun"},
    ]
    first, second = [*_user("one"), answer], [*_user("one"), answer, *_user("two"), answer]
    plain_tails: list[list[Rendered]] = [
        _user("next"),
        [*_user("next"), answer, *_user("more")],
        [{"role": "system", "content": "Now."}, *_user("x")],
    ]
    cases: list[tuple[list[Rendered], list[Rendered], list[Any] | None]] = []
    for head in ([], system):
        for before in (first, second):
            cases.extend(([*head, *before], tail, with_tools) for tail in plain_tails for with_tools in (None, tools))
        called = [*head, *_user("one"), calling]
        again = [*head, *_user("one"), calling, *results, answer, *_user("two"), calling]
        cases.extend((before, results, tools) for before in (called, again))
        cases.append((called, [*results, *_user("and now?")], tools))
    return cases

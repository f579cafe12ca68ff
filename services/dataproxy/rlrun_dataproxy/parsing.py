"""Model text -> content, reasoning and tool calls, piece by piece (the Qwen and Hermes form).

    <think>reasoning</think>content<tool_call>{"name": ..., "arguments": {...}}</tool_call>

Nothing that may still become a tag is given out, so any cut of the text gives the same result. Rules:
- `<think>` counts only before any other text, or when the prompt already opened it; what is inside is never a tool call.
- A call that is not valid JSON with a name is content, markup included.
- White space round reasoning and calls belongs to the markup; content without them is kept to the byte.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

import msgspec

THINK, END_THINK = "<think>", "</think>"
CALL, END_CALL = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class ParsedCall:
    name: str
    arguments: str
    """JSON text of an object, as the model wrote it."""


@dataclass(slots=True)
class Parsed:
    """What a piece of text added."""

    content: str = ""
    reasoning: str = ""
    calls: list[ParsedCall] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)


class _State(Enum):
    START = auto()
    THINKING = auto()
    TEXT = auto()
    CALLING = auto()


class OutputParser:
    """Feed text, then `finish`. Each gives only what is new."""

    def __init__(self, *, opened_thinking: bool, parse_calls: bool, parse_reasoning: bool = True) -> None:
        opened_thinking = opened_thinking and parse_reasoning
        self._state = _State.THINKING if opened_thinking else _State.START if parse_reasoning else _State.TEXT
        self._parse_calls = parse_calls
        self._pending = ""
        self._body: list[str] = []
        self._space = ""
        # What stood before the call that is being read: content again if the call turns out to be none.
        self._call_space = ""
        # White space right after markup is dropped: at the start of the reasoning, after it, after a call.
        self._skip_space = opened_thinking

    @property
    def thinking(self) -> bool:
        return self._state is _State.THINKING

    def feed(self, text: str) -> Parsed:
        self._pending += text
        out = Parsed()
        while self._step(out):
            pass
        return out

    def finish(self) -> Parsed:
        """What was held back. An unclosed call counts if its JSON is complete."""
        out = Parsed()
        rest, self._pending = self._pending, ""
        match self._state:
            case _State.THINKING:
                self._reason(out, rest)
            case _State.CALLING:
                self._body.append(rest)
                self._end_call(out, closed=False)
            case _:
                self._text(out, rest)
        if self._state in (_State.START, _State.TEXT):
            out.content += self._space
        self._space = ""
        return out

    def _step(self, out: Parsed) -> bool:
        """Takes one tag, or as much text as can be told apart from one; False when more input is needed."""
        match self._state:
            case _State.START:
                return self._start()
            case _State.THINKING:
                before, found = self._until(END_THINK)
                self._reason(out, before)
                if found:
                    self._enter(_State.TEXT, skip_space=True)
                return found
            case _State.TEXT:
                if not self._parse_calls:
                    before, self._pending = self._pending, ""
                    self._text(out, before)
                    return False
                before, found = self._until(CALL)
                self._text(out, before)
                if found:
                    self._call_space, self._space = self._space, ""
                    self._state = _State.CALLING
                return found
            case _State.CALLING:
                before, found = self._until(END_CALL)
                self._body.append(before)
                if found:
                    self._end_call(out, closed=True)
                return found

    def _start(self) -> bool:
        text = self._pending.lstrip()
        if text.startswith(THINK):
            self._pending = text[len(THINK) :]
            self._enter(_State.THINKING, skip_space=True)
            return True
        if THINK.startswith(text):  # also when it is empty
            return False
        self._state = _State.TEXT
        return True

    def _until(self, tag: str) -> tuple[str, bool]:
        """Pending text before `tag`; without the tag all but an end that may begin it."""
        text = self._pending
        at = text.find(tag)
        if at >= 0:
            self._pending = text[at + len(tag) :]
            return text[:at], True
        keep = next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n])), 0)
        self._pending = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def _enter(self, state: _State, *, skip_space: bool) -> None:
        self._state, self._space, self._skip_space = state, "", skip_space

    def _reason(self, out: Parsed, text: str) -> None:
        out.reasoning += self._without_outer_space(text)

    def _text(self, out: Parsed, text: str) -> None:
        out.content += self._without_outer_space(text)

    def _without_outer_space(self, text: str) -> str:
        """Drops white space after markup; holds back white space that may turn out to be before markup."""
        if self._skip_space:
            text = text.lstrip()
            if not text:
                return ""
            self._skip_space = False
        text = self._space + text
        kept = text.rstrip()
        self._space = text[len(kept) :]
        return kept

    def _end_call(self, out: Parsed, *, closed: bool) -> None:
        body = "".join(self._body)
        self._body.clear()
        call = _parse_call(body)
        if call is not None:
            out.calls.append(call)
            self._enter(_State.TEXT, skip_space=True)
            return
        self._state, self._space = _State.TEXT, self._call_space
        self._text(out, CALL + body + (END_CALL if closed else ""))


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"")
    parameters: msgspec.Raw = msgspec.Raw(b"")


_call_decoder = msgspec.json.Decoder(_Call)


def _parse_call(body: str) -> ParsedCall | None:
    try:
        call = _call_decoder.decode(body.strip().encode())
        raw = bytes(call.arguments) or bytes(call.parameters) or b"{}"
        value = msgspec.json.decode(raw)
        if isinstance(value, str):  # arguments as JSON text inside JSON
            raw = value.encode()
            value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None
    if value is None:
        raw, value = b"{}", {}
    return ParsedCall(call.name, raw.decode()) if call.name and isinstance(value, dict) else None

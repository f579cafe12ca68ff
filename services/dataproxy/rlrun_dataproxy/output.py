"""What an engine gives -> what a client sees and what the record keeps. Pure; one reader per call."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec

from rlrun.errors import Internal
from rlrun.ids import new_tool_call_id
from rlrun.proto import common_pb2, inference_pb2, session_pb2
from rlrun_dataproxy.detokenize import Detokenizer, StopStrings
from rlrun_dataproxy.parsing import END_THINK, OutputParser, Parsed

_ITEM_BYTES = 4  # int32 and float32


class ReadingRules(msgspec.Struct, frozen=True, kw_only=True):
    """How a call's output is to be read.

    `end_ids`: tokens that are no text at the end of an output. `num_top_logprobs` counts only with `with_logprobs`.
    """

    vocabulary: Sequence[bytes]
    end_ids: frozenset[int]
    stop: tuple[str, ...]
    opened_thinking: bool
    parse_calls: bool
    parse_reasoning: bool = True
    with_logprobs: bool = False


class OutputReader:
    """Collects the pieces of one output. With `streams`, `feed` and `finish` give what a stream shows next."""

    def __init__(self, rules: ReadingRules, *, streams: bool) -> None:
        self._rules = rules
        self._streams = streams
        self._detokenizer = Detokenizer(rules.vocabulary, end_ids=rules.end_ids)
        self._stops = StopStrings(rules.stop)
        self._parser = OutputParser(
            opened_thinking=rules.opened_thinking, parse_calls=rules.parse_calls, parse_reasoning=rules.parse_reasoning
        )
        self._ids = bytearray()
        self._logprobs = bytearray()
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._num_shown = 0
        self._k = 0
        self._top_ids = bytearray()
        self._top_logprobs = bytearray()
        self.tool_calls: list[session_pb2.ToolCall] = []
        self.versions: list[common_pb2.VersionSpan] = []
        self.cached_tokens = 0

    @property
    def output_ids(self) -> bytes:
        return bytes(self._ids)

    @property
    def output_logprobs(self) -> bytes:
        return bytes(self._logprobs)

    @property
    def num_tokens(self) -> int:
        return len(self._ids) // _ITEM_BYTES

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    @property
    def ended(self) -> bool:
        """Whether the output so far ends as a complete answer does, should the engine be lost now."""
        return self._detokenizer.num_held > 0 or self._stops.matched is not None

    def feed(self, piece: inference_pb2.InferResponse) -> session_pb2.GenerateDelta | None:
        """Raises `Internal` if the engine's arrays do not have one length."""
        self._keep(piece)
        text = self._stops.feed(self._detokenizer.feed(array("i", piece.output_ids)))
        return self._take(self._parser.feed(text))

    def finish(self) -> session_pb2.GenerateDelta | None:
        text = self._stops.feed(self._detokenizer.finish())
        first = self._parser.feed(text + self._stops.finish())
        last = self._parser.finish()
        return self._take(Parsed(first.content + last.content, first.reasoning + last.reasoning, first.calls + last.calls))

    def num_reasoning_tokens(self) -> int:
        """Tokens up to the end of the reasoning, tags included."""
        if not self.reasoning:
            return 0
        end, seen = END_THINK.encode(), b""
        for count, token in enumerate(array("i", bytes(self._ids)), start=1):
            seen = seen[-len(end) :] + self._detokenizer.token_bytes(token)
            if end in seen:
                return count
        return self.num_tokens - self._detokenizer.num_held

    def token_logprobs(self) -> session_pb2.TokenLogprobs | None:
        """Of the whole output without its end tokens."""
        return self._shown(0, self._num_shown) if self._rules.with_logprobs else None

    def _keep(self, piece: inference_pb2.InferResponse) -> None:
        num_ids, num_logprobs = len(piece.output_ids) // _ITEM_BYTES, len(piece.logprobs) // _ITEM_BYTES
        num_versions = sum(span.num_tokens for span in piece.versions)
        if not num_ids == num_logprobs == num_versions:
            raise Internal(f"The engine gave {num_ids} ids, {num_logprobs} logprobs and {num_versions} versions in one piece")
        self._ids += piece.output_ids
        self._logprobs += piece.logprobs
        self.cached_tokens = self.cached_tokens or piece.cached_tokens
        for span in piece.versions:
            if self.versions and self.versions[-1].version == span.version:
                self.versions[-1].num_tokens += span.num_tokens
            elif span.num_tokens:
                self.versions.append(common_pb2.VersionSpan(num_tokens=span.num_tokens, version=span.version))
        if self._rules.with_logprobs and piece.top_logprobs.k:
            if len(piece.top_logprobs.ids) != len(piece.top_logprobs.logprobs) or (
                len(piece.top_logprobs.ids) != num_ids * piece.top_logprobs.k * _ITEM_BYTES
            ):
                raise Internal("The engine's top logprobs do not have k entries for each token")
            self._k = piece.top_logprobs.k
            self._top_ids += piece.top_logprobs.ids
            self._top_logprobs += piece.top_logprobs.logprobs

    def _take(self, parsed: Parsed) -> session_pb2.GenerateDelta | None:
        """Keeps what was parsed. None: nothing new to show, or nobody who looks."""
        calls = [
            session_pb2.ToolCall(index=index, id=new_tool_call_id(), name=call.name, arguments=call.arguments)
            for index, call in enumerate(parsed.calls, start=len(self.tool_calls))
        ]
        self._content.append(parsed.content)
        self._reasoning.append(parsed.reasoning)
        self.tool_calls += calls
        end = self.num_tokens - self._detokenizer.num_held
        start, self._num_shown = self._num_shown, end
        show_logprobs = self._rules.with_logprobs and end > start
        if not self._streams or not (parsed or show_logprobs):
            return None
        return session_pb2.GenerateDelta(
            content=parsed.content,
            reasoning_content=parsed.reasoning,
            tool_calls=calls,
            logprobs=self._shown(start, end) if show_logprobs else None,
        )

    def _shown(self, start: int, end: int) -> session_pb2.TokenLogprobs:
        cut = slice(start * _ITEM_BYTES, end * _ITEM_BYTES)
        wide = slice(cut.start * self._k, cut.stop * self._k)
        token_bytes = self._detokenizer.token_bytes
        return session_pb2.TokenLogprobs(
            tokens=[token_bytes(token) for token in array("i", bytes(self._ids[cut]))],
            logprobs=bytes(self._logprobs[cut]),
            k=self._k,
            top_tokens=[token_bytes(token) for token in array("i", bytes(self._top_ids[wide]))],
            top_logprobs=bytes(self._top_logprobs[wide]),
        )

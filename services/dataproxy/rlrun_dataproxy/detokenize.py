"""Token ids -> text, piece by piece. Any cut of the ids gives the same text; cost is linear in the number of tokens."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence


class Detokenizer:
    """Holds back bytes that do not yet form a character, and end-of-output tokens until it is known that they end it."""

    def __init__(self, vocabulary: Sequence[bytes], *, end_ids: Collection[int]) -> None:
        self._vocabulary = vocabulary
        self._end_ids = end_ids
        self._held: list[int] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, ids: Sequence[int]) -> str:
        size = len(ids)
        while size and ids[size - 1] in self._end_ids:
            size -= 1
        shown = ids[:size]
        if shown and self._held:  # the engine went on past an end token (ignore_eos)
            shown, self._held = [*self._held, *shown], []
        self._held.extend(ids[size:])
        try:
            pieces = b"".join(map(self._vocabulary.__getitem__, shown))
        except IndexError:  # a row of the model's output layer that the tokenizer has no text for
            pieces = b"".join(map(self.token_bytes, shown))
        return self._decoder.decode(pieces)

    def finish(self) -> str:
        """What was held back; a run of end tokens at the end is no text."""
        return self._decoder.decode(b"", final=True)

    @property
    def num_held(self) -> int:
        """End tokens at the end so far."""
        return len(self._held)

    def token_bytes(self, token: int) -> bytes:
        return self._vocabulary[token] if 0 <= token < len(self._vocabulary) else b""


class StopStrings:
    """Cuts a text before the first of several stop strings; holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        if not self._stops:
            return text
        if self.matched is not None:
            return ""
        text = self._held + text
        found = min(((at, stop) for stop in self._stops if (at := text.find(stop)) >= 0), default=None, key=lambda hit: hit[0])
        if found is not None:
            self._held, self.matched = "", found[1]
            return text[: found[0]]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0

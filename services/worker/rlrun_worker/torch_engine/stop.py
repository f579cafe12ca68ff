"""Stop strings: finds them in the text of the output, across token borders."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class StopMatcher:
    """Feed the tokens of one output in order; `feed` tells which stop string just completed."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stops = tuple(stops)
        self._stream = DecodeStream(skip_special_tokens=False)
        self._tail_size = max(map(len, stops)) - 1
        self._tail = ""

    def feed(self, token_id: int) -> str | None:
        """The stop string that appears first in the text, or None while none does."""
        # The stream holds back bytes of an unfinished character, so text only ever grows.
        piece = self._stream.step(self._tokenizer, token_id)
        if not piece:
            return None
        text = self._tail + piece
        found = [(position, stop) for stop in self._stops if (position := text.find(stop)) >= 0]
        if found:
            return min(found)[1]
        self._tail = text[-self._tail_size :] if self._tail_size else ""
        return None

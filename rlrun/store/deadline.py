"""A deadline that only counts time in which the event loop kept up.

A process under load may take longer for one round of its loop than Redis is given for an answer, and an answer takes a few rounds from the
socket to the caller: a plain time-out would blame Redis for that.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

# The time is counted in this many parts, each of which counts only if the loop was on time at its end.
_NUM_PARTS = 8
# A timer that comes this much late was held back by other work of the process.
_LATE_SECONDS = 0.02
# However late the loop is.
_MAX_STRETCH = 10


class AnswerWithin:
    """`async with AnswerWithin(seconds):` raises TimeoutError when the answer takes longer, time in which the loop was late aside."""

    __slots__ = ("_due", "_end", "_handle", "_loop", "_num_left", "_part_seconds", "_timeout")

    def __init__(self, seconds: float) -> None:
        self._part_seconds = seconds / _NUM_PARTS
        self._num_left = _NUM_PARTS
        self._timeout = asyncio.timeout(None)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self._end = now + _MAX_STRETCH * _NUM_PARTS * self._part_seconds
        self._wait(now)
        await self._timeout.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._handle.cancel()
        await self._timeout.__aexit__(kind, error, trace)

    def _wait(self, now: float) -> None:
        self._due = now + self._part_seconds
        self._handle = self._loop.call_at(self._due, self._end_part)

    def _end_part(self) -> None:
        now = self._loop.time()
        if now - self._due < _LATE_SECONDS:
            self._num_left -= 1
        if self._num_left == 0 or now > self._end:
            self._timeout.reschedule(now)
        else:
            self._wait(now)

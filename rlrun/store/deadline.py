"""A deadline that only counts time in which the event loop ran.

A process under load may hold its loop for longer than Redis is given: then the answer lies in the socket, and a plain time-out
would blame Redis for it.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

# A timer that comes this much late was held back by other work of the process.
_STALL_SECONDS = 0.02


class AnswerWithin:
    """`async with AnswerWithin(seconds):` raises TimeoutError when the answer takes longer, stalls of the loop aside."""

    __slots__ = ("_due", "_handle", "_loop", "_seconds", "_timeout")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timeout = asyncio.timeout(None)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._wait(self._seconds)
        await self._timeout.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._handle.cancel()
        await self._timeout.__aexit__(kind, error, trace)

    def _wait(self, seconds: float) -> None:
        self._due = self._loop.time() + seconds
        self._handle = self._loop.call_at(self._due, self._expire)

    def _expire(self) -> None:
        stalled = self._loop.time() - self._due
        if stalled > _STALL_SECONDS:
            self._wait(min(stalled, self._seconds))
        else:
            self._timeout.reschedule(self._loop.time())

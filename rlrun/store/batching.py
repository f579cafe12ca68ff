"""Sends concurrent calls of one script in one pipeline: while one is in flight, others queue, then all go together."""

from __future__ import annotations

import asyncio
from typing import Any

from rlrun.errors import RlrunError, StoreUnavailable
from rlrun.store.connection import Arg, Connection
from rlrun.store.scripts import Script

MAX_BATCH_CALLS = 128
MAX_BATCH_BYTES = 4 << 20


class BatchedScript:
    """One caller's latency is at most two round trips; the cost of a round trip is shared by all who wait.

    A cancelled caller's call may still take place. Not for use by several event loops at once.
    """

    def __init__(self, connection: Connection, script: Script) -> None:
        self._connection = connection
        self._script = script
        self._waiting: list[tuple[tuple[Arg, ...], int, asyncio.Future[Any]]] = []
        self._leader: asyncio.Task[None] | None = None

    async def call(self, *arguments: Arg, size_bytes: int) -> Any:
        """The script's answer for these arguments. Raises `StoreUnavailable`."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((arguments, size_bytes, answer))
        if self._leader is None:
            self._leader = asyncio.create_task(self._lead(), name=f"batches of {self._script.name}")
        return await answer

    async def close(self) -> None:
        """Waits for what is in flight."""
        if self._leader is not None:
            await self._leader

    async def _lead(self) -> None:
        try:
            while self._waiting:
                await self._send(self._take())
        finally:
            self._leader = None
            # Only if this task itself was cancelled: nobody may wait for ever.
            for _, _, answer in self._waiting:
                _fail(answer, StoreUnavailable("the store was closed"))
            self._waiting.clear()

    def _take(self) -> list[tuple[tuple[Arg, ...], asyncio.Future[Any]]]:
        total_bytes, count = 0, 0
        for _, size_bytes, _ in self._waiting[:MAX_BATCH_CALLS]:
            total_bytes += size_bytes
            if count and total_bytes > MAX_BATCH_BYTES:
                break
            count += 1
        batch = [(arguments, answer) for arguments, _, answer in self._waiting[:count]]
        del self._waiting[:count]
        return batch

    async def _send(self, batch: list[tuple[tuple[Arg, ...], asyncio.Future[Any]]]) -> None:
        try:
            results = await self._connection.run_many(self._script, [arguments for arguments, _ in batch])
        except RlrunError as error:
            for _, answer in batch:
                # One error each: raising one object in many tasks mixes their tracebacks.
                _fail(answer, type(error)(error.message))
            return
        except BaseException as error:
            for _, answer in batch:
                _fail(answer, error if isinstance(error, Exception) else StoreUnavailable("the store was closed"))
            raise
        for (_, answer), result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                _fail(answer, result)
            elif not answer.done():
                answer.set_result(result)


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)

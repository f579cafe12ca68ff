"""A model call under way: several clients may wait for it (a retry joins), and it stops when none is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from rlrun.errors import Internal, RlrunError
from rlrun.proto import session_pb2


class RunningCall:
    """Runs in a task of its own, so that the client that started it may leave while another one waits.

    Deltas are kept for those who join late; an output's length bounds them. Once `committing`, the call runs to its end whoever leaves:
    Redis and memory must agree.
    """

    def __init__(self, *, interaction_id: str, created_unix_seconds: int, request_hash: bytes, idempotency_key: str, streams: bool) -> None:
        self.interaction_id = interaction_id
        self.created_unix_seconds = created_unix_seconds
        self.request_hash = request_hash
        self.idempotency_key = idempotency_key
        self.streams = streams
        self.committing = False
        self.abandoned = False
        self._deltas: list[session_pb2.GenerateDelta] = []
        self._num_waiting = 0
        self._failure: RlrunError | None = None
        self._ready = False
        self._news = asyncio.Event()
        self._finished = asyncio.Event()
        self._task: asyncio.Task[session_pb2.GenerateResponse] | None = None

    def start(self, work: Coroutine[Any, Any, session_pb2.GenerateResponse]) -> asyncio.Task[session_pb2.GenerateResponse]:
        self._task = asyncio.get_running_loop().create_task(work, name=f"call {self.interaction_id}")
        self._task.add_done_callback(self._end)
        return self._task

    def answers(self, request_hash: bytes, idempotency_key: str) -> bool:
        same_key = not idempotency_key or idempotency_key == self.idempotency_key
        return not self.abandoned and same_key and request_hash == self.request_hash

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The caller wants the answer; when the last one leaves, the work is cancelled."""
        self._num_waiting += 1
        try:
            yield
        finally:
            self._num_waiting -= 1
            if self._num_waiting == 0 and not self.committing:
                self._cancel()

    async def response(self) -> session_pb2.GenerateResponse:
        await self._finished.wait()
        return self._result()

    async def ready(self) -> None:
        """Returns when the call has a worker. Raises what made it fail before."""
        while not self._ready and not self._finished.is_set():
            await self._news.wait()
        if self._finished.is_set():
            self._result()

    async def deltas(self) -> AsyncIterator[session_pb2.GenerateDelta]:
        """From the first one on, until the call ends."""
        shown = 0
        while True:
            while shown < len(self._deltas):
                shown += 1
                yield self._deltas[shown - 1]
            if self._finished.is_set():
                return
            await self._news.wait()

    def set_ready(self) -> None:
        self._ready = True
        self._tell()

    def publish(self, delta: session_pb2.GenerateDelta) -> None:
        self._deltas.append(delta)
        self._tell()

    def abort(self, failure: RlrunError) -> None:
        """Stops the work; those who wait get `failure`."""
        if not self.committing:
            self._failure = self._failure or failure
            self._cancel()

    def _cancel(self) -> None:
        self.abandoned = True
        if self._task is not None:
            self._task.cancel()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _end(self, task: asyncio.Task[session_pb2.GenerateResponse]) -> None:
        if not task.cancelled():
            task.exception()  # seen here, so that a failure nobody waits for is not reported by the loop
        self._finished.set()
        self._tell()

    def _result(self) -> session_pb2.GenerateResponse:
        assert self._task is not None
        if self._task.cancelled():
            raise self._failure or Internal(f"The call {self.interaction_id} was cancelled")
        return self._task.result()

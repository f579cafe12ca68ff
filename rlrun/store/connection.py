"""The one place that talks to Redis: pool, deadlines, scripts, and the translation of its errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlsplit

from redis import asyncio as aioredis
from redis import exceptions as faults
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from rlrun.errors import ConfigError, Internal, StoreUnavailable
from rlrun.store.deadline import AnswerWithin
from rlrun.store.keys import Keys
from rlrun.store.scripts import Script

Arg = str | bytes | int | float

_UNAVAILABLE_REPLIES = ("MISCONF", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY ")


class NoGroup(Exception):
    """The stream has no consumer group yet. Seen by `trajectories.py` only."""


def _meaning(error: Exception, where: str) -> Exception:
    """What an error of the client or an error reply means; other errors come back as they are."""
    text = str(error) or type(error).__name__
    match error:
        case faults.AuthenticationError():
            return StoreUnavailable(f"{where} refused the credentials in RLRUN_REDIS_URL: {text}")
        case faults.ReadOnlyError() | faults.OutOfMemoryError():
            return StoreUnavailable(f"{where} cannot write now: {text}")
        case faults.ConnectionError() | faults.TimeoutError() | OSError():
            return StoreUnavailable(f"{where} did not answer in time: {text}")
        case faults.ResponseError() if text.startswith("NOGROUP"):
            return NoGroup(text)
        case faults.ResponseError() if text.startswith(_UNAVAILABLE_REPLIES):
            return StoreUnavailable(f"{where} cannot write now: {text}")
        case faults.RedisError():
            return Internal(f"{where} refused a command: {text}")
        case _:
            return error


@contextmanager
def _translated(where: str) -> Iterator[None]:
    try:
        yield
    except (faults.RedisError, OSError) as error:
        raise _meaning(error, where) from error


class Connection:
    """A pool of connections to one Redis. A round trip that takes longer than `timeout_seconds` raises `StoreUnavailable`.

    No command is repeated by itself: most transitions are not idempotent. A connection that broke while it lay in the pool is
    replaced before it is used, so callers need not reconnect after an outage.
    """

    def __init__(self, url: str, *, run: str, max_connections: int, timeout_seconds: float) -> None:
        self.keys = Keys(run)
        self.timeout_seconds = timeout_seconds
        try:
            pool = aioredis.BlockingConnectionPool.from_url(
                url,
                max_connections=max_connections,
                # AnswerWithin bounds each call as a whole; redis-py's own limits would also count stalls of the event loop.
                timeout=None,
                socket_timeout=None,
                socket_connect_timeout=None,
                retry=Retry(NoBackoff(), 0),
                protocol=2,
            )
        except ValueError as error:
            raise ConfigError(f"RLRUN_REDIS_URL is not a Redis URL: {error}; write redis://HOST:PORT/0", param="RLRUN_REDIS_URL") from error
        parts = urlsplit(url)
        self._where = f"Redis at {parts.hostname or parts.path}:{parts.port or 6379}"
        self._places = asyncio.Semaphore(max_connections)
        self._num_timeouts = 0
        # redis-py leaves its pipelines' methods untyped.
        self._client: Any = aioredis.Redis(connection_pool=pool)

    async def command(self, *arguments: Arg) -> Any:
        """One plain command; bytes back. Raises `StoreUnavailable`."""
        async with self._round_trip():
            return await self._client.execute_command(*arguments)

    async def run(self, script: Script, *arguments: Arg) -> Any:
        """One transition. Raises `StoreUnavailable`."""
        call = ("EVALSHA", script.sha, 1, self.keys.prefix, *arguments)
        async with self._round_trip():
            try:
                return await self._client.execute_command(*call)
            except faults.NoScriptError:
                # Redis was restarted or its scripts were flushed.
                return await self._client.execute_command("EVAL", script.source, 1, self.keys.prefix, *arguments)

    async def run_many(self, script: Script, calls: Sequence[Sequence[Arg]]) -> list[Any]:
        """The same script for several sets of arguments in one round trip; an answer or an exception for each.

        Raises `StoreUnavailable`: then it is unknown which of the calls took place.
        """
        if len(calls) == 1:
            return [await self.run(script, *calls[0])]  # cheaper than a pipeline
        answers = await self._pipeline(script, calls)
        if any(isinstance(answer, faults.NoScriptError) for answer in answers):
            await self.command("SCRIPT", "LOAD", script.source)
            missed = [i for i, answer in enumerate(answers) if isinstance(answer, faults.NoScriptError)]
            for i, answer in zip(missed, await self._pipeline(script, [calls[i] for i in missed]), strict=True):
                answers[i] = answer
        return [_meaning(answer, self._where) if isinstance(answer, Exception) else answer for answer in answers]

    async def _pipeline(self, script: Script, calls: Sequence[Sequence[Arg]]) -> list[Any]:
        async with self._round_trip(), self._client.pipeline(transaction=False) as pipeline:
            for arguments in calls:
                pipeline.execute_command("EVALSHA", script.sha, 1, self.keys.prefix, *arguments)
            answers: list[Any] = await pipeline.execute(raise_on_error=False)
            return answers

    @asynccontextmanager
    async def _round_trip(self) -> AsyncIterator[None]:
        """A place in the pool, then at most `timeout_seconds`.

        Waiting for a place is our own load and bounded by the caller; but who waits while Redis stops answering fails with the others.
        """
        num_timeouts = self._num_timeouts
        async with self._places:
            with _translated(self._where):
                if self._num_timeouts != num_timeouts:
                    raise TimeoutError
                try:
                    async with AnswerWithin(self.timeout_seconds):
                        yield
                except TimeoutError:
                    self._num_timeouts += 1
                    raise

    async def close(self) -> None:
        await self._client.aclose(close_connection_pool=True)

"""The door to Redis: one bounded pool, one object per concern."""

from __future__ import annotations

from typing import Self

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from rlrun.store.capacity import CapacityStore
from rlrun.store.connection import store_errors
from rlrun.store.keys import Keys
from rlrun.store.members import MemberStore
from rlrun.store.policy import PolicyStore
from rlrun.store.scripts import Scripts
from rlrun.store.sessions import SessionStore
from rlrun.store.trajectories import TrajectoryStore


class Store:
    """All state of one run. Make it with `connect`, share it in a process, close it at the end."""

    def __init__(self, redis: Redis, blocking: Redis, *, run: str) -> None:
        keys = Keys(run)
        scripts = Scripts(redis, keys.prefix)
        self._redis = redis
        self._blocking = blocking
        self.sessions = SessionStore(redis, scripts, keys)
        self.members = MemberStore(scripts)
        self.capacity = CapacityStore(redis, keys)
        self.trajectories = TrajectoryStore(blocking, scripts, keys)
        self.policy = PolicyStore(scripts)

    @classmethod
    async def connect(cls, url: str, *, run: str, max_connections: int = 32, timeout_seconds: float = 1.0) -> Self:
        """A pool of at most `max_connections`; a caller waits for a free one at most `timeout_seconds`. Connects on first use."""
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=max_connections,
            timeout=timeout_seconds,
            socket_timeout=timeout_seconds,
            socket_connect_timeout=timeout_seconds,
            retry=Retry(NoBackoff(), 1),
        )
        # Reads that wait for new entries must not look like a Redis that does not answer.
        waiting = BlockingConnectionPool.from_url(
            url, max_connections=4, timeout=timeout_seconds, socket_timeout=timeout_seconds + 10, socket_connect_timeout=timeout_seconds
        )
        return cls(Redis(connection_pool=pool), Redis(connection_pool=waiting), run=run)

    async def ping(self) -> None:
        """Raises: StoreUnavailable."""
        with store_errors():
            await self._redis.ping()

    async def close(self) -> None:
        for client in (self._redis, self._blocking):
            await client.aclose()
            await client.connection_pool.disconnect()

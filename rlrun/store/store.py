"""The door to Redis: one bounded pool, one object per concern."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rlrun.store.capacity import CapacityStore
from rlrun.store.connection import Connection
from rlrun.store.members import MemberStore
from rlrun.store.policy import PolicyStore
from rlrun.store.sessions import SessionStore
from rlrun.store.trajectories import TrajectoryStore

DEFAULT_MAX_CONNECTIONS = 32
DEFAULT_TIMEOUT_SECONDS = 5.0


class Store:
    """All state of one run. Make it with `connect`, share it within one event loop, close it at the end.

    A Redis that does not answer in time raises `StoreUnavailable`; once it answers again, calls work again.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.sessions = SessionStore(connection)
        self.members = MemberStore(connection)
        self.capacity = CapacityStore(connection)
        self.trajectories = TrajectoryStore(connection)
        self.policy = PolicyStore(connection)

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        run: str,
        max_connections: int = DEFAULT_MAX_CONNECTIONS,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> Self:
        """A pool of at most `max_connections`, filled on use. `timeout_seconds` bounds each round trip,
        the wait for a free connection aside.

        Raises `ConfigError` for an impossible URL, `InvalidRequest` for a run name with braces.
        """
        return cls(Connection(url, run=run, max_connections=max_connections, timeout_seconds=timeout_seconds))

    async def ping(self) -> None:
        """Raises: StoreUnavailable."""
        await self._connection.command("PING")

    async def close(self) -> None:
        """Waits for records in flight, then closes the connections."""
        await self.sessions.close()
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

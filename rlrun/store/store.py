"""The store of one run: connect once per process and event loop, then use its parts."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rlrun.store import scripts
from rlrun.store.capacity import Capacities
from rlrun.store.connection import Connection
from rlrun.store.members import Members
from rlrun.store.policy import Policy
from rlrun.store.sessions import Sessions
from rlrun.store.trajectories import Trajectories

DEFAULT_MAX_CONNECTIONS = 32
DEFAULT_TIMEOUT_SECONDS = 5.0


class Store:
    """All state of a run. A Redis that does not answer in time raises `StoreUnavailable`; once it answers again, calls work again."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.sessions = Sessions(connection)
        self.members = Members(connection)
        self.capacity = Capacities(connection)
        self.trajectories = Trajectories(connection)
        self.policy = Policy(connection)

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        run: str,
        max_connections: int = DEFAULT_MAX_CONNECTIONS,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> Self:
        """Connects to `redis://`, `rediss://` or `unix://` and loads the scripts.

        A call that finds all `max_connections` busy waits for one; `timeout_seconds` bounds each call, that wait included.
        Raises `StoreUnavailable`; `ConfigError` for an impossible URL; `InvalidRequest` for a run name with braces.
        """
        connection = Connection(url, run=run, max_connections=max_connections, timeout_seconds=timeout_seconds)
        try:
            for name in scripts.names():
                await connection.command("SCRIPT", "LOAD", scripts.load(name).source)
        except BaseException:
            await connection.close()
            raise
        return cls(connection)

    async def ping(self) -> None:
        """Raises `StoreUnavailable`."""
        await self._connection.command("PING")

    async def close(self) -> None:
        """Waits for records in flight, then closes the connections."""
        await self.sessions.close()
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

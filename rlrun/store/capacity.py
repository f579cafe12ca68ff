"""The counters that admission looks at. The formula is `Capacity.left`; `lua/place.lua` applies the same one where it admits."""

from __future__ import annotations

from rlrun.errors import InvalidRequest
from rlrun.store.connection import Connection
from rlrun.store.types import Capacity


class CapacityStore:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def grant(self, *, amount: int) -> int:
        """Raises the granted capacity; returns what is left of all grants."""
        if amount < 1:
            raise InvalidRequest(f"amount is {amount}; grant at least 1", param="amount")
        return int(await self._connection.command("HINCRBY", self._connection.keys.capacity, "granted", amount))

    async def get(self) -> Capacity:
        found = await self._connection.command("HMGET", self._connection.keys.capacity, "running", "accepted", "granted", "step")
        running, accepted, granted, step = (int(value or 0) for value in found)
        return Capacity(running=running, accepted=accepted, granted=granted, step=step)

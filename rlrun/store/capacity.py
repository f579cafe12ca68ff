"""The counters that admission looks at."""

from __future__ import annotations

from redis.asyncio import Redis

from rlrun.errors import InvalidRequest
from rlrun.store.connection import store_errors
from rlrun.store.keys import Keys
from rlrun.store.types import Capacity


class CapacityStore:
    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    async def grant(self, *, amount: int) -> int:
        """Raises the granted capacity; returns what is left of all grants."""
        if amount < 1:
            raise InvalidRequest(f"amount is {amount}; grant at least 1", param="amount")
        with store_errors():
            return int(await self._redis.hincrby(self._keys.capacity, "granted", amount))

    async def get(self) -> Capacity:
        with store_errors():
            running, accepted, granted, step = await self._redis.hmget(self._keys.capacity, ["running", "accepted", "granted", "step"])
        return Capacity(running=int(running or 0), accepted=int(accepted or 0), granted=int(granted or 0), step=int(step or 0))

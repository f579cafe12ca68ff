"""The stream of finished sessions: read at least once, committed exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from rlrun.store.connection import store_errors
from rlrun.store.keys import TRAINER_GROUP, Keys
from rlrun.store.scripts import Scripts
from rlrun.store.types import GroupInfo, TrajectoryRef


class TrajectoryStore:
    def __init__(self, redis: Redis, scripts: Scripts, keys: Keys) -> None:
        self._redis = redis
        self._scripts = scripts
        self._keys = keys
        # Where the walk over what an earlier process took and never committed stands.
        self._pending_after = "0"

    async def read(self, *, consumer: str, count: int, block_seconds: float, pending: bool) -> list[TrajectoryRef]:
        """Takes entries for `consumer`: what it took before and never committed (`pending`), or what nobody has taken yet.

        `pending` walks forward over repeated calls and ends with an empty list.
        """
        with store_errors():
            position = self._pending_after if pending else ">"
            answer = await self._read_group(consumer, position, count, block_seconds)
        refs = [
            TrajectoryRef(
                stream_id=entry.decode(),
                session_id=fields[b"session"].decode(),
                group_id=fields[b"group"].decode(),
                group_size=int(fields[b"group_size"]),
            )
            for entry, fields in answer
            if fields
        ]
        if pending:
            self._pending_after = answer[-1][0].decode() if answer else "0"
        return refs

    async def group(self, group_id: str) -> GroupInfo | None:
        with store_errors():
            size, queued, closed = await self._redis.hmget(self._keys.group(group_id), ["size", "queued", "closed"])
        return None if size is None else GroupInfo(size=int(size), queued=int(queued or 0), closed=int(closed or 0))

    async def discard(self, ref: TrajectoryRef, reason: str) -> bool:
        """Drops a queued trajectory; False if it was not queued any more."""
        with store_errors():
            return bool(await self._scripts.run("trajectories_discard", ref.stream_id, ref.session_id, reason))

    async def commit(self, refs: Sequence[TrajectoryRef], *, step: int, batch_size: int) -> int:
        """The checkpoint that contains `refs` is in place: acknowledges and deletes them, marks their sessions TRAINED.

        Repeated, it changes nothing. Returns how many sessions changed. `batch_size` keeps the staleness budget exact
        when a step took more sessions than that.
        """
        pairs = [part for ref in refs for part in (ref.stream_id, ref.session_id)]
        with store_errors():
            return int(await self._scripts.run("trajectories_commit", step, batch_size, *pairs))

    async def _read_group(self, consumer: str, position: str, count: int, block_seconds: float) -> list[Any]:
        """The stream and its group are made on first use."""
        arguments: dict[str, Any] = {"count": count}
        if position == ">":
            arguments["block"] = max(1, int(block_seconds * 1000))
        for _ in range(2):
            try:
                answer = await self._redis.xreadgroup(TRAINER_GROUP, consumer, {self._keys.trajectories: position}, **arguments)
            except ResponseError as error:
                if not str(error).startswith("NOGROUP"):
                    raise
                await self._redis.xgroup_create(self._keys.trajectories, TRAINER_GROUP, id="0", mkstream=True)
            else:
                return list(answer[0][1]) if answer else []
        return []

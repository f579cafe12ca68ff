"""The stream of ended sessions: read at least once, committed exactly once.

An entry stays in the stream, and pending, until `commit` or `discard` removes it; the stream is never trimmed. A consumer
that died, or whose `read` was cancelled, finds what it had taken with `pending=True`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from rlrun.store.connection import Connection, NoGroup
from rlrun.store.keys import TRAINER_GROUP
from rlrun.store.replies import fields
from rlrun.store.scripts import load_script
from rlrun.store.types import GroupInfo, TrajectoryRef

_OPEN = load_script("trajectories_open")
_DISCARD = load_script("trajectories_discard")
_COMMIT = load_script("trajectories_commit")

_FIRST = "0-0"

# As the client hands over one entry of a stream.
Entry = tuple[bytes, dict[bytes, bytes]]


class TrajectoryStore:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # Where the walk over what was taken and never committed stands.
        self._pending_from = _FIRST

    async def read(self, *, consumer: str, count: int, block_seconds: float, pending: bool) -> list[TrajectoryRef]:
        """Takes up to `count` entries, in the order in which they were queued.

        `pending`: what this or any earlier consumer took and never committed; repeated calls walk forward and end with an
        empty list. Else what nobody has taken yet, waiting up to `block_seconds` for the first. One consumer may live at a time.
        """
        if pending:
            return await self._read_pending(consumer, count)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + block_seconds
        while True:
            # One wait must end well before the connection's own time-out does.
            block_ms = int(min(deadline - loop.time(), self._connection.timeout_seconds / 2) * 1000)
            if entries := await self._read_new(consumer, count, block_ms):
                return [_ref(entry) for entry in entries]
            if block_ms <= 0:
                return []

    async def group(self, group_id: str) -> GroupInfo | None:
        """None: no session of this group exists (any more)."""
        key = self._connection.keys.group(group_id)
        size, placed, queued, closed = await self._connection.command("HMGET", key, "size", "placed", "queued", "closed")
        return None if size is None else GroupInfo(size=int(size), placed=int(placed), queued=int(queued or 0), closed=int(closed or 0))

    async def discard(self, ref: TrajectoryRef, reason: str) -> bool:
        """Drops a queued trajectory for good; False if it was not queued any more."""
        return bool(await self._connection.run(_DISCARD, ref.stream_id, ref.session_id, reason))

    async def commit(self, refs: Sequence[TrajectoryRef], *, step: int, batch_size: int) -> int:
        """The checkpoint that contains `refs` is in place: acknowledges and deletes them, marks their sessions TRAINED.

        Repeated, it changes nothing. Returns how many sessions changed. `batch_size` keeps the staleness budget exact
        when a step took more sessions than that.
        """
        pairs = [part for ref in refs for part in (ref.stream_id, ref.session_id)]
        return int(await self._connection.run(_COMMIT, step, batch_size, *pairs))

    async def _read_new(self, consumer: str, count: int, block_ms: int) -> list[Entry]:
        wait = ("BLOCK", block_ms) if block_ms > 0 else ()
        stream = self._connection.keys.trajectories
        answer = await self._in_group("XREADGROUP", "GROUP", TRAINER_GROUP, consumer, "COUNT", count, *wait, "STREAMS", stream, ">")
        return list(answer[0][1]) if answer else []

    async def _read_pending(self, consumer: str, count: int) -> list[TrajectoryRef]:
        stream = self._connection.keys.trajectories
        answer = await self._in_group("XAUTOCLAIM", stream, TRAINER_GROUP, consumer, 0, self._pending_from, "COUNT", count)
        refs = [_ref(entry) for entry in answer[1]]
        self._pending_from = _after(refs[-1].stream_id) if refs else _FIRST
        return refs

    async def _in_group(self, *command: str | int) -> Any:
        """Runs a command that needs the consumer group; makes the group where it does not exist."""
        try:
            return await self._connection.command(*command)
        except NoGroup:
            await self._connection.run(_OPEN)
            return await self._connection.command(*command)


def _ref(entry: Entry) -> TrajectoryRef:
    stream_id = entry[0].decode()
    found = fields(entry[1], what=f"trajectory {stream_id}")
    return TrajectoryRef(stream_id=stream_id, session_id=found["session"], group_id=found["group"], group_size=int(found["group_size"]))


def _after(stream_id: str) -> str:
    milliseconds, _, sequence = stream_id.partition("-")
    return f"{milliseconds}-{int(sequence) + 1}"

"""Ended sessions on their way into the weights: a stream that is read at least once and committed exactly once.

An entry stays in the stream, and pending, until `commit` or `discard` removes it; the stream is never trimmed. A consumer
that dies, or whose `read` is cancelled, finds what it had taken with `pending=True`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from redis import exceptions as faults

from rlrun.store import replies, scripts
from rlrun.store.connection import Connection
from rlrun.store.keys import TRAINER_GROUP

_DISCARD = scripts.load("trajectories_discard")
_COMMIT = scripts.load("trajectories_commit")

# As the client hands over one entry of a stream.
Entry = tuple[bytes, dict[bytes, bytes]]

_FIRST = "0-0"


@dataclass(frozen=True, kw_only=True)
class TrajectoryRef:
    """One entry of the stream."""

    stream_id: str
    session_id: str
    group_id: str
    group_size: int


@dataclass(frozen=True, kw_only=True)
class GroupInfo:
    """`size`: members that the group shall have; `queued`: those the trainer gets; `closed`: those that ended, trained or not."""

    size: int
    queued: int
    closed: int


class Trajectories:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # Where the next pending read of a consumer starts.
        self._pending_from: dict[str, str] = {}

    async def read(self, consumer: str, count: int, block_seconds: float, pending: bool) -> list[TrajectoryRef]:
        """Takes up to `count` entries, in the order in which they were queued.

        `pending`: entries that any consumer of the group took and never committed; further calls continue where the last one
        ended and an empty answer means all were seen (the next call starts over). Otherwise: new entries, waiting up to
        `block_seconds` for the first one. There must be one live consumer.
        """
        if pending:
            return await self._read_pending(consumer, count)
        deadline = asyncio.get_running_loop().time() + block_seconds
        while True:
            left_seconds = deadline - asyncio.get_running_loop().time()
            # One wait must end before the connection's own time-out does.
            block_ms = int(min(left_seconds, self._connection.timeout_seconds / 2) * 1000)
            wait = ("BLOCK", block_ms) if block_ms > 0 else ()
            stream = self._connection.keys.trajectories
            found = await self._in_group("XREADGROUP", "GROUP", TRAINER_GROUP, consumer, "COUNT", count, *wait, "STREAMS", stream, ">")
            if found:
                return [_ref(entry) for _, entries in found for entry in entries]
            if block_ms <= 0:
                return []

    async def group(self, group_id: str) -> GroupInfo | None:
        """None: no session of this group exists (any more)."""
        found = await self._connection.command("HMGET", self._connection.keys.group(group_id), "size", "queued", "closed")
        if found[0] is None:
            return None
        size, queued, closed = (int(value or 0) for value in found)
        return GroupInfo(size=size, queued=queued, closed=closed)

    async def discard(self, ref: TrajectoryRef, reason: str) -> bool:
        """Takes a trajectory out of training for good (`stale`, `empty`, ...). False: it had left the stream before."""
        return bool(await self._connection.run(_DISCARD, ref.stream_id, ref.session_id, reason))

    async def commit(self, refs: Iterable[TrajectoryRef], step: int) -> int:
        """The checkpoint of `step` that contains `refs` is in place: they leave the stream, their sessions are TRAINED.

        All in one script. Returns how many were not committed before; may be repeated. `capacity.step` never falls.
        """
        pairs = [part for ref in refs for part in (ref.stream_id, ref.session_id)]
        return int(await self._connection.run(_COMMIT, step, *pairs))

    async def _read_pending(self, consumer: str, count: int) -> list[TrajectoryRef]:
        start = self._pending_from.pop(consumer, _FIRST)
        stream = self._connection.keys.trajectories
        answer = await self._in_group("XAUTOCLAIM", stream, TRAINER_GROUP, consumer, 0, start, "COUNT", count)
        refs = [_ref(entry) for entry in answer[1] if entry is not None and entry[1] is not None]
        if refs:
            milliseconds, _, sequence = refs[-1].stream_id.partition("-")
            self._pending_from[consumer] = f"{milliseconds}-{int(sequence) + 1}"
        return refs

    async def _in_group(self, *command: str | int) -> list[Any]:
        """Runs a command that needs the consumer group; makes the group where it does not exist."""
        try:
            return await self._connection.command(*command) or []
        except faults.ResponseError as error:
            if not str(error).startswith("NOGROUP"):
                raise
        try:
            # From 0: what was queued before the first trainer started is trained too.
            await self._connection.command("XGROUP", "CREATE", self._connection.keys.trajectories, TRAINER_GROUP, "0", "MKSTREAM")
        except faults.ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
        return await self._connection.command(*command) or []


def _ref(entry: Entry) -> TrajectoryRef:
    stream_id = entry[0].decode()
    row = replies.fields([part for pair in entry[1].items() for part in pair], what=f"trajectory {stream_id}")
    return TrajectoryRef(stream_id=stream_id, session_id=row["session"], group_id=row["group"], group_size=int(row["group_size"]))

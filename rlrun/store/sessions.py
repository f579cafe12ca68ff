"""Sessions: admission, ownership, interactions, rewards, end. Each method is one transition of `states.py`, in one script."""

from __future__ import annotations

import math
from typing import Any

from rlrun.errors import InvalidRequest
from rlrun.proto import session_pb2
from rlrun.store.batching import BatchedScript
from rlrun.store.connection import Connection
from rlrun.store.keys import check_id
from rlrun.store.replies import refuse, session_answer, session_info
from rlrun.store.scripts import load_script
from rlrun.store.states import TERMINAL, SessionState
from rlrun.store.types import Admission, SessionData, SessionInfo, SweptSession

_PLACE = load_script("place")
_BY_KEY = load_script("by_key")
_CLAIM = load_script("claim")
_LOAD = load_script("load")
_RECORD = load_script("record")
_SET_REWARD = load_script("set_reward")
_FINISH = load_script("finish")
_DISCARD = load_script("discard")
_MARK_EXPORTED = load_script("mark_exported")
_SWEEP = load_script("sweep")
_LIST = load_script("list_sessions")
_DELETE_OLD = load_script("delete_old")
# Batches are bounded by what they carry; how much a session has is not known before it is read.
_ASSUMED_SESSION_BYTES = 256 << 10
_INFO_BYTES = 512


class SessionStore:
    """`fence` is the number that `place` or `claim` gave; a write with an older one raises `SessionMoved`.

    After a `StoreUnavailable` it is unknown whether the transition took place. Each but `place` may simply be repeated.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._records = BatchedScript(connection, _RECORD)
        self._loads = BatchedScript(connection, _LOAD)
        self._by_key = BatchedScript(connection, _BY_KEY)

    async def close(self) -> None:
        """Waits for what is in flight."""
        for script in (self._records, self._loads, self._by_key):
            await script.close()

    async def place(
        self, *, session_id: str, task_id: str, group_id: str, group_size: int, key_hash: str, owner_id: str, admission: Admission
    ) -> SessionInfo:
        """Admits, binds the key, creates an ACTIVE session with fence 1.

        Raises:
            NoCapacity: admission refused.
            Conflict: the key opens an active session, the id is taken, or the group has another size.
            InvalidRequest: an id is empty or too long.
        """
        answer = await self._connection.run(
            _PLACE,
            check_id(session_id, param="session_id"),
            task_id,
            check_id(group_id, param="group_id"),
            group_size,
            check_id(key_hash, param="key_hash"),
            owner_id,
            str(admission.mode),
            admission.max_concurrent,
            admission.max_staleness,
            admission.batch_size,
        )
        return session_answer(answer, session_id=session_id)

    async def by_key(self, key_hash: str) -> SessionInfo | None:
        """The session that a key (SHA-256, hex) opens, in whatever state it is."""
        answer = await self._by_key.call(key_hash, size_bytes=_INFO_BYTES)
        return None if answer[0] == b"MISSING" else session_answer(answer, session_id="")

    async def get(self, session_id: str) -> SessionInfo | None:
        key = self._connection.keys.session(check_id(session_id, param="session_id"))
        row = await self._connection.command("HGETALL", key)
        return session_info(session_id, row) if row else None

    async def claim(self, session_id: str, owner_id: str) -> SessionInfo:
        """Moves a session whose owner's lease is gone (fence + 1); otherwise returns it unchanged. Raises: NotFound."""
        check_id(session_id, param="session_id")
        return session_answer(await self._connection.run(_CLAIM, session_id, owner_id), session_id=session_id)

    async def record(self, session_id: str, fence: int, record: session_pb2.InteractionRecord, *, rewardless: bool = False) -> None:
        """Writes one interaction; returns when it is durable. Concurrent calls share a round trip.

        Repeated with the same id it replaces the record. `rewardless`: a reward without an id, and the default reward of a
        refresh, go to an earlier interaction.

        Raises: SessionMoved, SessionGone (not ACTIVE), NotFound.
        """
        data = record.SerializeToString()
        interaction_id = check_id(record.id, param="record.id")
        answer = await self._records.call(session_id, fence, interaction_id, data, int(rewardless), size_bytes=len(data))
        if answer != 1:
            refuse(answer, session_id=session_id)

    async def load(self, session_id: str) -> SessionData:
        """All of a session, at one moment. Raises: NotFound."""
        check_id(session_id, param="session_id")
        answer = await self._loads.call(session_id, size_bytes=_ASSUMED_SESSION_BYTES)
        info = session_answer(answer, session_id=session_id)
        values, rewards = answer[3:]
        records = [session_pb2.InteractionRecord.FromString(value) for value in values]
        return SessionData(
            info=info,
            records=sorted(records, key=lambda record: (record.index, record.id)),
            rewards={interaction.decode(): float(reward) for interaction, reward in zip(rewards[::2], rewards[1::2], strict=True)},
        )

    async def set_reward(self, session_id: str, fence: int, interaction_id: str, reward: float, *, queue: bool) -> str:
        """`interaction_id` empty: the last one; returns the id of the one that has the reward now. `queue`: hand a session that has
        ended to the trainer.

        Raises: InvalidRequest, SessionMoved, SessionGone (queued already), NotFound.
        """
        answer = await self._connection.run(_SET_REWARD, session_id, fence, interaction_id, _reward_text(reward), int(queue))
        if answer[0] != b"OK":
            refuse(answer, session_id=session_id)
        return str(answer[1].decode())

    async def finish(self, session_id: str, *, fence: int | None = None, queue: bool, default_reward: float | None) -> SessionInfo:
        """Ends a session: QUEUED with `queue` and a reward, else FINISHED. Repeated, it changes nothing.

        `default_reward` goes to the last interaction of a session without rewards; one without interactions is never queued.
        Without `fence` the caller need not be the owner. Raises: SessionMoved, SessionGone (discarded), NotFound.
        """
        fence_text = "" if fence is None else str(fence)
        reward_text = "" if default_reward is None else _reward_text(default_reward)
        return session_answer(await self._connection.run(_FINISH, session_id, fence_text, int(queue), reward_text), session_id=session_id)

    async def discard(self, session_id: str, reason: str) -> SessionInfo:
        """Drops a session, from the stream too if it was queued; what was trained or exported stays. Raises: NotFound."""
        return session_answer(await self._connection.run(_DISCARD, session_id, reason), session_id=session_id)

    async def mark_exported(self, session_id: str) -> SessionInfo:
        """FINISHED becomes EXPORTED; what the trainer has stays the trainer's. Raises: SessionGone (active or discarded), NotFound."""
        return session_answer(await self._connection.run(_MARK_EXPORTED, session_id), session_id=session_id)

    async def sweep(self, *, idle_seconds: float, finished_seconds: float, limit: int, queue: bool) -> list[SweptSession]:
        """Ends sessions idle for `idle_seconds` and finished ones without a reward for `finished_seconds`, at most `limit`.

        They become DISCARDED with reason `idle_timeout`, `no_reward` or `not_exported`; with `queue`, those that have a reward
        go to the trainer instead.
        """
        answer = await self._connection.run(_SWEEP, idle_seconds, finished_seconds, limit, int(queue))
        return [_swept(row) for row in answer]

    async def list(self, *, state: str | None, limit: int) -> list[SessionInfo]:
        """Newest first; all states when `state` is None. Raises: InvalidRequest for an unknown state."""
        if state is not None and state.upper() not in SessionState.__members__:
            raise InvalidRequest(f"state {state!r} is not one of {', '.join(SessionState)}", param="state")
        found: list[SessionInfo] = []
        for one in list(SessionState) if state is None else [SessionState(state.upper())]:
            found += [session_answer(row, session_id="") for row in await self._connection.run(_LIST, one.value, limit)]
        return sorted(found, key=lambda info: info.updated_unix_seconds, reverse=True)[:limit]

    async def delete_old(self, *, retention_seconds: float, limit: int) -> int:
        """Forgets sessions trained, exported or discarded longer ago, with their keys and groups; returns how many."""
        return int(await self._connection.run(_DELETE_OLD, retention_seconds, limit, *sorted(TERMINAL)))


def _reward_text(reward: float) -> str:
    if not math.isfinite(reward):
        raise InvalidRequest(f"reward is {reward}; it must be a finite number", param="reward")
    return repr(float(reward))


def _swept(row: list[Any]) -> SweptSession:
    session_id, state, reason, key_hash, owner_id = (part.decode() for part in row)
    return SweptSession(session_id=session_id, state=SessionState(state), reason=reason, key_hash=key_hash, owner_id=owner_id)

"""Sessions: admission, ownership, interactions, rewards, end. Each method is one transition of `states.py`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlrun.errors import InvalidRequest, NotFound, SessionGone
from rlrun.proto import session_pb2
from rlrun.store import scripts
from rlrun.store.capacity import Admission
from rlrun.store.connection import Connection
from rlrun.store.group_commit import GroupCommit
from rlrun.store.keys import check_id
from rlrun.store.replies import SessionInfo, refuse, session_answer, session_info
from rlrun.store.states import TERMINAL, SessionState

_PLACE = scripts.load("place")
_BY_KEY = scripts.load("by_key")
_CLAIM = scripts.load("claim")
_RECORD = scripts.load("record")
_SET_REWARD = scripts.load("set_reward")
_FINISH = scripts.load("finish")
_DISCARD = scripts.load("discard")
_MARK_EXPORTED = scripts.load("mark_exported")
_SWEEP = scripts.load("sweep")
_LIST = scripts.load("list_sessions")
_DELETE_OLD = scripts.load("delete_old")


@dataclass(frozen=True, kw_only=True)
class SessionData:
    """All of a session at one moment: `records` in the order of their index, `rewards` by interaction id."""

    info: SessionInfo
    records: tuple[session_pb2.InteractionRecord, ...]
    rewards: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class SweptSession:
    """A session that the sweep ended: DISCARDED with a reason, or QUEUED."""

    session_id: str
    state: SessionState
    reason: str
    key_hash: str
    owner_id: str


class Sessions:
    """Every method may raise `StoreUnavailable`; then it is unknown whether the transition took place, and it may be repeated."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._records = GroupCommit(connection, _RECORD)

    async def close(self) -> None:
        await self._records.close()

    async def place(
        self, session_id: str, task_id: str, group_id: str, group_size: int, key_hash: str, owner_id: str, admission: Admission
    ) -> SessionInfo:
        """Admits, binds the key and creates an ACTIVE session with fence 1. `group_id` may be empty: no group.

        Raises `NoCapacity`; `Conflict` if the id is used, the key opens an active session or the group has another size.
        """
        check_id(session_id, param="session_id")
        answer = await self._connection.run(
            _PLACE,
            session_id,
            task_id,
            group_id,
            group_size,
            check_id(key_hash, param="key_hash"),
            owner_id,
            admission.mode.value,
            admission.max_concurrent,
            admission.max_staleness,
            admission.batch_size,
        )
        return session_answer(answer, session_id=session_id)

    async def by_key(self, key_hash: str) -> SessionInfo | None:
        """The session that the key (SHA-256, hex) opens, in whatever state it is."""
        answer = await self._connection.run(_BY_KEY, key_hash)
        return session_info(answer[1].decode(), answer[2]) if answer[0] == b"OK" else None

    async def get(self, session_id: str) -> SessionInfo | None:
        flat = await self._connection.command("HGETALL", self._connection.keys.session(session_id))
        return session_info(session_id, _flat(flat)) if flat else None

    async def claim(self, session_id: str, owner_id: str) -> SessionInfo:
        """Makes `owner_id` the owner, with a higher fence, if the present owner's lease is gone; else changes nothing.

        Raises `NotFound`.
        """
        return session_answer(await self._connection.run(_CLAIM, session_id, owner_id), session_id=session_id)

    async def record(self, session_id: str, fence: int, record: session_pb2.InteractionRecord, rewardless: bool = False) -> None:
        """Writes one interaction; concurrent calls share a round trip. Repeating a call with the same id replaces the record.

        `rewardless`: a reward without an id, and the default reward of a refresh, go to an earlier interaction.
        Raises `SessionMoved` for a stale fence, `SessionGone` if the session is not ACTIVE.
        """
        if not record.id:
            raise InvalidRequest("an interaction record needs an id", param="record.id")
        data = record.SerializeToString()
        answer = await self._records.call(session_id, fence, record.id, data, int(rewardless), size_bytes=len(data))
        if answer == 1:
            return
        if answer[0] == b"MISSING":
            raise SessionGone(f"session {session_id} does not exist any more; start a new session")
        refuse(answer, session_id=session_id)

    async def load(self, session_id: str) -> SessionData:
        """Raises `NotFound`."""
        keys = self._connection.keys
        head, interactions, rewards = await self._connection.transaction(
            [("HGETALL", keys.session(session_id)), ("HGETALL", keys.interactions(session_id)), ("HGETALL", keys.rewards(session_id))]
        )
        if not head:
            raise NotFound(f"session {session_id} does not exist")
        records = [session_pb2.InteractionRecord.FromString(data) for data in interactions.values()]
        return SessionData(
            info=session_info(session_id, _flat(head)),
            records=tuple(sorted(records, key=lambda record: (record.index, record.id))),
            rewards={key.decode(): float(value) for key, value in rewards.items()},
        )

    async def set_reward(self, session_id: str, fence: int, interaction_id: str, reward: float, queue: bool) -> SessionInfo:
        """Sets or replaces a reward; an empty id means the last interaction. `queue`: a FINISHED session goes to the trainer.

        Raises `SessionMoved`; `SessionGone` once it was queued; `NotFound` for an unknown interaction; `InvalidRequest`.
        """
        text = _reward_text(reward)
        answer = await self._connection.run(_SET_REWARD, session_id, fence, interaction_id, text, int(queue))
        return session_answer(answer, session_id=session_id)

    async def finish(self, session_id: str, fence: int | None = None, *, queue: bool, default_reward: float | None = None) -> SessionInfo:
        """Ends a session. With `queue` and a reward it goes to QUEUED, else to FINISHED; what ended before stays as it is.

        `default_reward` goes to the last interaction of a session without rewards. A session without interactions is never
        queued. Without `fence` the caller need not be the owner. Raises `SessionMoved`, `SessionGone` (DISCARDED), `NotFound`.
        """
        fence_text = "" if fence is None else str(fence)
        reward_text = "" if default_reward is None else _reward_text(default_reward)
        answer = await self._connection.run(_FINISH, session_id, fence_text, int(queue), reward_text)
        return session_answer(answer, session_id=session_id)

    async def discard(self, session_id: str, reason: str) -> SessionInfo:
        """Drops a session, from the stream too if it was queued; what was trained or exported stays. Raises `NotFound`."""
        return session_answer(await self._connection.run(_DISCARD, session_id, reason), session_id=session_id)

    async def mark_exported(self, session_id: str) -> SessionInfo:
        """FINISHED becomes EXPORTED; what the trainer has stays the trainer's.

        Raises `SessionGone` in ACTIVE (not ended yet) and DISCARDED, `NotFound`.
        """
        return session_answer(await self._connection.run(_MARK_EXPORTED, session_id), session_id=session_id)

    async def sweep(self, idle_seconds: float, finished_seconds: float, limit: int, queue: bool = False) -> list[SweptSession]:
        """Ends sessions idle for `idle_seconds` and finished ones that got no reward within `finished_seconds`.

        They are DISCARDED with `idle_timeout`, `no_reward` or `not_exported`; with `queue`, those that have a reward go to the
        trainer instead. At most `limit` at a time.
        """
        answer = await self._connection.run(_SWEEP, idle_seconds, finished_seconds, limit, int(queue))
        return [
            SweptSession(
                session_id=session_id.decode(),
                state=SessionState(state.decode()),
                reason=reason.decode(),
                key_hash=key_hash.decode(),
                owner_id=owner_id.decode(),
            )
            for session_id, state, reason, key_hash, owner_id in answer
        ]

    async def list(self, state: str | None = None, limit: int = 100) -> list[SessionInfo]:
        """The newest sessions of one state, or of all. Raises `InvalidRequest` for an unknown state."""
        if state is not None and state not in SessionState.__members__:
            raise InvalidRequest(f"state {state!r} does not exist; give one of {', '.join(SessionState)}", param="state")
        found: list[SessionInfo] = []
        for one in [SessionState(state)] if state is not None else list(SessionState):
            found += [session_answer(row, session_id="") for row in await self._connection.run(_LIST, one.value, limit)]
        return sorted(found, key=lambda info: info.updated_seconds, reverse=True)[:limit]

    async def delete_old(self, retention_seconds: float, limit: int) -> int:
        """Forgets sessions that were trained, exported or discarded longer ago, with their keys and groups; returns how many."""
        return int(await self._connection.run(_DELETE_OLD, retention_seconds, limit, *sorted(TERMINAL)))


def _reward_text(reward: float) -> str:
    if not math.isfinite(reward):
        raise InvalidRequest(f"reward {reward} is not a finite number", param="reward")
    return repr(float(reward))


def _flat(answer: dict[bytes, bytes]) -> list[bytes]:
    return [part for pair in answer.items() for part in pair]

"""Sessions: each transition is one script. What a script answers is turned into values and errors here."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from rlrun.errors import Conflict, InvalidRequest, NoCapacity, NotFound, SessionGone, SessionMoved
from rlrun.proto import session_pb2
from rlrun.store.connection import store_errors
from rlrun.store.keys import Keys, check_id
from rlrun.store.scripts import Argument, Scripts
from rlrun.store.states import TERMINAL, SessionState
from rlrun.store.types import Admission, SessionData, SessionInfo, SweptSession


def _pairs(flat: Sequence[bytes]) -> dict[str, str]:
    return {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}


def _info(session_id: str, fields: dict[str, str]) -> SessionInfo:
    return SessionInfo(
        session_id=session_id,
        state=SessionState(fields["state"]),
        reason=fields["reason"],
        task_id=fields["task"],
        group_id=fields["group"],
        group_size=int(fields["group_size"]),
        key_hash=fields["key"],
        owner_id=fields["owner"],
        fence=int(fields["fence"]),
        num_interactions=int(fields["n"]),
        has_reward=fields["reward_set"] == "1",
        created_unix_seconds=float(fields["created"]),
        updated_unix_seconds=float(fields["updated"]),
    )


def _raise_refusal(answer: Sequence[bytes], session_id: str) -> None:
    """Turns every answer but OK into an error."""
    tag, *rest = (part.decode() if isinstance(part, bytes) else str(part) for part in answer)
    if tag == "MISSING":
        raise NotFound(f"Session {session_id} not found")
    if tag == "MOVED":
        raise SessionMoved(f"session {session_id} has fence {rest[1]} now: another owner holds it")
    if tag == "GONE":
        state = rest[1] if len(rest) > 1 else ""
        reason = f" ({rest[2]})" if len(rest) > 2 and rest[2] else ""
        raise SessionGone(f"Session {session_id} already ended or expired: it is {state}{reason}")
    if tag == "NO_INTERACTION":
        raise InvalidRequest(
            f"Interaction {rest[1]} not found" if len(rest) > 1 and rest[1] else "No interactions in session", param="interaction_id"
        )
    if tag == "CONFLICT":
        kind, other = rest[0], rest[1]
        remedy = {
            "session": f"session {other} exists already",
            "key": f"API key is already bound to active session {other}.",
            "group": f"the group has size {other} already; give the same group_size to all its members",
        }
        raise Conflict(remedy.get(kind, kind))
    if tag == "FULL":
        raise NoCapacity(
            "No available capacity to start a new session: "
            f"{rest[1]} running, {rest[2]} handed to the trainer, {rest[3]} granted, step {rest[4]}"
        )


def _parse(answer: Any, session_id: str) -> SessionInfo:
    if answer[0] != b"OK":
        _raise_refusal(answer, session_id)
    return _info(answer[1].decode(), _pairs(answer[2]))


class SessionStore:
    """`fence` is the number that `claim` or `place` gave; a write with an older one raises SessionMoved."""

    def __init__(self, redis: Redis, scripts: Scripts, keys: Keys) -> None:
        self._redis = redis
        self._scripts = scripts
        self._keys = keys
        self._waiting: list[tuple[tuple[Argument, ...], asyncio.Future[Any]]] = []
        self._flusher: asyncio.Task[None] | None = None

    async def place(
        self, *, session_id: str, task_id: str, group_id: str, group_size: int, key_hash: str, owner_id: str, admission: Admission
    ) -> SessionInfo:
        """Admits, binds the key, creates.

        Raises:
            NoCapacity: admission refused.
            Conflict: the key opens an active session, the id is taken, or the group has another size.
        """
        check_id(session_id, param="session_id")
        check_id(group_id, param="group_id")
        answer = await self._run(
            "place",
            session_id,
            task_id,
            group_id,
            group_size,
            key_hash,
            owner_id,
            str(admission.mode),
            admission.max_concurrent,
            admission.max_staleness,
            admission.batch_size,
        )
        return _parse(answer, session_id)

    async def by_key(self, key_hash: str) -> SessionInfo | None:
        """The session that a key opens, in whatever state it is."""
        answer = await self._run("by_key", key_hash)
        return None if answer[0] == b"MISSING" else _parse(answer, "")

    async def get(self, session_id: str) -> SessionInfo | None:
        with store_errors():
            fields = await self._redis.hgetall(self._keys.session(session_id))
        return _info(session_id, {name.decode(): value.decode() for name, value in fields.items()}) if fields else None

    async def claim(self, session_id: str, owner_id: str) -> SessionInfo:
        """Moves a session whose owner's lease is gone (fence + 1); otherwise returns it unchanged. Raises: NotFound."""
        return _parse(await self._run("claim", session_id, owner_id), session_id)

    async def record(self, session_id: str, fence: int, record: session_pb2.InteractionRecord, *, rewardless: bool = False) -> None:
        """Writes one interaction; returns when it is durable. Concurrent calls share a round trip.

        Raises: SessionMoved, SessionGone, NotFound.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        call = (session_id, fence, record.id, record.SerializeToString(), int(rewardless))
        self._waiting.append((call, future))
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush())
        answer = await future
        if answer != 1:
            _raise_refusal(answer, session_id)

    async def load(self, session_id: str) -> SessionData:
        """Raises: NotFound."""
        with store_errors():
            async with self._redis.pipeline(transaction=True) as pipeline:
                pipeline.hgetall(self._keys.session(session_id))
                pipeline.hvals(self._keys.interactions(session_id))
                pipeline.hgetall(self._keys.rewards(session_id))
                fields, values, rewards = await pipeline.execute()
        if not fields:
            raise NotFound(f"Session {session_id} not found")
        records = sorted((session_pb2.InteractionRecord.FromString(value) for value in values), key=lambda record: record.index)
        return SessionData(
            info=_info(session_id, {name.decode(): value.decode() for name, value in fields.items()}),
            records=records,
            rewards={interaction.decode(): float(reward) for interaction, reward in rewards.items()},
        )

    async def set_reward(self, session_id: str, fence: int, interaction_id: str, reward: float, *, queue: bool) -> SessionInfo:
        """`interaction_id` empty: the last one. `queue`: hand a session that has ended to the trainer.

        Raises: InvalidRequest, SessionMoved, SessionGone (queued already), NotFound.
        """
        if not math.isfinite(reward):
            raise InvalidRequest(f"reward is {reward}; it must be a finite number", param="reward")
        return _parse(await self._run("set_reward", session_id, fence, interaction_id, repr(float(reward)), int(queue)), session_id)

    async def finish(self, session_id: str, *, fence: int | None = None, queue: bool, default_reward: float | None) -> SessionInfo:
        """Ends a session; repeated, it changes nothing. Raises: SessionMoved, SessionGone (discarded), NotFound."""
        answer = await self._run(
            "finish",
            session_id,
            "" if fence is None else fence,
            int(queue),
            "" if default_reward is None else repr(float(default_reward)),
        )
        return _parse(answer, session_id)

    async def discard(self, session_id: str, reason: str) -> SessionInfo:
        return _parse(await self._run("discard", session_id, reason), session_id)

    async def mark_exported(self, session_id: str) -> SessionInfo:
        """Raises: SessionGone (active or discarded), NotFound."""
        return _parse(await self._run("mark_exported", session_id), session_id)

    async def sweep(self, *, idle_seconds: float, finished_seconds: float, limit: int, queue: bool) -> list[SweptSession]:
        """Ends idle and unrewarded sessions, at most `limit` of them."""
        answer = await self._run("sweep", idle_seconds, finished_seconds, limit, int(queue))
        return [
            SweptSession(
                session_id=row[0].decode(),
                state=SessionState(row[1].decode()),
                reason=row[2].decode(),
                key_hash=row[3].decode(),
                owner_id=row[4].decode(),
            )
            for row in answer
        ]

    async def list(self, *, state: str | None, limit: int) -> list[SessionInfo]:
        """Newest first; all states when `state` is None. Raises: InvalidRequest for an unknown state."""
        names = [str(one) for one in SessionState]
        if state is not None and state.upper() not in names:
            raise InvalidRequest(f"state {state!r} is not one of {', '.join(names)}", param="state")
        states = [state.upper()] if state is not None else names
        found: list[tuple[float, str]] = []
        with store_errors():
            for one in states:
                rows: Any = await self._redis.zrevrange(self._keys.sessions(one), 0, limit - 1, withscores=True)
                found += [(score, session_id.decode()) for session_id, score in rows]
        infos = [await self.get(session_id) for _, session_id in sorted(found, reverse=True)[:limit]]
        return [info for info in infos if info is not None]

    async def delete_old(self, *, retention_seconds: float, limit: int) -> int:
        """Forgets sessions that ended longer ago than the retention; returns how many."""
        return int(await self._run("delete_old", retention_seconds, limit, *sorted(str(state) for state in TERMINAL)))

    async def _flush(self) -> None:
        """Sends what waits until nothing does: while one round trip is under way, the next batch gathers."""
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                with store_errors():
                    results = await self._scripts.run_many("record", [call for call, _ in batch])
                for (_, future), result in zip(batch, results, strict=True):
                    if future.done():
                        continue
                    if isinstance(result, Exception):
                        future.set_exception(result)
                    else:
                        future.set_result(result)
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
        self._flusher = None

    async def _run(self, name: str, *arguments: Argument) -> Any:
        with store_errors():
            return await self._scripts.run(name, *arguments)

"""A DataProxy for one process: sessions in memory instead of Redis, one engine instead of a Router's workers.

`MemorySession` keeps the table of `rlrun.store.states` and the errors of `rlrun.store`; it has no admission, no leases and no
trainer, and it ends with the process.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable
from os import PathLike
from typing import NoReturn, cast

from rlrun.auth import key_hash
from rlrun.errors import InvalidRequest, NotFound, PermissionDenied, Unauthenticated
from rlrun.ids import new_member_id
from rlrun.proto import common_pb2, router_pb2, session_pb2
from rlrun.rpc.interfaces import InferenceService
from rlrun.store import SessionData, SessionEvent, SessionInfo, SessionState, Store
from rlrun.store.keys import check_id
from rlrun.store.replies import refuse
from rlrun.store.states import next_state
from rlrun.trajectory import RewardStyle
from rlrun_dataproxy.dataproxy import DataProxy
from rlrun_dataproxy.options import DataProxyOptions
from rlrun_dataproxy.tokenizer import ChatTokenizer

_PROXY = "direct"
_ENGINE = "engine"
_FENCE = 1  # nobody else can own a session of this process


class MemorySession:
    """One session. Its methods are transitions, and none of them waits."""

    def __init__(self, *, session_id: str, key_hash: str, clock: Callable[[], float]) -> None:
        self.id = session_id
        self.fence = _FENCE
        self.key_hash = key_hash
        self._clock = clock
        self._state = SessionState.ACTIVE
        self._created = self._updated = clock()
        self._records: dict[str, session_pb2.InteractionRecord] = {}
        self._rewards: dict[str, float] = {}
        self._last = ""

    def info(self) -> SessionInfo:
        return SessionInfo(
            session_id=self.id,
            state=self._state,
            reason="",
            task_id=_PROXY,
            group_id=self.id,
            group_size=1,
            key_hash=self.key_hash,
            owner_id=_PROXY,
            fence=self.fence,
            num_interactions=len(self._records),
            has_reward=bool(self._rewards),
            created_unix_seconds=self._created,
            updated_unix_seconds=self._updated,
        )

    def data(self) -> SessionData:
        records = sorted(self._records.values(), key=lambda record: (record.index, record.id))
        return SessionData(info=self.info(), records=records, rewards=dict(self._rewards))

    def record(self, fence: int, record: session_pb2.InteractionRecord, *, rewardless: bool = False) -> None:
        check_id(record.id, param="record.id")
        self._check_fence(fence)
        self._move(SessionEvent.RECORD)
        self._records[record.id] = record
        if not rewardless:
            self._last = record.id

    def set_reward(self, fence: int, interaction_id: str, reward: float, *, queue: bool) -> str:
        assert not queue, "no trainer reads a session in memory"
        checked = _finite(reward)
        self._check_fence(fence)
        if next_state(self._state, SessionEvent.REWARD) is None:
            self._refuse()
        interaction_id = interaction_id or self._last
        if interaction_id not in self._records:
            refuse(["NO_INTERACTION", self.id, interaction_id], session_id=self.id)
        self._rewards[interaction_id] = checked
        self._move(SessionEvent.REWARD)
        return interaction_id

    def finish(self, *, fence: int | None, queue: bool, default_reward: float | None) -> SessionInfo:
        assert not queue, "no trainer reads a session in memory"
        default = None if default_reward is None else _finite(default_reward)
        if fence is not None:
            self._check_fence(fence)
        is_open = self._state in (SessionState.ACTIVE, SessionState.FINISHED)
        if is_open and default is not None and not self._rewards and self._last:
            self._rewards[self._last] = default
        self._move(SessionEvent.FINISH)
        return self.info()

    def mark_exported(self) -> SessionInfo:
        self._move(SessionEvent.EXPORT)
        return self.info()

    def _check_fence(self, fence: int) -> None:
        if fence != self.fence:
            refuse(["MOVED", self.id, self.fence], session_id=self.id)

    def _move(self, event: SessionEvent) -> None:
        to = next_state(self._state, event)
        if to is None:
            self._refuse()
        self._state, self._updated = to, self._clock()

    def _refuse(self) -> NoReturn:
        refuse(["GONE", self.id, self._state.value, ""], session_id=self.id)


class MemorySessions:
    """The part of `rlrun.store.sessions.SessionStore` that a DataProxy calls, with the same signatures and errors."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._sessions: dict[str, MemorySession] = {}
        self._by_key: dict[str, MemorySession] = {}

    def open(self, *, session_id: str, key_hash: str) -> MemorySession:
        """A new ACTIVE session that the key opens."""
        session = MemorySession(session_id=check_id(session_id, param="session_id"), key_hash=key_hash, clock=self._clock)
        assert session_id not in self._sessions
        assert key_hash not in self._by_key
        self._sessions[session_id] = self._by_key[key_hash] = session
        return session

    def forget(self, session_id: str) -> None:
        """Who holds the session itself may still read it."""
        if (session := self._sessions.pop(session_id, None)) is not None:
            del self._by_key[session.key_hash]

    async def by_key(self, key_hash: str) -> SessionInfo | None:
        session = self._by_key.get(key_hash)
        return session.info() if session else None

    async def get(self, session_id: str) -> SessionInfo | None:
        session = self._sessions.get(session_id)
        return session.info() if session else None

    async def load(self, session_id: str) -> SessionData:
        return self._find(session_id).data()

    async def record(self, session_id: str, fence: int, record: session_pb2.InteractionRecord, *, rewardless: bool = False) -> None:
        self._find(session_id).record(fence, record, rewardless=rewardless)

    async def set_reward(self, session_id: str, fence: int, interaction_id: str, reward: float, *, queue: bool) -> str:
        return self._find(session_id).set_reward(fence, interaction_id, reward, queue=queue)

    async def finish(self, session_id: str, *, fence: int | None = None, queue: bool, default_reward: float | None) -> SessionInfo:
        return self._find(session_id).finish(fence=fence, queue=queue, default_reward=default_reward)

    async def mark_exported(self, session_id: str) -> SessionInfo:
        return self._find(session_id).mark_exported()

    def _find(self, session_id: str) -> MemorySession:
        if (session := self._sessions.get(session_id)) is None:
            refuse(["MISSING"], session_id=session_id)
        return session


class MemoryStore:
    """Stands where a DataProxy has `rlrun.store.Store`."""

    def __init__(self) -> None:
        self.sessions = MemorySessions()


class DirectRouter:
    """RouterService of a process with one DataProxy and one engine. Members and sessions are the process's own, so nobody changes them."""

    def __init__(self, sessions: MemorySessions) -> None:
        self._sessions = sessions

    async def resolve(self, request: router_pb2.ResolveRequest, /) -> router_pb2.Placement:
        if request.session_id:
            if (info := await self._sessions.get(request.session_id)) is None:
                raise NotFound(f"Session {request.session_id} not found")
        elif (info := await self._sessions.by_key(request.key_hash)) is None:
            raise Unauthenticated("Invalid or expired session API key.")
        return router_pb2.Placement(
            session_id=info.session_id,
            owner_id=_PROXY,
            owner_address=_PROXY,
            fence=info.fence,
            state=info.state.value,
            key_hash=info.key_hash,
        )

    async def assign_worker(self, request: router_pb2.AssignWorkerRequest, /) -> router_pb2.AssignWorkerResponse:
        return router_pb2.AssignWorkerResponse(worker_id=_ENGINE, address=_ENGINE)

    async def list_members(self, request: router_pb2.ListMembersRequest, /) -> router_pb2.ListMembersResponse:
        members = [
            router_pb2.Member(role=router_pb2.ROLE_DATAPROXY, id=_PROXY, address=_PROXY),
            router_pb2.Member(role=router_pb2.ROLE_WORKER, id=_ENGINE, address=_ENGINE),
        ]
        return router_pb2.ListMembersResponse(members=[one for one in members if request.role in (one.role, router_pb2.ROLE_UNSPECIFIED)])

    async def place_session(self, request: router_pb2.PlaceSessionRequest, /) -> router_pb2.PlaceSessionResponse:
        raise PermissionDenied("A direct client has one session; make another with its new_session()")

    async def register(self, request: router_pb2.Member, /) -> router_pb2.Lease:
        raise _fixed()

    async def heartbeat(self, request: router_pb2.Member, /) -> router_pb2.Lease:
        raise _fixed()

    async def deregister(self, request: router_pb2.Member, /) -> common_pb2.Empty:
        raise _fixed()

    async def grant_capacity(self, request: router_pb2.GrantCapacityRequest, /) -> router_pb2.GrantCapacityResponse:
        raise _fixed()

    async def watch_policy(self, request: router_pb2.WatchPolicyRequest, /) -> AsyncIterator[router_pb2.PolicyUpdate]:
        raise _fixed()
        yield  # pragma: no cover (makes this an iterator)


class DirectProxy:
    """A DataProxy, its sessions and its router, in front of one engine.

    Raises:
        ConfigError: the model directory has no tokenizer or no chat template.
    """

    def __init__(
        self,
        engine: InferenceService,
        model: str | PathLike[str],
        *,
        max_total_tokens: int | None,
        reward_style: RewardStyle,
        parse_tool_calls: bool,
        parse_reasoning: bool,
    ) -> None:
        store = MemoryStore()
        self.sessions = store.sessions
        self.router = DirectRouter(store.sessions)
        self.proxy = DataProxy(
            store=cast(Store, store),
            router=self.router,
            connect=lambda address: engine,
            tokenizer=ChatTokenizer.load(str(model)),
            options=DataProxyOptions(
                member_id=_PROXY,
                max_total_tokens=max_total_tokens,
                queue_trajectories=False,
                reward_style=reward_style,
                parse_tool_calls=parse_tool_calls,
                parse_reasoning=parse_reasoning,
            ),
        )

    def open(self, key: str) -> MemorySession:
        return self.sessions.open(session_id=new_member_id(_PROXY), key_hash=key_hash(key))

    async def end(self, session: MemorySession) -> None:
        """Ends it and stops its calls."""
        ref = session_pb2.SessionRef(session_id=session.id, fence=session.fence)
        await self.proxy.end_session(session_pb2.EndSessionRequest(session=ref))


def _finite(reward: float) -> float:
    if not math.isfinite(reward):
        raise InvalidRequest(f"reward is {reward}; it must be a finite number", param="reward")
    return float(reward)


def _fixed() -> PermissionDenied:
    return PermissionDenied("In the direct mode there is one engine and no trainer; nothing joins, leaves or is granted")

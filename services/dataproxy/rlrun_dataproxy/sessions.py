"""Sessions in memory: a cache of Redis, bounded, thrown away whenever in doubt."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from rlrun.errors import SessionGone, SessionMoved
from rlrun.proto import session_pb2
from rlrun.rpc.interfaces import InferenceService
from rlrun.store import SessionData, SessionState, Store
from rlrun_dataproxy.calls import RunningCall
from rlrun_dataproxy.tree import ConversationTree


@dataclass(frozen=True, slots=True)
class AssignedWorker:
    id: str
    service: InferenceService


@dataclass(slots=True)
class Session:
    """An ACTIVE session that this replica owns. `stale`: Redis may hold more than memory; read it again before the next call."""

    id: str
    fence: int
    tree: ConversationTree
    next_index: int
    running: list[RunningCall] = field(default_factory=list)
    worker: AssignedWorker | None = None
    stale: bool = False

    def take_index(self) -> int:
        index = self.next_index
        self.next_index += 1
        return index


class SessionCache:
    """Least recently used sessions leave first; one with a running call stays."""

    def __init__(self, store: Store, *, member_id: str, limit: int, ephemeral: re.Pattern[str] | None) -> None:
        self._store = store
        self._member_id = member_id
        self._limit = limit
        self._ephemeral = ephemeral
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._loading: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def num_running_calls(self) -> int:
        return sum(len(session.running) for session in self._sessions.values())

    async def get(self, ref: session_pb2.SessionRef) -> Session:
        """The session, from memory if the fence is the one that memory knows.

        Raises:
            SessionMoved: another replica owns it, or the caller's placement is out of date.
            SessionGone: it is not ACTIVE.
            NotFound: no such session.
        """
        if (session := self._cached(ref)) is not None:
            return session
        lock = self._loading.get(ref.session_id)
        if lock is None:
            lock = self._loading[ref.session_id] = asyncio.Lock()
        async with lock:
            if (session := self._cached(ref)) is not None:
                return session
            return await self._load(ref)

    def peek(self, ref: session_pb2.SessionRef) -> Session | None:
        """The session if memory holds it under this very fence."""
        session = self._sessions.get(ref.session_id)
        return session if session is not None and session.fence == ref.fence and not session.stale else None

    def drop(self, session_id: str) -> Session | None:
        return self._sessions.pop(session_id, None)

    def drop_this(self, session: Session) -> None:
        """Drops it unless a newer placement of the same session has taken its place."""
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]

    def _cached(self, ref: session_pb2.SessionRef) -> Session | None:
        session = self._sessions.get(ref.session_id)
        if session is None or session.stale or session.fence < ref.fence:
            return None
        if session.fence > ref.fence:
            raise SessionMoved(f"Session {ref.session_id} has fence {session.fence}, the request says {ref.fence}")
        self._sessions.move_to_end(ref.session_id)
        return session

    async def _load(self, ref: session_pb2.SessionRef) -> Session:
        data = await load_session(self._store, ref, member_id=self._member_id)
        if data.info.state is not SessionState.ACTIVE:
            self.drop(ref.session_id)
            raise session_gone(data)
        session = self._sessions.get(ref.session_id)
        if session is None or session.fence != ref.fence:
            tree = ConversationTree(ephemeral=self._ephemeral)
            session = self._sessions[ref.session_id] = Session(id=ref.session_id, fence=ref.fence, tree=tree, next_index=0)
        # A stale one is completed in place: its running calls go on.
        session.tree.merge(data.records)
        session.next_index = max(session.next_index, session.tree.next_index)
        session.stale = False
        self._sessions.move_to_end(ref.session_id)
        self._evict(session)
        return session

    def _evict(self, keep: Session) -> None:
        excess = len(self._sessions) - self._limit
        if excess > 0:
            idle = [one.id for one in self._sessions.values() if not one.running and one is not keep]
            for session_id in idle[:excess]:
                del self._sessions[session_id]


async def load_session(store: Store, ref: session_pb2.SessionRef, *, member_id: str) -> SessionData:
    """A session in any state, if this replica is its owner under the caller's fence."""
    data = await store.sessions.load(ref.session_id)
    if data.info.fence != ref.fence or data.info.owner_id != member_id:
        raise SessionMoved(
            f"Session {ref.session_id} belongs to {data.info.owner_id} with fence {data.info.fence}; "
            f"the request came to {member_id} with fence {ref.fence}"
        )
    return data


def session_gone(data: SessionData) -> SessionGone:
    reason = f" ({data.info.reason})" if data.info.reason else ""
    return SessionGone(f"Session {data.info.session_id} is {data.info.state.value}{reason}; start a new session")

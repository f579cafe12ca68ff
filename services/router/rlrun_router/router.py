"""The Router's logic: an implementation of RouterService over the store, without state of its own."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from rlrun.errors import Conflict, InvalidRequest, NoCapacity, NoMember, NotFound, Overloaded, RefreshTimeout, Unauthenticated
from rlrun.proto import common_pb2, router_pb2
from rlrun.store import Admission, SessionInfo, Store

log = logging.getLogger(__name__)

POLICY_POLL_SECONDS = 0.1
ADMISSION_POLL_SECONDS = 0.1
MEMBERS_TTL_SECONDS = 0.25


@dataclass(frozen=True, kw_only=True)
class RouterSettings:
    lease_seconds: float
    admission: Admission
    refresh_timeout_seconds: float
    # True where a trainer takes finished sessions.
    queue_finished: bool


def choose_owner(members: Sequence[router_pb2.Member]) -> router_pb2.Member:
    """The least loaded of two random members: even without fresh load reports, no herd runs to one of them."""
    living = [member for member in members if not member.draining]
    if not living:
        raise NoMember("no DataProxy is registered; is one running and can it reach the router?")
    return min(random.sample(living, min(2, len(living))), key=lambda member: member.load)


def choose_worker(members: Sequence[router_pb2.Member], *, session_id: str, min_version: int, exclude: str) -> router_pb2.Member:
    """A session's worker: the same one each time while the set of members stays (rendezvous hashing), so that its prefix is cached.

    Raises:
        NoMember: no worker, or none serves `min_version` yet.
    """
    living = [member for member in members if not member.draining]
    fresh = [member for member in living if member.policy_version >= min_version]
    if not fresh:
        known = f"{len(living)} registered, none serves version {min_version} yet" if living else "none is registered"
        raise NoMember(f"no worker can take the call: {known}")
    others = [member for member in fresh if member.id != exclude] or fresh
    return max(others, key=lambda member: _hash_weight(session_id, member.id))


def _hash_weight(session_id: str, member_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{session_id}\0{member_id}".encode(), digest_size=8).digest(), "big")


class Members:
    """The living members of each role, read again when a quarter of a second old: placing a burst of sessions costs one look."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: dict[router_pb2.Role.ValueType, tuple[float, list[router_pb2.Member]]] = {}
        self._reading: dict[router_pb2.Role.ValueType, asyncio.Task[list[router_pb2.Member]]] = {}

    async def of(self, role: router_pb2.Role.ValueType) -> list[router_pb2.Member]:
        seen = self._seen.get(role)
        if seen is not None and asyncio.get_running_loop().time() - seen[0] <= MEMBERS_TTL_SECONDS:
            return seen[1]
        if (reading := self._reading.get(role)) is None:
            reading = self._reading[role] = asyncio.create_task(self._read(role))
        return await asyncio.shield(reading)

    def forget(self) -> None:
        """What is read now may be out of date too."""
        self._seen.clear()
        self._reading.clear()

    async def _read(self, role: router_pb2.Role.ValueType) -> list[router_pb2.Member]:
        started = asyncio.get_running_loop().time()
        try:
            members = await self._store.members.list(role)
            if self._reading.get(role) is asyncio.current_task():
                self._seen[role] = started, members
            return members
        finally:
            if self._reading.get(role) is asyncio.current_task():
                del self._reading[role]


class Router:
    """Implements RouterService. Any number may run at once."""

    def __init__(self, store: Store, settings: RouterSettings) -> None:
        self._store = store
        self._settings = settings
        self._members = Members(store)

    async def register(self, request: router_pb2.Member) -> router_pb2.Lease:
        if not request.id or not request.address or request.role == router_pb2.ROLE_UNSPECIFIED:
            raise InvalidRequest("a member needs id, address and role", param="member")
        await self._store.members.put(request, ttl_seconds=self._settings.lease_seconds)
        self._members.forget()
        return router_pb2.Lease(ttl_seconds=self._settings.lease_seconds)

    async def heartbeat(self, request: router_pb2.Member) -> router_pb2.Lease:
        return await self.register(request)

    async def deregister(self, request: router_pb2.Member) -> common_pb2.Empty:
        await self._store.members.remove(request.role, request.id)
        self._members.forget()
        return common_pb2.Empty()

    async def list_members(self, request: router_pb2.ListMembersRequest) -> router_pb2.ListMembersResponse:
        roles = [request.role] if request.role else [role for role in router_pb2.Role.values() if role]
        found = [member for role in roles for member in await self._store.members.list(role)]
        return router_pb2.ListMembersResponse(members=found)

    async def resolve(self, request: router_pb2.ResolveRequest) -> router_pb2.Placement:
        info = await self._find(request)
        owner = await self._owner(info)
        if owner is None:
            heir = choose_owner(await self._members.of(router_pb2.ROLE_DATAPROXY))
            info = await self._store.sessions.claim(session_id=info.session_id, owner_id=heir.id)
            # Another router may have been faster.
            owner = heir if info.owner_id == heir.id else await self._owner(info)
            if owner is None:
                raise NoMember(f"session {info.session_id} is between two owners")
            log.info("session %s moved to %s (fence %d)", info.session_id, owner.id, info.fence)
        return _placement(info, owner)

    async def place_session(self, request: router_pb2.PlaceSessionRequest) -> router_pb2.PlaceSessionResponse:
        if not request.task_id or not request.key_hash:
            raise InvalidRequest("task_id and a key are needed", param="task_id")
        refreshed = ""
        if (held := await self._store.sessions.by_key(request.key_hash)) is not None and held.state == "ACTIVE":
            await self._store.sessions.finish(
                session_id=held.session_id, fence=None, queue=self._settings.queue_finished, default_reward=0.0
            )
            refreshed = held.session_id
        owner = choose_owner(await self._members.of(router_pb2.ROLE_DATAPROXY))
        info = await self._admit(request, owner, refreshed=bool(refreshed))
        return router_pb2.PlaceSessionResponse(placement=_placement(info, owner), refreshed_session_id=refreshed)

    async def assign_worker(self, request: router_pb2.AssignWorkerRequest) -> router_pb2.AssignWorkerResponse:
        worker = choose_worker(
            await self._members.of(router_pb2.ROLE_WORKER),
            session_id=request.session_id,
            min_version=request.min_version,
            exclude=request.exclude_worker_id,
        )
        return router_pb2.AssignWorkerResponse(worker_id=worker.id, address=worker.address, policy_version=worker.policy_version)

    async def grant_capacity(self, request: router_pb2.GrantCapacityRequest) -> router_pb2.GrantCapacityResponse:
        return router_pb2.GrantCapacityResponse(capacity=await self._store.capacity.grant(amount=request.amount or 1))

    async def watch_policy(self, request: router_pb2.WatchPolicyRequest) -> AsyncIterator[router_pb2.PolicyUpdate]:
        """Yields each newer version once; skips to the newest when several appear."""
        known = request.known_version
        while True:
            current = await self._store.policy.current()
            if current is not None and current.version > known:
                known = current.version
                yield router_pb2.PolicyUpdate(version=current.version, path=current.path, fingerprint=current.fingerprint)
            await asyncio.sleep(POLICY_POLL_SECONDS)

    async def _owner(self, info: SessionInfo) -> router_pb2.Member | None:
        """The member that owns a session, if its lease runs."""
        for _ in range(2):
            for member in await self._members.of(router_pb2.ROLE_DATAPROXY):
                if member.id == info.owner_id:
                    return member
            self._members.forget()
        return None

    async def _find(self, request: router_pb2.ResolveRequest) -> SessionInfo:
        if request.session_id:
            if (info := await self._store.sessions.get(request.session_id)) is None:
                raise NotFound(f"Session {request.session_id} not found")
            return info
        if (info := await self._store.sessions.by_key(request.key_hash)) is None:
            raise Unauthenticated("Invalid or expired session API key.")
        return info

    async def _admit(self, request: router_pb2.PlaceSessionRequest, owner: router_pb2.Member, *, refreshed: bool) -> SessionInfo:
        """One try, or for a refresh as many as fit in the refresh time-out; the key stays bound to the ended session meanwhile."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self._settings.refresh_timeout_seconds if refreshed else 0.0)
        while True:
            try:
                return await self._place(request, owner)
            except NoCapacity as error:
                if not refreshed:
                    raise
                if loop.time() >= deadline:
                    raise RefreshTimeout(
                        f"Refresh timed out ({self._settings.refresh_timeout_seconds:g}s). Your old session was ended and its key stays "
                        "valid. Retry to get a new session."
                    ) from error
            await asyncio.sleep(ADMISSION_POLL_SECONDS)

    async def _place(self, request: router_pb2.PlaceSessionRequest, owner: router_pb2.Member) -> SessionInfo:
        session_id = f"{request.task_id}-{secrets.token_hex(6)}"
        try:
            return await self._store.sessions.place(
                session_id=session_id,
                task_id=request.task_id,
                group_id=request.group_id or session_id,
                group_size=request.group_size or 1,
                key_hash=request.key_hash,
                owner_id=owner.id,
                admission=self._settings.admission,
            )
        except Conflict as error:
            if error.param != "key":
                raise
            # Another start with the same key won between the look at the key and this script.
            raise Overloaded("A refresh is already in progress for this key.") from error


def _placement(info: SessionInfo, owner: router_pb2.Member) -> router_pb2.Placement:
    return router_pb2.Placement(
        session_id=info.session_id,
        owner_id=owner.id,
        owner_address=owner.address,
        fence=info.fence,
        state=str(info.state),
        key_hash=info.key_hash,
    )

"""Services that answer from a script, for tests of the gateway."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

from rlrun.auth import key_hash
from rlrun.errors import NotFound, RlrunError, Unauthenticated
from rlrun.proto import common_pb2, router_pb2, session_pb2

ADMIN_KEY = "admin-secret"
SESSION_KEY = "sk-sess-one"
OWNER = "dataproxy:1"


def answer(content: str = "Hello there", **fields: Any) -> session_pb2.GenerateResponse:
    base: dict[str, Any] = {
        "interaction_id": "chatcmpl-1",
        "created_unix_seconds": 1700000000,
        "content": content,
        "finish_reason": common_pb2.FINISH_REASON_STOP,
        "usage": common_pb2.Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=5, reasoning_tokens=1),
        "policy_version": 4,
    }
    return session_pb2.GenerateResponse(**(base | fields))


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def start_event(interaction_id: str = "chatcmpl-1") -> session_pb2.GenerateEvent:
    start = session_pb2.GenerateStart(interaction_id=interaction_id, created_unix_seconds=1700000000)
    return session_pb2.GenerateEvent(start=start)


def delta_event(content: str = "", **fields: Any) -> session_pb2.GenerateEvent:
    return session_pb2.GenerateEvent(delta=session_pb2.GenerateDelta(content=content, **fields))


def done_event(**fields: Any) -> session_pb2.GenerateEvent:
    return session_pb2.GenerateEvent(done=answer("", **fields))


def hello_events() -> list[session_pb2.GenerateEvent]:
    return [start_event(), delta_event("Hello"), delta_event(" there"), done_event()]


class ScriptedRouter:
    """Knows sessions by key hash and id; a step of `script` is raised or called before the ordinary answer."""

    def __init__(self) -> None:
        self.placements: dict[str, router_pb2.Placement] = {}
        self.script: list[RlrunError | Callable[[], Any]] = []
        self.num_resolves = 0
        self.placed: list[router_pb2.PlaceSessionRequest] = []
        self.place_gate: asyncio.Event | None = None
        self.place_started = asyncio.Event()
        self.place_error: Exception | None = None
        self.place_cancelled = False
        self.members: list[router_pb2.Member] = [
            router_pb2.Member(role=router_pb2.ROLE_DATAPROXY, id="d1", address=OWNER),
            router_pb2.Member(role=router_pb2.ROLE_WORKER, id="w1", address="w:1", policy_version=4),
        ]
        self.granted = 0
        self._ids = itertools.count()
        self.bind(SESSION_KEY, "task-0")

    def bind(self, key: str, session_id: str, *, owner: str = OWNER, fence: int = 1) -> None:
        self.placements[key_hash(key)] = router_pb2.Placement(
            session_id=session_id, owner_id=owner, owner_address=owner, fence=fence, state="ACTIVE", key_hash=key_hash(key)
        )

    async def resolve(self, request: router_pb2.ResolveRequest) -> router_pb2.Placement:
        self.num_resolves += 1
        if self.script:
            step = self.script.pop(0)
            if isinstance(step, RlrunError):
                raise step
            step()
        if request.session_id:
            for placement in self.placements.values():
                if placement.session_id == request.session_id:
                    return placement
            raise NotFound(f"Session {request.session_id} not found")
        if request.key_hash not in self.placements:
            raise Unauthenticated("Invalid or expired session API key.")
        return self.placements[request.key_hash]

    async def place_session(self, request: router_pb2.PlaceSessionRequest) -> router_pb2.PlaceSessionResponse:
        self.placed.append(request)
        self.place_started.set()
        if self.place_gate is not None:
            try:
                await self.place_gate.wait()
            except asyncio.CancelledError:
                self.place_cancelled = True
                raise
        if self.place_error is not None:
            raise self.place_error
        placement = router_pb2.Placement(
            session_id=f"{request.task_id}-{next(self._ids)}",
            owner_id=OWNER,
            owner_address=OWNER,
            fence=1,
            state="ACTIVE",
            key_hash=request.key_hash,
        )
        self.placements[request.key_hash] = placement
        return router_pb2.PlaceSessionResponse(placement=placement)

    async def list_members(self, request: router_pb2.ListMembersRequest) -> router_pb2.ListMembersResponse:
        return router_pb2.ListMembersResponse(members=self.members)

    async def grant_capacity(self, request: router_pb2.GrantCapacityRequest) -> router_pb2.GrantCapacityResponse:
        self.granted += request.amount
        return router_pb2.GrantCapacityResponse(capacity=self.granted)


class ScriptedSessions:
    """One owner for every address. Steps of `script` answer the calls in order; without one the answer is `answer()`."""

    def __init__(self) -> None:
        self.script: list[Any] = []
        self.events: list[session_pb2.GenerateEvent | RlrunError | asyncio.Event] = []
        self.requests: list[Any] = []
        self.addresses: list[str] = []
        self.cancelled = asyncio.Event()
        self.started = asyncio.Event()
        self.gate: asyncio.Event | None = None

    def at(self, address: str) -> ScriptedSessions:
        self.addresses.append(address)
        return self

    def _note(self, request: Any) -> None:
        kept = type(request)()
        kept.CopyFrom(request)
        self.requests.append(kept)
        self.started.set()
        if self.script:
            step = self.script.pop(0)
            if isinstance(step, Exception):
                raise step
            self._next = step
        else:
            self._next = None

    async def _wait(self) -> None:
        if self.gate is not None:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise

    async def generate(self, request: session_pb2.GenerateRequest) -> session_pb2.GenerateResponse:
        self._note(request)
        await self._wait()
        return self._next or answer()

    async def generate_stream(self, request: session_pb2.GenerateRequest) -> AsyncIterator[session_pb2.GenerateEvent]:
        self._note(request)
        try:
            for event in self.events or hello_events():
                if isinstance(event, RlrunError):
                    raise event
                if isinstance(event, asyncio.Event):
                    await event.wait()
                else:
                    yield event
            await self._wait()
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled.set()
            raise

    async def set_reward(self, request: session_pb2.SetRewardRequest) -> session_pb2.SetRewardResponse:
        self._note(request)
        return session_pb2.SetRewardResponse(interaction_id=request.interaction_id or "chatcmpl-last")

    async def end_session(self, request: session_pb2.EndSessionRequest) -> session_pb2.EndSessionResponse:
        self._note(request)
        return session_pb2.EndSessionResponse(interaction_count=3)

    async def export_trajectories(self, request: session_pb2.ExportTrajectoriesRequest) -> session_pb2.ExportTrajectoriesResponse:
        self._note(request)
        row = session_pb2.ExportedInteraction(
            interaction_id="chatcmpl-1",
            reward=0.5,
            input_ids=struct.pack("<3i", 5, 6, 7),
            loss_mask=struct.pack("<3i", 0, 1, 1),
            logprobs=floats(0.0, -0.5, -0.25),
            versions=struct.pack("<3i", -1, 4, 4),
            temperature=0.7,
        )
        return session_pb2.ExportTrajectoriesResponse(interactions=[row])

"""Every store test runs on each Redis that this machine has: the packaged 6.2, and the system's where installed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from rlrun.local.redis import find_executable
from rlrun.proto import router_pb2, session_pb2
from rlrun.store import Admission, AdmissionMode, SessionInfo, SessionState, Store, TrajectoryRef

SYSTEM_REDIS = Path("/usr/bin/redis-server")
EXECUTABLES = {"packaged": find_executable()} | ({"system": SYSTEM_REDIS} if SYSTEM_REDIS.exists() else {})
UNLIMITED = Admission(mode=AdmissionMode.UNLIMITED, max_concurrent=1_000_000)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "redis_url" in metafunc.fixturenames:
        metafunc.parametrize("redis_url", list(EXECUTABLES.values()), ids=list(EXECUTABLES), indirect=True, scope="session")


class Driver:
    """Short names for what these tests do most, and a look behind the interface."""

    def __init__(self, store: Store, redis: Any, run: str) -> None:
        self.store = store
        self.sessions = store.sessions
        self.redis = redis
        self.prefix = f"rlrun:{{{run}}}:"

    async def place(
        self, session_id: str = "s", *, group: str = "", size: int = 1, key: str = "", owner: str = "d1", admission: Admission = UNLIMITED
    ) -> SessionInfo:
        return await self.sessions.place(
            session_id=session_id,
            task_id="task",
            group_id=group or f"g-{session_id}",
            group_size=size,
            key_hash=key or f"key-{session_id}",
            owner_id=owner,
            admission=admission,
        )

    async def record(self, session_id: str = "s", *, fence: int = 1, index: int = 0, rewardless: bool = False) -> None:
        record = session_pb2.InteractionRecord(schema=1, id=f"i{index}", index=index, content=f"answer {index}")
        await self.sessions.record(session_id, fence, record, rewardless=rewardless)

    async def bring_to(self, state: SessionState, session_id: str = "s", *, group: str = "", size: int = 1) -> None:
        """A session with one interaction and the reward 1, in `state`."""
        await self.place(session_id, group=group, size=size)
        await self.record(session_id)
        await self.sessions.set_reward(session_id, 1, "i0", 1.0, queue=False)
        match state:
            case SessionState.FINISHED | SessionState.EXPORTED:
                await self.sessions.finish(session_id, queue=False, default_reward=None)
            case SessionState.QUEUED | SessionState.TRAINED:
                await self.sessions.finish(session_id, queue=True, default_reward=None)
            case SessionState.DISCARDED:
                await self.sessions.discard(session_id, "fault")
        if state is SessionState.EXPORTED:
            await self.sessions.mark_exported(session_id)
        if state is SessionState.TRAINED:
            await self.store.trajectories.commit([await self.entry(session_id)], step=1, batch_size=1)

    async def entries(self) -> dict[str, TrajectoryRef]:
        """The stream, by session, without taking anything."""
        rows = await self.redis.xrange(self.prefix + "trajectories")
        refs = [
            TrajectoryRef(
                stream_id=entry.decode(),
                session_id=row[b"session"].decode(),
                group_id=row[b"group"].decode(),
                group_size=int(row[b"group_size"]),
            )
            for entry, row in rows
        ]
        return {ref.session_id: ref for ref in refs}

    async def entry(self, session_id: str) -> TrajectoryRef:
        """The session's entry; one that does not exist if it has none."""
        absent = TrajectoryRef(stream_id="1-1", session_id=session_id, group_id="", group_size=1)
        return (await self.entries()).get(session_id, absent)

    async def state(self, session_id: str = "s") -> SessionState:
        info = await self.sessions.get(session_id)
        assert info is not None
        return info.state

    async def check_consistent(self) -> None:
        """Indexes, counters and the stream agree with the sessions' states."""
        listed = await self.sessions.list(state=None, limit=10_000)
        states = {info.session_id: info.state for info in listed}
        for state in SessionState:
            index = await self.redis.zrange(f"{self.prefix}sessions:{state.lower()}", 0, -1)
            assert sorted(name.decode() for name in index) == sorted(name for name, one in states.items() if one is state)
        assert sorted(await self.entries()) == sorted(name for name, one in states.items() if one is SessionState.QUEUED)
        assert (await self.store.capacity.get()).running == sum(one is SessionState.ACTIVE for one in states.values())

    async def lease(self, owner: str, *, ttl_seconds: float = 60) -> None:
        member = router_pb2.Member(role=router_pb2.ROLE_DATAPROXY, id=owner, address="host:1")
        await self.store.members.put(member, ttl_seconds=ttl_seconds)


@pytest.fixture
async def store(redis_url: str, run_name: str) -> AsyncIterator[Store]:
    async with await Store.connect(redis_url, run=run_name) as store:
        yield store


@pytest.fixture
async def driver(store: Store, redis_url: str, run_name: str) -> AsyncIterator[Driver]:
    async with Redis.from_url(redis_url, protocol=2) as redis:
        yield Driver(store, redis, run_name)

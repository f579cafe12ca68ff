"""Random histories against a pure model: states, counters, groups, rewards, fences, the stream."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from rlrun.errors import Conflict, InvalidRequest, NoCapacity, NotFound, RlrunError, SessionGone, SessionMoved
from rlrun.proto import router_pb2, session_pb2
from rlrun.store import Admission, AdmissionMode, Capacity, SessionEvent, SessionState, Store, TrajectoryRef
from rlrun.store.states import TERMINAL, next_state

SESSIONS = [f"s{number}" for number in range(4)]
KEYS = ["k0", "k1", "k2"]
GROUPS = ["g0", "g1"]
GROUP_SIZE = 3
OWNERS = ["d0", "d1"]

session_ids = st.sampled_from(SESSIONS)
seldom = st.integers(0, 5).map(lambda number: number == 5)
admissions = st.builds(
    Admission,
    mode=st.sampled_from(AdmissionMode),
    max_concurrent=st.integers(1, 4),
    max_staleness=st.integers(0, 1),
    batch_size=st.integers(1, 3),
)


@dataclass
class Session:
    key: str
    group: str
    owner: str
    fence: int = 1
    state: SessionState = SessionState.ACTIVE
    records: list[str] = field(default_factory=list)
    last: str = ""
    rewards: dict[str, float] = field(default_factory=dict)
    ref: TrajectoryRef | None = None


@dataclass
class Group:
    placed: int = 0
    queued: int = 0
    closed: int = 0
    deleted: int = 0


class Model:
    """What Redis should hold, without Redis."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.keys: dict[str, str] = {}
        self.groups: dict[str, Group] = {}
        self.alive: set[str] = set()
        self.running = self.accepted = self.granted = self.step = 0
        self.given: list[int] = []

    @property
    def capacity(self) -> Capacity:
        return Capacity(running=self.running, accepted=self.accepted, granted=self.granted, step=self.step)

    def place(self, session_id: str, key: str, group: str, owner: str, admission: Admission) -> type[RlrunError] | None:
        bound = self.sessions.get(self.keys.get(key, ""))
        if session_id in self.sessions or (bound is not None and bound.state is SessionState.ACTIVE):
            return Conflict
        if self.capacity.left(admission) < 1:
            return NoCapacity
        self.sessions[session_id] = Session(key, group, owner)
        self.keys[key] = session_id
        self.groups.setdefault(group, Group()).placed += 1
        self.running += 1
        self.granted -= admission.mode is AdmissionMode.GRANTED
        return None

    def move(self, session: Session, event: SessionEvent) -> type[RlrunError] | None:
        to, state, group = next_state(session.state, event), session.state, self.groups[session.group]
        if to is None:
            return SessionGone
        session.state = to
        if state is SessionState.ACTIVE and to is not state:
            self.running -= 1
            group.closed += 1
        if to is SessionState.QUEUED and to is not state:
            self.accepted += 1
            group.queued += 1
        if state is SessionState.QUEUED and to is SessionState.DISCARDED:
            self.accepted -= 1
            group.queued -= 1
        return None

    def fenced(self, session_id: str, stale: bool) -> type[RlrunError] | None:
        if session_id not in self.sessions:
            return NotFound
        return SessionMoved if stale else None

    def fence(self, session_id: str, stale: bool) -> int:
        return self.sessions[session_id].fence - stale if session_id in self.sessions else 1

    def queued(self) -> list[str]:
        return [name for name, session in self.sessions.items() if session.state is SessionState.QUEUED]


class StoreMachine(RuleBasedStateMachine):
    redis_url = ""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.store = self.runner.run(Store.connect(self.redis_url, run=f"model-{secrets.token_hex(6)}"))
        self.model = Model()

    def teardown(self) -> None:
        self.runner.run(self.store.close())
        self.runner.close()

    def call(self, coroutine: object, expected: type[RlrunError] | None) -> None:
        """Runs it and compares what it raises."""
        try:
            self.runner.run(coroutine)  # type: ignore[arg-type]
        except RlrunError as error:
            assert type(error) is expected, error  # noqa: PT017
        else:
            assert expected is None

    @initialize()
    def leases(self) -> None:
        for owner in OWNERS:
            self.toggle_lease(owner)

    @rule(owner=st.sampled_from(OWNERS))
    def toggle_lease(self, owner: str) -> None:
        if owner in self.model.alive:
            self.call(self.store.members.remove(router_pb2.ROLE_DATAPROXY, owner), None)
        else:
            member = router_pb2.Member(role=router_pb2.ROLE_DATAPROXY, id=owner, address="a:1")
            self.call(self.store.members.put(member, ttl_seconds=600), None)
        self.model.alive ^= {owner}

    @rule(
        session_id=session_ids,
        key=st.sampled_from(KEYS),
        group=st.sampled_from(GROUPS),
        owner=st.sampled_from(OWNERS),
        admission=admissions,
    )
    def place(self, session_id: str, key: str, group: str, owner: str, admission: Admission) -> None:
        expected = self.model.place(session_id, key, group, owner, admission)
        call = self.store.sessions.place(
            session_id=session_id,
            task_id="t",
            group_id=group,
            group_size=GROUP_SIZE,
            key_hash=key,
            owner_id=owner,
            admission=admission,
        )
        self.call(call, expected)

    @rule(session_id=session_ids, index=st.integers(0, 1), stale=seldom, rewardless=st.booleans())
    def record(self, session_id: str, index: int, stale: bool, rewardless: bool) -> None:
        fence, name = self.model.fence(session_id, stale), f"i{index}"
        expected = self.model.fenced(session_id, stale) or self.model.move(self.model.sessions[session_id], SessionEvent.RECORD)
        if expected is None:
            session = self.model.sessions[session_id]
            session.records = sorted({*session.records, name})
            session.last = session.last if rewardless else name
        record = session_pb2.InteractionRecord(schema=1, id=name, index=index)
        self.call(self.store.sessions.record(session_id, fence, record, rewardless=rewardless), expected)

    @rule(
        session_id=session_ids,
        name=st.sampled_from(["", "", "i0", "i1"]),
        reward=st.floats(-1, 1),
        stale=seldom,
        queue=st.booleans(),
    )
    def set_reward(self, session_id: str, name: str, reward: float, stale: bool, queue: bool) -> None:
        fence, expected = self.model.fence(session_id, stale), self.model.fenced(session_id, stale)
        if expected is None:
            session = self.model.sessions[session_id]
            event = SessionEvent.REWARD_QUEUE if queue else SessionEvent.REWARD
            target = name or session.last
            if next_state(session.state, event) is None:
                expected = SessionGone
            elif target not in session.records:
                expected = InvalidRequest
            else:
                session.rewards[target] = reward
                self.model.move(session, event)
        self.call(self.store.sessions.set_reward(session_id, fence, name, reward, queue=queue), expected)

    @rule(
        session_id=session_ids,
        fenced=st.booleans(),
        stale=seldom,
        queue=st.booleans(),
        default_reward=st.sampled_from([None, 0.0]),
    )
    def finish(self, session_id: str, fenced: bool, stale: bool, queue: bool, default_reward: float | None) -> None:
        fence = self.model.fence(session_id, stale) if fenced else None
        expected = self.model.fenced(session_id, fenced and stale)
        if expected is None:
            session = self.model.sessions[session_id]
            is_open = session.state in (SessionState.ACTIVE, SessionState.FINISHED)
            if is_open and default_reward is not None and not session.rewards and session.last:
                session.rewards[session.last] = default_reward
            event = SessionEvent.FINISH_QUEUE if queue and session.rewards else SessionEvent.FINISH
            expected = self.model.move(session, event)
        self.call(self.store.sessions.finish(session_id, fence=fence, queue=queue, default_reward=default_reward), expected)

    @rule(session_id=session_ids)
    def discard(self, session_id: str) -> None:
        self._simple(session_id, SessionEvent.DISCARD, self.store.sessions.discard(session_id, "fault"))

    @rule(session_id=session_ids)
    def export(self, session_id: str) -> None:
        self._simple(session_id, SessionEvent.EXPORT, self.store.sessions.mark_exported(session_id))

    def _simple(self, session_id: str, event: SessionEvent, call: object) -> None:
        session = self.model.sessions.get(session_id)
        self.call(call, NotFound if session is None else self.model.move(session, event))

    @rule(session_id=session_ids, owner=st.sampled_from(OWNERS))
    def claim(self, session_id: str, owner: str) -> None:
        session = self.model.sessions.get(session_id)
        if session is not None and session.owner not in self.model.alive:
            session.owner, session.fence = owner, session.fence + 1
        self.call(self.store.sessions.claim(session_id, owner), NotFound if session is None else None)

    @rule(amount=st.integers(1, 3))
    def grant(self, amount: int) -> None:
        self.model.granted += amount
        assert self.runner.run(self.store.capacity.grant(amount=amount)) == self.model.granted

    @rule()
    def next_version(self) -> None:
        version = self.runner.run(self.store.policy.next_version())
        assert version > max(self.model.given, default=0)
        self.model.given.append(version)

    @precondition(lambda self: self.model.queued())
    @rule(data=st.data(), batch_size=st.integers(1, 3), repeat=st.booleans())
    def commit(self, data: st.DataObject, batch_size: int, repeat: bool) -> None:
        chosen = data.draw(st.sets(st.sampled_from(self.model.queued())))
        refs = [ref for ref in self._stream() if ref.session_id in chosen]
        assert len(refs) == len(chosen)
        self.model.step += 1
        for name in chosen:
            self.model.move(self.model.sessions[name], SessionEvent.COMMIT)
        self.model.accepted = self.model.step * batch_size + len(self.model.queued())
        commit = self.store.trajectories.commit
        assert self.runner.run(commit(refs, step=self.model.step, batch_size=batch_size)) == len(chosen)
        if repeat:
            assert self.runner.run(commit(refs, step=self.model.step, batch_size=batch_size)) == 0

    @rule(queue=st.booleans(), limit=st.integers(1, 3))
    def sweep(self, queue: bool, limit: int) -> None:
        swept = self.runner.run(self.store.sessions.sweep(idle_seconds=0, finished_seconds=0, limit=limit, queue=queue))
        names = {one.session_id for one in swept}
        open_states = (SessionState.ACTIVE, SessionState.FINISHED)
        candidates = {name for name, session in self.model.sessions.items() if session.state in open_states}
        assert names <= candidates
        assert len(names) == min(limit, len(candidates))
        for name in names:
            session = self.model.sessions[name]
            self.model.move(session, SessionEvent.FINISH_QUEUE if queue and session.rewards else SessionEvent.DISCARD)

    @rule()
    def delete_old(self) -> None:
        old = [name for name, session in self.model.sessions.items() if session.state in TERMINAL]
        assert self.runner.run(self.store.sessions.delete_old(retention_seconds=0, limit=100)) == len(old)
        for name in old:
            session = self.model.sessions.pop(name)
            if self.model.keys.get(session.key) == name:
                del self.model.keys[session.key]
            group = self.model.groups[session.group]
            group.deleted += 1
            if group.deleted == group.placed:
                del self.model.groups[session.group]

    @invariant()
    def redis_holds_what_the_model_holds(self) -> None:
        self.runner.run(self._compare())

    async def _compare(self) -> None:
        store, model = self.store, self.model
        assert await store.capacity.get() == model.capacity
        assert sorted(info.session_id for info in await store.sessions.list(state=None, limit=100)) == sorted(model.sessions)
        for data in await asyncio.gather(*map(store.sessions.load, model.sessions)):
            info, expected = data.info, model.sessions[data.info.session_id]
            assert (info.state, info.fence, info.owner_id) == (expected.state, expected.fence, expected.owner)
            assert [record.id for record in data.records] == expected.records
            assert info.num_interactions == len(expected.records)
            assert data.rewards == expected.rewards
            assert info.has_reward == bool(expected.rewards)
        opened = await asyncio.gather(*map(store.sessions.by_key, KEYS))
        assert [info and info.session_id for info in opened] == [model.keys.get(key) for key in KEYS]
        for group, counted in zip(await asyncio.gather(*map(store.trajectories.group, GROUPS)), map(model.groups.get, GROUPS), strict=True):
            assert (group and (group.placed, group.queued, group.closed)) == (counted and (counted.placed, counted.queued, counted.closed))
        assert sorted(ref.session_id for ref in await self._read()) == sorted(model.queued())

    def _stream(self) -> list[TrajectoryRef]:
        return self.runner.run(self._read())

    async def _read(self) -> list[TrajectoryRef]:
        """All entries: new ones are taken, then everything is pending."""
        read = self.store.trajectories.read
        await read(consumer="t", count=100, block_seconds=0, pending=False)
        refs = await read(consumer="t", count=100, block_seconds=0, pending=True)
        if refs:
            assert await read(consumer="t", count=100, block_seconds=0, pending=True) == []
        return refs


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_random_histories_match_the_model(redis_url: str) -> None:
    machine = type("Machine", (StoreMachine,), {"redis_url": redis_url})
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=25, database=None, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)),
    )

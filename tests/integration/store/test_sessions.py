"""Admission, keys, ownership, records, rewards, sweeps."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

import pytest

from rlrun.errors import Conflict, Internal, InvalidRequest, NoCapacity, NotFound, SessionGone, SessionMoved
from rlrun.proto import router_pb2
from rlrun.store import Admission, AdmissionMode, SessionState

if TYPE_CHECKING:
    from tests.integration.store.conftest import Driver


async def test_a_new_session_is_active_and_found_by_its_key(driver: Driver) -> None:
    info = await driver.place("s", group="g", size=2, key="k", owner="d1")
    assert (info.state, info.fence, info.owner_id, info.num_interactions) == (SessionState.ACTIVE, 1, "d1", 0)
    assert (info.task_id, info.group_id, info.group_size, info.key_hash) == ("task", "g", 2, "k")
    assert await driver.sessions.by_key("k") == info == await driver.sessions.get("s")
    assert await driver.sessions.by_key("other") is None
    assert await driver.sessions.get("other") is None


async def test_a_key_opens_one_active_session_and_can_be_used_again_after_its_end(driver: Driver) -> None:
    await driver.place("one", key="k")
    with pytest.raises(Conflict, match="already bound to active session one"):
        await driver.place("two", key="k")
    assert (await driver.store.capacity.get()).running == 1, "what is refused takes nothing"
    await driver.sessions.finish("one", queue=False, default_reward=None)
    await driver.place("two", key="k")
    found = await driver.sessions.by_key("k")
    assert found is not None
    assert found.session_id == "two"


async def test_of_many_starts_with_one_key_one_wins(driver: Driver) -> None:
    results = await asyncio.gather(*(driver.place(f"s{i}", key="k") for i in range(20)), return_exceptions=True)
    assert sum(isinstance(result, Conflict) for result in results) == 19
    assert (await driver.store.capacity.get()).running == 1


async def test_an_id_is_given_once_and_a_group_has_one_size(driver: Driver) -> None:
    await driver.place("s", group="g", size=2)
    with pytest.raises(Conflict, match="session s exists already"):
        await driver.place("s", key="another")
    with pytest.raises(Conflict, match="the group has size 2"):
        await driver.place("t", group="g", size=3)


async def test_an_id_that_names_another_sessions_records_is_refused(driver: Driver) -> None:
    with pytest.raises(InvalidRequest, match="session_id"):
        await driver.place("s:interactions")


async def test_concurrent_starts_never_exceed_the_capacity(driver: Driver) -> None:
    admission = Admission(mode=AdmissionMode.STALENESS, max_concurrent=100, max_staleness=2, batch_size=4)
    results = await asyncio.gather(*(driver.place(f"s{i}", admission=admission) for i in range(40)), return_exceptions=True)
    assert sum(isinstance(result, NoCapacity) for result in results) == 28
    assert (await driver.store.capacity.get()).running == 12


async def test_a_stale_owner_is_refused_and_the_live_one_goes_on(driver: Driver) -> None:
    await driver.place(owner="d1")
    await driver.record(fence=1)
    info = await driver.sessions.claim("s", "d2")
    assert (info.owner_id, info.fence) == ("d2", 2)
    with pytest.raises(SessionMoved, match="fence 2"):
        await driver.record(fence=1, index=1)
    with pytest.raises(SessionMoved):
        await driver.sessions.set_reward("s", 1, "i0", 1.0, queue=True)
    with pytest.raises(SessionMoved):
        await driver.sessions.finish("s", fence=1, queue=True, default_reward=None)
    await driver.record(fence=2, index=1)
    assert [record.id for record in (await driver.sessions.load("s")).records] == ["i0", "i1"]


async def test_a_session_is_claimed_only_when_its_owners_lease_is_gone(driver: Driver) -> None:
    await driver.lease("d1")
    await driver.place(owner="d1")
    assert (await driver.sessions.claim("s", "d2")).owner_id == "d1"
    assert (await driver.sessions.claim("s", "d2")).fence == 1
    await driver.store.members.remove(router_pb2.ROLE_DATAPROXY, "d1")
    assert (await driver.sessions.claim("s", "d2")).fence == 2


async def test_of_many_claims_one_wins(driver: Driver) -> None:
    await driver.place(owner="dead")
    names = [f"d{i}" for i in range(10)]
    await asyncio.gather(*(driver.lease(name) for name in names))
    infos = await asyncio.gather(*(driver.sessions.claim("s", name) for name in names))
    assert {info.fence for info in infos} == {2}
    assert len({info.owner_id for info in infos}) == 1


async def test_records_come_back_in_order_and_a_repeated_one_counts_once(driver: Driver) -> None:
    await driver.place()
    for index in (2, 0, 1, 2, 11):
        await driver.record(index=index)
    data = await driver.sessions.load("s")
    assert [record.index for record in data.records] == [0, 1, 2, 11]
    assert data.records[1].content == "answer 1"
    assert data.info.num_interactions == 4


async def test_each_of_many_concurrent_records_gets_its_own_answer(driver: Driver) -> None:
    await asyncio.gather(*(driver.place(f"s{i}") for i in range(10)))
    await driver.sessions.discard("s3", "fault")
    await driver.sessions.claim("s5", "d2")
    calls = [driver.record(f"s{i}", index=index) for i in range(10) for index in range(30)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    for number, result in enumerate(results):
        kind = {3: SessionGone, 5: SessionMoved}.get(number // 30, type(None))
        assert type(result) is kind
    assert len((await driver.sessions.load("s9")).records) == 30


async def test_records_survive_a_loss_of_the_scripts(driver: Driver) -> None:
    await driver.place()
    await driver.redis.script_flush()
    await asyncio.gather(*(driver.record(index=index) for index in range(5)))
    await driver.redis.script_flush()
    info = await driver.sessions.finish("s", queue=True, default_reward=0.0)
    assert info.num_interactions == 5


async def test_a_cancelled_caller_disturbs_nobody(driver: Driver) -> None:
    await driver.place()
    tasks = [asyncio.create_task(driver.record(index=index)) for index in range(20)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results[1::2] == [None] * 10
    gets = [asyncio.create_task(driver.sessions.get("s")) for _ in range(20)]
    await asyncio.sleep(0)
    for get in gets[::2]:
        get.cancel()
    await asyncio.gather(*gets, return_exceptions=True)
    info = await driver.sessions.get("s")
    assert info is not None
    assert info.session_id == "s", "no answer of a cancelled call is taken for another one's"


async def test_an_empty_id_rewards_the_last_interaction_that_counts(driver: Driver) -> None:
    await driver.place()
    with pytest.raises(InvalidRequest, match="No interactions in session"):
        await driver.sessions.set_reward("s", 1, "", 1.0, queue=False)
    await driver.record(index=0)
    await driver.record(index=1)
    await driver.record(index=2, rewardless=True)
    assert await driver.sessions.set_reward("s", 1, "", -0.25, queue=False) == "i1"
    info = await driver.sessions.get("s")
    assert info is not None
    assert info.has_reward
    assert (await driver.sessions.load("s")).rewards == {"i1": -0.25}
    with pytest.raises(InvalidRequest, match="Interaction nope not found"):
        await driver.sessions.set_reward("s", 1, "nope", 1.0, queue=False)


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
async def test_a_reward_is_finite(driver: Driver, reward: float) -> None:
    await driver.bring_to(SessionState.ACTIVE)
    with pytest.raises(InvalidRequest, match="finite"):
        await driver.sessions.set_reward("s", 1, "i0", reward, queue=False)
    with pytest.raises(InvalidRequest, match="finite"):
        await driver.sessions.finish("s", queue=False, default_reward=reward)


@pytest.mark.parametrize("reward", [0.1 + 0.2, 1e-300, -1.7976931348623157e308, 0.0])
async def test_a_reward_keeps_all_its_bits(driver: Driver, reward: float) -> None:
    await driver.bring_to(SessionState.ACTIVE)
    await driver.sessions.set_reward("s", 1, "i0", reward, queue=False)
    assert (await driver.sessions.load("s")).rewards == {"i0": reward}


async def test_a_refresh_queues_with_the_default_reward_only_where_none_is_set(driver: Driver) -> None:
    await driver.place("bare")
    await driver.record("bare", index=0)
    await driver.record("bare", index=1)
    assert (await driver.sessions.finish("bare", queue=True, default_reward=0.0)).state is SessionState.QUEUED
    assert (await driver.sessions.load("bare")).rewards == {"i1": 0.0}
    await driver.bring_to(SessionState.ACTIVE, "rewarded")
    await driver.sessions.finish("rewarded", queue=True, default_reward=0.0)
    assert (await driver.sessions.load("rewarded")).rewards == {"i0": 1.0}
    await driver.place("empty")
    info = await driver.sessions.finish("empty", queue=True, default_reward=0.0)
    assert info.state is SessionState.FINISHED, "a session without interactions has nothing to train"


async def test_a_late_reward_queues_a_finished_session(driver: Driver) -> None:
    await driver.place()
    await driver.record()
    assert (await driver.sessions.finish("s", fence=1, queue=True, default_reward=None)).state is SessionState.FINISHED
    await driver.sessions.set_reward("s", 1, "", 1.0, queue=True)
    assert await driver.state() is SessionState.QUEUED
    with pytest.raises(SessionGone, match="QUEUED"):
        await driver.sessions.set_reward("s", 1, "", 1.0, queue=True)


async def test_discarding_a_queued_session_takes_it_from_the_trainer_and_gives_its_budget_back(driver: Driver) -> None:
    await driver.bring_to(SessionState.QUEUED)
    assert (await driver.store.capacity.get()).accepted == 1
    info = await driver.sessions.discard("s", "cancelled")
    assert (info.state, info.reason) == (SessionState.DISCARDED, "cancelled")
    assert (await driver.store.capacity.get()).accepted == 0
    assert await driver.entries() == {}


async def test_the_sweep_ends_what_nobody_uses(driver: Driver) -> None:
    for name, state in (("idle", SessionState.ACTIVE), ("idle-paid", SessionState.ACTIVE), ("waiting", SessionState.FINISHED)):
        await driver.place(name)
        await driver.record(name)
        if name == "idle-paid":
            await driver.sessions.set_reward(name, 1, "", 1.0, queue=True)
        if state is SessionState.FINISHED:
            await driver.sessions.finish(name, queue=True, default_reward=None)
    await driver.bring_to(SessionState.QUEUED, "queued")
    sweep = driver.sessions.sweep
    assert await sweep(idle_seconds=60, finished_seconds=60, limit=10, queue=True) == [], "nothing is old yet"
    swept = await sweep(idle_seconds=0, finished_seconds=0, limit=2, queue=True)
    swept += await sweep(idle_seconds=0, finished_seconds=0, limit=2, queue=True)
    assert {(one.session_id, one.state, one.reason) for one in swept} == {
        ("idle", SessionState.DISCARDED, "idle_timeout"),
        ("idle-paid", SessionState.QUEUED, ""),
        ("waiting", SessionState.DISCARDED, "no_reward"),
    }
    assert {one.key_hash for one in swept} == {"key-idle", "key-idle-paid", "key-waiting"}
    await driver.check_consistent()


async def test_without_a_trainer_the_sweep_queues_nothing(driver: Driver) -> None:
    await driver.bring_to(SessionState.ACTIVE, "a")
    await driver.bring_to(SessionState.FINISHED, "b")
    swept = await driver.sessions.sweep(idle_seconds=0, finished_seconds=0, limit=10, queue=False)
    assert [(one.session_id, one.reason) for one in swept] == [("a", "idle_timeout"), ("b", "not_exported")]


async def test_a_call_or_a_reward_keeps_a_session_from_the_sweep(driver: Driver) -> None:
    await driver.place("s")
    created = await driver.redis.zscore(driver.prefix + "sessions:active", "s")
    await driver.record()
    recorded = await driver.redis.zscore(driver.prefix + "sessions:active", "s")
    await driver.sessions.set_reward("s", 1, "", 1.0, queue=False)
    rewarded = await driver.redis.zscore(driver.prefix + "sessions:active", "s")
    assert created < recorded < rewarded


async def test_old_sessions_are_forgotten_with_all_their_keys_but_never_queued_ones(driver: Driver) -> None:
    for state in SessionState:
        await driver.bring_to(state, state.lower())
    assert await driver.sessions.delete_old(retention_seconds=60, limit=10) == 0
    assert await driver.sessions.delete_old(retention_seconds=0, limit=2) == 2
    assert await driver.sessions.delete_old(retention_seconds=0, limit=10) == 1
    left = {info.session_id for info in await driver.sessions.list(state=None, limit=10)}
    assert left == {"active", "finished", "queued"}
    for gone in ("trained", "exported", "discarded"):
        assert await driver.redis.keys(f"{driver.prefix}*{gone}*") == []
    await driver.check_consistent()


async def test_a_key_that_opens_a_newer_session_outlives_the_old_one(driver: Driver) -> None:
    await driver.place("old", key="k")
    await driver.sessions.discard("old", "fault")
    await driver.place("new", key="k")
    assert await driver.sessions.delete_old(retention_seconds=0, limit=10) == 1
    found = await driver.sessions.by_key("k")
    assert found is not None
    assert found.session_id == "new"


async def test_lists_are_newest_first(driver: Driver) -> None:
    for name in ("a", "b", "c"):
        await driver.place(name)
    await driver.record("b")
    await driver.sessions.discard("c", "fault")
    assert [info.session_id for info in await driver.sessions.list(state="ACTIVE", limit=10)] == ["b", "a"]
    assert [info.session_id for info in await driver.sessions.list(state=None, limit=2)] == ["c", "b"]
    with pytest.raises(InvalidRequest, match="TRAINED"):
        await driver.sessions.list(state="NOPE", limit=1)


async def test_a_fault_of_one_record_is_told_to_its_caller_only(driver: Driver) -> None:
    await driver.place("good")
    await driver.place("bad")
    await driver.redis.set(driver.prefix + "session:bad:interactions", "no hash")
    results = await asyncio.gather(driver.record("good"), driver.record("bad"), driver.record("good", index=1), return_exceptions=True)
    assert [type(result) for result in results] == [type(None), Internal, type(None)]


async def test_values_of_a_newer_version_are_refused_not_misread(driver: Driver) -> None:
    await driver.place()
    await driver.redis.hset(driver.prefix + "session:s", "schema", 2)
    with pytest.raises(Internal, match="schema 2"):
        await driver.sessions.get("s")


async def test_loading_an_unknown_session_says_so(driver: Driver) -> None:
    with pytest.raises(NotFound, match="Session nope"):
        await driver.sessions.load("nope")

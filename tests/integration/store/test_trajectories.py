"""At least once out of the stream, exactly once into the weights."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rlrun.store import SessionState, Store, TrajectoryRef

if TYPE_CHECKING:
    from tests.integration.store.conftest import Driver


async def take(
    store: Store, *, pending: bool = False, consumer: str = "t1", count: int = 100, block_seconds: float = 0
) -> list[TrajectoryRef]:
    return await store.trajectories.read(consumer=consumer, count=count, block_seconds=block_seconds, pending=pending)


def names(refs: list[TrajectoryRef]) -> list[str]:
    return [ref.session_id for ref in refs]


async def test_entries_come_in_the_order_of_their_end_with_their_group(driver: Driver) -> None:
    assert await take(driver.store) == [], "before the first session ended"
    await driver.bring_to(SessionState.QUEUED, "a", group="g", size=2)
    await driver.bring_to(SessionState.QUEUED, "b", group="g", size=2)
    refs = await take(driver.store)
    assert names(refs) == ["a", "b"]
    assert {(ref.group_id, ref.group_size) for ref in refs} == {("g", 2)}
    assert await take(driver.store) == [], "each is new once"


async def test_what_was_queued_before_the_first_reader_is_read(driver: Driver) -> None:
    await driver.bring_to(SessionState.QUEUED, "early")
    assert names(await take(driver.store)) == ["early"]


async def test_a_waiting_reader_is_woken(driver: Driver) -> None:
    reader = asyncio.create_task(take(driver.store, block_seconds=30))
    await driver.bring_to(SessionState.QUEUED, "a")
    async with asyncio.timeout(5):
        assert names(await reader) == ["a"]


async def test_a_wait_longer_than_the_time_out_is_no_outage(redis_url: str, run_name: str) -> None:
    async with await Store.connect(redis_url, run=run_name, timeout_seconds=1.0) as store:
        started = asyncio.get_running_loop().time()
        assert await take(store, block_seconds=1.2) == []
        assert asyncio.get_running_loop().time() - started >= 1.2


async def test_a_new_process_reads_what_a_dead_one_took_whatever_its_name_was(driver: Driver, redis_url: str, run_name: str) -> None:
    for name in ("a", "b", "c", "d", "e"):
        await driver.bring_to(SessionState.QUEUED, name)
    assert names(await take(driver.store, consumer="dead", count=4)) == ["a", "b", "c", "d"]
    async with await Store.connect(redis_url, run=run_name) as fresh:
        pages = [names(await take(fresh, pending=True, count=3, consumer="heir")) for _ in range(4)]
        assert pages == [["a", "b", "c"], ["d"], [], ["a", "b", "c"]], "a walk ends with an empty page, then starts over"
        assert names(await take(fresh, consumer="heir")) == ["e"]


async def test_a_commit_may_be_repeated_by_another_process(driver: Driver, redis_url: str, run_name: str) -> None:
    await driver.bring_to(SessionState.QUEUED, "a")
    await driver.bring_to(SessionState.QUEUED, "b")
    refs = await take(driver.store)
    assert await driver.store.trajectories.commit(refs, step=1, batch_size=2) == 2
    before = await driver.store.capacity.get()
    async with await Store.connect(redis_url, run=run_name) as fresh:
        assert await fresh.trajectories.commit(refs, step=1, batch_size=2) == 0
        assert await take(fresh, pending=True) == []
    assert await driver.store.capacity.get() == before
    assert await driver.state("a") is SessionState.TRAINED
    assert await driver.entries() == {}
    await driver.check_consistent()


async def test_a_commit_takes_what_it_names_and_nothing_else(driver: Driver) -> None:
    for name in ("a", "b", "c"):
        await driver.bring_to(SessionState.QUEUED, name)
    refs = await take(driver.store)
    await driver.sessions.discard("b", "cancelled")
    assert await driver.store.trajectories.commit(refs[:2], step=1, batch_size=1) == 1, "what was discarded meanwhile is not trained"
    assert names(await take(driver.store, pending=True)) == ["c"]
    assert await driver.state("b") is SessionState.DISCARDED
    await driver.check_consistent()


async def test_an_old_entry_never_moves_a_session_that_took_the_same_id_later(driver: Driver) -> None:
    await driver.bring_to(SessionState.QUEUED, "a")
    (old,) = await take(driver.store)
    await driver.sessions.discard("a", "cancelled")
    await driver.sessions.delete_old(retention_seconds=0, limit=1)
    await driver.bring_to(SessionState.QUEUED, "a")
    assert await driver.store.trajectories.commit([old], step=1, batch_size=1) == 0
    assert not await driver.store.trajectories.discard(old, "stale")
    assert await driver.state("a") is SessionState.QUEUED
    await driver.check_consistent()


async def test_the_step_never_falls(driver: Driver) -> None:
    await driver.store.trajectories.commit([], step=3, batch_size=1)
    await driver.store.trajectories.commit([], step=2, batch_size=1)
    assert (await driver.store.capacity.get()).step == 3


async def test_a_stale_trajectory_leaves_the_stream_once(driver: Driver) -> None:
    await driver.bring_to(SessionState.QUEUED, "a", group="g", size=2)
    (ref,) = await take(driver.store)
    assert await driver.store.trajectories.discard(ref, "stale")
    assert not await driver.store.trajectories.discard(ref, "stale")
    info = await driver.sessions.get("a")
    assert info is not None
    assert (info.state, info.reason) == (SessionState.DISCARDED, "stale")
    group = await driver.store.trajectories.group("g")
    assert group is not None
    assert (group.size, group.placed, group.queued, group.closed) == (2, 1, 0, 1)
    assert await take(driver.store, pending=True) == []
    assert (await driver.store.capacity.get()).accepted == 0


async def test_a_discard_never_takes_back_what_was_trained(driver: Driver) -> None:
    await driver.bring_to(SessionState.QUEUED, "a")
    (ref,) = await take(driver.store)
    await driver.store.trajectories.commit([ref], step=1, batch_size=1)
    assert not await driver.store.trajectories.discard(ref, "stale")
    assert await driver.state("a") is SessionState.TRAINED


async def test_a_group_counts_every_session_that_was_started_for_it(driver: Driver) -> None:
    await driver.place("lost", group="g", size=2, key="k")
    await driver.sessions.finish("lost", queue=True, default_reward=None)
    await driver.place("retried", group="g", size=2, key="k")
    await driver.bring_to(SessionState.QUEUED, "other", group="g", size=2)
    group = await driver.store.trajectories.group("g")
    assert group is not None
    assert (group.size, group.placed, group.queued, group.closed) == (2, 3, 1, 2)


async def test_an_unknown_group_is_none(driver: Driver) -> None:
    assert await driver.store.trajectories.group("nope") is None

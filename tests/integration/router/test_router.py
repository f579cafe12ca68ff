"""Placement, refresh and moves over a real Redis; several routers act as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from rlrun_router.router import Router, RouterSettings

from rlrun.errors import Conflict, InvalidRequest, NoCapacity, NoMember, NotFound, Overloaded, RefreshTimeout, Unauthenticated
from rlrun.proto import router_pb2, session_pb2
from rlrun.store import Admission, AdmissionMode, Store

LEASE_SECONDS = 0.5
SETTINGS = RouterSettings(
    lease_seconds=LEASE_SECONDS,
    admission=Admission(mode=AdmissionMode.UNLIMITED, max_concurrent=100),
    refresh_timeout_seconds=0.4,
    queue_finished=True,
)


@pytest.fixture
async def store(redis_url: str, run_name: str) -> AsyncIterator[Store]:
    opened = await Store.connect(redis_url, run=run_name)
    yield opened
    await opened.close()


def proxy(name: str) -> router_pb2.Member:
    return router_pb2.Member(role=router_pb2.ROLE_DATAPROXY, id=name, address=f"{name}:7071")


def start(key: str, task: str = "task") -> router_pb2.PlaceSessionRequest:
    return router_pb2.PlaceSessionRequest(task_id=task, key_hash=key)


async def test_a_session_is_placed_once_and_every_router_finds_it(store: Store) -> None:
    first, second = Router(store, SETTINGS), Router(store, SETTINGS)
    await first.register(proxy("p1"))
    placed = (await first.place_session(start("k"))).placement
    assert placed.session_id.startswith("task-")
    assert placed.owner_address == "p1:7071"
    for request in (router_pb2.ResolveRequest(key_hash="k"), router_pb2.ResolveRequest(session_id=placed.session_id)):
        assert await second.resolve(request) == placed
    with pytest.raises(Unauthenticated):
        await second.resolve(router_pb2.ResolveRequest(key_hash="unknown"))
    with pytest.raises(NotFound):
        await second.resolve(router_pb2.ResolveRequest(session_id="unknown"))


async def test_without_an_owner_nothing_is_placed(store: Store) -> None:
    with pytest.raises(NoMember, match="DataProxy"):
        await Router(store, SETTINGS).place_session(start("k"))
    assert (await store.capacity.get()).running == 0


async def test_a_dead_owner_is_replaced_with_a_higher_fence(store: Store) -> None:
    router = Router(store, SETTINGS)
    await router.register(proxy("p1"))
    placed = (await router.place_session(start("k"))).placement
    await router.register(proxy("p2"))
    assert (await router.resolve(router_pb2.ResolveRequest(key_hash="k"))).owner_id == "p1"
    async with asyncio.timeout(5):
        while (moved := await router.resolve(router_pb2.ResolveRequest(key_hash="k"))).owner_id == "p1":
            await router.heartbeat(proxy("p2"))
            await asyncio.sleep(0.05)
    assert (moved.owner_id, moved.session_id) == ("p2", placed.session_id)
    assert moved.fence == placed.fence + 1


async def test_refresh_queues_the_old_session_and_keeps_the_key(store: Store) -> None:
    router = Router(store, SETTINGS)
    await router.register(proxy("p1"))
    old = (await router.place_session(start("k"))).placement
    await store.sessions.record(old.session_id, old.fence, session_pb2.InteractionRecord(id="i", schema=1))
    answer = await router.place_session(start("k"))
    assert answer.refreshed_session_id == old.session_id
    assert answer.placement.session_id != old.session_id
    assert (await router.resolve(router_pb2.ResolveRequest(key_hash="k"))).session_id == answer.placement.session_id
    data = await store.sessions.load(old.session_id)
    assert (str(data.info.state), dict(data.rewards)) == ("QUEUED", {"i": 0.0})


async def test_a_refresh_that_is_not_admitted_in_time_leaves_the_key_valid(store: Store) -> None:
    settings = replace(SETTINGS, admission=Admission(mode=AdmissionMode.GRANTED, max_concurrent=100))
    router = Router(store, settings)
    await router.register(proxy("p1"))
    with pytest.raises(NoCapacity):
        await router.place_session(start("k"))
    await router.grant_capacity(router_pb2.GrantCapacityRequest())
    old = (await router.place_session(start("k"))).placement
    with pytest.raises(RefreshTimeout, match="key stays valid"):
        await router.place_session(start("k"))
    assert (await router.resolve(router_pb2.ResolveRequest(key_hash="k"))).session_id == old.session_id
    await router.grant_capacity(router_pb2.GrantCapacityRequest(amount=1))
    new = (await router.place_session(start("k"))).placement
    assert (await router.resolve(router_pb2.ResolveRequest(key_hash="k"))).session_id == new.session_id


async def test_capacity_that_comes_during_a_refresh_is_taken(store: Store) -> None:
    router = Router(store, replace(SETTINGS, refresh_timeout_seconds=5, admission=Admission(mode=AdmissionMode.GRANTED, max_concurrent=9)))
    await router.register(proxy("p1"))
    await router.grant_capacity(router_pb2.GrantCapacityRequest())
    await router.place_session(start("k"))
    refresh = asyncio.create_task(router.place_session(start("k")))
    async with asyncio.timeout(5):
        while (held := await store.sessions.by_key("k")) is None or str(held.state) == "ACTIVE":
            await asyncio.sleep(0.01)
        await router.grant_capacity(router_pb2.GrantCapacityRequest())
        assert (await refresh).refreshed_session_id


async def test_of_parallel_refreshes_of_one_key_one_wins(store: Store) -> None:
    routers = [Router(store, SETTINGS) for _ in range(4)]
    await routers[0].register(proxy("p1"))
    await routers[0].place_session(start("k"))
    results = await asyncio.gather(*(router.place_session(start("k")) for router in routers), return_exceptions=True)
    refused = [result for result in results if isinstance(result, BaseException)]
    assert all(isinstance(error, Overloaded) for error in refused), refused
    assert (await store.capacity.get()).running == 1


async def test_policy_watch_tells_each_newer_version_once(store: Store) -> None:
    router = Router(store, SETTINGS)
    watch = router.watch_policy(router_pb2.WatchPolicyRequest(known_version=0))
    for version in (1, 2):
        await store.policy.publish(version=version, path=f"/w/{version}", fingerprint="f", parent=version - 1, step=version, lineage="l")
        async with asyncio.timeout(5):
            update = await anext(watch)
        assert (update.version, update.path) == (version, f"/w/{version}")
    await watch.aclose()  # type: ignore[attr-defined]


async def test_a_wrong_group_size_is_the_callers_fault_and_no_refresh(store: Store) -> None:
    router = Router(store, SETTINGS)
    await router.register(proxy("p1"))
    await router.place_session(router_pb2.PlaceSessionRequest(task_id="task", key_hash="a", group_id="g", group_size=4))
    with pytest.raises(Conflict, match="the group has size 4 already"):
        await router.place_session(router_pb2.PlaceSessionRequest(task_id="task", key_hash="b", group_id="g", group_size=8))


async def test_an_id_that_names_a_part_of_another_session_is_refused(store: Store) -> None:
    router = Router(store, SETTINGS)
    await router.register(proxy("p1"))
    placed = (await router.place_session(start("k"))).placement
    await store.sessions.record(placed.session_id, placed.fence, session_pb2.InteractionRecord(id="i", schema=1))
    for part in ("interactions", "rewards"):
        with pytest.raises(InvalidRequest, match="must not end in"):
            await router.resolve(router_pb2.ResolveRequest(session_id=f"{placed.session_id}:{part}"))

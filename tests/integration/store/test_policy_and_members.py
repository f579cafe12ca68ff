from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from rlrun.errors import Conflict, InvalidRequest
from rlrun.proto import router_pb2
from rlrun.store import PolicyInfo, Store

if TYPE_CHECKING:
    from tests.integration.store.conftest import Driver


async def publish(store: Store, version: int, *, fingerprint: str = "f") -> None:
    await store.policy.publish(
        version=version, path=f"policy/{version}", fingerprint=fingerprint, parent=version - 1, step=version * 10, lineage="l1"
    )


async def test_no_version_is_given_twice(driver: Driver, redis_url: str, run_name: str) -> None:
    async with await Store.connect(redis_url, run=run_name) as other:
        given = await asyncio.gather(*(store.policy.next_version() for store in (driver.store, other) for _ in range(20)))
    assert sorted(given) == list(range(1, 41))
    await publish(driver.store, 100)
    assert await driver.store.policy.next_version() == 101, "nor one that was published without asking"


async def test_the_current_version_only_grows_and_a_publication_may_be_repeated(store: Store) -> None:
    assert await store.policy.current() is None
    await publish(store, 0)
    await publish(store, 2)
    await publish(store, 2)
    for version, fingerprint in ((1, "f"), (2, "another")):
        with pytest.raises(Conflict, match="policy version 2 is current"):
            await publish(store, version, fingerprint=fingerprint)
    assert await store.policy.current() == PolicyInfo(version=2, path="policy/2", fingerprint="f", parent=1, step=20, lineage="l1")


async def test_members_are_listed_while_their_lease_runs(driver: Driver) -> None:
    store = driver.store
    await driver.lease("d2")
    await driver.lease("d1")
    await store.members.put(router_pb2.Member(role=router_pb2.ROLE_WORKER, id="w", address="a:1", policy_version=3), ttl_seconds=60)
    assert [member.id for member in await store.members.list(router_pb2.ROLE_DATAPROXY)] == ["d1", "d2"]
    assert (await store.members.list(router_pb2.ROLE_WORKER))[0].policy_version == 3
    assert await store.members.list(router_pb2.ROLE_TRAINER) == []
    await store.members.remove(router_pb2.ROLE_DATAPROXY, "d1")
    assert [member.id for member in await store.members.list(router_pb2.ROLE_DATAPROXY)] == ["d2"]


async def test_a_lease_ends_by_itself_and_its_id_is_forgotten(driver: Driver) -> None:
    await driver.lease("d1", ttl_seconds=0.02)
    async with asyncio.timeout(5):
        while await driver.store.members.list(router_pb2.ROLE_DATAPROXY):
            await asyncio.sleep(0.005)
    assert await driver.redis.smembers(driver.prefix + "members:dataproxy") == set()


async def test_a_heartbeat_replaces_what_is_known_of_a_member(driver: Driver) -> None:
    for load in (1, 2):
        member = router_pb2.Member(role=router_pb2.ROLE_WORKER, id="w", address="a:1", load=load)
        await driver.store.members.put(member, ttl_seconds=60)
    assert [member.load for member in await driver.store.members.list(router_pb2.ROLE_WORKER)] == [2]


async def test_a_member_without_role_is_refused(store: Store) -> None:
    with pytest.raises(InvalidRequest, match="ROLE_WORKER"):
        await store.members.put(router_pb2.Member(id="x"), ttl_seconds=1)

"""The Router's view of the members, over a store that answers when the test says so."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest
from rlrun_router.router import Members

from rlrun.errors import StoreUnavailable
from rlrun.proto import router_pb2
from rlrun.store import Store

ROLE = router_pb2.ROLE_WORKER


class SlowMembers:
    def __init__(self) -> None:
        self.num_reads = 0
        self.open = asyncio.Event()
        self.fault: Exception | None = None

    async def list(self, role: router_pb2.Role.ValueType) -> list[router_pb2.Member]:
        self.num_reads += 1
        number = self.num_reads
        await self.open.wait()
        if self.fault is not None:
            raise self.fault
        return [router_pb2.Member(id=f"read-{number}", role=role)]


@pytest.fixture
async def slow() -> SlowMembers:
    return SlowMembers()


@pytest.fixture
async def members(slow: SlowMembers) -> Members:
    return Members(cast(Store, SimpleNamespace(members=slow)))


async def test_a_burst_costs_one_read(slow: SlowMembers, members: Members) -> None:
    asking = [asyncio.create_task(members.of(ROLE)) for _ in range(20)]
    await asyncio.sleep(0)
    slow.open.set()
    assert {found[0].id for found in await asyncio.gather(*asking)} == {"read-1"}
    assert (await members.of(ROLE))[0].id == "read-1"
    assert slow.num_reads == 1


async def test_a_read_that_began_before_a_change_is_not_kept(slow: SlowMembers, members: Members) -> None:
    early = asyncio.create_task(members.of(ROLE))
    await asyncio.sleep(0)
    members.forget()
    late = asyncio.create_task(members.of(ROLE))
    await asyncio.sleep(0)
    slow.open.set()
    assert [(await early)[0].id, (await late)[0].id] == ["read-1", "read-2"]
    assert (await members.of(ROLE))[0].id == "read-2"


async def test_an_outage_fails_all_who_wait_at_once_and_is_not_kept(slow: SlowMembers, members: Members) -> None:
    slow.fault = StoreUnavailable("down")
    slow.open.set()
    answers = await asyncio.gather(*(members.of(ROLE) for _ in range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 3
    assert slow.num_reads == 1
    slow.fault = None
    assert (await members.of(ROLE))[0].id == "read-2"

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from client_fake_gateway import ADMIN_KEY, FakeGateway, fault

from rlrun.client import AsyncSessionClient, RetryPolicy, SessionClient
from rlrun.errors import Conflict, DeadlineExceeded, NoCapacity, PermissionDenied, Unavailable

FAST = RetryPolicy(first_wait_seconds=0.01, longest_wait_seconds=0.02, budget_seconds=5.0)


def client(gateway: FakeGateway, **options: Any) -> AsyncSessionClient:
    return AsyncSessionClient(gateway.url, **({"admin_key": ADMIN_KEY, "retry": FAST, "start_retry": FAST} | options))


async def test_a_session_from_start_to_export(gateway: FakeGateway) -> None:
    async with client(gateway) as rlrun:
        async with await rlrun.start_session("task", group_id="g", group_size=4) as session:
            assert session.session_id == "task-1"
            assert session.base_url == f"{gateway.url}/v1"
            await session.set_reward(1, "i-1")
            await session.set_reward(0.5)
        export = await session.export(discount=0.25, style="concat")
    assert gateway.starts == [{"task_id": "task", "api_key": session.api_key, "group_id": "g", "group_size": 4}]
    assert gateway.rewards == {session.api_key: [("i-1", 1.0), (None, 0.5)]}
    assert gateway.ended == [session.api_key]
    row = export.rows["i-1"]
    assert row.input_ids.tolist() == [5, 6, 7]
    assert row.versions.tolist() == [-1, -1, 4]
    assert row.reward == 0.25


async def test_the_synchronous_client_does_the_same(gateway: FakeGateway) -> None:
    def use() -> str:
        with SessionClient(gateway.url, admin_key=ADMIN_KEY, retry=FAST) as rlrun:
            with rlrun.start_session("task") as session:
                session.set_reward(2)
            assert session.export().rows["i-1"].loss_mask.tolist() == [0, 0, 1]
            assert rlrun.status()["policy_version"] == 0
        with pytest.raises(RuntimeError, match="closed"):
            rlrun.status()
        return session.api_key

    key = await asyncio.to_thread(use)
    assert gateway.rewards == {key: [(None, 2.0)]}
    assert gateway.ended == [key]


async def test_a_start_waits_for_admission_as_long_as_the_gateway_says(gateway: FakeGateway) -> None:
    gateway.faults["/rl/start_session"] = [fault(429, "no_capacity", retry_after_ms="150"), fault(503, "no_member", retry_after_ms="10")]
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with client(gateway) as rlrun:
        await rlrun.start_session("task")
    assert loop.time() - started >= 0.16


async def test_a_start_whose_answer_was_lost_is_repeated_with_the_same_key(gateway: FakeGateway) -> None:
    seen: list[str] = []

    async def lose(request: web.Request) -> web.Response:
        seen.append((await request.json())["api_key"])
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    gateway.faults["/rl/start_session"] = [lose]
    async with client(gateway) as rlrun:
        session = await rlrun.start_session("task")
    assert seen == [session.api_key]


@pytest.mark.parametrize(("answer", "error"), [(fault(409, "conflict"), Conflict), (fault(403, "permission_denied"), PermissionDenied)])
async def test_the_caller_s_fault_is_raised_without_another_try(gateway: FakeGateway, answer: web.Response, error: type[Exception]) -> None:
    gateway.faults["/rl/start_session"] = [answer]
    async with client(gateway) as rlrun:
        with pytest.raises(error):
            await rlrun.start_session("task")
    assert gateway.starts == []


async def test_the_budget_bounds_the_wait(gateway: FakeGateway) -> None:
    gateway.faults["/rl/start_session"] = [fault(429, "no_capacity", retry_after="600")]
    async with client(gateway) as rlrun:
        with pytest.raises(NoCapacity, match="made no_capacity"):
            await rlrun.start_session("task")


async def test_a_stalled_gateway_is_a_deadline_and_a_missing_one_unavailable(gateway: FakeGateway) -> None:
    async def stall(request: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    once = RetryPolicy(budget_seconds=0.0)
    gateway.faults["/admin/status"] = [stall]
    async with client(gateway, retry=once, timeout_seconds=0.1) as rlrun:
        with pytest.raises(DeadlineExceeded, match=r"no answer within 0\.1 s"):
            await rlrun.status()
    async with AsyncSessionClient("http://127.0.0.1:1", admin_key="k", retry=once) as rlrun:
        with pytest.raises(Unavailable, match="/admin/status"):
            await rlrun.status()


async def test_a_session_opened_by_its_key(gateway: FakeGateway) -> None:
    async with client(gateway, admin_key=None, api_key="session-key") as rlrun:
        await rlrun.session().set_reward(1.0)
        assert await rlrun.session().end() == 2
    assert gateway.rewards == {"session-key": [(None, 1.0)]}


async def test_a_session_is_ended_when_its_block_raises(gateway: FakeGateway) -> None:
    async with client(gateway) as rlrun:
        session = await rlrun.start_session("task")
        with pytest.raises(ZeroDivisionError):
            async with session:
                _ = 1 / 0
    assert gateway.ended == [session.api_key]

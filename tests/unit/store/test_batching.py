"""The batching of concurrent calls, over a Redis that answers when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from rlrun.errors import StoreUnavailable
from rlrun.store import batching
from rlrun.store.batching import BatchedScript
from rlrun.store.connection import Connection
from rlrun.store.scripts import load_script


class FakeConnection:
    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.open = asyncio.Semaphore(0)
        self.fault: Exception | None = None

    async def run_many(self, script: object, calls: Sequence[Sequence[Any]]) -> list[Any]:
        self.batches.append([call[0] for call in calls])
        await self.open.acquire()
        if self.fault is not None:
            raise self.fault
        return [call[0] * 10 for call in calls]


@pytest.fixture
async def fake() -> FakeConnection:
    return FakeConnection()


@pytest.fixture
async def script(fake: FakeConnection) -> BatchedScript:
    return BatchedScript(cast(Connection, fake), load_script("record"))


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def start(script: BatchedScript, numbers: range, *, size_bytes: int = 1) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(script.call(number, size_bytes=size_bytes)) for number in numbers]


async def test_what_comes_while_a_batch_is_in_flight_goes_together(fake: FakeConnection, script: BatchedScript) -> None:
    first = start(script, range(1))
    await turns()
    second = start(script, range(1, 6))
    await turns()
    assert fake.batches == [[0]]
    fake.open.release()
    await turns()
    assert fake.batches == [[0], [1, 2, 3, 4, 5]]
    fake.open.release()
    assert await asyncio.gather(*first, *second) == [0, 10, 20, 30, 40, 50]


async def test_batches_are_bounded_in_calls_and_bytes(fake: FakeConnection, script: BatchedScript, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "MAX_BATCH_CALLS", 4)
    monkeypatch.setattr(batching, "MAX_BATCH_BYTES", 100)
    tasks = start(script, range(5)) + start(script, range(5, 7), size_bytes=80) + start(script, range(7, 8), size_bytes=1000)
    for _ in range(10):
        fake.open.release()
    assert await asyncio.gather(*tasks) == [number * 10 for number in range(8)]
    assert fake.batches == [[0, 1, 2, 3], [4, 5], [6], [7]]


async def test_an_outage_reaches_each_caller_as_its_own_error_and_the_next_call_works(fake: FakeConnection, script: BatchedScript) -> None:
    fake.fault = StoreUnavailable("gone")
    tasks = start(script, range(3))
    fake.open.release()
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in errors] == [StoreUnavailable] * 3
    assert len({id(error) for error in errors}) == 3
    fake.fault = None
    fake.open.release()
    assert await script.call(7, size_bytes=1) == 70


async def test_a_cancelled_caller_does_not_stop_the_others(fake: FakeConnection, script: BatchedScript) -> None:
    tasks = start(script, range(3))
    await turns()
    tasks[0].cancel()
    fake.open.release()
    assert await asyncio.gather(*tasks[1:]) == [10, 20]


async def test_closing_waits_for_what_is_in_flight(fake: FakeConnection, script: BatchedScript) -> None:
    tasks = start(script, range(3))
    await turns()
    closing = asyncio.create_task(script.close())
    await turns()
    assert not closing.done()
    fake.open.release()
    await closing
    assert await asyncio.gather(*tasks) == [0, 10, 20]

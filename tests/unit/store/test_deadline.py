"""The deadline of a round trip: exact on a loop that keeps up, patient on one that does not."""

from __future__ import annotations

import asyncio
import time

import pytest
import uvloop

from rlrun.store.deadline import AnswerWithin


async def test_no_answer_raises_after_the_time_given() -> None:
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        async with AnswerWithin(0.2):
            await asyncio.Event().wait()
    assert time.monotonic() - started >= 0.2


async def test_an_answer_in_time_passes() -> None:
    async with AnswerWithin(0.2):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)  # nothing is left behind that could cancel later work


@pytest.mark.parametrize("round_seconds", [0.03, 0.05, 0.07, 0.1, 0.13, 0.19])
def test_an_answer_may_take_some_rounds_of_a_slow_loop(round_seconds: float) -> None:
    """On the loop that services run, where timers come first in each round."""

    async def other_work() -> None:
        while True:
            time.sleep(round_seconds)
            await asyncio.sleep(0)

    async def answer() -> None:
        work = asyncio.create_task(other_work())
        async with AnswerWithin(0.2):
            for _ in range(7):
                await asyncio.sleep(0)
        work.cancel()

    uvloop.run(answer())


async def test_a_loop_that_is_always_late_does_not_wait_for_ever() -> None:
    async def other_work() -> None:
        while True:
            time.sleep(0.05)
            await asyncio.sleep(0)

    work = asyncio.create_task(other_work())
    try:
        with pytest.raises(TimeoutError):
            async with AnswerWithin(0.1):
                await asyncio.Event().wait()
    finally:
        work.cancel()

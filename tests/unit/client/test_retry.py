from __future__ import annotations

import pytest

from rlrun.errors import Conflict, DeadlineExceeded, NoCapacity, RlrunError, SessionMoved, Unavailable
from rlrun.retry import RetryPolicy, retried


class Clock:
    """Time that passes only in sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


async def attempt(clock: Clock, errors: list[RlrunError], policy: RetryPolicy | None = None, spread: float = 1.0) -> str:
    async def call() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    return await retried(call, policy or RetryPolicy(), sleep=clock.sleep, clock=clock, spread=lambda: spread)


@pytest.mark.parametrize("error", [NoCapacity("full"), Unavailable("away"), DeadlineExceeded("slow"), SessionMoved("moved")])
async def test_an_error_that_later_can_help_is_retried(error: RlrunError) -> None:
    clock = Clock()
    assert await attempt(clock, [error]) == "done"
    assert len(clock.waits) == 1


async def test_waits_double_up_to_the_longest() -> None:
    clock = Clock()
    errors: list[RlrunError] = [DeadlineExceeded("slow") for _ in range(6)]
    assert await attempt(clock, errors) == "done"
    assert clock.waits == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


async def test_jitter_shortens_a_wait_by_at_most_half() -> None:
    clock = Clock()
    await attempt(clock, [DeadlineExceeded("slow")], spread=0.0)
    assert clock.waits == [0.25]


async def test_the_server_s_advice_is_the_least_wait() -> None:
    clock = Clock()
    await attempt(clock, [NoCapacity("full", retry_after_seconds=20.0)], spread=0.0)
    assert clock.waits == [20.0]


async def test_the_last_error_is_raised_when_the_budget_would_be_passed() -> None:
    clock = Clock()
    errors: list[RlrunError] = [DeadlineExceeded(f"try {number}") for number in range(100)]
    with pytest.raises(DeadlineExceeded, match="try 3"):
        await attempt(clock, errors, RetryPolicy(budget_seconds=4.0))
    assert clock.now == 3.5


async def test_the_caller_s_own_fault_is_raised_at_once() -> None:
    clock = Clock()
    with pytest.raises(Conflict):
        await attempt(clock, [Conflict("bound")])
    assert clock.waits == []

"""Retries of calls to a gateway: exponential waits with jitter, inside a budget, for errors that say that later can help."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from rlrun.errors import DeadlineExceeded, Overloaded, RlrunError, SessionMoved, Unavailable

T = TypeVar("T")
RETRYABLE: tuple[type[RlrunError], ...] = (Overloaded, Unavailable, DeadlineExceeded, SessionMoved)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """A call is tried until it succeeds, fails for good, or the next wait would pass the budget."""

    first_wait_seconds: float = 0.5
    longest_wait_seconds: float = 5.0
    budget_seconds: float = 60.0
    """From the first try to the start of the last one; waits that a server asks for count too."""

    def wait_seconds(self, failures: int, error: RlrunError, spread: float) -> float:
        """Before the next try. `spread` in [0, 1) keeps many clients from coming back together; what the server asked for is the least."""
        exponential = min(self.longest_wait_seconds, self.first_wait_seconds * 2.0 ** min(failures - 1, 30))
        return max(exponential * (0.5 + 0.5 * spread), (error.retry_after_seconds or 0.0) * (1.0 + 0.1 * spread))


async def retried(
    call: Callable[[], Awaitable[T]],
    policy: RetryPolicy,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
    spread: Callable[[], float] = random.random,
) -> T:
    """Returns what `call` returns; raises its last error once that is not retryable or the budget is spent."""
    started, failures = clock(), 0
    while True:
        try:
            return await call()
        except RETRYABLE as error:
            failures += 1
            wait = policy.wait_seconds(failures, error, spread())
            if clock() - started + wait > policy.budget_seconds:
                raise
        await sleep(wait)

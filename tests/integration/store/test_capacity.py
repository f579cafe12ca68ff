"""The formula where it counts: in the script that admits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlrun.errors import InvalidRequest, NoCapacity
from rlrun.store import Admission, AdmissionMode, SessionState

if TYPE_CHECKING:
    from tests.integration.store.conftest import Driver


# AReaL's own values: c, batch size, staleness, then running, accepted, step, and how many may start.
@pytest.mark.parametrize(
    ("max_concurrent", "batch_size", "max_staleness", "running", "accepted", "step", "left"),
    [
        (100, 4, 2, 0, 0, 0, 12),
        (100, 4, 2, 0, 0, 5, 32),
        (10, 4, 2, 3, 0, 0, 7),
        (20, 4, 2, 0, 5, 0, 7),
        (32, 16, 2, 0, 14, 1, 32),
        (0, 0, 0, 0, 0, 0, 1),
        (100, 4, 2, 20, 0, 0, 0),
    ],
)
async def test_as_many_sessions_start_as_the_formula_says(
    driver: Driver, max_concurrent: int, batch_size: int, max_staleness: int, running: int, accepted: int, step: int, left: int
) -> None:
    admission = Admission(mode=AdmissionMode.STALENESS, max_concurrent=max_concurrent, max_staleness=max_staleness, batch_size=batch_size)
    await driver.redis.hset(driver.prefix + "capacity", mapping={"running": running, "accepted": accepted, "step": step})
    for number in range(left):
        assert (await driver.store.capacity.get()).left(admission) == left - number
        await driver.place(f"s{number}", admission=admission)
    with pytest.raises(NoCapacity, match=f"step {step}"):
        await driver.place("one-too-many", admission=admission)


async def test_each_granted_session_takes_one_and_gives_none_back(driver: Driver) -> None:
    admission = Admission(mode=AdmissionMode.GRANTED, max_concurrent=100)
    with pytest.raises(NoCapacity, match="0 granted"):
        await driver.place("s", admission=admission)
    assert await driver.store.capacity.grant(amount=2) == 2
    await driver.place("a", admission=admission)
    await driver.sessions.discard("a", "fault")
    assert (await driver.store.capacity.get()).granted == 1
    await driver.place("b", admission=admission)
    with pytest.raises(NoCapacity):
        await driver.place("c", admission=admission)
    with pytest.raises(InvalidRequest, match="at least 1"):
        await driver.store.capacity.grant(amount=0)


async def test_concurrency_bounds_every_mode_and_an_end_frees_a_place(driver: Driver) -> None:
    await driver.store.capacity.grant(amount=10)
    for mode in (AdmissionMode.UNLIMITED, AdmissionMode.GRANTED):
        admission = Admission(mode=mode, max_concurrent=1)
        await driver.place(f"first-{mode}", admission=admission)
        with pytest.raises(NoCapacity):
            await driver.place("second", admission=admission)
        await driver.sessions.finish(f"first-{mode}", queue=False, default_reward=None)


async def test_a_step_of_more_sessions_than_a_batch_does_not_use_up_the_budget(driver: Driver) -> None:
    for name in ("a", "b", "c"):
        await driver.bring_to(SessionState.QUEUED, name)
    assert (await driver.store.capacity.get()).accepted == 3
    entries = await driver.entries()
    await driver.store.trajectories.commit([entries["a"], entries["b"]], step=1, batch_size=1)
    capacity = await driver.store.capacity.get()
    assert (capacity.step, capacity.accepted) == (1, 2), "one batch of 1, and the one that still waits"

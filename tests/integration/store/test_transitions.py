"""The table of states.py against Redis: every state x every event, with the counters and indexes that go with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING

import pytest

from rlrun.errors import NotFound, SessionGone
from rlrun.store import SessionEvent, SessionState
from rlrun.store.states import next_state

if TYPE_CHECKING:
    from tests.integration.store.conftest import Driver


async def _commit(driver: Driver) -> None:
    await driver.store.trajectories.commit([await driver.entry("s")], step=2, batch_size=1)


EVENTS: dict[SessionEvent, Callable[[Driver], Awaitable[object]]] = {
    SessionEvent.RECORD: lambda driver: driver.record(index=1),
    SessionEvent.REWARD: lambda driver: driver.sessions.set_reward("s", 1, "i0", 0.5, queue=False),
    SessionEvent.REWARD_QUEUE: lambda driver: driver.sessions.set_reward("s", 1, "i0", 0.5, queue=True),
    SessionEvent.FINISH: lambda driver: driver.sessions.finish("s", fence=1, queue=False, default_reward=None),
    SessionEvent.FINISH_QUEUE: lambda driver: driver.sessions.finish("s", fence=1, queue=True, default_reward=None),
    SessionEvent.EXPORT: lambda driver: driver.sessions.mark_exported("s"),
    SessionEvent.DISCARD: lambda driver: driver.sessions.discard("s", "why"),
    SessionEvent.COMMIT: _commit,
}


@pytest.mark.parametrize(("state", "event"), list(product(SessionState, SessionEvent)))
async def test_an_event_moves_a_session_as_the_table_says(driver: Driver, state: SessionState, event: SessionEvent) -> None:
    await driver.bring_to(state)
    assert await driver.state() is state
    before = await driver.sessions.load("s")
    expected = next_state(state, event)

    if expected is None and event is not SessionEvent.COMMIT:
        with pytest.raises(SessionGone, match=state):
            await EVENTS[event](driver)
        assert await driver.sessions.load("s") == before, "a refused event changes nothing"
    else:
        await EVENTS[event](driver)
    assert await driver.state() is (expected or state)
    await driver.check_consistent()


@pytest.mark.parametrize(("state", "event"), list(product(SessionState, SessionEvent)))
async def test_the_groups_counters_follow(driver: Driver, state: SessionState, event: SessionEvent) -> None:
    await driver.bring_to(state, group="g", size=2)
    with suppress(SessionGone):
        await EVENTS[event](driver)
    after = await driver.state()
    group = await driver.store.trajectories.group("g")
    assert group is not None
    assert group.size == 2
    assert group.closed == (0 if after is SessionState.ACTIVE else 1)
    assert group.queued == (1 if after in (SessionState.QUEUED, SessionState.TRAINED) else 0)


@pytest.mark.parametrize("event", list(SessionEvent))
async def test_an_event_for_an_unknown_session_says_so(driver: Driver, event: SessionEvent) -> None:
    if event is SessionEvent.COMMIT:
        await _commit(driver)
    else:
        with pytest.raises(NotFound, match="Session s not found"):
            await EVENTS[event](driver)
    assert await driver.redis.keys(driver.prefix + "session*") == []

"""Every ended session is handed over once, whatever answer of a real Redis is lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from rlrun_trainer import source
from rlrun_trainer.source import TrajectorySource

from rlrun.errors import StoreUnavailable
from rlrun.store import Store
from tests.integration.trainer.sessions import BATCH, document, finish_sessions

NAMES = [f"s{number}" for number in range(3 * BATCH)]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch needs more than one read, and nothing waits long."""
    monkeypatch.setattr(source, "READ_COUNT", BATCH - 1)
    monkeypatch.setattr(source, "BLOCK_SECONDS", 0)


def make_source(store: Store) -> TrajectorySource:
    return TrajectorySource(store, rollout=document(total_steps=1).spec.rollout, batch_size=BATCH, max_row_tokens=64)


async def handed_over(trajectories: TrajectorySource) -> list[str]:
    """The sessions of all batches, none of which is committed, until nothing comes any more."""
    names: list[str] = []
    while (batch := await trajectories.next_batch(times(20))) is not None:
        assert [row.session_id for row in batch.rows] == [ref.session_id for ref in batch.refs]
        names += [ref.session_id for ref in batch.refs]
    return names


def times(count: int) -> Callable[[], bool]:
    """False that often, then True."""
    left = iter(range(count))
    return lambda: next(left, None) is None


def lose_answer(monkeypatch: pytest.MonkeyPatch, owner: Any, method: str, *, number: int, command: str | None = None) -> Callable[[], int]:
    """The call of that number takes place, its caller hears StoreUnavailable. Returns how many calls there were."""
    original, calls = getattr(owner, method), 0

    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        answer = await original(*args, **kwargs)
        if command in (None, args[0]):
            calls += 1
            if calls == number:
                raise StoreUnavailable("the answer was lost")
        return answer

    monkeypatch.setattr(owner, method, wrapped)
    return lambda: calls


@pytest.mark.parametrize("number", [1, 2, BATCH, BATCH + 1, 3 * BATCH])
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_load_that_fails_once_loses_nothing(
    store: Store, redis_url: str, run_name: str, monkeypatch: pytest.MonkeyPatch, number: int, restarted: bool
) -> None:
    await finish_sessions(store, NAMES)
    if restarted:  # an earlier process took all and committed nothing: the failure comes amid the walk over it
        async with await Store.connect(redis_url, run=run_name) as earlier:
            assert await handed_over(make_source(earlier)) == NAMES
    calls = lose_answer(monkeypatch, store.sessions, "load", number=number)
    assert await handed_over(make_source(store)) == NAMES
    assert calls() > len(NAMES)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("command", ["XREADGROUP", "XAUTOCLAIM"])
async def test_a_read_whose_answer_is_lost_loses_nothing(
    store: Store, redis_url: str, run_name: str, monkeypatch: pytest.MonkeyPatch, command: str, number: int
) -> None:
    await finish_sessions(store, NAMES)
    if command == "XAUTOCLAIM":
        async with await Store.connect(redis_url, run=run_name) as earlier:
            assert await handed_over(make_source(earlier)) == NAMES
    calls = lose_answer(monkeypatch, store.trajectories._connection, "command", number=number, command=command)
    assert sorted(await handed_over(make_source(store))) == sorted(NAMES)
    assert calls() > number


async def test_a_lost_look_at_a_group_loses_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await finish_sessions(store, NAMES, group_size=2)
    calls = lose_answer(monkeypatch, store.trajectories, "group", number=2)
    assert sorted(await handed_over(make_source(store))) == sorted(NAMES)
    assert calls() > 2


async def test_a_discard_whose_answer_is_lost_discards_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await finish_sessions(store, ["bad"], logprob=float("nan"))
    await finish_sessions(store, NAMES)
    lose_answer(monkeypatch, store.trajectories, "discard", number=1)
    handed = await handed_over(make_source(store))
    assert handed == NAMES[: len(handed)]
    bad = await store.sessions.get("bad")
    assert bad is not None
    assert (str(bad.state), bad.reason) == ("DISCARDED", "nothing_to_train")


async def test_a_session_that_is_gone_cannot_stop_the_loop(store: Store) -> None:
    await finish_sessions(store, NAMES)
    trajectories = make_source(store)
    first = await trajectories.next_batch(times(20))
    assert first is not None
    gone = NAMES[BATCH]  # read already, as part of the page that completed the first batch
    await store.sessions.discard(gone, "cancelled")
    await store.sessions.delete_old(retention_seconds=0, limit=1)
    async with asyncio.timeout(10):
        handed = await handed_over(trajectories)
    assert gone not in handed
    assert handed[:2] == NAMES[BATCH + 1 : BATCH + 3]

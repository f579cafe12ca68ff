"""The training loop over a real Redis: each trajectory enters the weights once, whatever step a crash comes after."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import torch
from rlrun_trainer.loop import Directories, TrainingLoop

from rlrun import spec
from rlrun.store import Store
from tests.integration.trainer.sessions import BATCH, document, finish_sessions, states


class Crash(BaseException):
    """Ends the loop where it is raised, like a killed process would."""


def weights_of(loop: TrainingLoop) -> dict[str, torch.Tensor]:
    assert loop._learner is not None
    return {name: parameter.detach().clone() for name, parameter in loop._learner.model.named_parameters()}


async def run_to_end(store: Store, run: spec.RLRun, directories: Directories) -> TrainingLoop:
    loop = TrainingLoop(store, run, directories)
    await loop.load()
    async with asyncio.timeout(60):
        await loop.run()
    return loop


async def test_finished_sessions_become_versions_and_are_acknowledged(store: Store, directories: Directories) -> None:
    names = [f"s{number}" for number in range(2 * BATCH)]
    await finish_sessions(store, names)
    loop = await run_to_end(store, document(total_steps=2), directories)
    assert (loop.step, loop.version, loop.phase) == (2, 2, "complete")
    assert await states(store, names) == ["TRAINED"] * len(names)
    current = await store.policy.current()
    assert current is not None
    assert (current.version, current.parent, current.step) == (2, 1, 2)
    assert Path(current.path, "model.safetensors").is_file()
    assert (await store.capacity.get()).step == 2
    assert await store.trajectories.read(consumer="trainer", count=10, block_seconds=0.01, pending=True) == []


CrashPoint = Callable[[TrainingLoop, pytest.MonkeyPatch], None]


def _crash_instead(loop: TrainingLoop, patch: pytest.MonkeyPatch, name: str) -> None:
    async def crash(*args: object, **kwargs: object) -> None:
        raise Crash

    patch.setattr(loop, name, crash)


def before_version_directory(loop: TrainingLoop, patch: pytest.MonkeyPatch) -> None:
    _crash_instead(loop, patch, "_write_version")


def before_checkpoint(loop: TrainingLoop, patch: pytest.MonkeyPatch) -> None:
    _crash_instead(loop, patch, "_save")


def between_checkpoint_and_commit(loop: TrainingLoop, patch: pytest.MonkeyPatch) -> None:
    retry = loop._retry

    async def crash_on_commit(action: Callable[[], Awaitable[object]]) -> object:
        if loop.phase == "publishing" and "commit" in action.__code__.co_names:  # type: ignore[attr-defined]
            raise Crash
        return await retry(action)

    patch.setattr(loop, "_retry", crash_on_commit)


def before_announcement(loop: TrainingLoop, patch: pytest.MonkeyPatch) -> None:
    _crash_instead(loop, patch, "_announce")


@pytest.mark.parametrize("crash_point", [before_version_directory, before_checkpoint, between_checkpoint_and_commit, before_announcement])
async def test_a_crash_trains_nothing_twice_and_loses_nothing(
    store: Store,
    redis_url: str,
    run_name: str,
    directories: Directories,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    crash_point: CrashPoint,
) -> None:
    names = [f"s{number}" for number in range(2 * BATCH)]
    await finish_sessions(store, names)
    run = document(total_steps=2)

    crashed = TrainingLoop(store, run, directories)
    await crashed.load()
    with monkeypatch.context() as patch:
        crash_point(crashed, patch)
        with pytest.raises(Crash):
            await crashed.run()
    reopened = await Store.connect(redis_url, run=run_name)
    resumed = await run_to_end(reopened, run, directories)

    assert resumed.step == 2
    assert await states(store, names) == ["TRAINED"] * len(names)
    current = await store.policy.current()
    assert current is not None
    assert current.version == resumed.version >= 2
    # The same weights as without a crash: every trajectory once, in the same order.
    other = await Store.connect(redis_url, run=f"{run_name}-straight")
    await finish_sessions(other, names)
    straight = await run_to_end(
        other, run, Directories(model=directories.model, weights=tmp_path / "weights2", checkpoints=tmp_path / "checkpoints2")
    )
    expected = weights_of(straight)
    for name, parameter in weights_of(resumed).items():
        torch.testing.assert_close(parameter, expected[name], rtol=0, atol=0)
    await reopened.close()
    await other.close()


async def test_a_lost_lineage_never_shares_its_numbers(
    store: Store, redis_url: str, run_name: str, directories: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"s{number}" for number in range(3 * BATCH)]
    await finish_sessions(store, names)
    run = document(total_steps=3, checkpoint_every=3)
    crashed = TrainingLoop(store, run, directories)
    await crashed.load()
    with monkeypatch.context() as patch:
        _crash_instead(crashed, patch, "_save")
        with pytest.raises(Crash):
            await crashed.run()
    lost = await store.policy.current()
    assert lost is not None
    assert lost.version == 2

    reopened = await Store.connect(redis_url, run=run_name)
    resumed = await run_to_end(reopened, run, directories)
    current = await store.policy.current()
    assert current is not None
    assert current.version == resumed.version > 3
    assert current.lineage != lost.lineage
    assert await states(store, names) == ["TRAINED"] * len(names)
    await reopened.close()


async def test_a_session_that_cannot_be_trained_is_discarded_with_a_reason(store: Store, directories: Directories) -> None:
    await finish_sessions(store, ["bad"], logprob=float("nan"))
    names = [f"s{number}" for number in range(BATCH)]
    await finish_sessions(store, names)
    await run_to_end(store, document(total_steps=1), directories)
    bad = await store.sessions.get("bad")
    assert bad is not None
    assert (str(bad.state), bad.reason) == ("DISCARDED", "nothing_to_train")

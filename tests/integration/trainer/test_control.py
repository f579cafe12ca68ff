"""Checkpoints and ends on request, over a real Redis: between steps, never inside one."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rlrun_trainer import app, loop
from rlrun_trainer.loop import Directories, TrainingLoop

from rlrun.errors import Internal
from rlrun.local.supervisor import free_port
from rlrun.proto import common_pb2, router_pb2
from rlrun.rpc import peers
from rlrun.rpc.peers import Peers
from rlrun.rpc.tls import Security
from rlrun.service import Process, ServiceContext
from rlrun.spec.process_env import ProcessEnv
from rlrun.store import Store, TrajectoryRef
from tests.integration.trainer.sessions import BATCH, document, finish_sessions, states

NAMES = [f"s{number}" for number in range(2 * BATCH)]
SELDOM = 100


class Gate:
    """Holds the train step of a number, counted from 0, at its beginning until it is opened; then it may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, number: int = 0, error: Exception | None = None) -> None:
        self._entered, self._open = threading.Event(), threading.Event()
        self._number, self._error = number, error
        self._step = loop.lead_step
        monkeypatch.setattr(loop, "lead_step", self._lead_step)

    async def entered(self) -> None:
        assert await asyncio.to_thread(self._entered.wait, 10)

    def open(self) -> None:
        self._open.set()

    def _lead_step(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        if kwargs["step"] == self._number:
            self._entered.set()
            assert self._open.wait(10)
            if self._error is not None:
                raise self._error
        return self._step(*args, **kwargs)


async def started(store: Store, directories: Directories, *, checkpoint_every: int = SELDOM) -> tuple[TrainingLoop, asyncio.Task[None]]:
    training = TrainingLoop(store, document(total_steps=3, checkpoint_every=checkpoint_every), directories)
    await training.load()
    return training, asyncio.create_task(training.run())


def checkpoints(directories: Directories) -> dict[str, list[str]]:
    """The sessions of each checkpoint, by its name."""
    documents = {path.parent.name: json.loads(path.read_text()) for path in sorted(directories.checkpoints.glob("step-*/state.json"))}
    return {name: [text.split()[1] for text in document["trajectory_ids"]] for name, document in documents.items()}


async def test_a_checkpoint_waits_for_the_step_in_progress_and_holds_it(
    store: Store, directories: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    await finish_sessions(store, NAMES)
    gate = Gate(monkeypatch, number=1)
    training, run = await started(store, directories)
    await gate.entered()
    asked = [asyncio.create_task(training.checkpoint()) for _ in range(3)]
    await store.ping()
    assert not any(request.done() for request in asked)
    asked.pop().cancel()
    gate.open()
    async with asyncio.timeout(30):
        await asyncio.gather(*asked)
        assert checkpoints(directories) == {"step-00000002": NAMES}, "none was written inside the second step"
        assert await states(store, NAMES) == ["TRAINED"] * len(NAMES)
        await training.stop()
        await run


async def test_a_checkpoint_needs_no_new_step_and_repeats_nothing(store: Store, directories: Directories) -> None:
    await finish_sessions(store, NAMES[:BATCH])
    training, run = await started(store, directories)
    async with asyncio.timeout(30):
        while (training.step, training.phase) != (1, "waiting"):
            await store.ping()
        await training.checkpoint()
        assert await states(store, NAMES[:BATCH]) == ["TRAINED"] * BATCH
        written = (directories.checkpoints / "step-00000001").stat().st_mtime_ns
        training.paused = True
        await training.checkpoint()
        await training.stop()
        await run
        await training.checkpoint()
    assert (directories.checkpoints / "step-00000001").stat().st_mtime_ns == written


async def test_stop_finishes_the_step_in_progress_and_keeps_it(
    store: Store, directories: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    await finish_sessions(store, NAMES)
    gate = Gate(monkeypatch)
    training, run = await started(store, directories)
    control = app.TrainerControl(training)
    await gate.entered()
    stop = asyncio.create_task(control.stop(common_pb2.Empty()))
    await store.ping()
    assert not stop.done()
    gate.open()
    async with asyncio.timeout(30):
        status = await stop
        await run
    assert (status.phase, status.step) == ("stopped", 1)
    assert checkpoints(directories) == {"step-00000001": NAMES[:BATCH]}
    assert await states(store, NAMES) == ["TRAINED"] * BATCH + ["QUEUED"] * BATCH


async def test_what_comes_after_the_weights_were_written_is_not_committed(
    store: Store, directories: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    await finish_sessions(store, NAMES)
    training, run = await started(store, directories, checkpoint_every=2)
    late = TrajectoryRef(stream_id="1-1", session_id="late", group_id="", group_size=1)
    save, commit, committed = training._checkpoints.save, store.trajectories.commit, []

    def save_while_one_comes(*args: Any) -> Path:
        path = save(*args)
        training._uncommitted.append(late)
        return path

    async def noted_commit(refs: Any, **kwargs: Any) -> int:
        committed.append([ref.session_id for ref in refs])
        return await commit(refs, **kwargs)

    monkeypatch.setattr(training._checkpoints, "save", save_while_one_comes)
    monkeypatch.setattr(store.trajectories, "commit", noted_commit)
    async with asyncio.timeout(30):
        while not committed:
            await training.checkpoint()
    assert committed[0] == checkpoints(directories)[min(checkpoints(directories))]
    run.cancel()
    await asyncio.wait([run])


async def test_requests_hear_of_a_training_that_failed(store: Store, directories: Directories, monkeypatch: pytest.MonkeyPatch) -> None:
    await finish_sessions(store, NAMES)
    gate = Gate(monkeypatch, number=1, error=RuntimeError("out of memory"))
    training, run = await started(store, directories)
    await gate.entered()
    asked = asyncio.create_task(training.checkpoint())
    gate.open()
    async with asyncio.timeout(10):
        for request in (asked, training.checkpoint(), training.stop()):
            with pytest.raises(Internal, match="training failed at step 1"):
                await request
    assert training.phase == "failed"
    assert checkpoints(directories) == {}, "its weights may be half way through a step"
    with pytest.raises(RuntimeError, match="out of memory"):
        await run


class Router:
    async def register(self, member: router_pb2.Member) -> router_pb2.Lease:
        return router_pb2.Lease(ttl_seconds=60)

    async def heartbeat(self, member: router_pb2.Member) -> router_pb2.Lease:
        return router_pb2.Lease(ttl_seconds=60)

    async def deregister(self, member: router_pb2.Member) -> common_pb2.Empty:
        return common_pb2.Empty()


class Recorder:
    def __init__(self) -> None:
        self.notes: list[str] = []

    async def start(self) -> None:
        self.notes.append("start")

    async def drain(self) -> None:
        self.notes.append("drain")

    async def stop(self) -> None:
        self.notes.append("stop")

    def status(self) -> Mapping[str, Any]:
        return {}


async def test_a_training_that_died_ends_the_process_with_its_error_and_the_others_drain(
    store: Store, directories: Directories, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await finish_sessions(store, NAMES)
    Gate(monkeypatch, error=RuntimeError("out of memory")).open()
    monkeypatch.setattr(app, "directories_of", lambda run: directories)
    security = Security()
    reachable = Peers(security=security)
    reachable.publish(peers.ROUTER, "router", Router())
    context = ServiceContext(
        run=document(total_steps=3),
        env=ProcessEnv(),
        store=store,
        peers=reachable,
        security=security,
        bind="127.0.0.1",
        port=0,
        advertise="trainer",
        member_id="trainer",
        router_address="router",
    )
    other = Recorder()
    process = Process({"other": other, "trainer": app.build(context)}, [context], bind="127.0.0.1", ops_port=free_port())
    with pytest.raises(RuntimeError, match="out of memory"):
        async with asyncio.timeout(30):
            await process.run()
    assert other.notes == ["start", "drain", "stop"]
    assert "trainer: drain failed" in caplog.text
    await reachable.close()

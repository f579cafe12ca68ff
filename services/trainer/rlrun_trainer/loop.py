"""The training loop: batch -> step -> version directory -> checkpoint -> commit -> announcement, and the way back after a crash.

The checkpoint's rename is the commit point. Before it, a crash trains the batch again from the older checkpoint; after it, the next
start finds the consumed trajectories in the checkpoint and repeats the acknowledgement and the announcement, which change nothing twice.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import prometheus_client

from rlrun.errors import Internal, StoreUnavailable
from rlrun.models import model_directory
from rlrun.spec import RLRun, TrainerSpec
from rlrun.store import Store, TrajectoryRef
from rlrun.weights import read_manifest
from rlrun_trainer.checkpoint import CheckpointStore, TrainState
from rlrun_trainer.files import remove_scratch
from rlrun_trainer.learner import make_learner
from rlrun_trainer.parallel import follow, lead_restore, lead_step, lead_stop
from rlrun_trainer.publish import prune_versions, publish
from rlrun_trainer.source import Batch, TrajectorySource
from rlrun_trainer.step import Learner

log = logging.getLogger(__name__)

Result = TypeVar("Result")
RETRY_SECONDS = 0.5

_METRIC = prometheus_client.Gauge("rlrun_trainer_step_metric", "Metrics of the last train step", ["name"])


@dataclass(frozen=True, kw_only=True)
class Directories:
    model: Path
    weights: Path
    checkpoints: Path


class TrainingLoop:
    """One process that trains. `phase` says what it does: loading, waiting, training, publishing, paused, stopped, complete, failed.

    Only `run` touches weights, checkpoints and `_uncommitted`; what others ask for, it does between two steps.
    """

    def __init__(self, store: Store, run: RLRun, directories: Directories) -> None:
        assert run.spec.trainer is not None
        self._store = store
        self._spec: TrainerSpec = run.spec.trainer
        self._directories = directories
        self._checkpoints = CheckpointStore(directories.checkpoints, keep=self._spec.checkpoint.keep)
        self._source = TrajectorySource(
            store, rollout=run.spec.rollout, batch_size=self._spec.batch_size, max_row_tokens=self._spec.packing.max_tokens_per_row
        )
        self._learner: Learner | None = None
        self._uncommitted: list[TrajectoryRef] = []
        self._parent_checkpoint: str | None = None
        self._lineage = secrets.token_hex(8)
        self.step = 0
        self.version = 0
        self.phase = "loading"
        self.metrics: dict[str, float] = {}
        self.paused = False
        self.stopping = False
        self._ended = asyncio.Event()
        self._checkpoint_written = asyncio.Event()
        self._checkpoint_written.set()

    @property
    def num_buffered(self) -> int:
        return self._source.num_buffered

    @property
    def total_steps(self) -> int:
        return self._spec.total_steps

    async def load(self) -> None:
        """Loads the initial model or the newest checkpoint and finishes what a crash left undone."""
        self._learner = await asyncio.to_thread(make_learner, self._spec, self._directories.model)
        self._checkpoints.remove_scratch()
        remove_scratch(self._directories.weights)
        latest = self._checkpoints.latest()
        if latest is not None:
            state = await asyncio.to_thread(lead_restore, self._learner, self._checkpoints, latest)
            self.step, self.version, self._parent_checkpoint = state.step, state.policy_version, latest.name
            refs = [_ref(text) for text in state.trajectory_ids]
            await self._retry(lambda: self._store.trajectories.commit(refs, step=self.step, batch_size=self._spec.batch_size))
            log.info("resumed from %s: step %d, version %d", latest, self.step, self.version)
        current = await self._retry(self._store.policy.current)
        if self.version and (current is None or current.version < self.version):
            await self._announce(self._directories.weights / str(self.version))
        elif current is not None and current.version > self.version:
            # Versions of a lineage that was lost in a crash: what was restored gets a newer number.
            await self._publish()

    async def run(self) -> None:
        """Trains until `total_steps`, or until `stopping`; ends with all that was trained in a checkpoint."""
        try:
            while not self.stopping and self.step < self._spec.total_steps:
                if not self._checkpoint_written.is_set():
                    await self._save()
                    self._checkpoint_written.set()
                if self.paused:
                    self.phase = "paused"
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                self.phase = "waiting"
                batch = await self._source.next_batch(self._is_interrupted)
                if batch is not None:
                    await self._train(batch)
            await self._save()
            self.phase = "stopped" if self.stopping else "complete"
        except BaseException:
            self.phase = "failed"
            raise
        finally:
            self._ended.set()
            self._checkpoint_written.set()
        log.info("%s at step %d of %d", self.phase, self.step, self._spec.total_steps)

    async def checkpoint(self) -> None:
        """Returns when all that was trained, the step under way included, is in a checkpoint. Raises Internal if the training fails.

        The request stands even if the caller stops waiting.
        """
        if not self._ended.is_set():
            self._checkpoint_written.clear()
        await self._checkpoint_written.wait()
        self._check()

    async def stop(self) -> None:
        """Ends the training after the step under way; returns when that is in a checkpoint. Raises Internal if the training fails."""
        self.stopping = True
        await self._ended.wait()
        self._check()

    async def release_ranks(self) -> None:
        """Lets the other ranks end; for after `run`, which must not have failed: they might be inside a step that this rank left."""
        if self._learner is not None:
            await asyncio.to_thread(lead_stop, self._learner.ranks)

    def _is_interrupted(self) -> bool:
        return self.stopping or self.paused or not self._checkpoint_written.is_set()

    def _check(self) -> None:
        if self.phase == "failed":
            raise Internal(f"the training failed at step {self.step}; the trainer's log says why")

    async def _train(self, batch: Batch) -> None:
        assert self._learner is not None
        self.phase, started = "training", time.monotonic()
        self.metrics = await asyncio.to_thread(lead_step, self._learner, batch.rows, step=self.step, policy_version=self.version)
        self.step += 1
        self._uncommitted += batch.refs
        self.metrics["step_seconds"] = time.monotonic() - started
        for name, value in self.metrics.items():
            _METRIC.labels(name).set(value)
        self.phase = "publishing"
        if self.step % self._spec.publish.every_steps == 0 or self.step == self._spec.total_steps:
            path = await self._write_version()
            await self._save_if_due()
            await self._announce(path)
        else:
            await self._save_if_due()
        log.info(
            "step %d: %d sessions, %d rows, reward %.3f, version %d",
            self.step,
            len(batch.refs),
            len(batch.rows),
            self.metrics.get("reward_mean", float("nan")),
            self.version,
        )

    async def _save_if_due(self) -> None:
        if self.step % self._spec.checkpoint.every_steps == 0 or self.step == self._spec.total_steps:
            await self._save()

    async def _save(self) -> None:
        """Writes a checkpoint and commits what it contains; nothing, if the last one is of this step."""
        assert self._learner is not None
        refs = list(self._uncommitted)
        if not refs:
            return
        state = TrainState(
            step=self.step,
            policy_version=self.version,
            lineage=self._lineage,
            parent=self._parent_checkpoint,
            trajectory_ids=[_text(ref) for ref in refs],
            num_skipped_steps=self._learner.optimizer.num_skipped,
        )
        path = await asyncio.to_thread(self._checkpoints.save, state, self._learner.model, self._learner.optimizer)
        self._parent_checkpoint = path.name
        await self._retry(lambda: self._store.trajectories.commit(refs, step=state.step, batch_size=self._spec.batch_size))
        self._source.committed(refs)
        del self._uncommitted[: len(refs)]

    async def _publish(self) -> None:
        await self._announce(await self._write_version())

    async def _write_version(self) -> Path:
        assert self._learner is not None
        parent, self.version = self.version, await self._retry(self._store.policy.next_version)
        path, _ = await asyncio.to_thread(
            publish,
            self._directories.weights,
            self._learner.model,
            self._directories.model,
            version=self.version,
            parent=parent,
            step=self.step,
            lineage=self._lineage,
            trajectory_ids=[_text(ref) for ref in self._uncommitted],
        )
        return path

    async def _announce(self, path: Path) -> None:
        manifest = read_manifest(path)
        await self._retry(
            lambda: self._store.policy.publish(
                version=manifest.version,
                path=str(path),
                fingerprint=manifest.fingerprint,
                parent=manifest.parent or 0,
                step=manifest.step,
                lineage=manifest.lineage,
            )
        )
        prune_versions(self._directories.weights, self._spec.publish.keep)

    async def _retry(self, action: Callable[[], Awaitable[Result]]) -> Result:
        """Redis may be away for a while; what was trained waits for it."""
        while True:
            try:
                return await action()
            except StoreUnavailable as error:
                log.warning("waiting for Redis: %s", error)
                await asyncio.sleep(RETRY_SECONDS)


def _text(ref: TrajectoryRef) -> str:
    return f"{ref.stream_id} {ref.session_id}"


def _ref(text: str) -> TrajectoryRef:
    stream_id, _, session_id = text.partition(" ")
    return TrajectoryRef(stream_id=stream_id, session_id=session_id, group_id="", group_size=1)


def follow_rank_zero(run: RLRun) -> None:
    """What every rank but the first does: it trains on the rows that rank 0 sends, until rank 0 ends."""
    assert run.spec.trainer is not None
    directories = directories_of(run)
    learner = make_learner(run.spec.trainer, directories.model)
    follow(learner, CheckpointStore(directories.checkpoints, keep=run.spec.trainer.checkpoint.keep))


def directories_of(run: RLRun) -> Directories:
    data = run.data_directory()
    return Directories(
        model=model_directory(run.spec.model.uri), weights=run.weights_directory(data), checkpoints=run.checkpoint_directory(data)
    )

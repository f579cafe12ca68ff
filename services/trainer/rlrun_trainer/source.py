"""Reads the trajectory stream and hands over batches of rows; nothing is acknowledged here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from rlrun.errors import RlrunError, StoreUnavailable
from rlrun.spec import RolloutSpec
from rlrun.store import SessionData, Store, TrajectoryRef
from rlrun.trajectory import ExportStyle, InteractionTree, RewardStyle, TrajectoryRow, export_rows, reward_discount
from rlrun_trainer.batcher import Batcher
from rlrun_trainer.rows import Row

log = logging.getLogger(__name__)

READ_COUNT = 512
BLOCK_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Batch:
    """`refs` are committed with the checkpoint that contains `rows`."""

    refs: list[TrajectoryRef]
    rows: list[Row]


class TrajectorySource:
    """One consumer of the stream's group `trainer`.

    A new process first reads what an earlier one took and never committed, then what is new.
    """

    def __init__(self, store: Store, *, rollout: RolloutSpec, batch_size: int, max_row_tokens: int) -> None:
        self._store = store
        self._rollout = rollout
        self._max_row_tokens = max_row_tokens
        self._batcher = Batcher(batch_size=batch_size, group_timeout_seconds=rollout.group_timeout_seconds)
        self._pending = True

    @property
    def num_buffered(self) -> int:
        return self._batcher.num_buffered

    async def next_batch(self, stopped: Callable[[], bool]) -> Batch | None:
        """Waits for a batch; None once `stopped()`."""
        while not stopped():
            try:
                await self._read()
                while (refs := self._batcher.take()) is not None:
                    batch = await self._usable(refs)
                    if batch.rows:
                        return batch
            except StoreUnavailable as error:
                log.warning("waiting for Redis: %s", error)
                # A read whose answer was lost has taken entries; only the walk over what is pending shows them.
                self._pending = True
                await asyncio.sleep(BLOCK_SECONDS)
        return None

    def committed(self, refs: list[TrajectoryRef]) -> None:
        self._batcher.forget({ref.stream_id for ref in refs})

    async def _read(self) -> None:
        refs = await self._store.trajectories.read(consumer="trainer", count=READ_COUNT, block_seconds=BLOCK_SECONDS, pending=self._pending)
        if self._pending and not refs:
            self._pending = False
        now = time.monotonic()
        for ref in refs:
            self._batcher.add(ref, now_seconds=now)
        groups = self._batcher.waiting_groups()
        infos = {group: info for group in groups if (info := await self._store.trajectories.group(group)) is not None}
        self._batcher.close(infos, now_seconds=now)

    async def _usable(self, refs: list[TrajectoryRef]) -> Batch:
        """What can be trained; the rest is discarded with a reason, so that one bad session cannot stop the loop.

        Raises StoreUnavailable; then the batcher has the references back.
        """
        batch = Batch(refs=[], rows=[])
        try:
            for ref in refs:
                rows = await self._rows(ref)
                if any(row.num_loss_tokens for row in rows):
                    batch.refs.append(ref)
                    batch.rows.extend(rows)
                else:
                    await self._store.trajectories.discard(ref, reason="nothing_to_train")
        except StoreUnavailable:
            self._batcher.put_back(refs)
            raise
        return batch

    async def _rows(self, ref: TrajectoryRef) -> list[Row]:
        """The session's rows; none, with a line in the log, where they cannot be made."""
        try:
            data = await self._store.sessions.load(ref.session_id)
            return [self._row(ref, row) for row in self._export(data) if self._fits(ref, row)]
        except StoreUnavailable:
            raise
        except RlrunError as error:
            log.warning("session %s is discarded: %s", ref.session_id, error)
            return []

    def _export(self, data: SessionData) -> list[TrajectoryRow]:
        tree = InteractionTree.from_records(data.records)
        rewards = reward_discount(
            tree.parents(),
            data.rewards,
            style=RewardStyle(self._rollout.reward_propagation.value),
            turn_discount=self._rollout.turn_discount,
        )
        return export_rows(tree, rewards, style=ExportStyle(self._rollout.export_style.value))

    def _fits(self, ref: TrajectoryRef, row: TrajectoryRow) -> bool:
        if len(row.input_ids) <= self._max_row_tokens:
            return True
        log.warning(
            "session %s: a row of %d tokens exceeds spec.trainer.packing.maxTokensPerRow=%d and is left out",
            ref.session_id,
            len(row.input_ids),
            self._max_row_tokens,
        )
        return False

    def _row(self, ref: TrajectoryRef, row: TrajectoryRow) -> Row:
        return Row(
            input_ids=row.input_ids,
            loss_mask=row.loss_mask,
            logprobs=row.logprobs,
            versions=row.versions,
            reward=row.reward,
            group_id=ref.group_id,
            session_id=ref.session_id,
            temperature=row.temperature,
        )

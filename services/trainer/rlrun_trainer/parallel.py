"""Rank 0 decides, the other ranks follow: the same rows, the same step, the same restored checkpoint on each.

Only rank 0 reads the stream, writes checkpoints and publishes. Messages are msgpack; nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from rlrun_trainer.checkpoint import CheckpointStore, TrainState
from rlrun_trainer.ranks import Ranks
from rlrun_trainer.rows import Row
from rlrun_trainer.step import Learner, train_step


class _WireRow(msgspec.Struct, frozen=True, array_like=True):
    input_ids: bytes
    loss_mask: bytes
    logprobs: bytes
    versions: bytes
    reward: float
    group_id: str
    session_id: str
    temperature: float


class _Train(msgspec.Struct, frozen=True, tag=True):
    step: int
    policy_version: int
    rows: list[_WireRow]


class _Restore(msgspec.Struct, frozen=True, tag=True):
    path: str


class _Stop(msgspec.Struct, frozen=True, tag=True):
    pass


_Message = _Train | _Restore | _Stop
_DECODER: msgspec.msgpack.Decoder[_Message] = msgspec.msgpack.Decoder(_Message)


def lead_step(learner: Learner, rows: Sequence[Row], *, step: int, policy_version: int) -> dict[str, float]:
    """`train_step` on all ranks; for rank 0."""
    _send(learner.ranks, _Train(step=step, policy_version=policy_version, rows=[_encode(row) for row in rows]))
    return train_step(learner, rows, step=step, policy_version=policy_version)


def lead_restore(learner: Learner, store: CheckpointStore, path: Path) -> TrainState:
    """Restores a checkpoint on all ranks, which see the same directory; for rank 0."""
    _send(learner.ranks, _Restore(path=str(path)))
    return store.restore(path, learner.model, learner.optimizer)


def lead_stop(ranks: Ranks) -> None:
    """Lets the other ranks' `follow` return; for rank 0."""
    _send(ranks, _Stop())


def follow(learner: Learner, store: CheckpointStore) -> None:
    """Does what rank 0 does, until it stops; for every other rank."""
    while True:
        message = _DECODER.decode(learner.ranks.broadcast(None))
        if isinstance(message, _Stop):
            return
        if isinstance(message, _Restore):
            store.restore(Path(message.path), learner.model, learner.optimizer)
        else:
            rows = [_decode(row) for row in message.rows]
            train_step(learner, rows, step=message.step, policy_version=message.policy_version)


def _send(ranks: Ranks, message: _Message) -> None:
    assert ranks.rank == 0
    if ranks.world_size > 1:
        ranks.broadcast(msgspec.msgpack.encode(message))


def _encode(row: Row) -> _WireRow:
    return _WireRow(
        input_ids=row.input_ids.astype(np.int32).tobytes(),
        loss_mask=row.loss_mask.astype(np.int32).tobytes(),
        logprobs=row.logprobs.astype(np.float32).tobytes(),
        versions=row.versions.astype(np.int32).tobytes(),
        reward=row.reward,
        group_id=row.group_id,
        session_id=row.session_id,
        temperature=row.temperature,
    )


def _decode(row: _WireRow) -> Row:
    return Row(
        input_ids=np.frombuffer(row.input_ids, dtype=np.int32),
        loss_mask=np.frombuffer(row.loss_mask, dtype=np.int32),
        logprobs=np.frombuffer(row.logprobs, dtype=np.float32),
        versions=np.frombuffer(row.versions, dtype=np.int32),
        reward=row.reward,
        group_id=row.group_id,
        session_id=row.session_id,
        temperature=row.temperature,
    )

"""Rows are what the trainer learns from: one exported sequence each. A batch is rows padded to one length.

Shape legend: L tokens of one row, B rows, T tokens of the longest row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlrun.errors import InvalidRequest

PROMPT_VERSION = -1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Row:
    """One sequence of one session. Arrays share the length L; index t describes token t itself, nothing is shifted.

    input_ids: int32 [L]; loss_mask: int32 [L], 1 on tokens the policy sampled; logprobs: float32 [L], of the engine that sampled
    (behaviour), 0 on prompt tokens; versions: int32 [L], policy version of each sampled token, -1 on prompt tokens.
    temperature: the logprobs are those of logits / temperature; 0 (greedy) counts as 1, as it does in the engine.
    """

    input_ids: NDArray[np.int32]
    loss_mask: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    reward: float
    group_id: str
    session_id: str
    temperature: float = 1.0

    def __post_init__(self) -> None:
        lengths = {name: getattr(self, name).shape for name in ("input_ids", "loss_mask", "logprobs", "versions")}
        if len(set(lengths.values())) != 1 or self.input_ids.ndim != 1:
            raise InvalidRequest(f"row of session {self.session_id}: arrays must be 1-D and of one length, got {lengths}")
        if not np.isfinite(self.reward) or not np.isfinite(self.logprobs).all():
            raise InvalidRequest(f"row of session {self.session_id}: reward and logprobs must be finite; discard the trajectory")
        if not 0 <= self.temperature < np.inf:
            raise InvalidRequest(f"row of session {self.session_id}: temperature {self.temperature:g} must be finite and >= 0")

    def __len__(self) -> int:
        return int(self.input_ids.shape[0])

    @property
    def num_loss_tokens(self) -> int:
        """Tokens that can be trained: sampled and with a token before them."""
        return int(self.loss_mask[1:].sum())


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Batch:
    """Rows padded on the right to T. `group_index_B` numbers the rows' groups, so row order never decides who is compared."""

    input_ids_BT: Tensor  # int64, 0 on padding
    loss_mask_BT: Tensor  # bool
    logprobs_BT: Tensor  # float32
    versions_BT: Tensor  # int64, -1 on prompt and padding
    rewards_B: Tensor  # float32
    lengths_B: Tensor  # int64
    temperature_B: Tensor  # float32, > 0
    group_index_B: Tensor  # int64

    @property
    def shape(self) -> torch.Size:
        return self.input_ids_BT.shape


def select_rows(batch: Batch, rows: Sequence[int]) -> Batch:
    """The given rows in the given order, cut to the longest of them. Group numbers stay those of the whole batch."""
    index = torch.tensor(rows, dtype=torch.int64)
    lengths_B = batch.lengths_B[index]
    width = int(lengths_B.max())
    return Batch(
        input_ids_BT=batch.input_ids_BT[index, :width],
        loss_mask_BT=batch.loss_mask_BT[index, :width],
        logprobs_BT=batch.logprobs_BT[index, :width],
        versions_BT=batch.versions_BT[index, :width],
        rewards_B=batch.rewards_B[index],
        lengths_B=lengths_B,
        temperature_B=batch.temperature_B[index],
        group_index_B=batch.group_index_B[index],
    )


def group_indices(group_ids: Sequence[str]) -> Tensor:
    """int64 [B]: each row's group as a number, in order of first appearance."""
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(group_id, len(numbers)) for group_id in group_ids], dtype=torch.int64)


def pad_rows(rows: Sequence[Row]) -> Batch:
    """Puts rows into tensors [B, T] with T the longest row. Raises InvalidRequest for no rows."""
    if not rows:
        raise InvalidRequest("a batch needs at least one row")
    width = max(len(row) for row in rows)

    def padded(arrays: Sequence[NDArray[np.int32]] | Sequence[NDArray[np.float32]], fill: int, dtype: type[np.generic]) -> Tensor:
        out = np.full((len(rows), width), fill, dtype=dtype)
        for index, array in enumerate(arrays):
            out[index, : array.shape[0]] = array
        return torch.from_numpy(out)

    return Batch(
        input_ids_BT=padded([row.input_ids for row in rows], 0, np.int64),
        loss_mask_BT=padded([row.loss_mask for row in rows], 0, np.bool_),
        logprobs_BT=padded([row.logprobs for row in rows], 0, np.float32),
        versions_BT=padded([row.versions for row in rows], PROMPT_VERSION, np.int64),
        rewards_B=torch.tensor([row.reward for row in rows], dtype=torch.float32),
        lengths_B=torch.tensor([len(row) for row in rows], dtype=torch.int64),
        temperature_B=torch.tensor([row.temperature or 1.0 for row in rows], dtype=torch.float32),
        group_index_B=group_indices([row.group_id for row in rows]),
    )


def shift_left(x_BT: Tensor, fill: float) -> Tensor:
    """From "index t describes token t" to "index t describes the prediction of token t + 1"; the last column becomes `fill`."""
    return torch.cat([x_BT[:, 1:], torch.full_like(x_BT[:, :1], fill)], dim=1)

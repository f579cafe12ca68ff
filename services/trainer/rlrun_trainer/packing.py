"""Rows side by side in bins, so that little computation is spent on padding.

Shape legend: B rows, T tokens of the longest row, N bins, W tokens of a bin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlrun.errors import InvalidRequest
from rlrun_trainer.rows import Batch

PADDING = -1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PackedBatch:
    """`source_BT` says where token t of row b lies in the flattened bins."""

    input_ids_NW: Tensor  # int64, 0 on padding
    position_ids_NW: Tensor  # int64, from 0 in each row
    row_NW: Tensor  # int64, row index of each token, -1 on padding
    source_BT: Tensor  # int64, 0 on padding

    def attention_mask(self) -> Tensor:
        """bool [N, 1, W, W]: a token sees itself and earlier tokens of its own row; padding sees padding, so no row is empty."""
        same_NWW = self.row_NW[:, :, None] == self.row_NW[:, None, :]
        return same_NWW.tril()[:, None]


def first_fit_decreasing(lengths: Sequence[int], limit: int) -> list[list[int]]:
    """Bins of row indices; the sum of a bin's lengths is at most `limit`. Longest first, each into the first bin with room.

    Raises InvalidRequest for a length above the limit.
    """
    check_lengths(lengths, limit)
    bins: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        place = next((place for place, free in enumerate(room) if free >= lengths[index]), None)
        if place is None:
            bins.append([])
            room.append(limit)
            place = -1
        bins[place].append(index)
        room[place] -= lengths[index]
    return bins


def check_lengths(lengths: Sequence[int], limit: int) -> None:
    """Raises InvalidRequest for a length above the limit."""
    for index, length in enumerate(lengths):
        if length > limit:
            raise InvalidRequest(
                f"row {index} has {length} tokens, a bin takes {limit}; "
                "raise trainer.packing.maxTokensPerRow or discard longer trajectories",
                param="trainer.packing.maxTokensPerRow",
            )


def microbatches(lengths: Sequence[int], max_tokens: int) -> list[list[list[int]]]:
    """Groups of bins of which each fits one forward and backward pass of `max_tokens`, padding included.

    Bins are as wide as the longest row: wider ones would only make the attention matrix larger. A row above `max_tokens` goes alone.
    """
    if not lengths:
        return []
    width = max(lengths)
    bins = first_fit_decreasing(lengths, width)
    per_pass = max(1, max_tokens // width)
    return [bins[start : start + per_pass] for start in range(0, len(bins), per_pass)]


def pack(batch: Batch, bins: Sequence[Sequence[int]]) -> PackedBatch:
    """Lays the rows of each bin side by side. Every row of the batch must be in exactly one bin."""
    lengths = batch.lengths_B.tolist()
    width = max(sum(lengths[row] for row in rows) for rows in bins)
    shape = (len(bins), width)
    input_ids_NW = torch.zeros(shape, dtype=torch.int64)
    position_ids_NW = torch.zeros(shape, dtype=torch.int64)
    row_NW = torch.full(shape, PADDING, dtype=torch.int64)
    source_BT = torch.zeros(batch.shape, dtype=torch.int64)
    for number, rows in enumerate(bins):
        start = 0
        for row in rows:
            length = lengths[row]
            span = slice(start, start + length)
            input_ids_NW[number, span] = batch.input_ids_BT[row, :length]
            position_ids_NW[number, span] = torch.arange(length)
            row_NW[number, span] = row
            source_BT[row, :length] = torch.arange(start, start + length) + number * width
            start += length
    return PackedBatch(input_ids_NW=input_ids_NW, position_ids_NW=position_ids_NW, row_NW=row_NW, source_BT=source_BT)

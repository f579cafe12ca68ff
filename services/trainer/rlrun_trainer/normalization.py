"""Normalisation of rewards and advantages over the batch or over groups.

Shape legend: B rows, T tokens; x is [B] (rewards) or [B, T] (advantages).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlrun.spec.algorithm import NormLevel, NormSpec


def normalize(x: Tensor, mask: Tensor, group_index_B: Tensor, spec: NormSpec) -> Tensor:
    """(x - mean) / (std + eps) on masked-in elements, 0 elsewhere; computed in float64, returned in x's dtype.

    Groups are told by `group_index_B`, not by position, so rows of one group may lie anywhere and groups may differ in size.
    The deviation is taken around the mean that was subtracted. A lone element has leave-one-out mean 0 and unbiased deviation 1.
    With nothing masked in, x is returned unchanged. Sources: GRPO (Shao et al. 2024), RLOO (Ahmadian et al. 2024).
    """
    if not mask.any():
        return x
    x64, mask64 = x.double(), mask.double()
    centred = (x64 - _mean(x64, mask64, group_index_B, spec)) * mask64
    if spec.std_level is NormLevel.NONE:
        return centred.to(x.dtype)
    return (centred / (_std(centred, mask64, group_index_B, spec) + spec.eps)).to(x.dtype)


def _mean(x: Tensor, mask: Tensor, group_index_B: Tensor, spec: NormSpec) -> Tensor:
    if spec.mean_level is NormLevel.NONE:
        return torch.zeros_like(x)
    total, count = _pooled(x * mask, mask, group_index_B, spec.mean_level)
    if spec.leave_one_out:
        return torch.where(count > 1, (total - x * mask) / (count - 1).clamp(min=1), 0.0)
    return total / count.clamp(min=1)


def _std(centred: Tensor, mask: Tensor, group_index_B: Tensor, spec: NormSpec) -> Tensor:
    squares, count = _pooled(centred.square(), mask, group_index_B, spec.std_level)
    if not spec.unbiased:
        return (squares / count.clamp(min=1)).sqrt()
    return torch.where(count == 1, 1.0, (squares / (count - 1).clamp(min=1)).sqrt())


def _pooled(values: Tensor, mask: Tensor, group_index_B: Tensor, level: NormLevel) -> tuple[Tensor, Tensor]:
    """Sums of values and mask over each element's batch or group, shaped to broadcast against values."""
    index_B = group_index_B if level is NormLevel.GROUP else torch.zeros_like(group_index_B)
    return _pool(values, index_B), _pool(mask, index_B)


def _pool(values: Tensor, index_B: Tensor) -> Tensor:
    per_row_B = values.reshape(values.shape[0], -1).sum(dim=1)
    per_group = torch.zeros(int(index_B.max()) + 1, dtype=values.dtype, device=values.device).index_add_(0, index_B, per_row_B)
    return per_group[index_B].reshape(-1, *([1] * (values.ndim - 1)))

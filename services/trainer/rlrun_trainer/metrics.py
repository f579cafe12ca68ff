"""What a train step reports. Token statistics are sums that add up over microbatches and ranks.

Shape legend: B rows, T tokens; [B, T] tensors are shifted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlrun_trainer.advantages import Advantages
from rlrun_trainer.losses import BehaviourWeights, TokenLoss
from rlrun_trainer.model import TokenLogprobs
from rlrun_trainer.ranks import Ranks
from rlrun_trainer.rows import Batch

_SUMS = (
    "tokens",
    "loss",
    "entropy",
    "approx_kl",
    "clip_ratio",
    "dual_clip_ratio",
    "importance_weight_mean",
    "behaviour_kl",
    "behaviour_weight_mean",
    "filtered_fraction",
    "logprob_gap_mean",
    "fresh_tokens",
)
_MAXIMA = ("importance_weight_max", "behaviour_weight_max", "logprob_gap_max")


@dataclass(slots=True)
class Tally:
    """Sums and maxima over the tokens of a step, in float64."""

    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_SUMS, 0.0))
    maxima: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_MAXIMA, 0.0))

    def add(self, sums: Mapping[str, Tensor], maxima: Mapping[str, Tensor]) -> None:
        for name, value in zip(sums, torch.stack([value.double() for value in sums.values()]).tolist(), strict=True):
            self.sums[name] += value
        for name, value in zip(maxima, torch.stack([value.double() for value in maxima.values()]).tolist(), strict=True):
            self.maxima[name] = max(self.maxima[name], value)

    def reduce(self, ranks: Ranks, device: torch.device) -> dict[str, float]:
        """Means and maxima over all ranks. The gap is left out where no token came from the current version."""
        totals = ranks.sum_(torch.tensor([self.sums[name] for name in _SUMS], dtype=torch.float64, device=device)).tolist()
        tops = ranks.max_(torch.tensor([self.maxima[name] for name in _MAXIMA], dtype=torch.float64, device=device)).tolist()
        sums, maxima = dict(zip(_SUMS, totals, strict=True)), dict(zip(_MAXIMA, tops, strict=True))
        tokens, fresh = sums.pop("tokens"), sums.pop("fresh_tokens")
        gap = sums.pop("logprob_gap_mean")
        out = {name: total / max(1.0, tokens) for name, total in sums.items()} | maxima
        if fresh:
            return out | {"logprob_gap_mean": gap / fresh}
        del out["logprob_gap_max"]
        return out


@torch.no_grad()
def loss_tally(
    tally: Tally,
    current: TokenLogprobs,
    token_loss: TokenLoss,
    weights: BehaviourWeights,
    proximal_BT: Tensor,
    behaviour_BT: Tensor,
    mask_BT: Tensor,
    fresh_BT: Tensor,
) -> None:
    """Adds one microbatch. `fresh_BT` marks tokens that the engine sampled from exactly the weights that scored them here: where
    engine and trainer agree, their gap is 0.
    """
    moved_BT = torch.where(mask_BT, current.logprobs_BT - proximal_BT, 0.0)
    off_policy_BT = torch.where(mask_BT, proximal_BT - behaviour_BT, 0.0)
    gap_BT = torch.where(fresh_BT, (current.logprobs_BT - behaviour_BT).abs(), 0.0)
    tally.add(
        {
            "tokens": mask_BT.sum(),
            "loss": token_loss.loss_BT.sum(),
            "entropy": (current.entropy_BT * mask_BT).sum(),
            "approx_kl": _kl(moved_BT).sum(),
            "clip_ratio": token_loss.clip_mask_BT.sum(),
            "dual_clip_ratio": token_loss.dual_clip_mask_BT.sum(),
            "importance_weight_mean": token_loss.ratio_BT.sum(),
            "behaviour_kl": _kl(off_policy_BT).sum(),
            "behaviour_weight_mean": weights.weight_BT.sum(),
            "filtered_fraction": weights.filtered_BT.sum(),
            "logprob_gap_mean": gap_BT.sum(),
            "fresh_tokens": fresh_BT.sum(),
        },
        {
            "importance_weight_max": token_loss.ratio_BT.max(),
            "behaviour_weight_max": weights.weight_BT.max(),
            "logprob_gap_max": gap_BT.max(),
        },
    )


def batch_metrics(batch: Batch, advantages: Advantages, versions_BT: Tensor, policy_version: int) -> dict[str, float]:
    """What is known before the update. Rewards are as given; a `zero_advantage_fraction` of 1 means that nothing can be learned."""
    mask_BT = advantages.loss_mask_BT
    metrics = {
        "rows": float(batch.shape[0]),
        "groups": float(batch.group_index_B.max() + 1),
        "tokens": float(mask_BT.sum()),
        "tokens_total": float(batch.lengths_B.sum()),
        "reward_mean": float(batch.rewards_B.mean()),
        "reward_min": float(batch.rewards_B.min()),
        "reward_max": float(batch.rewards_B.max()),
    }
    if mask_BT.any():
        taken = advantages.advantages_BT[mask_BT].double()
        staleness = (policy_version - versions_BT[mask_BT]).double()
        metrics |= {
            "advantage_mean": float(taken.mean()),
            "advantage_std": float(taken.std(correction=0)),
            "advantage_min": float(taken.min()),
            "advantage_max": float(taken.max()),
            "zero_advantage_fraction": float((taken == 0).double().mean()),
            "staleness_min": float(staleness.min()),
            "staleness_avg": float(staleness.mean()),
            "staleness_max": float(staleness.max()),
        }
    return metrics


def _kl(log_ratio_BT: Tensor) -> Tensor:
    """Unbiased, never negative estimate of KL(old || new) on samples of old, from log(new / old); 0 where that is 0."""
    return log_ratio_BT.exp() - 1 - log_ratio_BT

"""From rewards to advantages: penalty, scaling, clipping, normalisation, KL, generalised advantage estimation.

Shape legend: B rows, T tokens. "Shifted" tensors describe at index t the prediction of token t + 1, as logits do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlrun.errors import ConfigError
from rlrun.spec.algorithm import KlEstimator, NormSpec
from rlrun_trainer.normalization import normalize
from rlrun_trainer.rows import Batch, shift_left

KL_BOUND = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlongPenalty:
    """Soft punishment of responses near the limit (DAPO, Yu et al. 2025, section 3.4), without its lower bound."""

    tokens: int  # width of the zone before the limit in which the penalty grows
    factor: float
    max_new_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AdvantageSettings:
    """`overlong` and `zero_reward_if_truncated` are building blocks for own algorithms; no document sets them."""

    discount: float = 1.0
    gae_lambda: float = 1.0
    reward_bias: float = 0.0
    reward_scaling: float = 1.0
    reward_clip: float = 20.0
    reward_norm: NormSpec | None = None
    adv_norm: NormSpec | None = None
    kl_ctl: float = 0.0
    kl_estimator: KlEstimator = KlEstimator.K1
    overlong: OverlongPenalty | None = None
    zero_reward_if_truncated: bool = False


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Advantages:
    """All [B, T] tensors are shifted."""

    advantages_BT: Tensor
    loss_mask_BT: Tensor  # bool
    rewards_B: Tensor  # after penalty, scaling, clipping and reward_norm


def compute_advantages(
    batch: Batch,
    settings: AdvantageSettings,
    *,
    ref_logprobs_BT: Tensor | None = None,
    truncated_B: Tensor | None = None,
) -> Advantages:
    """The whole pipeline, in AReaL's order, without a critic (values are 0).

    `ref_logprobs_BT` is shifted. `truncated_B` marks rows that ended by length. The outcome lands on the last trained token, so a
    row that ends in tool output keeps its reward.
    Raises ConfigError for a KL penalty without reference logprobs: zeros in their place would reward improbable tokens.
    """
    loss_mask_BT = shift_left(batch.loss_mask_BT, 0)
    rewards_B = shape_rewards(batch.rewards_B, loss_mask_BT.sum(dim=1), settings)
    if settings.reward_norm is not None:
        rewards_B = normalize(rewards_B, torch.ones_like(rewards_B, dtype=torch.bool), batch.group_index_B, settings.reward_norm)
    token_rewards_BT = _kl_rewards(shift_left(batch.logprobs_BT, 0), ref_logprobs_BT, loss_mask_BT, settings)
    outcome_B = rewards_B
    if settings.zero_reward_if_truncated and truncated_B is not None:
        outcome_B = rewards_B.masked_fill(truncated_B, 0.0)
    token_rewards_BT = token_rewards_BT + _on_last_trained(outcome_B, loss_mask_BT)
    advantages_BT = gae(token_rewards_BT, loss_mask_BT, discount=settings.discount, gae_lambda=settings.gae_lambda)
    if settings.adv_norm is not None:
        advantages_BT = normalize(advantages_BT, loss_mask_BT, batch.group_index_B, settings.adv_norm)
    return Advantages(advantages_BT=advantages_BT, loss_mask_BT=loss_mask_BT, rewards_B=rewards_B)


def shape_rewards(rewards_B: Tensor, response_tokens_B: Tensor, settings: AdvantageSettings) -> Tensor:
    """Overlong penalty, then bias and scaling, then clipping."""
    if settings.overlong is not None:
        rewards_B = rewards_B + overlong_penalty(response_tokens_B, settings.overlong)
    return ((rewards_B + settings.reward_bias) * settings.reward_scaling).clamp(-settings.reward_clip, settings.reward_clip)


def overlong_penalty(response_tokens_B: Tensor, penalty: OverlongPenalty) -> Tensor:
    """0 up to the zone, then falling linearly; reaches -factor at max_new_tokens."""
    excess_B = response_tokens_B - (penalty.max_new_tokens - penalty.tokens)
    return (-excess_B / penalty.tokens * penalty.factor).clamp(max=0.0)


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, estimator: KlEstimator) -> Tensor:
    """Per-token estimate of KL(p || p_ref) on samples of p (Schulman, Approximating KL divergence)."""
    d = logprobs - ref_logprobs
    if estimator is KlEstimator.K1:
        return d
    if estimator is KlEstimator.K2:
        return d.square() / 2
    return torch.exp(-d) - 1 + d


def kl_penalty(logprobs: Tensor, ref_logprobs: Tensor, estimator: KlEstimator) -> Tensor:
    """The estimate bounded to +-10, so that one improbable token cannot outweigh every reward."""
    return kl_estimate(logprobs, ref_logprobs, estimator).clamp(-KL_BOUND, KL_BOUND)


def gae(rewards_BT: Tensor, mask_BT: Tensor, *, discount: float, gae_lambda: float) -> Tensor:
    """Generalised advantage estimation (Schulman et al. 2016) with values 0, right to left; [B, T].

    Where the mask is 0 the advantage is carried through unchanged: gaps such as tool output do not discount.
    """
    advantages_BT = torch.zeros_like(rewards_BT)
    carried_B = torch.zeros_like(rewards_BT[:, 0])
    for t in reversed(range(rewards_BT.shape[1] - 1)):
        carried_B = torch.where(mask_BT[:, t], rewards_BT[:, t] + discount * gae_lambda * carried_B, carried_B)
        advantages_BT[:, t] = carried_B
    return advantages_BT


def _kl_rewards(behaviour_BT: Tensor, ref_BT: Tensor | None, mask_BT: Tensor, settings: AdvantageSettings) -> Tensor:
    if settings.kl_ctl == 0.0:
        return torch.zeros_like(behaviour_BT)
    if ref_BT is None:
        raise ConfigError(
            f"trainer.algorithm.klCtl: {settings.kl_ctl:g} needs a reference model, none is loaded; load one or set klCtl to 0",
            param="trainer.algorithm.klCtl",
        )
    return -settings.kl_ctl * kl_penalty(behaviour_BT * mask_BT, ref_BT * mask_BT, settings.kl_estimator) * mask_BT


def _on_last_trained(rewards_B: Tensor, mask_BT: Tensor) -> Tensor:
    positions_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    last_B = torch.where(mask_BT, positions_T, -1).amax(dim=1)
    return torch.where(positions_T == last_B[:, None], rewards_B[:, None], 0.0)

"""Policy losses: plain functions on shaped tensors. The caller sums `loss_BT` and divides by the global minibatch's token count.

`policy_loss` is what a train step calls. `sapo_loss` is a building block that no document names: put it there to train with it.

Shape legend: B rows, T tokens; all [B, T] tensors are shifted (index t is the prediction of token t + 1).
current: under gradient; proximal: the policy before this step's updates; behaviour: the engine that sampled.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rlrun.spec.algorithm import Aggregation, KlEstimator, Level, RejectionAction, RejectionMetric, RejectionSamplingSpec
from rlrun_trainer.advantages import kl_estimate

_KL_OF_METRIC = {
    RejectionMetric.KL_K1: KlEstimator.K1,
    RejectionMetric.KL_K2: KlEstimator.K2,
    RejectionMetric.KL_K3: KlEstimator.K3,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipSettings:
    eps_clip: float = 0.2
    eps_clip_higher: float | None = None
    c_clip: float | None = None
    level: Level = Level.TOKEN

    def __post_init__(self) -> None:
        assert self.c_clip is None or self.c_clip > 1.0, f"c_clip {self.c_clip} must be > 1"


@dataclass(frozen=True, kw_only=True, slots=True)
class SapoSettings:
    tau_positive: float = 1.0
    tau_negative: float = 1.05

    def __post_init__(self) -> None:
        assert min(self.tau_positive, self.tau_negative) > 0, f"{self}: tau must be > 0"


@dataclass(frozen=True, kw_only=True, slots=True)
class LossSettings:
    """`rejection` judges proximal against behaviour; without it every token keeps its weight."""

    clip: ClipSettings = field(default_factory=ClipSettings)
    rejection: RejectionSamplingSpec | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TokenLoss:
    """Loss per token, 0 where the mask is 0. Everything but `loss_BT` is detached."""

    loss_BT: Tensor
    ratio_BT: Tensor  # current / proximal (SAPO: / behaviour)
    clip_mask_BT: Tensor  # bool: the clipped ratio decided
    dual_clip_mask_BT: Tensor  # bool: the dual clip decided


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BehaviourWeights:
    """What the gap between proximal and behaviour policy does to each token."""

    mask_BT: Tensor  # bool: tokens that stay in the loss
    weight_BT: Tensor  # float: factor of the loss, 0 outside the mask
    filtered_BT: Tensor  # bool: tokens left out (Mask) or bounded (Clamp)


def policy_loss(
    logprobs_BT: Tensor, proximal_BT: Tensor, behaviour_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, settings: LossSettings
) -> tuple[TokenLoss, BehaviourWeights]:
    """The configured loss, weighed by proximal / behaviour. With proximal = behaviour the weights are 1 (plain PPO)."""
    if settings.rejection is None:
        weights = behaviour_weights(proximal_BT, behaviour_BT, mask_BT)
    else:
        weights = rejection_sampling(proximal_BT, behaviour_BT, mask_BT, settings.rejection)
    token_loss = ppo_clip_loss(logprobs_BT, proximal_BT, advantages_BT, weights.mask_BT, settings.clip)
    return replace(token_loss, loss_BT=token_loss.loss_BT * weights.weight_BT), weights


def ppo_clip_loss(logprobs_BT: Tensor, proximal_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, settings: ClipSettings) -> TokenLoss:
    """Clipped surrogate (PPO, Schulman et al. 2017), per token or per sequence (GSPO, Zheng et al. 2025).

    The upper clip distance may differ (DAPO, Yu et al. 2025). `c_clip` bounds the loss of negative advantages (dual clip, Ye et al. 2020).
    """
    log_ratio_BT = torch.where(mask_BT, logprobs_BT - proximal_BT, 0.0)
    if settings.level is Level.SEQUENCE:
        log_ratio_BT = _row_mean(log_ratio_BT, mask_BT).expand_as(log_ratio_BT)
        advantages_BT = _row_mean(advantages_BT, mask_BT).expand_as(advantages_BT)
    ratio_BT = torch.where(mask_BT, log_ratio_BT.exp(), 0.0)
    upper = settings.eps_clip if settings.eps_clip_higher is None else settings.eps_clip_higher
    plain_BT = -advantages_BT * ratio_BT
    clipped_BT = -advantages_BT * ratio_BT.clamp(1.0 - settings.eps_clip, 1.0 + upper)
    clip_mask_BT = (clipped_BT > plain_BT) & mask_BT
    loss_BT = torch.maximum(plain_BT, clipped_BT)
    dual_clip_mask_BT = torch.zeros_like(mask_BT)
    if settings.c_clip is not None:
        bound_BT = settings.c_clip * advantages_BT.abs()
        dual_clip_mask_BT = (loss_BT > bound_BT) & mask_BT
        loss_BT = torch.minimum(loss_BT, bound_BT)
    return TokenLoss(
        loss_BT=torch.where(mask_BT, loss_BT, 0.0),
        ratio_BT=ratio_BT.detach(),
        clip_mask_BT=clip_mask_BT,
        dual_clip_mask_BT=dual_clip_mask_BT,
    )


def sapo_loss(logprobs_BT: Tensor, behaviour_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, settings: SapoSettings) -> TokenLoss:
    """Soft gate in place of the clip (SAPO, Gao et al. 2025): gate = (4 / tau) * sigmoid(tau * (ratio - 1)), loss = -gate * advantage."""
    ratio_BT = torch.where(mask_BT, logprobs_BT - behaviour_BT, 0.0).exp()
    tau_BT = torch.where(advantages_BT > 0, settings.tau_positive, settings.tau_negative)
    gate_BT = 4.0 / tau_BT * torch.sigmoid(tau_BT * (ratio_BT - 1.0))
    nothing_BT = torch.zeros_like(mask_BT)
    return TokenLoss(
        loss_BT=torch.where(mask_BT, -gate_BT * advantages_BT, 0.0),
        ratio_BT=(ratio_BT * mask_BT).detach(),
        clip_mask_BT=nothing_BT,
        dual_clip_mask_BT=nothing_BT,
    )


def behaviour_weights(proximal_BT: Tensor, behaviour_BT: Tensor, mask_BT: Tensor) -> BehaviourWeights:
    """proximal / behaviour on every token (decoupled PPO, Hilton et al. 2021; AReaL, Fu et al. 2025, section 5.2)."""
    weight_BT = _log_ratio(proximal_BT, behaviour_BT, mask_BT).exp() * mask_BT
    return BehaviourWeights(mask_BT=mask_BT, weight_BT=weight_BT, filtered_BT=torch.zeros_like(mask_BT))


def rejection_sampling(proximal_BT: Tensor, behaviour_BT: Tensor, mask_BT: Tensor, spec: RejectionSamplingSpec) -> BehaviourWeights:
    """Masks or clamps tokens or whole sequences whose proximal policy left the behaviour policy too far. Bounds are inclusive.

    Weights are proximal / behaviour per token; for sequences judged by ratio, the geometric mean of their tokens.
    """
    log_ratio_BT = _log_ratio(proximal_BT, behaviour_BT, mask_BT)
    by_sequence = spec.level is Level.SEQUENCE
    if by_sequence and spec.metric is RejectionMetric.RATIO:
        weight_BT = _row_mean(log_ratio_BT, mask_BT).exp().expand_as(log_ratio_BT)
    else:
        weight_BT = log_ratio_BT.exp()
    measure_BT = _measure(log_ratio_BT, mask_BT, spec).expand_as(log_ratio_BT)
    clamp = spec.action is RejectionAction.CLAMP
    lower = 0.0 if spec.lower is None and clamp else spec.lower
    outside_BT = measure_BT > spec.upper
    if lower is not None:
        outside_BT = outside_BT | (measure_BT < lower)
    if by_sequence:
        outside_BT = outside_BT & mask_BT.any(dim=1, keepdim=True)
    filtered_BT = outside_BT & mask_BT
    if clamp:
        weight_BT = torch.where(filtered_BT, weight_BT.clamp(lower, spec.upper), weight_BT)
        return BehaviourWeights(mask_BT=mask_BT, weight_BT=weight_BT * mask_BT, filtered_BT=filtered_BT)
    kept_BT = mask_BT & ~outside_BT
    return BehaviourWeights(mask_BT=kept_BT, weight_BT=torch.where(kept_BT, weight_BT, 0.0), filtered_BT=filtered_BT)


def _measure(log_ratio_BT: Tensor, mask_BT: Tensor, spec: RejectionSamplingSpec) -> Tensor:
    """The compared quantity: [B, T] per token or [B, 1] per sequence. Ratios are aggregated as logarithms."""
    if spec.metric is RejectionMetric.RATIO:
        if spec.level is Level.SEQUENCE:
            log_ratio_BT = _aggregate(log_ratio_BT, mask_BT, spec.agg)
        return log_ratio_BT.exp()
    kl_BT = kl_estimate(torch.zeros_like(log_ratio_BT), log_ratio_BT, _KL_OF_METRIC[spec.metric])
    return _aggregate(kl_BT, mask_BT, spec.agg) if spec.level is Level.SEQUENCE else kl_BT


def _aggregate(x_BT: Tensor, mask_BT: Tensor, agg: Aggregation) -> Tensor:
    if agg is Aggregation.SUM:
        return (x_BT * mask_BT).sum(dim=1, keepdim=True)
    if agg is Aggregation.MEAN:
        return _row_mean(x_BT, mask_BT)
    return torch.where(mask_BT, x_BT, -torch.inf).amax(dim=1, keepdim=True)


def _log_ratio(proximal_BT: Tensor, behaviour_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """log(proximal / behaviour) in float32; 0 where masked or not finite."""
    log_ratio_BT = proximal_BT.float() - behaviour_BT.float()
    return torch.where(mask_BT & log_ratio_BT.isfinite(), log_ratio_BT, 0.0)


def _row_mean(x_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return (x_BT * mask_BT).sum(dim=1, keepdim=True) / mask_BT.sum(dim=1, keepdim=True).clamp(min=1)

"""The trainer's algorithm: reward to advantage, advantage to loss. One model per name, told apart by `name`.

Field names and their meaning follow AReaL's PPOActorConfig; what an algorithm fixes is a default of its class.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from rlrun.spec.base import Fault, SpecModel


class KlEstimator(StrEnum):
    """With d = log p - log p_ref: K1 = d, K2 = d^2 / 2, K3 = exp(-d) - 1 + d (Schulman, Approximating KL divergence)."""

    K1 = "K1"
    K2 = "K2"
    K3 = "K3"


class NormLevel(StrEnum):
    BATCH = "Batch"
    GROUP = "Group"
    NONE = "None"


class Level(StrEnum):
    TOKEN = "Token"
    SEQUENCE = "Sequence"


class RejectionAction(StrEnum):
    MASK = "Mask"
    CLAMP = "Clamp"


class RejectionMetric(StrEnum):
    RATIO = "Ratio"
    KL_K1 = "KlK1"
    KL_K2 = "KlK2"
    KL_K3 = "KlK3"


class Aggregation(StrEnum):
    SUM = "Sum"
    MEAN = "Mean"
    MAX = "Max"


class NormSpec(SpecModel):
    """(x - mean) / (std + eps), each taken over the batch, the group or not at all."""

    mean_level: NormLevel = Field(default=NormLevel.BATCH, description="What the subtracted mean is taken over; None subtracts nothing.")
    std_level: NormLevel = Field(default=NormLevel.BATCH, description="What the deviation is taken over; None divides by 1.")
    leave_one_out: bool = Field(default=False, description="The mean leaves out the value itself (RLOO).")
    unbiased: bool = Field(default=True, description="Divide squared deviations by n - 1 instead of n.")
    eps: float = Field(default=1e-5, gt=0, le=1.0, description="Added to the deviation.")

    def rules(self) -> Iterator[Fault]:
        if self.leave_one_out and self.mean_level is NormLevel.NONE:
            yield Fault("leaveOneOut", True, "needs meanLevel Batch or Group; set one or drop leaveOneOut")

    def uses_group(self) -> bool:
        return NormLevel.GROUP in (self.mean_level, self.std_level)


class RejectionSamplingSpec(SpecModel):
    """Tokens or sequences whose proximal policy left the behaviour policy too far."""

    level: Level = Field(default=Level.TOKEN, description="Judge each token or each sequence.")
    action: RejectionAction = Field(default=RejectionAction.MASK, description="Mask: leave out of the loss. Clamp: bound the weight.")
    metric: RejectionMetric = Field(default=RejectionMetric.RATIO, description="Measure of proximal against behaviour policy.")
    agg: Aggregation = Field(default=Aggregation.MEAN, description="How a sequence's tokens are put together; needs level Sequence.")
    upper: float = Field(default=5.0, description="Largest accepted value, inclusive.")
    lower: float | None = Field(default=None, description="Smallest accepted value, inclusive; null: no lower bound.")

    def rules(self) -> Iterator[Fault]:
        if self.metric is RejectionMetric.RATIO:
            if self.upper <= 1.0:
                yield Fault("upper", self.upper, "must be > 1 with metric Ratio (1 is on-policy); raise it")
            if self.lower is not None and self.lower <= 0.0 and self.action is RejectionAction.MASK:
                yield Fault("lower", self.lower, "must be > 0 with metric Ratio; raise it or leave it out")
            if self.lower is not None and self.lower < 0.0 and self.action is RejectionAction.CLAMP:
                yield Fault("lower", self.lower, "must be >= 0 with metric Ratio and action Clamp; raise it or leave it out")
        if self.metric in (RejectionMetric.KL_K2, RejectionMetric.KL_K3) and self.upper <= 0.0:
            yield Fault("upper", self.upper, f"must be > 0 with metric {self.metric}, which is never negative; raise it")
        if self.lower is not None and self.lower >= self.upper:
            yield Fault("lower", self.lower, f"must be < upper ({self.upper:g}); lower it or raise upper")
        if self.action is RejectionAction.CLAMP and self.metric is not RejectionMetric.RATIO:
            yield Fault("action", str(self.action), f"must be Mask with metric {self.metric}; only a Ratio can be clamped")
        if self.level is Level.TOKEN and self.agg is not Aggregation.MEAN:
            yield Fault("agg", str(self.agg), "has no effect with level Token; leave it out or set level Sequence")


class AlgorithmBase(SpecModel):
    """What all algorithms share: the clipped policy-gradient loss and the reward pipeline."""

    eps_clip: float = Field(default=0.2, gt=0, lt=1, description="The policy ratio is clipped to 1 - epsClip .. 1 + epsClip.")
    eps_clip_higher: float | None = Field(default=None, gt=0, le=10, description="Upper clip distance (DAPO); null takes epsClip.")
    c_clip: float | None = Field(default=None, gt=1, description="Dual clip: bound of the loss of negative advantages; null: none.")
    kl_ctl: float = Field(
        default=0.0, ge=0, description="Weight of the KL penalty against the initial weights; 0 loads no reference model."
    )
    kl_estimator: KlEstimator = Field(default=KlEstimator.K1, description="Estimator of the KL penalty.")
    discount: float = Field(default=1.0, ge=0, le=1, description="Gamma: discount per token.")
    gae_lambda: float = Field(default=1.0, ge=0, le=1, description="Lambda of generalised advantage estimation.")
    reward_bias: float = Field(default=0.0, description="Added to each reward first.")
    reward_scaling: float = Field(default=1.0, description="Factor of the reward after the bias.")
    reward_clip: float = Field(default=20.0, gt=0, description="Rewards are clipped to plus and minus this after scaling.")
    reward_norm: NormSpec | None = Field(default=None, description="Normalisation of the sequences' rewards; null: none.")
    adv_norm: NormSpec | None = Field(default=None, description="Normalisation of the tokens' advantages; null: none.")
    use_decoupled_loss: bool = Field(
        default=False, description="Clip against the policy before this step (proximal), weigh by proximal / behaviour (AReaL)."
    )
    rejection_sampling: RejectionSamplingSpec | None = Field(
        default=None, description="Leave out or bound what is too far off-policy; null: keep all."
    )
    importance_sampling_level: Level = Field(
        default=Level.TOKEN, description="Token: a ratio per token. Sequence: one per sequence (GSPO)."
    )
    minibatches: int = Field(default=1, ge=1, le=1024, description="Optimizer steps per batch; rows are split by count.")

    def rules(self) -> Iterator[Fault]:
        if self.reward_scaling == 0.0:
            yield Fault("rewardScaling", self.reward_scaling, "must not be 0, which removes every reward; use 1.0 for unchanged rewards")
        if self.rejection_sampling is not None and not self.use_decoupled_loss:
            yield Fault(
                "rejectionSampling",
                "an object",
                "needs useDecoupledLoss: true, without which the proximal policy is the behaviour policy and nothing is rejected; set it",
            )

    def uses_group(self) -> bool:
        return any(norm is not None and norm.uses_group() for norm in (self.reward_norm, self.adv_norm))


class PpoSpec(AlgorithmBase):
    """PPO (Schulman et al. 2017): advantages normalised over the batch."""

    name: Literal["ppo"] = Field(default="ppo", description="ppo")
    adv_norm: NormSpec | None = Field(default=NormSpec(), description="Normalisation of the tokens' advantages; null: none.")


class GrpoSpec(AlgorithmBase):
    """GRPO (Shao et al. 2024): rewards normalised by mean and deviation of their group."""

    name: Literal["grpo"] = Field(default="grpo", description="grpo")
    reward_norm: NormSpec | None = Field(
        default=NormSpec(mean_level=NormLevel.GROUP, std_level=NormLevel.GROUP), description="Normalisation of the sequences' rewards."
    )


class DrGrpoSpec(AlgorithmBase):
    """Dr. GRPO (Liu et al. 2025): the group's mean is subtracted, nothing divides."""

    name: Literal["drGrpo"] = Field(default="drGrpo", description="drGrpo")
    reward_norm: NormSpec | None = Field(
        default=NormSpec(mean_level=NormLevel.GROUP, std_level=NormLevel.NONE), description="Normalisation of the sequences' rewards."
    )


class RlooSpec(AlgorithmBase):
    """RLOO (Ahmadian et al. 2024): the mean of the other members is subtracted."""

    name: Literal["rloo"] = Field(default="rloo", description="rloo")
    reward_norm: NormSpec | None = Field(
        default=NormSpec(mean_level=NormLevel.GROUP, std_level=NormLevel.NONE, leave_one_out=True),
        description="Normalisation of the sequences' rewards.",
    )


AlgorithmSpec = Annotated[PpoSpec | GrpoSpec | DrGrpoSpec | RlooSpec, Field(discriminator="name")]

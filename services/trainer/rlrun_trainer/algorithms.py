"""From the document's algorithm to the settings of advantages and loss.

What tells the algorithms apart are the defaults of their spec classes: a new one is such a class and, at most, a line here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rlrun.spec.algorithm import AlgorithmBase
from rlrun_trainer.advantages import AdvantageSettings
from rlrun_trainer.losses import ClipSettings, LossSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class Algorithm:
    """`decoupled` clips against the policy before the step, for one more forward pass; else against the behaviour policy: plain PPO."""

    advantages: AdvantageSettings = field(default_factory=AdvantageSettings)
    loss: LossSettings = field(default_factory=LossSettings)
    decoupled: bool = False
    num_minibatches: int = 1

    def __post_init__(self) -> None:
        # Equal policies reject nothing; the document refuses this combination.
        assert self.loss.rejection is None or self.decoupled


def algorithm_of(spec: AlgorithmBase) -> Algorithm:
    """The settings of advantages and loss that a spec stands for."""
    return Algorithm(
        advantages=AdvantageSettings(
            discount=spec.discount,
            gae_lambda=spec.gae_lambda,
            reward_bias=spec.reward_bias,
            reward_scaling=spec.reward_scaling,
            reward_clip=spec.reward_clip,
            reward_norm=spec.reward_norm,
            adv_norm=spec.adv_norm,
            kl_ctl=spec.kl_ctl,
            kl_estimator=spec.kl_estimator,
        ),
        loss=LossSettings(
            clip=ClipSettings(
                eps_clip=spec.eps_clip,
                eps_clip_higher=spec.eps_clip_higher,
                c_clip=spec.c_clip,
                level=spec.importance_sampling_level,
            ),
            rejection=spec.rejection_sampling,
        ),
        decoupled=spec.use_decoupled_loss,
        num_minibatches=spec.minibatches,
    )

"""From the document's algorithm to the settings of advantages and loss. A new algorithm is a spec class and, at most, a line here."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlrun.errors import ConfigError
from rlrun.spec.algorithm import AlgorithmBase, DrGrpoSpec, GrpoSpec, PpoSpec, RlooSpec
from rlrun_trainer.advantages import AdvantageSettings
from rlrun_trainer.losses import ClipSettings, LossSettings
from rlrun_trainer.proximal import ProximalMethod

# What tells the algorithms apart are the defaults of their classes: group size and order never matter, groups go by id.
REGISTRY: dict[str, type[AlgorithmBase]] = {"ppo": PpoSpec, "grpo": GrpoSpec, "drGrpo": DrGrpoSpec, "rloo": RlooSpec}


@dataclass(frozen=True, kw_only=True, slots=True)
class Algorithm:
    """`proximal` Rollout clips against the behaviour policy, which is plain PPO; the other methods make the loss decoupled."""

    advantages: AdvantageSettings = field(default_factory=AdvantageSettings)
    loss: LossSettings = field(default_factory=LossSettings)
    proximal: ProximalMethod = ProximalMethod.ROLLOUT
    num_minibatches: int = 1

    def __post_init__(self) -> None:
        if self.loss.sapo is not None and self.proximal is not ProximalMethod.ROLLOUT:
            raise ConfigError("trainer.algorithm: SAPO works on current / behaviour; turn useDecoupledLoss off")
        # Equal policies reject nothing; the document refuses this combination.
        assert self.loss.rejection is None or self.proximal is not ProximalMethod.ROLLOUT


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
        proximal=ProximalMethod.RECOMPUTE if spec.use_decoupled_loss else ProximalMethod.ROLLOUT,
        num_minibatches=spec.minibatches,
    )

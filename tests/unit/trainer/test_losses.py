"""Golden values and gradients of the policy losses."""

from typing import Any

import pytest
import torch
from rlrun_trainer.losses import ClipSettings, SapoSettings, ppo_clip_loss, rejection_sampling, sapo_loss
from torch import Tensor

from rlrun.spec.algorithm import Aggregation, Level, RejectionAction, RejectionMetric, RejectionSamplingSpec

LOGPROBS = [[-1, -0.5, -2, -0.1], [-0.3, -1.2, -0.7, -0.9]]
PROXIMAL_BT = torch.tensor([[-1.2, -0.6, -1.5, -0.1], [-0.3, -0.8, -0.9, -0.9]])
OLD_BT = torch.tensor([[-1.4, -0.5, -1, -2], [-0.3, -0.9, -0.6, -0.9]])
ADVANTAGES_BT = torch.tensor([[1.0] * 4, [-1.0] * 4])
MASK_BT = torch.tensor([[True, True, True, False]] * 2)
NEGATIVE_GRAD = [0.166667, 0, 0.203567, 0]


def logprobs() -> Tensor:
    return torch.tensor(LOGPROBS, dtype=torch.float32, requires_grad=True)


def token_mean(loss_BT: Tensor) -> Tensor:
    """As a train step does it: over the tokens of the mask before rejection sampling."""
    return loss_BT.sum() / MASK_BT.sum()


def close(actual: Tensor | None, expected: Any) -> None:
    assert actual is not None
    torch.testing.assert_close(actual.float(), torch.tensor(expected, dtype=torch.float32), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("settings", "loss", "grad", "clipped", "dual_clipped"),
    [
        ({}, 0.018284, [[0, -0.184195, -0.101088, 0], NEGATIVE_GRAD], [[1, 0, 0, 0], [0, 1, 0, 0]], [0, 0, 0, 0]),
        (
            {"eps_clip_higher": 0.28},
            0.014716,
            [[-0.203567, -0.184195, -0.101088, 0], NEGATIVE_GRAD],
            [[0, 0, 0, 0], [0, 1, 0, 0]],
            [0, 0, 0, 0],
        ),
        (
            {"c_clip": 1.1},
            -0.001950,
            [[0, -0.184195, -0.101088, 0], [0.166667, 0, 0, 0]],
            [[1, 0, 0, 0], [0, 1, 0, 0]],
            [0, 0, 1, 0],
        ),
        ({"level": Level.SEQUENCE}, 0.0, [[-0.155918] * 3 + [0], [0.155918] * 3 + [0]], [[0] * 4, [0] * 4], [0, 0, 0, 0]),
    ],
)
def test_golden_ppo(settings: dict[str, Any], loss: float, grad: Any, clipped: Any, dual_clipped: Any) -> None:
    logprobs_BT = logprobs()
    out = ppo_clip_loss(logprobs_BT, PROXIMAL_BT, ADVANTAGES_BT, MASK_BT, ClipSettings(**settings))
    mean = token_mean(out.loss_BT)
    mean.backward()  # type: ignore[no-untyped-call]
    close(mean.detach(), loss)
    close(logprobs_BT.grad, grad)
    assert out.clip_mask_BT.int().tolist() == clipped
    assert out.dual_clip_mask_BT[1].int().tolist() == dual_clipped
    if settings.get("level") is Level.SEQUENCE:
        close(out.ratio_BT[:, :3], [[0.93551] * 3] * 2)


@pytest.mark.parametrize(
    ("rule", "loss", "grad", "filtered"),
    [
        ({"upper": 1.2}, 0.236849, [[0, -0.166667, -0.061313, 0], [0.166667, 0, 0.150806, 0]], 1 / 6),
        ({"upper": 1.5, "lower": 0.7}, 0.053882, [[0, -0.166667, 0, 0], [0.166667, 0, 0.150806, 0]], 1 / 6),
        (
            {"level": Level.SEQUENCE, "metric": RejectionMetric.KL_K2, "agg": Aggregation.MAX, "upper": 0.1},
            0.464829,
            [[0, 0, 0, 0], [0.166667, 0, 0.150806, 0]],
            0.5,
        ),
    ],
)
def test_golden_rejection_sampling(rule: dict[str, Any], loss: float, grad: Any, filtered: float) -> None:
    logprobs_BT = logprobs()
    weights = rejection_sampling(PROXIMAL_BT, OLD_BT, MASK_BT, RejectionSamplingSpec(**rule))
    out = ppo_clip_loss(logprobs_BT, PROXIMAL_BT, ADVANTAGES_BT, weights.mask_BT, ClipSettings())
    mean = token_mean(out.loss_BT * weights.weight_BT)
    mean.backward()  # type: ignore[no-untyped-call]
    close(mean.detach(), loss)
    close(logprobs_BT.grad, grad)
    assert float(weights.filtered_BT.sum() / MASK_BT.sum()) == pytest.approx(filtered)


def test_golden_sapo() -> None:
    logprobs_BT = logprobs()
    out = sapo_loss(logprobs_BT, OLD_BT, ADVANTAGES_BT, MASK_BT, SapoSettings())
    mean = token_mean(out.loss_BT)
    mean.backward()  # type: ignore[no-untyped-call]
    close(mean.detach(), -0.084776)
    close(logprobs_BT.grad, [[-0.234188, -0.166667, -0.055574, 0], [0.166667, 0.121212, 0.150430, 0]])
    close(out.loss_BT.detach(), [[-2.48214, -2, -1.38812, 0], [1.90476, 1.64717, 1.80968, 0]])


RATIOS = [[1.2214, 0.9048, 0.6065], [1, 1.1052, 0.7408]]  # proximal / behaviour


@pytest.mark.parametrize(
    ("rule", "mask", "weights"),
    [
        ({}, [[1, 1, 1], [1, 1, 1]], RATIOS),
        ({"action": RejectionAction.CLAMP, "upper": 1.1}, [[1, 1, 1], [1, 1, 1]], [[1.1, 0.9048, 0.6065], [1, 1.1, 0.7408]]),
        (
            {"action": RejectionAction.CLAMP, "upper": 1.1, "lower": 0.7},
            [[1, 1, 1], [1, 1, 1]],
            [[1.1, 0.9048, 0.7], [1, 1.1, 0.7408]],
        ),
        # Geometric means: exp(-0.4 / 3) = .8752, exp(-0.2 / 3) = .9355.
        ({"level": Level.SEQUENCE, "lower": 0.9}, [[0, 0, 0], [1, 1, 1]], [[0, 0, 0], [0.9355] * 3]),
        # Sums of log ratios: exp(-0.4) = .6703, exp(-0.2) = .8187.
        ({"level": Level.SEQUENCE, "agg": Aggregation.SUM, "lower": 0.7}, [[0, 0, 0], [1, 1, 1]], [[0, 0, 0], [0.9355] * 3]),
        ({"level": Level.SEQUENCE, "agg": Aggregation.MAX, "upper": 1.2}, [[0, 0, 0], [1, 1, 1]], [[0, 0, 0], [0.9355] * 3]),
        (
            {"level": Level.SEQUENCE, "action": RejectionAction.CLAMP, "lower": 0.9, "upper": 1.1},
            [[1, 1, 1], [1, 1, 1]],
            [[0.9] * 3, [0.9355] * 3],
        ),
        # Behaviour against proximal, k1 = -log ratio: [-.2, .1, .5], [0, -.1, .3].
        ({"metric": RejectionMetric.KL_K1, "upper": 0.4}, [[1, 1, 0], [1, 1, 1]], [[1.2214, 0.9048, 0], RATIOS[1]]),
        # k3 = ratio - 1 - log ratio: [.0214, .0048, .1065], [0, .0052, .0408].
        ({"metric": RejectionMetric.KL_K3, "upper": 0.03}, [[1, 1, 0], [1, 1, 0]], [[1.2214, 0.9048, 0], [1, 1.1052, 0]]),
        ({"metric": RejectionMetric.KL_K3, "level": Level.SEQUENCE, "upper": 0.03}, [[0, 0, 0], [1, 1, 1]], [[0, 0, 0], RATIOS[1]]),
    ],
)
def test_rejection_variants(rule: dict[str, Any], mask: Any, weights: Any) -> None:
    out = rejection_sampling(PROXIMAL_BT, OLD_BT, MASK_BT, RejectionSamplingSpec(**rule))
    assert out.mask_BT.int()[:, :3].tolist() == mask
    close(out.weight_BT[:, :3], weights)


def test_sequence_without_trained_tokens_is_not_filtered() -> None:
    rule = RejectionSamplingSpec(level=Level.SEQUENCE, agg=Aggregation.MAX, lower=0.5)
    out = rejection_sampling(PROXIMAL_BT, OLD_BT, torch.zeros_like(MASK_BT), rule)
    assert not out.filtered_BT.any()


def test_log_ratio_that_is_not_finite_counts_as_equal_policies() -> None:
    behaviour_BT = OLD_BT.clone()
    behaviour_BT[0, 0] = -torch.inf
    out = rejection_sampling(PROXIMAL_BT, behaviour_BT, MASK_BT, RejectionSamplingSpec())
    assert out.weight_BT[0, 0] == 1.0


def test_masked_tokens_cannot_poison_the_gradient() -> None:
    logprobs_BT = torch.tensor([[-1.0, -1e4]], requires_grad=True)
    mask_BT = torch.tensor([[True, False]])
    out = ppo_clip_loss(logprobs_BT, torch.tensor([[-1.0, 1e4]]), torch.ones(1, 2), mask_BT, ClipSettings())
    out.loss_BT.sum().backward()  # type: ignore[no-untyped-call]
    close(logprobs_BT.grad, [[-1.0, 0.0]])

"""Golden values of the pipeline from rewards to advantages."""

from typing import Any

import numpy as np
import pytest
import torch
from rlrun_trainer.advantages import AdvantageSettings, OverlongPenalty, compute_advantages, kl_penalty, shape_rewards
from rlrun_trainer.rows import Batch, Row, pad_rows

from rlrun.errors import ConfigError
from rlrun.spec.algorithm import KlEstimator, NormLevel, NormSpec


def row(loss_mask: list[int], logprobs: list[float], reward: float, group: str = "g") -> Row:
    length = len(loss_mask)
    return Row(
        input_ids=np.arange(length, dtype=np.int32),
        loss_mask=np.array(loss_mask, dtype=np.int32),
        logprobs=np.array(logprobs, dtype=np.float32),
        versions=np.where(np.array(loss_mask) == 1, 0, -1).astype(np.int32),
        reward=reward,
        group_id=group,
        session_id="s",
    )


def golden_batch() -> Batch:
    return pad_rows(
        [
            row([0, 0, 1, 1, 1], [0, 0, -0.1, -0.2, -0.3], 1.0),
            row([0, 0, 1, 0, 1, 1], [0, 0, -0.4, 0, -0.5, -0.6], -2.0),
        ]
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [[1, 1, 1, 1, 0, 0], [-2, -2, -2, -2, -2, 0]]),
        (
            {"discount": 0.95, "gae_lambda": 0.9},
            [[0.731025, 0.731025, 0.855, 1, 0, 0], [-1.46205, -1.46205, -1.71, -1.71, -2, 0]],
        ),
        ({"zero_reward_if_truncated": True}, [[1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0]]),
        ({"kl_ctl": 0.1}, [[1.06, 1.06, 1.05, 1.03, 0, 0], [-1.85, -1.85, -1.89, -1.89, -1.94, 0]]),
        ({"reward_bias": -0.5, "reward_scaling": 10.0}, [[5, 5, 5, 5, 0, 0], [-20, -20, -20, -20, -20, 0]]),
    ],
)
def test_golden_advantages(settings: dict[str, Any], expected: list[list[float]]) -> None:
    batch = golden_batch()
    out = compute_advantages(
        batch,
        AdvantageSettings(**settings),
        ref_logprobs_BT=torch.zeros(batch.shape),
        truncated_B=batch.lengths_B == batch.shape[1],
    )
    torch.testing.assert_close(out.advantages_BT, torch.tensor(expected, dtype=torch.float32), atol=1e-4, rtol=0)
    assert out.loss_mask_BT.int().tolist() == [[0, 1, 1, 1, 0, 0], [0, 1, 0, 1, 1, 0]]


def test_overlong_penalty() -> None:
    settings = AdvantageSettings(overlong=OverlongPenalty(tokens=4, factor=1.0, max_new_tokens=10))
    rewards_B = shape_rewards(torch.ones(4), torch.tensor([5, 8, 10, 12]), settings)
    torch.testing.assert_close(rewards_B, torch.tensor([1.0, 0.5, 0.0, -0.5]))


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (KlEstimator.K1, [0.5, -1, 0, -10]),
        (KlEstimator.K2, [0.125, 0.5, 0, 10]),
        (KlEstimator.K3, [0.106531, 0.718282, 0, 10]),
    ],
)
def test_kl_penalty(estimator: KlEstimator, expected: list[float]) -> None:
    kl = kl_penalty(torch.tensor([-1.0, -2, 0, -30]), torch.tensor([-1.5, -1, 0, 0]), estimator)
    torch.testing.assert_close(kl, torch.tensor(expected, dtype=torch.float32), atol=1e-4, rtol=0)


def test_kl_without_reference_is_refused() -> None:
    with pytest.raises(ConfigError, match="klCtl"):
        compute_advantages(golden_batch(), AdvantageSettings(kl_ctl=0.1))


def test_row_that_ends_in_tool_output_keeps_its_reward() -> None:
    batch = pad_rows([row([0, 1, 1, 0, 0], [0, -1, -1, 0, 0], 3.0)])
    assert compute_advantages(batch, AdvantageSettings()).advantages_BT.tolist() == [[3, 3, 0, 0, 0]]


def test_padding_does_not_change_a_row() -> None:
    alone = compute_advantages(pad_rows([row([0, 1, 1], [0, -1, -1], 3.0)]), AdvantageSettings(discount=0.9)).advantages_BT
    beside = compute_advantages(
        pad_rows([row([0, 1, 1], [0, -1, -1], 3.0), row([0, 1, 1, 1, 1], [0, -1, -1, -1, -1], 0.0)]), AdvantageSettings(discount=0.9)
    ).advantages_BT
    torch.testing.assert_close(beside[0, :3], alone[0])


def test_reward_norm_then_adv_norm() -> None:
    batch = pad_rows([row([0, 1], [0, -1], 1.0, "a"), row([0, 1], [0, -1], 5.0, "b"), row([0, 1], [0, -1], 0.0, "a")])
    group = NormSpec(mean_level=NormLevel.GROUP, std_level=NormLevel.NONE)
    out = compute_advantages(batch, AdvantageSettings(reward_norm=group, adv_norm=NormSpec()))
    assert out.rewards_B.tolist() == [0.5, 0.0, -0.5]
    torch.testing.assert_close(out.advantages_BT[:, 0], torch.tensor([1.0, 0.0, -1.0]), atol=1e-4, rtol=0)

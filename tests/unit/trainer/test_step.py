"""A train step computes the token mean over the whole minibatch, whatever the microbatches."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from rlrun_trainer.advantages import AdvantageSettings
from rlrun_trainer.algorithms import Algorithm, algorithm_of
from rlrun_trainer.model import token_logprobs
from rlrun_trainer.packing import pack
from rlrun_trainer.rows import Row, pad_rows, shift_left
from rlrun_trainer.step import Learner, train_step

from rlrun.errors import ConfigError, InvalidRequest
from rlrun.spec.algorithm import GrpoSpec, RejectionSamplingSpec
from rlrun.spec.trainer import OptimizerSpec, PackingSpec

Maker = Callable[..., Learner]
Rows = Callable[..., list[Row]]
LENGTHS = [7, 12, 5, 9, 4, 8]


def weights_of(learner: Learner) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in learner.model.parameters()])


def on_policy(learner: Learner, rows: list[Row]) -> list[Row]:
    """The rows with the logprobs the learner's model gives them."""
    batch = pad_rows(rows)
    mask_BT = shift_left(batch.loss_mask_BT, 0)
    with torch.no_grad():
        logprobs_BT = token_logprobs(learner.model, batch, pack(batch, [[i] for i in range(len(rows))]), mask_BT).logprobs_BT.numpy()
    return [replace(row, logprobs=np.concatenate([[0], logprobs_BT[i, : len(row) - 1]]).astype(np.float32)) for i, row in enumerate(rows)]


def test_microbatches_do_not_change_the_update(make_learner: Maker, make_rows: Rows) -> None:
    rows = make_rows(LENGTHS)
    results = []
    for max_tokens in (12, 24, 1000):
        learner = make_learner(packing=PackingSpec(max_tokens_per_row=12, max_tokens_per_microbatch=max_tokens))
        metrics = train_step(learner, rows, step=0, policy_version=0)
        results.append((metrics["loss"], metrics["grad_norm"], weights_of(learner)))
    for loss, grad_norm, weights in results[1:]:
        assert loss == pytest.approx(results[0][0], abs=1e-6)
        assert grad_norm == pytest.approx(results[0][1], rel=1e-4)
        torch.testing.assert_close(weights, results[0][2], atol=1e-5, rtol=0)


def test_gradient_is_the_token_mean_not_the_mean_of_row_means(make_learner: Maker, make_rows: Rows) -> None:
    # On policy every ratio is 1, so the loss is minus the token mean of the advantages: the long row counts for more.
    learner = make_learner()
    rows = on_policy(learner, make_rows([4, 30], rewards=[1.0, -1.0]))
    tokens = [row.num_loss_tokens for row in rows]
    metrics = train_step(learner, rows, step=0, policy_version=0)
    assert metrics["loss"] == pytest.approx((tokens[1] - tokens[0]) / sum(tokens), abs=1e-5)


def test_engine_that_agrees_with_the_trainer_has_no_gap(make_learner: Maker, make_rows: Rows) -> None:
    learner = make_learner()
    metrics = train_step(learner, on_policy(learner, make_rows(LENGTHS, version=3)), step=0, policy_version=3)
    assert metrics["logprob_gap_max"] < 1e-5
    assert metrics["importance_weight_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["staleness_max"] == 0


def test_gap_is_left_out_where_no_token_is_fresh(make_learner: Maker, make_rows: Rows) -> None:
    metrics = train_step(make_learner(), make_rows(LENGTHS, version=2), step=0, policy_version=5)
    assert "logprob_gap_mean" not in metrics
    assert "logprob_gap_max" not in metrics
    assert (metrics["staleness_min"], metrics["staleness_avg"], metrics["staleness_max"]) == (3, 3, 3)


def test_metrics_of_a_step(make_learner: Maker, make_rows: Rows) -> None:
    algorithm = algorithm_of(
        GrpoSpec(c_clip=3.0, use_decoupled_loss=True, rejection_sampling=RejectionSamplingSpec(lower=0.2), minibatches=2)
    )
    rows = make_rows(LENGTHS, rewards=[1, 0, 1, 1, 0, 0])
    metrics = train_step(make_learner(algorithm), rows, step=0, policy_version=0)
    expected = {
        *("reward_mean", "advantage_mean", "advantage_std", "advantage_min", "advantage_max", "approx_kl", "clip_ratio"),
        *("dual_clip_ratio", "entropy", "importance_weight_mean", "importance_weight_max", "behaviour_kl", "filtered_fraction"),
        *("staleness_min", "staleness_avg", "staleness_max", "tokens", "logprob_gap_mean", "logprob_gap_max", "grad_norm"),
        *("steps_skipped", "steps_skipped_total", "behaviour_weight_mean", "behaviour_weight_max", "lr", "zero_advantage_fraction"),
    }
    assert expected <= metrics.keys()
    assert all(np.isfinite(value) for value in metrics.values())
    assert metrics["reward_mean"] == 0.5
    assert metrics["tokens"] == sum(row.num_loss_tokens for row in rows)
    assert 0 < metrics["filtered_fraction"] < 1
    # Four of six rows are in groups that all got one reward: nothing to learn from them.
    assert metrics["zero_advantage_fraction"] == pytest.approx(sum(row.num_loss_tokens for row in rows[2:]) / metrics["tokens"])


@pytest.mark.parametrize("decoupled", [False, True])
def test_the_decoupled_loss_tells_the_proximal_from_the_behaviour_policy(make_learner: Maker, make_rows: Rows, decoupled: bool) -> None:
    learner = make_learner(Algorithm(decoupled=decoupled))
    before = weights_of(learner)
    metrics = train_step(learner, make_rows(LENGTHS, version=1), step=0, policy_version=3)
    assert not torch.equal(before, weights_of(learner))
    assert (metrics["behaviour_kl"] > 0) == decoupled


def test_positive_advantage_makes_a_token_likelier(make_learner: Maker, make_rows: Rows) -> None:
    learner = make_learner()
    rows = on_policy(learner, make_rows([6, 6], rewards=[1.0, -1.0]))
    before = on_policy(learner, rows)
    train_step(learner, rows, step=0, policy_version=0)
    after = on_policy(learner, rows)
    assert after[0].logprobs.sum() > before[0].logprobs.sum()
    assert after[1].logprobs.sum() < before[1].logprobs.sum()


def test_kl_penalty_needs_a_reference(make_learner: Maker, make_rows: Rows) -> None:
    algorithm = Algorithm(advantages=AdvantageSettings(kl_ctl=0.1))
    with pytest.raises(ConfigError, match="reference"):
        train_step(make_learner(algorithm), make_rows(LENGTHS), step=0, policy_version=0)
    learner = make_learner(algorithm)
    learner.reference = make_learner().model
    assert train_step(learner, on_policy(learner, make_rows(LENGTHS)), step=0, policy_version=0)["tokens"] > 0


def test_row_that_is_too_long_is_refused(make_learner: Maker, make_rows: Rows) -> None:
    learner = make_learner(packing=PackingSpec(max_tokens_per_row=8, max_tokens_per_microbatch=8))
    with pytest.raises(InvalidRequest, match="maxTokensPerRow"):
        train_step(learner, make_rows([9, 4]), step=0, policy_version=0)


def test_batch_without_trained_tokens_changes_nothing(make_learner: Maker, make_rows: Rows) -> None:
    learner = make_learner()
    before = weights_of(learner)
    rows = [replace(row, loss_mask=np.zeros_like(row.loss_mask)) for row in make_rows([5, 6])]
    metrics = train_step(learner, rows, step=0, policy_version=0)
    assert metrics["tokens"] == 0
    assert torch.equal(before, weights_of(learner))


def test_microbatch_without_trained_tokens_is_passed_over(make_learner: Maker, make_rows: Rows) -> None:
    packing = PackingSpec(max_tokens_per_row=9, max_tokens_per_microbatch=9)
    rows = make_rows([9, 8, 9])
    rows[1] = replace(rows[1], loss_mask=np.zeros_like(rows[1].loss_mask))
    metrics = train_step(make_learner(packing=packing), rows, step=0, policy_version=0)
    assert metrics["tokens"] == rows[0].num_loss_tokens + rows[2].num_loss_tokens


def test_rows_longer_than_the_attention_window_are_refused(make_learner: Maker) -> None:
    learner = make_learner()
    learner.model.config.sliding_window = 64
    learner.model.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(ConfigError, match=r"maxTokensPerRow: 32768 .* window of 64 tokens"):
        replace(learner)
    assert replace(learner, packing=PackingSpec(max_tokens_per_row=64)).packing.max_tokens_per_row == 64


def test_step_that_is_not_finite_is_skipped(make_learner: Maker, make_rows: Rows) -> None:
    learner = make_learner(spec=OptimizerSpec(lr=1e-2))
    before = weights_of(learner)
    rows = [
        replace(row, logprobs=np.where(row.loss_mask == 1, -500.0, 0.0).astype(np.float32)) for row in make_rows([5, 6], rewards=[-1, -1])
    ]
    metrics = train_step(learner, rows, step=0, policy_version=0)
    assert metrics["steps_skipped_total"] == 1
    assert torch.equal(before, weights_of(learner))

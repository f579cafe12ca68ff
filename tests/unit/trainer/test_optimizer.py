"""Learning-rate courses, clipping, and steps that must not happen."""

import pytest
import torch
from rlrun_trainer.optimizer import Optimizer, learning_rate
from torch import nn

from rlrun.spec.trainer import OptimizerSpec, Schedule


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule.CONSTANT, [0.5, 1.0, 1.0, 1.0, 1.0]),
        (Schedule.LINEAR, [0.5, 1.0, 1.0, 0.5, 0.0]),
        (Schedule.COSINE, [0.5, 1.0, 1.0, 0.5, 0.0]),
    ],
)
def test_learning_rate(schedule: Schedule, expected: list[float]) -> None:
    spec = OptimizerSpec(lr=1.0, warmup_steps=2, schedule=schedule)
    assert [learning_rate(step, spec, 10) for step in (0, 1, 2, 6, 10)] == pytest.approx(expected)


def made(value: float = 1.0, **spec: float) -> tuple[nn.Parameter, Optimizer]:
    parameter = nn.Parameter(torch.tensor([value]))
    return parameter, Optimizer([("w", parameter)], OptimizerSpec(lr=0.1, weight_decay=0.0, **spec), total_steps=10)


def test_gradient_norm_is_reported_before_clipping() -> None:
    parameter, optimizer = made(gradient_clipping=1.0)
    parameter.grad = torch.tensor([5.0])
    outcome = optimizer.step(0)
    assert outcome.grad_norm == 5.0
    assert not outcome.skipped
    assert parameter.item() == pytest.approx(0.9)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_gradient_that_is_not_finite_is_skipped_and_counted(bad: float) -> None:
    parameter, optimizer = made()
    parameter.grad = torch.tensor([bad])
    assert optimizer.step(0).skipped
    assert optimizer.num_skipped == 1
    assert parameter.item() == 1.0
    assert optimizer.state_tensors() == {}
    assert parameter.grad is None


def test_state_survives_a_round_trip() -> None:
    first, optimizer = made()
    first.grad = torch.tensor([0.3])
    optimizer.step(0)
    second, resumed = made(first.item())
    resumed.load_state_tensors(optimizer.state_tensors())
    for parameter, stepped in ((first, optimizer), (second, resumed)):
        parameter.grad = torch.tensor([-0.7])
        stepped.step(1)
    assert torch.equal(first, second)

"""Golden values of normalisation; groups are told by id."""

import pytest
import torch
from rlrun_trainer.normalization import normalize

from rlrun.spec.algorithm import NormLevel, NormSpec

GROUP = NormSpec(mean_level=NormLevel.GROUP, std_level=NormLevel.GROUP)
RLOO = NormSpec(mean_level=NormLevel.GROUP, std_level=NormLevel.NONE, leave_one_out=True)
DR_GRPO = NormSpec(mean_level=NormLevel.GROUP, std_level=NormLevel.NONE)


@pytest.mark.parametrize(
    ("values", "groups", "spec", "expected"),
    [
        ([1, 0], [0, 0], GROUP, [0.7071, -0.7071]),
        ([1, 0, 1, 1], [0, 0, 0, 0], GROUP, [0.5, -1.5, 0.5, 0.5]),
        ([1, 0, 1, 1], [0, 0, 0, 0], RLOO, [0.3333, -1, 0.3333, 0.3333]),
        ([1, 0, 1, 1], [0, 0, 0, 0], DR_GRPO, [0.25, -0.75, 0.25, 0.25]),
        # Interleaved groups of unequal size: order and size do not matter.
        ([1, 5, 0, 7, 6], [0, 1, 0, 1, 1], DR_GRPO, [0.5, -1, -0.5, 1, 0]),
        # A group of one teaches nothing; it must not be divided by eps.
        ([1, 0, 1, 1, 1], [0, 0, 1, 1, 2], GROUP, [0.7071, -0.7071, 0, 0, 0]),
        ([3], [0], RLOO, [3]),
        ([3], [0], NormSpec(mean_level=NormLevel.NONE, std_level=NormLevel.BATCH), [3]),
        ([1, 0], [0, 0], NormSpec(unbiased=False), [1, -1]),
    ],
)
def test_rewards_normalised(values: list[float], groups: list[int], spec: NormSpec, expected: list[float]) -> None:
    x_B = torch.tensor(values, dtype=torch.float32)
    out_B = normalize(x_B, torch.ones_like(x_B, dtype=torch.bool), torch.tensor(groups), spec)
    torch.testing.assert_close(out_B, torch.tensor(expected, dtype=torch.float32), atol=1e-4, rtol=0)


def test_masked_tokens_are_left_out_and_zero() -> None:
    x_BT = torch.tensor([[1.0, 2, 3], [4, 5, 6]])
    mask_BT = torch.tensor([[True, True, False], [True, True, True]])
    out_BT = normalize(x_BT, mask_BT, torch.tensor([0, 1]), NormSpec())
    expected_BT = torch.tensor([[-1.2538, -0.7716, 0], [0.1929, 0.6751, 1.1574]])
    torch.testing.assert_close(out_BT, expected_BT, atol=1e-4, rtol=0)


def test_token_groups_use_all_tokens_of_their_rows() -> None:
    x_BT = torch.tensor([[1.0, 2.0], [10.0, 20.0], [3.0, 9.0]])
    mask_BT = torch.tensor([[True, True], [True, True], [True, False]])
    out_BT = normalize(x_BT, mask_BT, torch.tensor([0, 1, 0]), DR_GRPO)
    torch.testing.assert_close(out_BT, torch.tensor([[-1.0, 0.0], [-5.0, 5.0], [1.0, 0.0]]))


def test_all_masked_returns_the_input() -> None:
    x_B = torch.tensor([1.0, 2.0])
    assert normalize(x_B, torch.zeros(2, dtype=torch.bool), torch.tensor([0, 0]), GROUP) is x_B

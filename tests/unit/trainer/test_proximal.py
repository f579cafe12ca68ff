"""Golden values of the proximal approximation."""

import pytest
import torch
from rlrun_trainer.proximal import Interpolation, approximate_proximal

LOGPROBS_BT = torch.tensor([[-1, -0.5, -2, -0.1], [-0.3, -1.2, -0.7, -0.9]])
OLD_BT = torch.tensor([[-1.4, -0.5, -1, -2], [-0.3, -0.9, -0.6, -0.9]])
VERSIONS_BT = torch.tensor([[-1, 0, 2, 3], [-1, 3, 4, 5]])


@pytest.mark.parametrize(("interpolation", "expected"), [(Interpolation.LOG_LINEAR, -1.5), (Interpolation.LINEAR, -1.379886)])
def test_only_the_token_between_versions_moves(interpolation: Interpolation, expected: float) -> None:
    out_BT = approximate_proximal(interpolation, OLD_BT, LOGPROBS_BT, VERSIONS_BT, current_version=4)
    expected_BT = OLD_BT.clone()
    expected_BT[0, 2] = expected
    torch.testing.assert_close(out_BT, expected_BT, atol=1e-4, rtol=0)


def test_not_finite_is_an_error() -> None:
    with pytest.raises(FloatingPointError, match="not finite"):
        approximate_proximal(Interpolation.LINEAR, OLD_BT * torch.nan, LOGPROBS_BT, VERSIONS_BT, current_version=4)

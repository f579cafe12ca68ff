"""Each algorithm of the document maps to the settings its paper asks for."""

import numpy as np
import pytest
import torch
from rlrun_trainer.advantages import compute_advantages
from rlrun_trainer.algorithms import algorithm_of
from rlrun_trainer.rows import Row, pad_rows

from rlrun.spec.algorithm import AlgorithmBase, DrGrpoSpec, GrpoSpec, Level, PpoSpec, RejectionSamplingSpec, RlooSpec


def two_token_row(reward: float, group: str) -> Row:
    return Row(
        input_ids=np.array([1, 2], dtype=np.int32),
        loss_mask=np.array([0, 1], dtype=np.int32),
        logprobs=np.array([0, -1], dtype=np.float32),
        versions=np.array([-1, 0], dtype=np.int32),
        reward=reward,
        group_id=group,
        session_id="s",
    )


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (PpoSpec(), [0.5, -1.5, 0.5, 0.5]),
        (GrpoSpec(), [0.7071, -0.7071, 0.0, 0.0]),
        (DrGrpoSpec(), [0.5, -0.5, 0.0, 0.0]),
        (RlooSpec(), [1.0, -1.0, 0.0, 0.0]),
    ],
)
def test_advantages_of_each_algorithm(spec: AlgorithmBase, expected: list[float]) -> None:
    batch = pad_rows([two_token_row(1, "a"), two_token_row(0, "a"), two_token_row(1, "b"), two_token_row(1, "b")])
    out = compute_advantages(batch, algorithm_of(spec).advantages)
    torch.testing.assert_close(out.advantages_BT[:, 0], torch.tensor(expected), atol=1e-4, rtol=0)


def test_clip_settings_come_from_the_document() -> None:
    spec = PpoSpec(eps_clip=0.1, eps_clip_higher=0.3, c_clip=3.0, importance_sampling_level=Level.SEQUENCE, minibatches=2)
    algorithm = algorithm_of(spec)
    clip = algorithm.loss.clip
    assert (clip.eps_clip, clip.eps_clip_higher, clip.c_clip, clip.level) == (0.1, 0.3, 3.0, Level.SEQUENCE)
    assert algorithm.num_minibatches == 2


def test_decoupled_loss_recomputes_the_proximal_policy() -> None:
    rule = RejectionSamplingSpec(upper=2.0)
    algorithm = algorithm_of(GrpoSpec(use_decoupled_loss=True, rejection_sampling=rule))
    assert algorithm.decoupled
    assert algorithm.loss.rejection == rule
    assert not algorithm_of(GrpoSpec()).decoupled

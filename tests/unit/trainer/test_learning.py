"""The whole step learns: a policy of 10 % reward finds the answers of a contextual bandit."""

from pathlib import Path

import numpy as np
import pytest
import torch
from rlrun_trainer.algorithms import algorithm_of
from rlrun_trainer.model import load_model
from rlrun_trainer.optimizer import Optimizer
from rlrun_trainer.rows import Row
from rlrun_trainer.step import Learner, train_step
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from rlrun.spec.algorithm import AlgorithmBase, DrGrpoSpec, GrpoSpec, PpoSpec, RlooSpec
from rlrun.spec.trainer import OptimizerSpec

NUM_TOKENS = 10
SAMPLES = 16
STEPS = 60


def answer(question: int) -> int:
    return (3 * question + 4) % NUM_TOKENS


def probabilities(learner: Learner) -> Tensor:
    """[10, 10]: of each answer to each question."""
    with torch.no_grad():
        logits = learner.model(input_ids=torch.arange(NUM_TOKENS)[:, None]).logits[:, -1]
    return torch.softmax(logits, dim=-1)


def expected_reward(learner: Learner) -> float:
    p = probabilities(learner)
    return float(np.mean([float(p[question, answer(question)]) for question in range(NUM_TOKENS)]))


def sampled_rows(learner: Learner, version: int) -> list[Row]:
    p = probabilities(learner)
    samples = torch.multinomial(p, SAMPLES, replacement=True).tolist()
    return [
        Row(
            input_ids=np.array([question, token], dtype=np.int32),
            loss_mask=np.array([0, 1], dtype=np.int32),
            logprobs=np.array([0.0, float(p[question, token].log())], dtype=np.float32),
            versions=np.array([-1, version], dtype=np.int32),
            reward=float(token == answer(question)),
            group_id=f"{version}-{question}",
            session_id=f"{version}-{question}-{number}",
        )
        for question in range(NUM_TOKENS)
        for number, token in enumerate(samples[question])
    ]


@pytest.mark.slow
@pytest.mark.parametrize("spec", [PpoSpec(), GrpoSpec(), DrGrpoSpec(), RlooSpec()], ids=lambda spec: spec.name)
def test_reward_rises(spec: AlgorithmBase, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=NUM_TOKENS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        tie_word_embeddings=False,
    )
    Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    model = load_model(tmp_path, torch.device("cpu"))
    learner = Learner(
        model=model,
        optimizer=Optimizer(model.named_parameters(), OptimizerSpec(lr=1e-2, weight_decay=0.0), total_steps=STEPS),
        algorithm=algorithm_of(spec),
    )
    assert expected_reward(learner) == pytest.approx(0.1, abs=0.03)
    for step in range(STEPS):
        train_step(learner, sampled_rows(learner, step), step=step, policy_version=step)
    assert expected_reward(learner) > 0.8

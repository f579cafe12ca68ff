"""A tiny random model and rows sampled from it."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from rlrun_trainer.algorithms import Algorithm
from rlrun_trainer.model import load_model
from rlrun_trainer.optimizer import Optimizer
from rlrun_trainer.rows import Row
from rlrun_trainer.step import Learner
from transformers import Qwen3Config, Qwen3ForCausalLM

from rlrun.spec.trainer import OptimizerSpec, PackingSpec

VOCAB = 23


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def tiny_dir(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        initializer_range=0.2,
        tie_word_embeddings=True,
        dtype="float32",
    )
    directory = tmp_path / "tiny"
    Qwen3ForCausalLM(config).save_pretrained(directory)
    (directory / "tokenizer.json").write_text("{}")
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    return directory


@pytest.fixture
def make_learner(tiny_dir: Path) -> Callable[..., Learner]:
    def make(algorithm: Algorithm | None = None, *, packing: PackingSpec | None = None, spec: OptimizerSpec | None = None) -> Learner:
        model = load_model(tiny_dir, torch.device("cpu"))
        optimizer = Optimizer(model.named_parameters(), spec or OptimizerSpec(lr=1e-2), total_steps=10)
        return Learner(model=model, optimizer=optimizer, algorithm=algorithm or Algorithm(), packing=packing or PackingSpec())

    return make


@pytest.fixture
def make_rows() -> Callable[..., list[Row]]:
    def make(lengths: Sequence[int], *, rewards: Sequence[float] | None = None, seed: int = 0, version: int = 0) -> list[Row]:
        rng = np.random.default_rng(seed)
        rows = []
        for number, length in enumerate(lengths):
            mask = np.array([0, 0, *rng.integers(0, 2, length - 3), 1], dtype=np.int32)
            rows.append(
                Row(
                    input_ids=rng.integers(0, VOCAB, length, dtype=np.int32),
                    loss_mask=mask,
                    logprobs=(-3.0 * rng.random(length) * mask).astype(np.float32),
                    versions=np.where(mask == 1, version, -1).astype(np.int32),
                    reward=float(rng.random()) if rewards is None else rewards[number],
                    group_id=str(number // 2),
                    session_id=f"s{number}",
                )
            )
        return rows

    return make

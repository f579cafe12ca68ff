"""A real Redis and a tiny model on disk."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from rlrun_trainer.loop import Directories
from transformers import Qwen3Config, Qwen3ForCausalLM

from rlrun.store import Store
from tests.integration.trainer.sessions import VOCAB


@pytest.fixture
async def store(redis_url: str, run_name: str) -> AsyncIterator[Store]:
    opened = await Store.connect(redis_url, run=run_name)
    yield opened
    await opened.close()


@pytest.fixture
def directories(tmp_path: Path) -> Directories:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        dtype="float32",
    )
    Qwen3ForCausalLM(config).save_pretrained(tmp_path / "model")
    return Directories(model=tmp_path / "model", weights=tmp_path / "weights", checkpoints=tmp_path / "checkpoints")

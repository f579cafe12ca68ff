"""What the trainer publishes, the worker verifies: two services, one definition of the fingerprint."""

from pathlib import Path

import pytest
import torch
from rlrun_trainer import publish as trainer
from rlrun_trainer.model import load_model
from rlrun_worker import weights as worker
from transformers import Qwen3Config, Qwen3ForCausalLM


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [True, False])
def test_worker_accepts_a_published_version(tmp_path: Path, dtype: torch.dtype, tied: bool) -> None:
    config = Qwen3Config(
        vocab_size=23,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        tie_word_embeddings=tied,
    )
    Qwen3ForCausalLM(config).to(dtype).save_pretrained(tmp_path / "model")
    model = load_model(tmp_path / "model", torch.device("cpu"))
    path, manifest = trainer.publish(
        tmp_path / "policy", model, tmp_path / "model", version=4, parent=3, step=2, lineage="l", trajectory_ids=["t"]
    )
    read, state = worker.read_verified(path)
    assert (read.version, read.parent, read.step, read.fingerprint) == (4, 3, 2, manifest.fingerprint)
    assert worker.weight_fingerprint(state) == manifest.fingerprint
    assert {tensor.dtype for tensor in state.values()} == {dtype}

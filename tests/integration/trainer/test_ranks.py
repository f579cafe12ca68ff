"""Two ranks under torchrun, one leading and one following, give the losses and the weights of one."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

SCRIPT = Path(__file__).with_name("ranks_script.py")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2")


def run(model_dir: Path, out: Path, *launcher: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    out.mkdir()
    done = subprocess.run(
        [sys.executable, *launcher, str(SCRIPT), str(model_dir), str(out)],
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((out / "metrics.json").read_text()), load_file(out / "weights.safetensors")


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_two_ranks_equal_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=23,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        initializer_range=0.2,
    )
    Qwen3ForCausalLM(config).save_pretrained(tmp_path / "model")
    initial = load_file(tmp_path / "model" / "model.safetensors")
    one, weights_one = run(tmp_path / "model", tmp_path / "one")
    two, weights_two = run(tmp_path / "model", tmp_path / "two", *TORCHRUN)
    assert (one["world_size"], two["world_size"]) == (1, 2)
    for metrics_one, metrics_two in zip(one["steps"], two["steps"], strict=True):
        assert metrics_two == pytest.approx(metrics_one, rel=1e-4, abs=1e-6)
    assert weights_one.keys() == weights_two.keys()
    for name, weight in weights_one.items():
        assert not torch.equal(weight, initial[name])
        torch.testing.assert_close(weights_two[name], weight, atol=1e-5, rtol=0)

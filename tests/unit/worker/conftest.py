"""Tiny random models with a tokenizer, made once per run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rlrun_worker.weights import weight_fingerprint
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

VOCAB_SIZE = 384
EOS_ID = 0
torch.set_num_threads(1)


def save_tokenizer(directory: Path) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=["<eos>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    corpus = [
        f"the agent asks for {word} and the tool answers {word[::-1]}" for word in ("weather", "tickets", "numbers", "paths", "naïveté")
    ]
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))
    return tokenizer


def save_model(directory: Path, family: str, seed: int) -> None:
    shape: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "eos_token_id": EOS_ID,
        "bos_token_id": None,
        # Larger than usual: peaked distributions make a wrong mask or position visible.
        "initializer_range": 0.2,
    }
    torch.manual_seed(seed)
    match family:
        case "qwen3":
            model: Any = Qwen3ForCausalLM(Qwen3Config(**shape))
        case "qwen3-window":
            model = Qwen3ForCausalLM(Qwen3Config(**shape, use_sliding_window=True, sliding_window=16, max_window_layers=1))
        case "qwen3-tied":
            model = Qwen3ForCausalLM(Qwen3Config(**shape, tie_word_embeddings=True))
        case _:
            model = LlamaForCausalLM(LlamaConfig(**shape))
    model.save_pretrained(directory)
    save_tokenizer(directory)


def _write_version(directory: Path, model_path: Path, version: int, /, **overrides: Any) -> None:
    """A weight directory of `model_path` as the trainer writes it; `overrides` replace manifest fields."""
    directory.mkdir(parents=True, exist_ok=True)
    state = load_file(model_path / "model.safetensors")
    save_file(state, directory / "model.safetensors")
    digest = hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest()
    manifest: dict[str, Any] = {
        "version": version,
        "parent": version - 1,
        "step": version,
        "fingerprint": weight_fingerprint(state),
        "files": {"model.safetensors": digest},
        "trajectories": [],
    }
    (directory / "manifest.json").write_text(json.dumps(manifest | overrides))


@pytest.fixture(scope="session")
def write_version() -> Callable[..., None]:
    """write_version(directory, model_path, version, **overrides), see `_write_version`."""
    return _write_version


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    made: dict[tuple[str, int], Path] = {}

    def get(family: str = "qwen3", seed: int = 0) -> Path:
        if (family, seed) not in made:
            made[family, seed] = tmp_path_factory.mktemp(f"{family}-{seed}")
            save_model(made[family, seed], family, seed)
        return made[family, seed]

    return get


@pytest.fixture(scope="session")
def reference(model_path: Callable[..., Path]) -> Callable[..., Any]:
    """The same model in transformers' own eager attention."""
    made: dict[tuple[str, int], Any] = {}

    def get(family: str = "qwen3", seed: int = 0) -> Any:
        if (family, seed) not in made:
            path = model_path(family, seed)
            made[family, seed] = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", dtype=torch.float32).eval()
        return made[family, seed]

    return get

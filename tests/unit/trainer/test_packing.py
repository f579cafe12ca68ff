"""Packing keeps rows apart: a packed row has the logprobs it has alone."""

from pathlib import Path

import numpy as np
import pytest
import torch
from rlrun_trainer.model import load_model, token_logprobs
from rlrun_trainer.packing import first_fit_decreasing, microbatches, pack
from rlrun_trainer.rows import Row, pad_rows, shift_left
from transformers import GraniteConfig, GraniteForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from rlrun.errors import ConfigError, InvalidRequest

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
}


@pytest.fixture(params=["qwen3", "llama"])
def model_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if request.param == "qwen3":
        Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=True)).save_pretrained(tmp_path)
    else:
        LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(tmp_path)
    return tmp_path


def random_rows(lengths: list[int]) -> list[Row]:
    rng = np.random.default_rng(0)
    return [
        Row(
            input_ids=rng.integers(0, 61, length, dtype=np.int32),
            loss_mask=np.array([0, *rng.integers(0, 2, length - 2), 1], dtype=np.int32),
            logprobs=np.zeros(length, dtype=np.float32),
            versions=np.full(length, -1, dtype=np.int32),
            reward=0.0,
            group_id="g",
            session_id=str(number),
            temperature=0.5 + 0.25 * number,
        )
        for number, length in enumerate(lengths)
    ]


def test_longest_first_into_the_first_bin_with_room() -> None:
    assert first_fit_decreasing([3, 9, 2, 5, 4, 1], 10) == [[1, 5], [3, 4], [0, 2]]


def test_row_above_the_limit_names_limit_and_remedy() -> None:
    with pytest.raises(InvalidRequest, match=r"row 1 has 11 tokens, a bin takes 10; raise trainer\.packing\.maxTokensPerRow"):
        first_fit_decreasing([3, 11], 10)


@pytest.mark.parametrize("max_tokens", [1, 9, 18, 1000])
def test_microbatches_hold_every_row_once_and_keep_the_budget(max_tokens: int) -> None:
    lengths = [3, 9, 2, 5, 4, 1, 7]
    passes = microbatches(lengths, max_tokens)
    assert sorted(row for bins in passes for rows in bins for row in rows) == list(range(len(lengths)))
    assert all(len(bins) * 9 <= max(9, max_tokens) for bins in passes)


def test_packed_logprobs_equal_unpacked_ones(model_dir: Path) -> None:
    rows = random_rows([7, 12, 5, 3, 9])
    model = load_model(model_dir, torch.device("cpu"))
    batch = pad_rows(rows)
    wanted_BT = shift_left(batch.loss_mask_BT, 0)
    packed = pack(batch, first_fit_decreasing(batch.lengths_B.tolist(), 16))
    assert packed.input_ids_NW.shape == (3, 16)
    together = token_logprobs(model, batch, packed, wanted_BT)
    for index, row in enumerate(rows):
        ids = torch.from_numpy(row.input_ids).long()[None]
        alone = torch.log_softmax(model(input_ids=ids).logits[0, :-1] / row.temperature, dim=-1)
        expected = alone.gather(-1, ids[0, 1:, None])[:, 0] * torch.from_numpy(row.loss_mask[1:])
        torch.testing.assert_close(together.logprobs_BT[index, : len(row) - 1], expected, atol=1e-5, rtol=0)
        entropy = -(alone.exp() * alone).sum(-1) * torch.from_numpy(row.loss_mask[1:])
        torch.testing.assert_close(together.entropy_BT[index, : len(row) - 1], entropy, atol=1e-5, rtol=0)


def test_packing_changes_no_gradient(model_dir: Path) -> None:
    rows = random_rows([7, 12, 5, 3, 9])
    model = load_model(model_dir, torch.device("cpu"))
    batch = pad_rows(rows)
    grads = []
    for bins in (first_fit_decreasing(batch.lengths_B.tolist(), 16), [[0], [1], [2], [3], [4]]):
        model.zero_grad()
        wanted_BT = shift_left(batch.loss_mask_BT, 0)
        token_logprobs(model, batch, pack(batch, bins), wanted_BT).logprobs_BT.sum().backward()  # type: ignore[no-untyped-call]
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    torch.testing.assert_close(grads[0], grads[1], atol=1e-4, rtol=1e-4)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match="safetensors"):
        load_model(tmp_path, torch.device("cpu"))


def test_model_that_scales_its_logits_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = GraniteConfig(**{key: value for key, value in SIZES.items() if key != "head_dim"}, logits_scaling=8.0)
    GraniteForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="GraniteForCausalLM cannot be trained on packed rows"):
        load_model(tmp_path, torch.device("cpu"))

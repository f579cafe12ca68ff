"""The policy: a Hugging Face causal language model, and the logprobs of given tokens under it.

Shape legend: B rows, T tokens, N bins, W tokens of a bin, D hidden size, K wanted tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM

from rlrun.errors import ConfigError
from rlrun_trainer.packing import PackedBatch
from rlrun_trainer.rows import Batch, shift_left

CHUNK_TOKENS = 1024


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TokenLogprobs:
    """Shifted [B, T] tensors, float32; 0 where nothing was wanted. `entropy_BT` carries no gradient."""

    logprobs_BT: Tensor
    entropy_BT: Tensor


def load_model(directory: Path, device: torch.device) -> nn.Module:
    """Loads the model of a directory in float32; on CUDA the passes run in bfloat16 by autocast.

    Dropout stays off, as it was when the tokens were sampled. Raises ConfigError where there are no safetensors weights or where the
    logits are not a plain function of the last hidden state.
    """
    if not any(directory.glob("*.safetensors")):
        raise ConfigError(f"{directory} holds no *.safetensors weights; pickled weights are never loaded, convert them", param="model.uri")
    model: nn.Module = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, use_safetensors=True, attn_implementation="sdpa", local_files_only=True, trust_remote_code=False
    )
    model.to(device).eval()
    _check_head(model, device)
    return model


def token_logprobs(model: nn.Module, batch: Batch, packed: PackedBatch, wanted_BT: Tensor) -> TokenLogprobs:
    """log p(token t + 1 | tokens 0..t) at index t where `wanted_BT` (shifted, bool), with each row's temperature.

    The head runs on wanted tokens only and in chunks whose logits are recomputed in the backward pass, so no [N, W, V] tensor exists.
    """
    device = next(model.parameters()).device
    with torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda"):
        hidden_NWD = _hidden(model, packed, device)
        wanted_BT = wanted_BT.to(device)
        hidden_KD = hidden_NWD.flatten(0, 1)[packed.source_BT.to(device)[wanted_BT]]
        targets_K = shift_left(batch.input_ids_BT, 0).to(device)[wanted_BT]
        temperature_K = batch.temperature_B.to(device)[:, None].expand(wanted_BT.shape)[wanted_BT]
        logprobs: list[Tensor] = []
        entropies: list[Tensor] = []
        for start in range(0, targets_K.shape[0], CHUNK_TOKENS):
            chunk = slice(start, start + CHUNK_TOKENS)
            logprobs_K, entropy_K = checkpoint(_score, model, hidden_KD[chunk], targets_K[chunk], temperature_K[chunk], use_reentrant=False)
            logprobs.append(logprobs_K)
            entropies.append(entropy_K)
    zeros_BT = torch.zeros(wanted_BT.shape, dtype=torch.float32, device=device)
    if not logprobs:
        return TokenLogprobs(logprobs_BT=zeros_BT, entropy_BT=zeros_BT)
    return TokenLogprobs(
        logprobs_BT=zeros_BT.masked_scatter(wanted_BT, torch.cat(logprobs)),
        entropy_BT=zeros_BT.masked_scatter(wanted_BT, torch.cat(entropies)),
    )


def _hidden(model: nn.Module, packed: PackedBatch, device: torch.device) -> Tensor:
    base: Any = model.base_model
    hidden_NWD: Tensor = base(
        input_ids=packed.input_ids_NW.to(device),
        position_ids=packed.position_ids_NW.to(device),
        attention_mask=packed.attention_mask().to(device),
        use_cache=False,
    ).last_hidden_state
    return hidden_NWD


def _score(model: nn.Module, hidden_KD: Tensor, targets_K: Tensor, temperature_K: Tensor) -> tuple[Tensor, Tensor]:
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    logits_KV = head(hidden_KD).float() / temperature_K[:, None]
    log_softmax_KV = torch.log_softmax(logits_KV, dim=-1)
    logprobs_K = log_softmax_KV.gather(-1, targets_K[:, None])[:, 0]
    with torch.no_grad():
        entropy_K = -(log_softmax_KV.exp() * log_softmax_KV).sum(dim=-1)
    return logprobs_K, entropy_K


@torch.no_grad()
def _check_head(model: nn.Module, device: torch.device) -> None:
    """Some models scale or cap their logits after the head; this trainer would silently learn from other logprobs than theirs."""
    ids_NW = torch.arange(1, 5, device=device)[None]
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    base: Any = model.base_model
    ours = head(base(input_ids=ids_NW, use_cache=False).last_hidden_state)
    theirs = model(input_ids=ids_NW, use_cache=False).logits
    if not torch.allclose(ours, theirs, atol=1e-4, rtol=1e-4):
        raise ConfigError(
            f"model class {type(model).__name__} changes its logits after the output layer, which is not supported; "
            "take a model whose logits are its output layer's (Llama, Qwen, Mistral, ...)",
            param="model.uri",
        )

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
from transformers.utils.logging import disable_progress_bar

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

    Dropout stays off, as it was when the tokens were sampled. Raises ConfigError where there are no safetensors weights or where
    packing would change the logits.
    """
    if not any(directory.glob("*.safetensors")):
        raise ConfigError(f"{directory} holds no *.safetensors weights; pickled weights are never loaded, convert them", param="model.uri")
    disable_progress_bar()
    model: nn.Module = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, use_safetensors=True, attn_implementation="sdpa", local_files_only=True, trust_remote_code=False
    )
    model.to(device).eval()
    _check_packing(model, device)
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


def attention_window(model: nn.Module) -> int | None:
    """Tokens a sliding-attention layer looks back over; None where all layers see everything."""
    config: Any = getattr(model, "config", None)
    window: int | None = getattr(config, "sliding_window", None)
    kinds: list[str] | None = getattr(config, "layer_types", None)
    return window if kinds is None or "sliding_attention" in kinds else None


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
def _check_packing(model: nn.Module, device: torch.device) -> None:
    """Packed logits must be the model's own. They are not where logits are scaled or capped after the output layer, or where layers
    carry state from one row of a bin into the next; training would then go on, on other logprobs than the engine's.
    """
    ids_W = torch.arange(1, 8, device=device)
    position_ids_NW = torch.tensor([[0, 1, 2, 3, 0, 1, 2]], device=device)
    row_W = torch.tensor([0, 0, 0, 0, 1, 1, 1], device=device)
    mask = (row_W[:, None] == row_W[None, :]).tril()[None, None]
    base: Any = model.base_model
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    packed = head(base(input_ids=ids_W[None], position_ids=position_ids_NW, attention_mask=mask, use_cache=False).last_hidden_state)
    alone = torch.cat([model(input_ids=row[None], use_cache=False).logits for row in (ids_W[:4], ids_W[4:])], dim=1)
    if not torch.allclose(packed, alone, atol=1e-3, rtol=1e-3):
        raise ConfigError(
            f"model class {type(model).__name__} cannot be trained on packed rows: it changes logits after its output layer, or its layers "
            "carry state between rows; take a model with plain attention and output layer (Llama, Qwen3, Mistral, ...)",
            param="model.uri",
        )

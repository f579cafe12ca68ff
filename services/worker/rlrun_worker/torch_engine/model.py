"""Loads a causal language model and runs it over the slot pool.

Shape legend: B rows, T new tokens per row, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from rlrun.errors import ConfigError, InvalidRequest
from rlrun_worker.engine import Ids
from rlrun_worker.torch_engine import attention
from rlrun_worker.torch_engine.attention import KvPool, SlotStep
from rlrun_worker.torch_engine.options import TorchEngineOptions

# Attended lengths are rounded up to this: few distinct shapes let the allocator and kernels reuse buffers.
LENGTH_BUCKET_TOKENS = 64
# Reading the pool in place computes the idle rows of the range too; beyond this share a gather is cheaper.
MAX_DENSE_WASTE = 1.5


class SlotModel:
    """The model, its weights and its KV pool. Not thread-safe; all calls under `torch.inference_mode`."""

    def __init__(self, options: TorchEngineOptions) -> None:
        attention.register()
        # A progress bar has no place in a service's log.
        disable_progress_bar()
        self.device = torch.device(options.device)
        dtype = getattr(torch, options.dtype or ("float32" if self.device.type == "cpu" else "bfloat16"))
        config = _read_config(options.model_path)
        if options.max_len_tokens > config.max_position_embeddings:
            raise ConfigError(
                f"engine option max_len_tokens is {options.max_len_tokens}; the model takes at most {config.max_position_embeddings}",
                param="max_len_tokens",
            )
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            options.model_path,
            config=config,
            dtype=dtype,
            attn_implementation=attention.ATTENTION_NAME,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
        )
        self.model.to(self.device).eval().requires_grad_(False)
        self.vocab_size: int = self.model.get_output_embeddings().weight.shape[0]
        self.max_len = options.max_len_tokens
        self.pool = KvPool(
            num_layers=config.num_hidden_layers,
            num_slots=options.num_slots,
            num_kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            max_len=options.max_len_tokens,
            dtype=dtype,
            device=self.device,
        )

    def forward(self, ids_BT: NDArray[np.int64], positions_BT: NDArray[np.int64], slots_B: NDArray[np.int64], *, dense: bool) -> Tensor:
        """Append tokens to their slots; logits [B, V] of each row's last token.

        ids_BT, positions_BT: right-aligned; position -1 marks padding. slots_B: distinct; `dense` says they are consecutive.
        """
        positions = torch.from_numpy(positions_BT).to(self.device)
        real = positions.clamp(min=0)
        longest = int(positions_BT.max()) + 1
        length = min(self.max_len, -(-longest // LENGTH_BUCKET_TOKENS) * LENGTH_BUCKET_TOKENS)
        step = SlotStep(
            pool=self.pool,
            slots=torch.from_numpy(slots_B).to(self.device),
            rows=slice(int(slots_B[0]), int(slots_B[0]) + slots_B.size) if dense else None,
            query_positions=real,
            write_positions=torch.where(positions < 0, self.max_len, positions),
            length=length,
        )
        return self._call(torch.from_numpy(ids_BT).to(self.device), real, slot_step=step, logits_to_keep=1)[:, -1]

    def score(self, ids: Ids) -> Tensor:
        """Logits [T, V] of plain causal attention over `ids`, without the pool."""
        ids_1T = torch.from_numpy(ids.astype(np.int64))[None].to(self.device)
        positions = torch.arange(ids.size, device=self.device)[None]
        return self._call(ids_1T, positions)[0]

    def _call(self, ids: Tensor, positions: Tensor, **kwargs: Any) -> Tensor:
        # A mask that is already 4-D keeps transformers from building one; slot_attention makes its own.
        mask = torch.zeros((1, 1, 1, 1), dtype=torch.bool, device=self.device)
        logits: Tensor = self.model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False, **kwargs).logits
        return logits

    def check_state(self, state: Mapping[str, Tensor]) -> None:
        """Raises: InvalidRequest unless `state` has exactly this model's tensors (tied ones may be absent)."""
        own = self._parameters()
        tied = set(getattr(self.model, "all_tied_weights_keys", None) or ())
        if missing := sorted(own.keys() - state.keys() - tied):
            raise InvalidRequest(f"weights lack {len(missing)} tensors of the model, first {missing[0]}", param="path")
        if extra := sorted(state.keys() - own.keys()):
            raise InvalidRequest(f"weights hold {len(extra)} tensors that the model lacks, first {extra[0]}", param="path")
        for name, tensor in state.items():
            if own[name].shape != tensor.shape:
                raise InvalidRequest(f"tensor {name} has shape {list(tensor.shape)}, the model {list(own[name].shape)}", param="path")

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Overwrite the weights in place; `check_state` must have passed."""
        own = self._parameters()
        for name, tensor in state.items():
            own[name].copy_(tensor)

    def _parameters(self) -> dict[str, Tensor]:
        module: nn.Module = self.model
        return module.state_dict()


def dense_range(slots: NDArray[np.int64], num_slots: int) -> NDArray[np.int64] | None:
    """The consecutive slots that span `slots` (sorted), or None when too many of them would be idle rows."""
    low, high = int(slots[0]), int(slots[-1]) + 1
    if high - low > max(slots.size + 1, MAX_DENSE_WASTE * slots.size):
        return None
    return np.arange(low, min(high, num_slots))


def _read_config(model_path: Path) -> Any:
    """Raises: ConfigError when there is none or transformers has no such architecture."""
    try:
        # Code from a model directory is never run, and nothing is asked on the terminal.
        return AutoConfig.from_pretrained(model_path, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"no usable model in {model_path}: {error}", param="spec.model.uri") from error


def read_eos_ids(model_path: Path) -> frozenset[int]:
    """Ids that end an output: generation_config.json or else config.json, and the tokenizer's eos_token."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        eos = _read_json(model_path / name).get("eos_token_id")
        if eos is not None:
            found.update([eos] if isinstance(eos, int) else eos)
            break
    token = _read_json(model_path / "tokenizer_config.json").get("eos_token")
    content = token.get("content") if isinstance(token, dict) else token
    for added in _read_json(model_path / "tokenizer.json").get("added_tokens", []):
        if content is not None and added["content"] == content:
            found.add(added["id"])
    return frozenset(found)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    value = json.loads(path.read_bytes())
    return value if isinstance(value, dict) else {}

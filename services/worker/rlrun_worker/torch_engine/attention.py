"""Attention over a pool of KV slots, registered with transformers so that any of its causal models runs on it.

Shape legend: B rows, T new tokens per row, L attended length, S slots, H query heads, G kv heads, D head dim.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

ATTENTION_NAME = "rlrun_slots"


class KvPool:
    """Keys and values of all layers and slots: one tensor [layers, 2, S, G, max_len + 1, D].

    Position `max_len` of each slot is scratch: padding writes there, so one forward serves rows of different lengths.
    Heads lie outside positions: a slot's head is one contiguous [L, D] matrix for the attention kernels.
    """

    def __init__(
        self, *, num_layers: int, num_slots: int, num_kv_heads: int, head_dim: int, max_len: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.max_len = max_len
        self.num_kv_heads = num_kv_heads
        shape = (num_layers, 2, num_slots, num_kv_heads, max_len + 1, head_dim)
        self._kv = torch.zeros(shape, dtype=dtype, device=device)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values [S, G, max_len + 1, D] of one layer, as views."""
        return self._kv[index, 0], self._kv[index, 1]

    def copy_prefix(self, source: int, target: int, num_tokens: int) -> None:
        self._kv[:, :, target, :, :num_tokens] = self._kv[:, :, source, :, :num_tokens]


class SlotStep:
    """Where one forward reads and writes.

    slots: int64 [B]. write_positions: int64 [B, T], `max_len` for padding. query_positions: int64 [B, T].
    rows: the slots as a slice when they are a dense range, then attention reads the pool without copying.
    """

    def __init__(
        self, *, pool: KvPool, slots: Tensor, rows: slice | None, query_positions: Tensor, write_positions: Tensor, length: int
    ) -> None:
        self.pool = pool
        self.slots = slots
        self.rows = rows
        self.query_positions = query_positions
        self.length = length
        # Rows of the pool's [S * G * (max_len + 1), D] view, in the order of keys [B, G, T]; the same for all layers.
        heads = torch.arange(pool.num_kv_heads, device=slots.device)
        starts = (slots[:, None] * pool.num_kv_heads + heads) * (pool.max_len + 1)
        self._write_rows = (starts[:, :, None] + write_positions[:, None, :]).reshape(-1)
        self._masks: dict[int | None, Tensor] = {}

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write new keys and values [B, G, T, D]; returns what to attend over, [B, G, L, D] each."""
        keys, values = self.pool.layer(layer)
        head_dim = key.shape[-1]
        keys.view(-1, head_dim).index_copy_(0, self._write_rows, key.reshape(-1, head_dim))
        values.view(-1, head_dim).index_copy_(0, self._write_rows, value.reshape(-1, head_dim))
        keys, values = keys[:, :, : self.length], values[:, :, : self.length]
        if self.rows is not None:
            return keys[self.rows], values[self.rows]
        return keys.index_select(0, self.slots), values.index_select(0, self.slots)

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive mask [B, 1, T, L]: 0 where a query may look, -inf elsewhere. Built once per forward."""
        cached = self._masks.get(window)
        if cached is None:
            keys = torch.arange(self.length, device=self.slots.device)
            hidden = keys > self.query_positions[:, :, None]
            if window is not None:
                hidden |= keys <= self.query_positions[:, :, None] - window
            cached = torch.zeros(hidden.shape, dtype=dtype, device=keys.device).masked_fill_(hidden, float("-inf"))[:, None]
            self._masks[window] = cached
        return cached


def slot_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attention function of transformers: query [B, H, T, D], key and value [B, G, T, D] -> [B, T, H, D].

    With `slot_step` it appends key and value to the pool and attends over the slots; without, it is plain causal attention
    over the given tokens.
    """
    step: SlotStep | None = kwargs.get("slot_step")
    window: int | None = kwargs.get("sliding_window")
    scaling: float | None = kwargs.get("scaling")
    batch, num_heads, num_tokens, head_dim = query.shape
    if step is None:
        mask = causal_mask(num_tokens, window, query.dtype, query.device)
    else:
        assert isinstance(module.layer_idx, int)
        key, value = step.append(module.layer_idx, key, value)
        mask = step.mask(window, query.dtype)
    num_kv_heads = key.shape[1]
    if num_tokens == 1:
        # Query heads that share a kv head become rows of one matrix, so decoding reads each key once.
        packed = query.reshape(batch, num_kv_heads, num_heads // num_kv_heads, head_dim)
        out = F.scaled_dot_product_attention(packed, key, value, attn_mask=mask, scale=scaling)
        return out.reshape(batch, 1, num_heads, head_dim), None
    if num_heads != num_kv_heads:
        key = key.repeat_interleave(num_heads // num_kv_heads, dim=1)
        value = value.repeat_interleave(num_heads // num_kv_heads, dim=1)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    return out.transpose(1, 2), None


def causal_mask(num_tokens: int, window: int | None, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Additive causal mask [T, T], with a sliding window when one is given."""
    positions = torch.arange(num_tokens, device=device)
    hidden = positions[None, :] > positions[:, None]
    if window is not None:
        hidden |= positions[None, :] <= positions[:, None] - window
    return torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))


def register() -> None:
    """Make `attn_implementation=ATTENTION_NAME` known to transformers. Idempotent."""
    AttentionInterface.register(ATTENTION_NAME, slot_attention)

"""Which tokens live in which KV slot: prefix matching and replacement. Pure numpy, no model.

Shape legend: S slots, M maximum length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlrun_worker.engine import Ids

# A pending prefix must beat the ready one by this much before a request waits for it: a step costs more than a few tokens.
MIN_PENDING_GAIN_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Admission:
    """Place of a new sequence: its slot, and the slot whose first `num_cached` tokens it starts from (may be the same)."""

    slot: int
    source: int
    num_cached: int


class SlotTable:
    """Token contents of the slots and who may take them.

    tokens: int32 [S, M]. num_tokens[s]: tokens known (prompt and drawn). num_kv[s]: leading tokens whose KV is in the pool.
    A slot whose sequence ended keeps its KV as a cached prefix until it is the least recently used one that is needed.
    """

    def __init__(self, num_slots: int, max_len: int) -> None:
        self.tokens = np.zeros((num_slots, max_len), np.int32)
        self.num_tokens = np.zeros(num_slots, np.int64)
        self.num_kv = np.zeros(num_slots, np.int64)
        self.active = np.zeros(num_slots, np.bool_)
        self._last_used = np.zeros(num_slots, np.int64)
        self._clock = 0

    @property
    def num_idle(self) -> int:
        return int(self.active.size - np.count_nonzero(self.active))

    def admit(self, prompt_ids: Ids) -> Admission | None:
        """Choose a slot for a prompt and mark it active; the caller copies KV when `source` differs from `slot`.

        None: no slot is free, or a running sequence is about to compute a much longer prefix of this prompt (ask again).
        """
        if self.num_idle == 0:
            return None
        common = self._common_prefix(prompt_ids)
        # The last token is always computed: its logits are the first thing to sample from.
        ready = np.minimum(np.minimum(common, self.num_kv), prompt_ids.size - 1)
        pending = np.where(self.active, np.minimum(common, prompt_ids.size - 1), 0)
        source = int(ready.argmax())
        num_cached = int(ready[source])
        if int(pending.max()) >= num_cached + MIN_PENDING_GAIN_TOKENS:
            return None
        idle = np.flatnonzero(~self.active)
        slot = int(idle[np.argmin(self._last_used[idle])])
        # Taking over a slot saves the copy, but would drop what else it holds; a continued conversation holds nothing else.
        if num_cached > 0 and not self.active[source] and num_cached >= self.num_kv[source] - 1:
            slot = source
        self._occupy(slot, prompt_ids, num_cached)
        return Admission(slot, source, num_cached)

    def release(self, slot: int) -> None:
        """The sequence ended; its KV stays as a cached prefix."""
        self.active[slot] = False
        self.num_tokens[slot] = self.num_kv[slot]
        self._clock += 1
        self._last_used[slot] = self._clock

    def invalidate(self) -> None:
        """All KV is stale (new weights): forget cached prefixes; active slots must be computed again."""
        self.num_kv[:] = 0
        idle = ~self.active
        self.num_tokens[idle] = 0
        self._last_used[idle] = 0

    def _occupy(self, slot: int, prompt_ids: Ids, num_cached: int) -> None:
        self.active[slot] = True
        self.tokens[slot, : prompt_ids.size] = prompt_ids
        self.num_tokens[slot] = prompt_ids.size
        self.num_kv[slot] = num_cached

    def _common_prefix(self, prompt_ids: Ids) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Length [S] of the common prefix of the prompt and each slot's tokens."""
        size = min(prompt_ids.size, int(self.num_tokens.max()))
        if size == 0:
            return np.zeros_like(self.num_tokens)
        differs = self.tokens[:, :size] != prompt_ids[:size]
        first = np.where(differs.any(axis=1), differs.argmax(axis=1), size)
        return np.minimum(first, self.num_tokens)

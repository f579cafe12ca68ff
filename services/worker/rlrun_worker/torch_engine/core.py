"""Continuous batching as a plain, single-threaded machine: submit and abort in, chunks out. No threads, no clock.

One rule drives it: a running sequence has `num_tokens` known tokens and `num_kv` computed ones. One missing is a decode row,
more are a prefill row; when none would be missing the last logits give the next token. A fresh prompt, a reused prefix and a
sequence whose KV went stale with new weights are all the same case.

Shape legend: S slots, M maximum length, B rows of one forward, V vocabulary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from rlrun_worker.engine import Chunk, FinishReason, Floats, Ids, Sampling, VersionSpan
from rlrun_worker.torch_engine.model import SlotModel, dense_range
from rlrun_worker.torch_engine.options import TorchEngineOptions
from rlrun_worker.torch_engine.sampler import RowSampler
from rlrun_worker.torch_engine.slots import SlotTable
from rlrun_worker.torch_engine.stop import StopMatcher

Rows = NDArray[np.int64]


@dataclass(eq=False, slots=True, kw_only=True)
class Sequence:
    """One request inside the engine. `limit_tokens`: prompt plus output may not be longer."""

    key: int
    prompt_ids: Ids
    sampling: Sampling
    limit_tokens: int
    top_logprobs: int = 0
    stream: bool = True
    slot: int = -1
    order: int = -1
    num_cached: int = 0
    num_sent: int = 0
    stop_matcher: StopMatcher | None = None
    top_rows: list[tuple[Ids, Floats]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Delivery:
    key: int
    chunk: Chunk


class EngineCore:
    """The state of all sequences. Every method runs on the engine thread, between two forwards."""

    def __init__(self, options: TorchEngineOptions, model: SlotModel, tokenizer: Tokenizer, eos_ids: frozenset[int], version: int) -> None:
        self.version = version
        self.num_output_tokens = 0
        self.num_prefill_tokens = 0
        self._options = options
        self._model = model
        self._tokenizer = tokenizer
        self._is_eos = np.zeros(model.vocab_size, np.bool_)
        self._is_eos[[token for token in eos_ids if token < model.vocab_size]] = True
        num_slots, max_len = options.num_slots, options.max_len_tokens
        self.slots = SlotTable(num_slots, max_len)
        self._sampler = RowSampler(num_slots, max_len, model.vocab_size, model.device)
        self._waiting: deque[Sequence] = deque()
        self._running: dict[int, Sequence] = {}
        self._num_admitted = 0
        self._logprobs = np.zeros((num_slots, max_len), np.float32)
        self._versions = np.zeros((num_slots, max_len), np.int64)
        self._limits = np.zeros(num_slots, np.int64)
        self._heeds_eos = np.zeros(num_slots, np.bool_)
        self._has_stops = np.zeros(num_slots, np.bool_)
        self._wants_top = np.zeros(num_slots, np.bool_)
        self._flush_at = np.zeros(num_slots, np.float64)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    def submit(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)

    def abort(self, key: int) -> list[Delivery]:
        """End a sequence with what it has; its slot is free at once. Nothing for an unknown key."""
        for sequence in self._waiting:
            if sequence.key == key:
                self._waiting.remove(sequence)
                return [Delivery(key, _empty_chunk(FinishReason.ABORT))]
        for sequence in self._running.values():
            if sequence.key == key:
                chunk = self._take_chunk(sequence, FinishReason.ABORT)
                self._release(sequence)
                return [Delivery(key, chunk)]
        return []

    def drop_all(self) -> None:
        """Forget every sequence and all KV after a fault."""
        for sequence in list(self._running.values()):
            self._release(sequence)
        self._waiting.clear()
        self.slots.invalidate()

    def load(self, version: int, state: Mapping[str, Tensor]) -> None:
        """Swap the weights between two tokens. Running sequences keep their tokens; their KV is computed again."""
        self._model.load_state(state)
        self.version = version
        self.slots.invalidate()

    def step(self, now_seconds: float) -> list[Delivery]:
        """Admit, compute one batch of prompt tokens if there are any, then one token for every ready sequence."""
        self._admit()
        deliveries: list[Delivery] = []
        missing = np.where(self.slots.active, self.slots.num_tokens - self.slots.num_kv, 0)
        if (missing > 1).any():
            deliveries += self._prefill(missing, now_seconds)
        rows = np.flatnonzero(self.slots.active & (self.slots.num_tokens - self.slots.num_kv == 1))
        if rows.size:
            deliveries += self._decode(rows, now_seconds)
        return deliveries

    def _admit(self) -> None:
        deferred: list[Sequence] = []
        while self._waiting and self.slots.num_idle:
            sequence = self._waiting.popleft()
            admission = self.slots.admit(sequence.prompt_ids)
            if admission is None:
                # A running sequence computes the same prefix right now; in a later step it is there to copy.
                deferred.append(sequence)
                continue
            if admission.num_cached and admission.source != admission.slot:
                self._model.pool.copy_prefix(admission.source, admission.slot, admission.num_cached)
            self._start(sequence, admission.slot, admission.num_cached)
        self._waiting.extendleft(reversed(deferred))

    def _start(self, sequence: Sequence, slot: int, num_cached: int) -> None:
        sequence.slot, sequence.num_cached, sequence.order = slot, num_cached, self._num_admitted
        sequence.num_sent = sequence.prompt_ids.size
        self._num_admitted += 1
        self._running[slot] = sequence
        sampling = sequence.sampling
        if sampling.stop:
            sequence.stop_matcher = StopMatcher(self._tokenizer, sampling.stop)
        self._limits[slot] = sequence.limit_tokens
        self._heeds_eos[slot] = not sampling.ignore_eos
        self._has_stops[slot] = bool(sampling.stop or sampling.stop_token_ids)
        self._wants_top[slot] = sequence.top_logprobs > 0
        self._flush_at[slot] = 0.0 if sequence.stream else np.inf
        self._sampler.admit(slot, sampling, sequence.prompt_ids, sequence.limit_tokens)

    def _prefill(self, missing: Rows, now_seconds: float) -> list[Delivery]:
        rows, counts = self._choose_prefill(missing)
        width = int(counts.max())
        ids = np.zeros((rows.size, width), np.int64)
        positions = np.full((rows.size, width), -1, np.int64)
        for index, (row, count) in enumerate(zip(rows.tolist(), counts.tolist(), strict=True)):
            start = int(self.slots.num_kv[row])
            ids[index, width - count :] = self.slots.tokens[row, start : start + count]
            positions[index, width - count :] = np.arange(start, start + count)
        logits = self._model.forward(ids, positions, rows, dense=False)
        self.slots.num_kv[rows] += counts
        self.num_prefill_tokens += int(counts.sum())
        done = np.flatnonzero(self.slots.num_kv[rows] == self.slots.num_tokens[rows])
        if not done.size:
            return []
        return self._extend(rows[done], logits[torch.from_numpy(done).to(logits.device)], now_seconds)

    def _choose_prefill(self, missing: Rows) -> tuple[Rows, Rows]:
        """The oldest row and those of similar length, as many as the budget of padded tokens allows."""
        budget = self._options.prefill_tokens
        rows = np.flatnonzero(missing > 1)
        counts = np.minimum(missing[rows], budget)
        oldest = min(range(rows.size), key=lambda index: self._running[int(rows[index])].order)
        near = counts * 2 >= counts[oldest]
        near &= counts <= counts[oldest]
        near[oldest] = True
        chosen = np.flatnonzero(near)[: max(1, budget // int(counts[oldest]))]
        if oldest not in chosen:
            chosen[-1] = oldest
        return rows[chosen], counts[chosen]

    def _decode(self, rows: Rows, now_seconds: float) -> list[Delivery]:
        dense = dense_range(rows, self._options.num_slots)
        batch = rows if dense is None else dense
        starts = np.minimum(self.slots.num_kv[batch], self._options.max_len_tokens - 1)
        ids = self.slots.tokens[batch, starts].astype(np.int64)[:, None]
        positions = starts[:, None]
        if batch.size != rows.size:
            idle = np.ones(batch.size, np.bool_)
            idle[rows - batch[0]] = False
            positions[idle] = -1
        logits = self._model.forward(ids, positions, batch, dense=dense is not None)
        if batch.size != rows.size:
            logits = logits[torch.from_numpy(rows - batch[0]).to(logits.device)]
        self.slots.num_kv[rows] += 1
        return self._extend(rows, logits, now_seconds)

    def _extend(self, rows: Rows, logits: Tensor, now_seconds: float) -> list[Delivery]:
        """Draw one token per row, append it, end what is finished, hand out what is due."""
        ends = self.slots.num_tokens[rows]
        drawn, logprobs, full_logprobs = self._sampler.draw(rows, ends, logits)
        if not np.isfinite(logprobs).all():
            # Diverged weights: an error is honest, a token drawn from NaN would be trained on.
            raise FloatingPointError(f"policy version {self.version} gives logits that are not finite")
        self.slots.tokens[rows, ends] = drawn
        self.slots.num_tokens[rows] = ends + 1
        self._logprobs[rows, ends] = logprobs
        self._versions[rows, ends] = self.version
        self.num_output_tokens += rows.size
        if self._wants_top[rows].any():
            self._record_top(rows, full_logprobs)
        at_eos = self._is_eos[drawn] & self._heeds_eos[rows]
        at_limit = ends + 1 >= self._limits[rows]
        due = at_eos | at_limit | self._has_stops[rows] | (self._flush_at[rows] <= now_seconds)
        deliveries: list[Delivery] = []
        for index in np.flatnonzero(due).tolist():
            row = int(rows[index])
            sequence = self._running[row]
            matched = self._match_stop(sequence, int(drawn[index])) if self._has_stops[row] else None
            reason = FinishReason.STOP if at_eos[index] or matched is not None else FinishReason.LENGTH if at_limit[index] else None
            if reason is None and self._flush_at[row] > now_seconds:
                continue
            self._flush_at[row] = now_seconds + self._options.flush_seconds if sequence.stream else np.inf
            deliveries.append(Delivery(sequence.key, self._take_chunk(sequence, reason, matched or "")))
            if reason is not None:
                self._release(sequence)
        return deliveries

    def _match_stop(self, sequence: Sequence, token: int) -> str | None:
        """The stop string that just completed, "" for a stop token, None to go on."""
        matched = sequence.stop_matcher.feed(token) if sequence.stop_matcher is not None else None
        if matched is None and token in sequence.sampling.stop_token_ids:
            return ""
        return matched

    def _record_top(self, rows: Rows, full_logprobs: Tensor) -> None:
        wanting = np.flatnonzero(self._wants_top[rows])
        sequences = [self._running[int(row)] for row in rows[wanting]]
        widest = max(sequence.top_logprobs for sequence in sequences)
        values, ids = torch.topk(full_logprobs[torch.from_numpy(wanting).to(full_logprobs.device)], widest, dim=-1)
        ids_host, values_host = ids.to("cpu", torch.int32).numpy(), values.cpu().numpy()
        for index, sequence in enumerate(sequences):
            sequence.top_rows.append((ids_host[index, : sequence.top_logprobs], values_host[index, : sequence.top_logprobs]))

    def _take_chunk(self, sequence: Sequence, reason: FinishReason | None, matched_stop: str = "") -> Chunk:
        slot, start, end = sequence.slot, sequence.num_sent, int(self.slots.num_tokens[sequence.slot])
        sequence.num_sent = end
        top_ids = top_logprobs = None
        if sequence.top_logprobs:
            empty = (np.zeros((0, sequence.top_logprobs), np.int32), np.zeros((0, sequence.top_logprobs), np.float32))
            top_ids = np.stack([ids for ids, _ in sequence.top_rows]) if sequence.top_rows else empty[0]
            top_logprobs = np.stack([values for _, values in sequence.top_rows]) if sequence.top_rows else empty[1]
            sequence.top_rows.clear()
        return Chunk(
            ids=self.slots.tokens[slot, start:end].copy(),
            logprobs=self._logprobs[slot, start:end].copy(),
            versions=_spans(self._versions[slot, start:end]),
            finish_reason=reason,
            top_ids=top_ids,
            top_logprobs=top_logprobs,
            cached_tokens=sequence.num_cached,
            matched_stop=matched_stop,
        )

    def _release(self, sequence: Sequence) -> None:
        del self._running[sequence.slot]
        self.slots.release(sequence.slot)
        self._sampler.release(sequence.slot)


def _spans(versions: NDArray[np.int64]) -> tuple[VersionSpan, ...]:
    if not versions.size:
        return ()
    starts = np.concatenate(([0], np.flatnonzero(np.diff(versions)) + 1, [versions.size]))
    return tuple(VersionSpan(end - start, int(versions[start])) for start, end in pairwise(starts.tolist()))


def _empty_chunk(reason: FinishReason) -> Chunk:
    return Chunk(ids=np.zeros(0, np.int32), logprobs=np.zeros(0, np.float32), versions=(), finish_reason=reason)

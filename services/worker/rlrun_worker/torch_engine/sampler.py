"""Sampling settings of all slots as arrays, so that one batch draws with few tensor operations.

Shape legend: S slots, M maximum length, B rows of one forward, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlrun_worker.engine import Floats, Ids, Sampling
from rlrun_worker.torch_engine import sampling as draws

Rows = NDArray[np.int64]
# A uniform of exactly 1 after rounding would fall behind the last token.
BELOW_ONE = 1.0 - 2.0**-40


class RowSampler:
    """Holds what `draw` needs per slot.

    The random numbers of a sequence are drawn at admission from its own generator and indexed by position: its tokens depend
    on its seed alone, not on its neighbours.
    """

    def __init__(self, num_slots: int, max_len: int, vocab_size: int, device: torch.device) -> None:
        self._device = device
        self._vocab_size = vocab_size
        self._temperature = np.ones(num_slots, np.float32)
        self._top_k = np.zeros(num_slots, np.int64)
        self._top_p = np.ones(num_slots, np.float64)
        self._presence = np.zeros(num_slots, np.float32)
        self._frequency = np.zeros(num_slots, np.float32)
        self._repetition = np.ones(num_slots, np.float32)
        self._truncates = np.zeros(num_slots, np.bool_)
        self._penalises = np.zeros(num_slots, np.bool_)
        self._uniforms = np.zeros((num_slots, max_len), np.float64)
        # [S, V] each; made when the first request asks for a penalty.
        self._output_counts: Tensor | None = None
        self._in_prompt: Tensor | None = None
        self._num_slots = num_slots

    def admit(self, slot: int, sampling: Sampling, prompt_ids: Ids, limit_tokens: int) -> None:
        self._temperature[slot] = sampling.temperature
        self._top_k[slot] = sampling.top_k
        self._top_p[slot] = sampling.top_p
        self._presence[slot] = sampling.presence_penalty
        self._frequency[slot] = sampling.frequency_penalty
        self._repetition[slot] = sampling.repetition_penalty
        self._truncates[slot] = sampling.temperature > 0 and (sampling.top_k > 0 or sampling.top_p < 1)
        self._penalises[slot] = sampling.presence_penalty != 0 or sampling.frequency_penalty != 0 or sampling.repetition_penalty != 1
        if sampling.temperature > 0:
            # A seed may be any int64; numpy wants it non-negative.
            seed = None if sampling.seed is None else sampling.seed % 2**64
            uniforms = np.random.default_rng(seed).random(limit_tokens - prompt_ids.size)
            self._uniforms[slot, prompt_ids.size : limit_tokens] = np.minimum(uniforms, BELOW_ONE)
        if self._penalises[slot]:
            self._reset_counts(slot, prompt_ids)

    def release(self, slot: int) -> None:
        self._truncates[slot] = self._penalises[slot] = False

    def draw(self, rows: Rows, ends: Rows, logits_BV: Tensor) -> tuple[Ids, Floats, Tensor]:
        """Next token of each row, its logprob, and all logprobs [B, V] (before penalties and truncation).

        ends: position each new token takes in its sequence.
        """
        temperature_B = self._to_device(self._temperature[rows])
        logprobs_BV = draws.scaled_logprobs(logits_BV, temperature_B)
        choice_BV = logprobs_BV
        penalised = np.flatnonzero(self._penalises[rows])
        if penalised.size:
            index = self._to_device(penalised)
            logits_BV = logits_BV.float().clone()
            logits_BV[index] = self._penalise(rows[penalised], logits_BV[index])
            choice_BV = draws.scaled_logprobs(logits_BV, temperature_B)
        ids_B = self._choose(rows, ends, logits_BV, choice_BV)
        if penalised.size:
            assert self._output_counts is not None
            slots = self._to_device(rows[penalised])
            self._output_counts[slots, ids_B[index]] += 1
        token_logprobs = logprobs_BV.gather(1, ids_B[:, None])[:, 0]
        return ids_B.to("cpu", torch.int32).numpy(), token_logprobs.cpu().numpy(), logprobs_BV

    def _choose(self, rows: Rows, ends: Rows, logits_BV: Tensor, logprobs_BV: Tensor) -> Tensor:
        greedy = self._temperature[rows] == 0
        truncated = self._truncates[rows]
        plain = ~(greedy | truncated)
        uniform_B = self._to_device(self._uniforms[rows, ends])
        # The common cases take no index operations.
        if plain.all():
            return draws.draw(logprobs_BV, uniform_B)
        if greedy.all():
            return logits_BV.argmax(-1)
        ids_B = torch.empty(rows.size, dtype=torch.int64, device=self._device)
        if greedy.any():
            index = self._to_device(np.flatnonzero(greedy))
            ids_B[index] = logits_BV[index].argmax(-1)
        if plain.any():
            index = self._to_device(np.flatnonzero(plain))
            ids_B[index] = draws.draw(logprobs_BV[index], uniform_B[index])
        if truncated.any():
            chosen = np.flatnonzero(truncated)
            index = self._to_device(chosen)
            ids_B[index] = draws.draw_truncated(
                logprobs_BV[index],
                uniform_B[index],
                top_k_B=self._to_device(self._top_k[rows[chosen]]),
                top_p_B=self._to_device(self._top_p[rows[chosen]]),
            )
        return ids_B

    def _penalise(self, rows: Rows, logits_BV: Tensor) -> Tensor:
        assert self._output_counts is not None
        assert self._in_prompt is not None
        slots = self._to_device(rows)
        return draws.apply_penalties(
            logits_BV,
            output_counts_BV=self._output_counts[slots],
            in_prompt_BV=self._in_prompt[slots],
            presence_B=self._to_device(self._presence[rows]),
            frequency_B=self._to_device(self._frequency[rows]),
            repetition_B=self._to_device(self._repetition[rows]),
        )

    def _reset_counts(self, slot: int, prompt_ids: Ids) -> None:
        if self._output_counts is None or self._in_prompt is None:
            shape = (self._num_slots, self._vocab_size)
            self._output_counts = torch.zeros(shape, dtype=torch.int32, device=self._device)
            self._in_prompt = torch.zeros(shape, dtype=torch.bool, device=self._device)
        self._output_counts[slot] = 0
        self._in_prompt[slot] = False
        self._in_prompt[slot, self._to_device(prompt_ids.astype(np.int64))] = True

    def _to_device(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self._device)

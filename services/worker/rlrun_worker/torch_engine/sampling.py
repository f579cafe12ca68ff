"""Draws one token per row from logits, each row with its own settings. Plain functions on tensors.

Shape legend: B rows, V vocabulary, K candidates.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Nearly every nucleus lies in this many tokens; a full sort of the vocabulary is the exception.
NUM_CANDIDATES = 256


def scaled_logprobs(logits_BV: Tensor, temperature_B: Tensor) -> Tensor:
    """log-softmax of logits / temperature in float32; temperature 0 (greedy) counts as 1."""
    divisor_B = torch.where(temperature_B > 0, temperature_B, 1.0)
    return torch.log_softmax(logits_BV.float() / divisor_B[:, None], dim=-1)


def apply_penalties(
    logits_BV: Tensor, *, output_counts_BV: Tensor, in_prompt_BV: Tensor, presence_B: Tensor, frequency_B: Tensor, repetition_B: Tensor
) -> Tensor:
    """Penalised copy of the logits.

    Repetition first, on tokens of prompt or output; then frequency (per occurrence) and presence, on tokens of the output.
    """
    logits_BV = logits_BV.float()
    seen_BV = (output_counts_BV > 0) | in_prompt_BV
    factor_BV = torch.where(seen_BV, repetition_B[:, None], 1.0)
    logits_BV = torch.where(logits_BV > 0, logits_BV / factor_BV, logits_BV * factor_BV)
    return logits_BV - frequency_B[:, None] * output_counts_BV - presence_B[:, None] * (output_counts_BV > 0)


def draw(logprobs_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """Inverse transform: the first token whose cumulative probability exceeds uniform_B (float64 in [0, 1)). Ids int64 [B].

    One uniform per token (not one per vocabulary entry) is what makes per-request seeds cheap.
    """
    return _invert_cdf(logprobs_BV.exp(), uniform_B)


def draw_truncated(logprobs_BV: Tensor, uniform_B: Tensor, *, top_k_B: Tensor, top_p_B: Tensor) -> Tensor:
    """Like `draw`, among the top_k likeliest tokens (0: all), then the smallest set of these that holds top_p of their mass."""
    num_vocab = logprobs_BV.shape[1]
    limit_B = torch.where(top_k_B > 0, top_k_B.clamp(max=num_vocab), num_vocab)
    num_candidates = min(num_vocab, NUM_CANDIDATES)
    sorted_BK, ids_BK = torch.topk(logprobs_BV, num_candidates, dim=-1)
    # The candidates suffice for a small top_k, and without top_k for a nucleus that ends inside them.
    covered_B = (limit_B == num_vocab) & (sorted_BK.exp().sum(-1) >= top_p_B)
    if not bool((covered_B | (limit_B <= num_candidates)).all()):
        sorted_BK, ids_BK = torch.sort(logprobs_BV, dim=-1, descending=True)
    kept_BK = sorted_BK.exp().double()
    ranks_K = torch.arange(kept_BK.shape[1], device=kept_BK.device)
    kept_BK = kept_BK.masked_fill_(ranks_K >= limit_B[:, None], 0.0)
    # Without top_k the total is exactly 1, whether or not all tokens are among the candidates.
    total_B = torch.where(limit_B < num_vocab, kept_BK.sum(-1), 1.0)
    before_BK = kept_BK.cumsum(-1) - kept_BK
    kept_BK = kept_BK.masked_fill_(before_BK >= (top_p_B * total_B)[:, None], 0.0)
    chosen_B = _invert_cdf(kept_BK, uniform_B)
    return ids_BK.gather(1, chosen_B[:, None])[:, 0]


def _invert_cdf(weights_BK: Tensor, uniform_B: Tensor) -> Tensor:
    cdf_BK = weights_BK.cumsum(-1, dtype=torch.float64)
    wanted_B1 = (uniform_B * cdf_BK[:, -1])[:, None]
    # right=True: never a token of weight 0, its cdf step is empty.
    return torch.searchsorted(cdf_BK, wanted_B1, right=True)[:, 0].clamp_(max=weights_BK.shape[1] - 1)

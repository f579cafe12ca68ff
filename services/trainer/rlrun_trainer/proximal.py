"""Logprobs of the proximal policy (before this step's updates) without a forward pass of their own.

A building block that no document names: a train step recomputes them. Source: AReaL's `prox_logp_method: loglinear`.

Shape legend: B rows, T tokens; all tensors are shifted, versions included, so a token and its version share an index.
"""

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor


class Interpolation(StrEnum):
    LOG_LINEAR = "LogLinear"  # of logprobs
    LINEAR = "Linear"  # of probabilities


def approximate_proximal(
    interpolation: Interpolation, behaviour_BT: Tensor, logprobs_BT: Tensor, versions_BT: Tensor, *, current_version: int
) -> Tensor:
    """Places the proximal policy (version current - 1) between behaviour (version of the token) and current policy.

    The share of the current policy is (proximal - behaviour) / (current - behaviour) in versions, in [0, 1]; 0 for prompt tokens and
    for tokens as new as the current version. The result is detached. Raises FloatingPointError if it is not finite.
    """
    logprobs_BT = logprobs_BT.detach()
    age_BT = (current_version - versions_BT).to(behaviour_BT.dtype)
    known_BT = (versions_BT >= 0) & (versions_BT < current_version)
    alpha_BT = torch.where(known_BT, (age_BT - 1) / age_BT.clamp(min=1), 0.0).clamp(0.0, 1.0)
    if interpolation is Interpolation.LOG_LINEAR:
        proximal_BT = behaviour_BT + alpha_BT * (logprobs_BT - behaviour_BT)
    else:
        proximal_BT = torch.log((1 - alpha_BT) * behaviour_BT.exp() + alpha_BT * logprobs_BT.exp() + 1e-10)
    if not proximal_BT.isfinite().all():
        raise FloatingPointError(f"proximal logprobs by {interpolation} are not finite; check the behaviour logprobs of the batch")
    return proximal_BT

"""AdamW with a learning-rate course; a step whose gradient is not finite is skipped and counted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlrun.spec.trainer import OptimizerSpec, Schedule


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutcome:
    grad_norm: float  # before clipping
    skipped: bool


def learning_rate(step: int, spec: OptimizerSpec, total_steps: int) -> float:
    """Rate of train step `step` (from 0): rises linearly over the warm-up, then stays, or falls to 0 at `total_steps`."""
    if step < spec.warmup_steps:
        return spec.lr * (step + 1) / spec.warmup_steps
    done = min(1.0, (step - spec.warmup_steps) / max(1, total_steps - spec.warmup_steps))
    if spec.schedule is Schedule.LINEAR:
        return spec.lr * (1.0 - done)
    if spec.schedule is Schedule.COSINE:
        return spec.lr * 0.5 * (1.0 + math.cos(math.pi * done))
    return spec.lr


class Optimizer:
    """Steps named parameters. The rate follows the train step, not the minibatch."""

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], spec: OptimizerSpec, *, total_steps: int) -> None:
        self._spec = spec
        self._total_steps = total_steps
        self._parameters = dict(parameters)
        self._adamw = torch.optim.AdamW(
            self._parameters.values(),
            lr=spec.lr,
            betas=(spec.beta1, spec.beta2),
            eps=spec.eps,
            weight_decay=spec.weight_decay,
        )
        self.num_skipped = 0

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        return self._parameters

    def learning_rate(self, train_step: int) -> float:
        return learning_rate(train_step, self._spec, self._total_steps)

    def zero_grad(self) -> None:
        """Zeros rather than None: ranks without rows still take part in the reduction of gradients."""
        for parameter in self._parameters.values():
            parameter.grad = torch.zeros_like(parameter)

    def step(self, train_step: int) -> StepOutcome:
        """Clips and applies the gradients; leaves weights and moments alone if the norm is not finite."""
        grad_norm = float(nn.utils.clip_grad_norm_(self._parameters.values(), self._spec.gradient_clipping))
        skipped = not math.isfinite(grad_norm)
        if skipped:
            self.num_skipped += 1
        else:
            for group in self._adamw.param_groups:
                group["lr"] = self.learning_rate(train_step)
            self._adamw.step()
        for parameter in self._parameters.values():
            parameter.grad = None
        return StepOutcome(grad_norm=grad_norm, skipped=skipped)

    def state_tensors(self) -> dict[str, Tensor]:
        """Moments and step counts as `<kind>:<parameter>`; empty before the first step."""
        return {
            f"{kind}:{name}": value.detach()
            for name, parameter in self._parameters.items()
            for kind, value in self._adamw.state.get(parameter, {}).items()
        }

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Inverse of `state_tensors`, for the same model."""
        state: dict[Tensor, dict[str, Any]] = {}
        for key, tensor in tensors.items():
            kind, _, name = key.partition(":")
            parameter = self._parameters[name]
            # The step count stays on the CPU, where AdamW reads it without waiting for the device.
            device = torch.device("cpu") if kind == "step" else parameter.device
            state.setdefault(parameter, {})[kind] = tensor.to(device).clone()
        self._adamw.state.clear()
        self._adamw.state.update(state)

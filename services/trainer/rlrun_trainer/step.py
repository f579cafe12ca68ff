"""One train step: rows in, updated weights and metrics out.

Shape legend: B rows, T tokens; [B, T] tensors are shifted (index t is the prediction of token t + 1).
The gradient of a minibatch is the mean over its trained tokens, over all ranks and microbatches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from rlrun.errors import ConfigError
from rlrun.spec.trainer import PackingSpec
from rlrun_trainer.advantages import compute_advantages
from rlrun_trainer.algorithms import Algorithm
from rlrun_trainer.losses import policy_loss
from rlrun_trainer.metrics import Tally, batch_metrics, loss_tally
from rlrun_trainer.model import attention_window, token_logprobs
from rlrun_trainer.optimizer import Optimizer, StepOutcome
from rlrun_trainer.packing import check_lengths, microbatches, pack
from rlrun_trainer.ranks import Ranks
from rlrun_trainer.rows import PROMPT_VERSION, Batch, Row, pad_rows, select_rows, shift_left


@dataclass(kw_only=True, slots=True)
class Learner:
    """What a train step works on. `reference` is the model of the KL penalty.

    Raises ConfigError where rows may be longer than the model's sliding attention window.
    """

    model: nn.Module
    optimizer: Optimizer
    algorithm: Algorithm
    packing: PackingSpec = field(default_factory=PackingSpec)
    reference: nn.Module | None = None
    ranks: Ranks = field(default_factory=Ranks)

    def __post_init__(self) -> None:
        window = attention_window(self.model)
        if window is not None and self.packing.max_tokens_per_row > window:
            raise ConfigError(
                f"trainer.packing.maxTokensPerRow: {self.packing.max_tokens_per_row} is more than the model's attention window of {window} "
                f"tokens, which packed rows do not apply; set it to at most {window}",
                param="trainer.packing.maxTokensPerRow",
            )

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Prepared:
    """A batch with all that stays fixed during its updates; on the CPU, the same on every rank."""

    batch: Batch
    behaviour_BT: Tensor
    proximal_BT: Tensor
    advantages_BT: Tensor
    mask_BT: Tensor  # bool
    versions_BT: Tensor

    def select(self, rows: Sequence[int]) -> Prepared:
        batch = select_rows(self.batch, rows)
        width = batch.shape[1]
        return Prepared(
            batch=batch,
            behaviour_BT=self.behaviour_BT[rows, :width],
            proximal_BT=self.proximal_BT[rows, :width],
            advantages_BT=self.advantages_BT[rows, :width],
            mask_BT=self.mask_BT[rows, :width],
            versions_BT=self.versions_BT[rows, :width],
        )


def train_step(learner: Learner, rows: Sequence[Row], *, step: int, policy_version: int) -> dict[str, float]:
    """Updates the learner's weights with the rows and returns metrics. `step` counts from 0; `policy_version` is that of the weights now.

    Every rank calls it with the same rows. Raises InvalidRequest for a row above `max_tokens_per_row`, ConfigError for a KL penalty
    without reference model.
    """
    check_lengths([len(row) for row in rows], learner.packing.max_tokens_per_row)
    prepared, metrics = _prepare(learner, pad_rows(rows), policy_version)
    tally = Tally()
    outcomes: list[StepOutcome] = []
    for number, minibatch_rows in enumerate(_minibatches(len(rows), learner.algorithm.num_minibatches)):
        minibatch = prepared.select(minibatch_rows)
        num_tokens = int(minibatch.mask_BT.sum())
        if num_tokens == 0:
            continue
        learner.optimizer.zero_grad()
        for part_rows, bins in _own_passes(learner, minibatch.batch, minibatch.mask_BT):
            _backward(learner, minibatch.select(part_rows), bins, num_tokens, policy_version, tally, unchanged=number == 0)
        learner.ranks.sum_gradients_(learner.optimizer.parameters.values())
        outcomes.append(learner.optimizer.step(step))
    metrics |= tally.reduce(learner.ranks, learner.device)
    return metrics | {
        "grad_norm": max((outcome.grad_norm for outcome in outcomes if not outcome.skipped), default=0.0),
        "steps_skipped": float(sum(outcome.skipped for outcome in outcomes)),
        "steps_skipped_total": float(learner.optimizer.num_skipped),
        "lr": learner.optimizer.learning_rate(step),
    }


def _prepare(learner: Learner, batch: Batch, policy_version: int) -> tuple[Prepared, dict[str, float]]:
    """Proximal and reference logprobs where they are needed, then advantages."""
    algorithm = learner.algorithm
    behaviour_BT, mask_BT = shift_left(batch.logprobs_BT, 0), shift_left(batch.loss_mask_BT, 0)
    proximal_BT = _all_logprobs(learner, learner.model, batch, mask_BT) if algorithm.decoupled else behaviour_BT
    reference_BT = None
    if learner.reference is not None and algorithm.advantages.kl_ctl > 0:
        reference_BT = _all_logprobs(learner, learner.reference, batch, mask_BT)
    advantages = compute_advantages(batch, algorithm.advantages, ref_logprobs_BT=reference_BT)
    prepared = Prepared(
        batch=batch,
        behaviour_BT=behaviour_BT,
        proximal_BT=proximal_BT,
        advantages_BT=advantages.advantages_BT,
        mask_BT=mask_BT,
        versions_BT=shift_left(batch.versions_BT, PROMPT_VERSION),
    )
    return prepared, batch_metrics(batch, advantages, prepared.versions_BT, policy_version)


def _backward(
    learner: Learner, data: Prepared, bins: list[list[int]], num_tokens: int, policy_version: int, tally: Tally, *, unchanged: bool
) -> None:
    """Adds one microbatch's share to the gradients and the tally. `unchanged`: the weights are still those of `policy_version`."""
    current = token_logprobs(learner.model, data.batch, pack(data.batch, bins), data.mask_BT)
    device = learner.device
    mask_BT, versions_BT = data.mask_BT.to(device), data.versions_BT.to(device)
    behaviour_BT, proximal_BT = data.behaviour_BT.to(device), data.proximal_BT.to(device)
    token_loss, weights = policy_loss(
        current.logprobs_BT, proximal_BT, behaviour_BT, data.advantages_BT.to(device), mask_BT, learner.algorithm.loss
    )
    loss = token_loss.loss_BT.sum() / num_tokens
    loss.backward()  # type: ignore[no-untyped-call]
    fresh_BT = mask_BT & (versions_BT == policy_version) & unchanged
    loss_tally(tally, current, token_loss, weights, proximal_BT, behaviour_BT, mask_BT, fresh_BT)


def _minibatches(num_rows: int, num_minibatches: int) -> list[list[int]]:
    """Rows split by count; shuffled where there are several, so that a group is not an update of its own."""
    order = torch.randperm(num_rows) if num_minibatches > 1 else torch.arange(num_rows)
    return [part.tolist() for part in order.tensor_split(num_minibatches) if part.numel()]


@torch.no_grad()
def _all_logprobs(learner: Learner, model: nn.Module, batch: Batch, mask_BT: Tensor) -> Tensor:
    """Logprobs of all rows on the CPU, each rank computing its share."""
    out_BT = torch.zeros(batch.shape, dtype=torch.float32, device=learner.device)
    for rows, bins in _own_passes(learner, batch, mask_BT):
        part = select_rows(batch, rows)
        width = part.shape[1]
        out_BT[rows, :width] = token_logprobs(model, part, pack(part, bins), mask_BT[rows, :width]).logprobs_BT
    return learner.ranks.sum_(out_BT).cpu()


def _own_passes(learner: Learner, batch: Batch, mask_BT: Tensor) -> Iterator[tuple[list[int], list[list[int]]]]:
    """This rank's share of the rows that have trained tokens, one microbatch after the other: its rows and, as indices into them, the
    bins they lie in.
    """
    trained = mask_BT.any(dim=1).nonzero()[:, 0].tolist()
    lengths = batch.lengths_B.tolist()
    share = [trained[place] for place in learner.ranks.share([lengths[row] for row in trained])]
    for bins in microbatches([lengths[row] for row in share], learner.packing.max_tokens_per_microbatch):
        rows = [share[place] for places in bins for place in places]
        numbers = iter(range(len(rows)))
        yield rows, [[next(numbers) for _ in places] for places in bins]

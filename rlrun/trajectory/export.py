"""The two ways to turn a session's tree into rows."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import numpy as np

from rlrun.errors import InvalidRequest
from rlrun.trajectory.rows import TrajectoryRow
from rlrun.trajectory.tree import PROMPT_VERSION, Interaction, InteractionTree


class ExportStyle(Enum):
    INDIVIDUAL = "Individual"
    """One row per interaction; only its own output is trained."""
    CONCAT = "Concat"
    """One row per leaf; the outputs of all its ancestors are trained in it, each branch with its own copy of what is shared."""


def export_rows(tree: InteractionTree, rewards: Mapping[str, float], *, style: ExportStyle) -> list[TrajectoryRow]:
    """Rows in order of insertion.

    Args:
        rewards: what `reward_discount` gave; a row takes the reward of its last interaction.

    Raises:
        InvalidRequest: turns of one row were sampled at different temperatures.
    """
    if style is ExportStyle.INDIVIDUAL:
        return [_row(tree.path(one.id), rewards, trained_from=-1) for one in tree.in_order()]
    return [_row(tree.path(one.id), rewards, trained_from=0) for one in tree.leaves()]


def _row(path: list[Interaction], rewards: Mapping[str, float], *, trained_from: int) -> TrajectoryRow:
    """The tokens along `path`; outputs of `path[trained_from:]` are trained."""
    trained = {one.id for one in path[trained_from:]}
    length = sum(len(one.new_prompt_ids) + len(one.output_ids) for one in path)
    input_ids = np.empty(length, dtype=np.int32)
    loss_mask = np.zeros(length, dtype=np.int32)
    logprobs = np.zeros(length, dtype=np.float32)
    versions = np.full(length, PROMPT_VERSION, dtype=np.int32)
    at = 0
    for one in path:
        start = at + len(one.new_prompt_ids)
        end = start + len(one.output_ids)
        input_ids[at:start] = one.new_prompt_ids
        input_ids[start:end] = one.output_ids
        if one.id in trained:
            loss_mask[start:end] = 1
            logprobs[start:end] = one.logprobs
            versions[start:end] = one.versions
        at = end
    last = path[-1]
    temperatures = {one.temperature for one in path[trained_from:]}
    if len(temperatures) > 1:
        shown = ", ".join(f"{value:g}" for value in sorted(temperatures))
        raise InvalidRequest(
            f"the turns up to {last.id} were sampled at temperatures {shown}; one row holds one: use Individual", param="style"
        )
    return TrajectoryRow(
        interaction_id=last.id,
        input_ids=input_ids,
        loss_mask=loss_mask,
        logprobs=logprobs,
        versions=versions,
        reward=rewards.get(last.id, 0.0),
        temperature=last.temperature,
    )

"""Rewards flow backwards over the interactions of a session.

Both styles accumulate: with discount 1 an interaction ends with the sum of its own and all later rewards. A missing reward is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class RewardStyle(Enum):
    TREE = "Tree"
    """A discounted reward flows to the parent only: branches and sub-agents do not share rewards."""
    LINEAR = "Linear"
    """One pass in reverse order of insertion over all interactions, whatever the tree says."""


def reward_discount(
    parents: Mapping[str, str | None], rewards: Mapping[str, float], *, style: RewardStyle, turn_discount: float
) -> dict[str, float]:
    """Discounted reward of each interaction.

    Args:
        parents: interaction id -> parent id (None: a root), in order of insertion; a parent comes before its children.
        rewards: the rewards that were set; interactions without one count as 0.
        style: Linear: r[i] += discount * r[i + 1]. Tree: r[parent] += discount * r[child], summed over the children. The sum (not
            the mean) keeps a conversation without branches equal in both styles and a reward's share independent of its siblings.
        turn_discount: in [0, 1].
    """
    discounted = {interaction: rewards.get(interaction, 0.0) for interaction in parents}
    order = list(parents)
    for i in range(len(order) - 1, -1, -1):
        receiver = parents[order[i]] if style is RewardStyle.TREE else (order[i - 1] if i else None)
        if receiver is not None:
            discounted[receiver] += turn_discount * discounted[order[i]]
    return discounted

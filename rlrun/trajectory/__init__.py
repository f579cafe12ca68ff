"""Trajectories as values: tree, rewards, rows of tensors. Pure numpy; no I/O."""

from __future__ import annotations

from rlrun.trajectory.discount import RewardStyle, reward_discount
from rlrun.trajectory.export import ExportStyle, export_rows
from rlrun.trajectory.rows import TrajectoryRow, row_from_json, row_to_json
from rlrun.trajectory.tree import BrokenTree, Interaction, InteractionTree

__all__ = [
    "BrokenTree",
    "ExportStyle",
    "Interaction",
    "InteractionTree",
    "RewardStyle",
    "TrajectoryRow",
    "export_rows",
    "reward_discount",
    "row_from_json",
    "row_to_json",
]

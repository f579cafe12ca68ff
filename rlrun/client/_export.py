"""A session's trajectory as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rlrun.errors import Internal
from rlrun.trajectory import TrajectoryRow, row_from_json

ExportStyle = Literal["individual", "concat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """Rows by interaction id, in order of insertion: one per interaction (individual) or per leaf of the conversation tree (concat)."""

    session_id: str
    rows: Mapping[str, TrajectoryRow]

    def __len__(self) -> int:
        return len(self.rows)


def export_from_json(session_id: str, answer: Mapping[str, Any]) -> Export:
    interactions = answer.get("interactions")
    if not isinstance(interactions, Mapping):
        raise Internal(f"export of {session_id}: the answer has no interactions")
    return Export(
        session_id=session_id,
        rows={
            name: row_from_json(value["tensor_dict"], interaction_id=name, temperature=float(value["temperature"]))
            for name, value in interactions.items()
        },
    )

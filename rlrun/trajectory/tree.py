"""Records of one session -> a tree of interactions with complete token ids.

A record holds only the ids that its parent does not hold; walking the parents gives the whole sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlrun.errors import Internal
from rlrun.proto import session_pb2

PROMPT_VERSION = -1
"""Version of a token that no policy sampled."""


class BrokenTree(Internal):
    """The records do not form a tree: a parent is missing, comes later, or arrays differ in length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interaction:
    """One model call with the tokens that it added: N new prompt tokens, T output tokens.

    Shapes: `new_prompt_ids` [N]; `output_ids`, `logprobs`, `versions` [T].
    """

    id: str
    parent_id: str | None
    index: int
    new_prompt_ids: NDArray[np.int32]
    output_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    temperature: float

    @staticmethod
    def from_record(record: session_pb2.InteractionRecord) -> Interaction:
        output_ids = np.frombuffer(record.output_ids, dtype="<i4")
        logprobs = np.frombuffer(record.output_logprobs, dtype="<f4")
        versions = np.repeat(
            np.array([span.version for span in record.versions], dtype=np.int32), [span.num_tokens for span in record.versions]
        )
        if not len(output_ids) == len(logprobs) == len(versions):
            raise BrokenTree(
                f"Interaction {record.id} has {len(output_ids)} output ids, {len(logprobs)} logprobs and {len(versions)} versions"
            )
        return Interaction(
            id=record.id,
            parent_id=record.parent_id or None,
            index=record.index,
            new_prompt_ids=np.frombuffer(record.new_prompt_ids, dtype="<i4"),
            output_ids=output_ids,
            logprobs=logprobs,
            versions=versions,
            temperature=record.temperature,
        )


class InteractionTree:
    """The interactions of one session in order of insertion. A parent always comes before its children."""

    def __init__(self, interactions: Iterable[Interaction]) -> None:
        self._by_id: dict[str, Interaction] = {}
        self._with_children: set[str] = set()
        for interaction in sorted(interactions, key=lambda one: one.index):
            if interaction.parent_id is not None:
                if interaction.parent_id not in self._by_id:
                    raise BrokenTree(f"Interaction {interaction.id} names a parent {interaction.parent_id} that is not before it")
                self._with_children.add(interaction.parent_id)
            self._by_id[interaction.id] = interaction

    @staticmethod
    def from_records(records: Iterable[session_pb2.InteractionRecord]) -> InteractionTree:
        return InteractionTree(Interaction.from_record(record) for record in records)

    def __len__(self) -> int:
        return len(self._by_id)

    def in_order(self) -> list[Interaction]:
        return list(self._by_id.values())

    def leaves(self) -> list[Interaction]:
        return [one for one in self._by_id.values() if one.id not in self._with_children]

    def parents(self) -> Mapping[str, str | None]:
        """Interaction id -> parent id, in order of insertion."""
        return {one.id: one.parent_id for one in self._by_id.values()}

    def path(self, interaction_id: str) -> list[Interaction]:
        """Root first, the interaction itself last."""
        path = [self._by_id[interaction_id]]
        while (parent_id := path[-1].parent_id) is not None:
            path.append(self._by_id[parent_id])
        path.reverse()
        return path

    def prompt_ids(self, interaction_id: str) -> NDArray[np.int32]:
        """Everything that the model saw before its output: shape [P]."""
        *before, last = self.path(interaction_id)
        pieces = [piece for one in before for piece in (one.new_prompt_ids, one.output_ids)]
        return np.concatenate([*pieces, last.new_prompt_ids])

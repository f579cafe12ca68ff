"""Sessions: who is admitted, how long they live, how rewards spread, what is exported."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from pydantic import Field

from rlrun.spec.base import Fault, ObjectName, Seconds, SpecModel


class Admission(StrEnum):
    STALENESS = "Staleness"
    GRANTED = "Granted"
    UNLIMITED = "Unlimited"


class RewardPropagation(StrEnum):
    TREE = "Tree"
    LINEAR = "Linear"


class ExportStyle(StrEnum):
    INDIVIDUAL = "Individual"
    CONCAT = "Concat"


class TasksSpec(SpecModel):
    """Data-driven rollouts: agent workers run every task of a data set."""

    dataset: str = Field(
        min_length=1, max_length=1024, description="Tasks as JSON lines: file://PATH, or the registered name of a made data set."
    )
    group_size: int = Field(default=8, ge=1, le=4096, description="Sessions sampled for the same task.")
    agent: ObjectName | None = Field(default=None, description="Name from spec.agents that runs the tasks; null takes the only one.")


class RolloutSpec(SpecModel):
    """Sessions from start to export."""

    admission: Admission = Field(
        default=Admission.STALENESS,
        description="Staleness: as many sessions as the trainer can use within maxHeadOffPolicyness. Granted: as many as were granted. "
        "Unlimited: only maxConcurrentSessions counts.",
    )
    max_concurrent_sessions: int = Field(default=256, ge=1, le=1_000_000, description="Active sessions; further ones get 429.")
    max_head_off_policyness: int = Field(
        default=2, ge=0, le=1024, description="How many policy versions the trainer may be ahead of a session's start."
    )
    session_timeout_seconds: Seconds = Field(
        default=3600.0,
        description="A session without a call or reward for this long is ended; an ended one that waits as long for a reward, or for its "
        "export where nothing is trained, is discarded.",
    )
    refresh_timeout_seconds: Seconds = Field(
        default=120.0, description="How long start_session with a used key waits for admission of the next session; then 429."
    )
    group_timeout_seconds: Seconds = Field(
        default=3600.0, description="How long a group waits for its missing members; then it is trained with those it has."
    )
    finished_retention_seconds: Seconds = Field(
        default=86_400.0, description="How long a finished session is kept for reading after it was trained, exported or discarded."
    )
    turn_discount: float = Field(default=1.0, ge=0.0, le=1.0, description="Factor per interaction when rewards spread to earlier ones.")
    reward_propagation: RewardPropagation = Field(
        default=RewardPropagation.TREE,
        description="Tree: along the path to the root. Linear: over all interactions in the order of their calls.",
    )
    export_style: ExportStyle = Field(
        default=ExportStyle.INDIVIDUAL,
        description="Individual: one row per interaction. Concat: one row per leaf, which holds its whole path.",
    )
    tasks: TasksSpec | None = Field(default=None, description="Data-driven rollouts; null: sessions come from outside only.")

    def rules(self) -> Iterator[Fault]:
        if self.refresh_timeout_seconds >= self.session_timeout_seconds:
            yield Fault(
                "refreshTimeoutSeconds",
                self.refresh_timeout_seconds,
                f"must be < sessionTimeoutSeconds ({self.session_timeout_seconds:g}); lower it or raise sessionTimeoutSeconds",
            )
        if self.export_style is ExportStyle.CONCAT and self.turn_discount != 1.0:
            yield Fault(
                "turnDiscount",
                self.turn_discount,
                "must be 1.0 with exportStyle Concat, whose rows carry the leaf's reward only; use Individual to discount",
            )
        if self.tasks is not None and self.tasks.group_size > self.max_concurrent_sessions:
            yield Fault(
                "maxConcurrentSessions",
                self.max_concurrent_sessions,
                f"must be >= tasks.groupSize ({self.tasks.group_size}), or a group never completes; raise it",
            )

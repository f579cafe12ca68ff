"""What the store hands back: frozen values. Times are Unix seconds of the Redis clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rlrun.proto import session_pb2
from rlrun.store.states import SessionState


class AdmissionMode(StrEnum):
    STALENESS = "Staleness"
    GRANTED = "Granted"
    UNLIMITED = "Unlimited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Rules for new sessions. `max_concurrent` bounds ACTIVE ones in every mode; `batch_size` counts sessions per training step."""

    mode: AdmissionMode
    max_concurrent: int
    max_staleness: int = 0
    batch_size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    session_id: str
    state: SessionState
    reason: str
    task_id: str
    group_id: str
    group_size: int
    key_hash: str
    owner_id: str
    fence: int
    num_interactions: int
    has_reward: bool
    created_unix_seconds: float
    updated_unix_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionData:
    """`records` in order of insertion; `rewards` by interaction id."""

    info: SessionInfo
    records: Sequence[session_pb2.InteractionRecord]
    rewards: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptSession:
    """`state` and `reason` are those after the sweep."""

    session_id: str
    state: SessionState
    reason: str
    key_hash: str
    owner_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """running: active sessions. accepted: sessions handed to the trainer. granted: capacity left by grants. step: committed steps."""

    running: int
    accepted: int
    granted: int
    step: int

    def left(self, admission: Admission) -> int:
        """Sessions that may start now; may be negative. The staleness formula is AReaL's, with sessions as its unit."""
        concurrent = max(1, admission.max_concurrent) - self.running
        match admission.mode:
            case AdmissionMode.STALENESS:
                budget = (admission.max_staleness + self.step + 1) * max(1, admission.batch_size)
                return min(concurrent, budget - (self.accepted + self.running))
            case AdmissionMode.GRANTED:
                return min(concurrent, self.granted)
            case AdmissionMode.UNLIMITED:
                return concurrent


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryRef:
    """One entry of the stream."""

    stream_id: str
    session_id: str
    group_id: str
    group_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """placed: sessions started; more than `size` where a lost answer made a client start a member again.
    queued: members handed to the trainer. closed: members that ended, with or without a trajectory.
    """

    size: int
    placed: int
    queued: int
    closed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInfo:
    version: int
    path: str
    fingerprint: str
    parent: int
    step: int
    lineage: str

"""Every Redis access: key names, Lua scripts, one module per concern."""

from rlrun.store.states import SessionEvent, SessionState
from rlrun.store.store import Store
from rlrun.store.types import (
    Admission,
    AdmissionMode,
    Capacity,
    GroupInfo,
    PolicyInfo,
    SessionData,
    SessionInfo,
    SweptSession,
    TrajectoryRef,
)

__all__ = [
    "Admission",
    "AdmissionMode",
    "Capacity",
    "GroupInfo",
    "PolicyInfo",
    "SessionData",
    "SessionEvent",
    "SessionInfo",
    "SessionState",
    "Store",
    "SweptSession",
    "TrajectoryRef",
]

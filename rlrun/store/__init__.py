"""Every Redis access: key names, Lua scripts, one module per concern."""

from rlrun.store.capacity import Admission, AdmissionMode, Capacity
from rlrun.store.policy import PolicyInfo
from rlrun.store.replies import SessionInfo
from rlrun.store.sessions import SessionData, SweptSession
from rlrun.store.states import TERMINAL, SessionEvent, SessionState, next_state
from rlrun.store.store import Store
from rlrun.store.trajectories import GroupInfo, TrajectoryRef

__all__ = [
    "TERMINAL",
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
    "next_state",
]

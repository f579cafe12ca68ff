"""The session machine: one table, state x event -> state. The Lua scripts get their rules from it (`lua_rules`).

ACTIVE --end / refresh--> FINISHED --reward present and a trainer configured--> QUEUED --checkpoint commit--> TRAINED
   |                          |--export--> EXPORTED          |--too stale--> DISCARDED(stale)
   |                          '--no reward in time--> DISCARDED(no_reward)
   '--idle time-out, fault--> DISCARDED(reason)

An event that a state does not have in the table is refused; one that maps a state to itself is allowed and changes nothing
but data (a record, a reward) - so `end`, `export`, `discard` and `commit` may be repeated.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType


class SessionState(StrEnum):
    ACTIVE = "ACTIVE"
    FINISHED = "FINISHED"
    QUEUED = "QUEUED"
    TRAINED = "TRAINED"
    EXPORTED = "EXPORTED"
    DISCARDED = "DISCARDED"


class SessionEvent(StrEnum):
    RECORD = "RECORD"  # an interaction is written
    REWARD = "REWARD"  # a reward, no trainer (or its window still open)
    REWARD_QUEUE = "REWARD_QUEUE"  # a reward, and what has ended may be queued
    FINISH = "FINISH"  # the end, without a reward or without a trainer
    FINISH_QUEUE = "FINISH_QUEUE"  # the end, with a reward and a trainer
    EXPORT = "EXPORT"  # its trajectories were handed out
    DISCARD = "DISCARD"  # fault, time-out, staleness
    COMMIT = "COMMIT"  # a checkpoint that contains it is in place


_S = SessionState
_E = SessionEvent

TRANSITIONS: MappingProxyType[SessionEvent, MappingProxyType[SessionState, SessionState]] = MappingProxyType(
    {
        _E.RECORD: MappingProxyType({_S.ACTIVE: _S.ACTIVE}),
        _E.REWARD: MappingProxyType({_S.ACTIVE: _S.ACTIVE, _S.FINISHED: _S.FINISHED}),
        _E.REWARD_QUEUE: MappingProxyType({_S.ACTIVE: _S.ACTIVE, _S.FINISHED: _S.QUEUED}),
        _E.FINISH: MappingProxyType(
            {_S.ACTIVE: _S.FINISHED, _S.FINISHED: _S.FINISHED, _S.QUEUED: _S.QUEUED, _S.TRAINED: _S.TRAINED, _S.EXPORTED: _S.EXPORTED}
        ),
        _E.FINISH_QUEUE: MappingProxyType(
            {_S.ACTIVE: _S.QUEUED, _S.FINISHED: _S.QUEUED, _S.QUEUED: _S.QUEUED, _S.TRAINED: _S.TRAINED, _S.EXPORTED: _S.EXPORTED}
        ),
        # A queued or trained session may be read as well; it stays the trainer's.
        _E.EXPORT: MappingProxyType({_S.FINISHED: _S.EXPORTED, _S.QUEUED: _S.QUEUED, _S.TRAINED: _S.TRAINED, _S.EXPORTED: _S.EXPORTED}),
        _E.DISCARD: MappingProxyType(
            {
                _S.ACTIVE: _S.DISCARDED,
                _S.FINISHED: _S.DISCARDED,
                _S.QUEUED: _S.DISCARDED,
                _S.TRAINED: _S.TRAINED,
                _S.EXPORTED: _S.EXPORTED,
                _S.DISCARDED: _S.DISCARDED,
            }
        ),
        _E.COMMIT: MappingProxyType({_S.QUEUED: _S.TRAINED, _S.TRAINED: _S.TRAINED}),
    }
)

# Nothing leaves these; only `delete_old` removes such a session.
TERMINAL = frozenset({_S.TRAINED, _S.EXPORTED, _S.DISCARDED})


def next_state(state: SessionState, event: SessionEvent) -> SessionState | None:
    """The state after `event`; None: the event is refused in this state."""
    return TRANSITIONS[event].get(state)


def lua_rules(events: frozenset[SessionEvent]) -> str:
    """The rows of the table for `events`, as the Lua table `RULES`."""
    rows = (
        f"{event.value}={{" + ",".join(f"{old.value}='{new.value}'" for old, new in TRANSITIONS[event].items()) + "}"
        for event in sorted(events)
    )
    return "local RULES={" + ",".join(rows) + "}"

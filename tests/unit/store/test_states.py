"""The table of transitions, as a whole."""

from __future__ import annotations

import pytest

from rlrun.store import SessionEvent, SessionState
from rlrun.store.states import TERMINAL, lua_rules, next_state

A, F, Q, T, X, D = SessionState


# One row per event: the state after it for ACTIVE, FINISHED, QUEUED, TRAINED, EXPORTED, DISCARDED; None: refused.
@pytest.mark.parametrize(
    ("event", "row"),
    [
        (SessionEvent.RECORD, (A, None, None, None, None, None)),
        (SessionEvent.REWARD, (A, F, None, None, None, None)),
        (SessionEvent.REWARD_QUEUE, (A, Q, None, None, None, None)),
        (SessionEvent.FINISH, (F, F, Q, T, X, None)),
        (SessionEvent.FINISH_QUEUE, (Q, Q, Q, T, X, None)),
        (SessionEvent.EXPORT, (None, X, Q, T, X, None)),
        (SessionEvent.DISCARD, (D, D, D, T, X, D)),
        (SessionEvent.COMMIT, (None, None, T, T, None, None)),
    ],
)
def test_the_table(event: SessionEvent, row: tuple[SessionState | None, ...]) -> None:
    assert tuple(next_state(state, event) for state in SessionState) == row


def test_nothing_leaves_a_terminal_state() -> None:
    for state in TERMINAL:
        for event in SessionEvent:
            assert next_state(state, event) in (None, state)


def test_only_a_commit_trains() -> None:
    into_trained = {(state, event) for state in SessionState for event in SessionEvent if next_state(state, event) is T and state is not T}
    assert into_trained == {(Q, SessionEvent.COMMIT)}


def test_lua_gets_the_rows_it_names() -> None:
    assert lua_rules(frozenset({SessionEvent.RECORD, SessionEvent.COMMIT})) == (
        "local RULES={COMMIT={QUEUED='TRAINED',TRAINED='TRAINED'},RECORD={ACTIVE='ACTIVE'}}"
    )

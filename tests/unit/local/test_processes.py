"""Waits before a restart."""

from __future__ import annotations

from rlrun.local.processes import FIRST_BACKOFF_SECONDS, HEALTHY_SECONDS, MAX_BACKOFF_SECONDS, Backoff


def test_waits_double_up_to_a_bound_however_often_a_service_dies() -> None:
    backoff = Backoff()
    waits = [backoff.next_wait_seconds(ran_seconds=0.1) for _ in range(2000)]
    assert waits[:3] == [FIRST_BACKOFF_SECONDS, 2 * FIRST_BACKOFF_SECONDS, 4 * FIRST_BACKOFF_SECONDS]
    assert set(waits[10:]) == {MAX_BACKOFF_SECONDS}


def test_a_service_that_ran_well_starts_again_at_once() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.next_wait_seconds(ran_seconds=0.1)
    assert backoff.next_wait_seconds(ran_seconds=HEALTHY_SECONDS) == FIRST_BACKOFF_SECONDS

from __future__ import annotations

import pytest

from rlrun.store import Admission, AdmissionMode, Capacity


# Values of AReaL's own unit tests: c, batch size, staleness, then running, accepted, step, and what is left.
@pytest.mark.parametrize(
    ("max_concurrent", "batch_size", "max_staleness", "running", "accepted", "step", "left"),
    [
        (100, 4, 2, 0, 0, 0, 12),
        (100, 4, 2, 0, 0, 5, 32),
        (10, 4, 2, 3, 0, 0, 7),
        (20, 4, 2, 0, 5, 0, 7),
        (32, 16, 2, 0, 14, 1, 32),
        (0, 0, 0, 0, 0, 0, 1),
        (100, 4, 2, 20, 0, 0, -8),
    ],
)
def test_the_staleness_formula(
    max_concurrent: int, batch_size: int, max_staleness: int, running: int, accepted: int, step: int, left: int
) -> None:
    admission = Admission(mode=AdmissionMode.STALENESS, max_concurrent=max_concurrent, max_staleness=max_staleness, batch_size=batch_size)
    assert Capacity(running=running, accepted=accepted, granted=0, step=step).left(admission) == left


def test_the_other_modes() -> None:
    capacity = Capacity(running=3, accepted=50, granted=4, step=0)
    assert capacity.left(Admission(mode=AdmissionMode.GRANTED, max_concurrent=100)) == 4
    assert capacity.left(Admission(mode=AdmissionMode.GRANTED, max_concurrent=5)) == 2
    assert capacity.left(Admission(mode=AdmissionMode.UNLIMITED, max_concurrent=100)) == 97

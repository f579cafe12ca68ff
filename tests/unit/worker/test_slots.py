"""Which slot a prompt gets, and how much of it is reused."""

from __future__ import annotations

import numpy as np
from rlrun_worker.torch_engine.slots import Admission, SlotTable


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def run_to_end(table: SlotTable, prompt: np.ndarray) -> int:
    """Admit, compute and end a sequence; returns its slot."""
    admission = table.admit(prompt)
    assert admission is not None
    table.num_kv[admission.slot] = prompt.size
    table.release(admission.slot)
    return admission.slot


def test_an_unknown_prompt_takes_the_least_recently_used_slot() -> None:
    table = SlotTable(2, 64)
    assert run_to_end(table, ids(1, 2, 3)) == 0
    assert run_to_end(table, ids(4, 5, 6)) == 1
    assert table.admit(ids(7, 8)) == Admission(slot=0, source=0, num_cached=0)


def test_a_continued_prompt_takes_its_slot_over() -> None:
    table = SlotTable(2, 64)
    run_to_end(table, ids(4, 5, 6))
    run_to_end(table, ids(1, 2, 3))
    assert table.admit(ids(1, 2, 3, 9)) == Admission(slot=1, source=1, num_cached=3)


def test_a_branch_copies_and_leaves_the_longer_sequence_cached() -> None:
    table = SlotTable(2, 64)
    run_to_end(table, np.arange(1, 30, dtype=np.int32))
    branch = table.admit(np.append(np.arange(1, 11, dtype=np.int32), np.int32(99)))
    assert branch == Admission(slot=1, source=0, num_cached=10)
    table.num_kv[1] = 11
    table.release(1)
    again = table.admit(np.arange(1, 32, dtype=np.int32))
    assert again == Admission(slot=0, source=0, num_cached=29)


def test_the_last_prompt_token_is_always_computed() -> None:
    table = SlotTable(1, 64)
    run_to_end(table, ids(1, 2, 3))
    assert table.admit(ids(1, 2, 3)) == Admission(slot=0, source=0, num_cached=2)


def test_a_prompt_waits_for_a_running_sequence_that_computes_its_prefix() -> None:
    table = SlotTable(3, 64)
    prompt = np.arange(1, 40, dtype=np.int32)
    first = table.admit(prompt)
    assert first is not None
    assert table.admit(prompt) is None
    table.num_kv[first.slot] = prompt.size
    assert table.admit(prompt) == Admission(slot=1, source=0, num_cached=38)


def test_full_table_admits_nothing_and_new_weights_forget_everything() -> None:
    table = SlotTable(2, 64)
    run_to_end(table, ids(1, 2, 3))
    table.admit(ids(8, 9))
    table.invalidate()
    assert table.admit(ids(1, 2, 3)) == Admission(slot=0, source=0, num_cached=0)
    assert table.admit(ids(1, 2, 3)) is None

from rlrun_trainer.batcher import Batcher

from rlrun.store import GroupInfo, TrajectoryRef


def ref(number: int, group: str = "", size: int = 1) -> TrajectoryRef:
    return TrajectoryRef(stream_id=f"{number}-0", session_id=f"s{number}", group_id=group or f"s{number}", group_size=size)


def test_single_sessions_fill_a_batch_in_order_of_arrival() -> None:
    batcher = Batcher(batch_size=2, group_timeout_seconds=60)
    batcher.add(ref(1), now_seconds=0)
    assert batcher.take() is None
    batcher.add(ref(1), now_seconds=0)
    assert batcher.take() is None, "a repeated delivery counts once"
    batcher.add(ref(2), now_seconds=0)
    assert [item.session_id for item in batcher.take() or []] == ["s1", "s2"]
    assert batcher.num_buffered == 0


def test_a_group_is_handed_over_whole_and_only_when_all_members_ended() -> None:
    batcher = Batcher(batch_size=2, group_timeout_seconds=60)
    for number in (1, 2):
        batcher.add(ref(number, "g", 3), now_seconds=0)
    batcher.close({"g": GroupInfo(size=3, placed=3, queued=2, closed=2)}, now_seconds=1)
    assert batcher.take() is None
    # The third member ended without a trajectory.
    batcher.close({"g": GroupInfo(size=3, placed=3, queued=2, closed=3)}, now_seconds=2)
    assert [item.session_id for item in batcher.take() or []] == ["s1", "s2"]


def test_a_member_that_was_queued_but_has_not_arrived_is_waited_for() -> None:
    batcher = Batcher(batch_size=1, group_timeout_seconds=60)
    batcher.add(ref(1, "g", 2), now_seconds=0)
    batcher.close({"g": GroupInfo(size=2, placed=2, queued=2, closed=2)}, now_seconds=1)
    assert batcher.take() is None


def test_a_member_that_was_started_twice_does_not_close_its_group_early() -> None:
    batcher = Batcher(batch_size=1, group_timeout_seconds=60)
    batcher.add(ref(1, "g", 2), now_seconds=0)
    # One session was started, its answer lost, and ended by the retry; the second member still runs.
    batcher.close({"g": GroupInfo(size=2, placed=3, queued=1, closed=2)}, now_seconds=1)
    assert batcher.take() is None
    batcher.add(ref(2, "g", 2), now_seconds=2)
    batcher.close({"g": GroupInfo(size=2, placed=3, queued=2, closed=3)}, now_seconds=2)
    assert [item.session_id for item in batcher.take() or []] == ["s1", "s2"]


def test_what_is_put_back_is_the_next_batch_and_still_known() -> None:
    batcher = Batcher(batch_size=2, group_timeout_seconds=60)
    for number in (1, 2, 3, 4):
        batcher.add(ref(number), now_seconds=0)
    taken = batcher.take()
    assert taken is not None
    batcher.put_back(taken)
    assert batcher.num_buffered == 4
    for number in (1, 2, 3, 4):
        batcher.add(ref(number), now_seconds=1)
    assert [[item.session_id for item in batcher.take() or []] for _ in range(3)] == [["s1", "s2"], ["s3", "s4"], []]


def test_a_group_that_never_fills_is_taken_after_its_timeout() -> None:
    batcher = Batcher(batch_size=1, group_timeout_seconds=60)
    batcher.add(ref(1, "g", 4), now_seconds=0)
    batcher.close({}, now_seconds=61)
    assert [item.session_id for item in batcher.take() or []] == ["s1"]

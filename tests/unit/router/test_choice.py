import pytest
from rlrun_router.router import choose_owner, choose_worker

from rlrun.errors import NoMember
from rlrun.proto import router_pb2


def member(name: str, *, version: int = 0, load: int = 0, draining: bool = False) -> router_pb2.Member:
    return router_pb2.Member(id=name, address=f"{name}:1", policy_version=version, load=load, draining=draining)


def test_a_session_keeps_its_worker_while_it_lives() -> None:
    workers = [member(name) for name in "abcdef"]
    for index in range(50):
        session = f"s-{index}"
        first = choose_worker(workers, session_id=session, min_version=0, exclude="")
        others = [worker for worker in reversed(workers) if worker.id == first.id or worker.id not in "ab"]
        assert choose_worker(others, session_id=session, min_version=0, exclude="").id == first.id


def test_sessions_spread_over_workers() -> None:
    workers = [member(name) for name in "abc"]
    chosen = {choose_worker(workers, session_id=f"s-{index}", min_version=0, exclude="").id for index in range(60)}
    assert chosen == {"a", "b", "c"}


def test_no_worker_is_chosen_before_it_serves_the_version() -> None:
    workers = [member("old", version=3), member("new", version=4)]
    assert choose_worker(workers, session_id="s", min_version=4, exclude="").id == "new"
    with pytest.raises(NoMember, match="none serves version 5"):
        choose_worker(workers, session_id="s", min_version=5, exclude="")


def test_a_failed_worker_is_avoided_but_better_than_none() -> None:
    workers = [member("a"), member("b")]
    assert choose_worker(workers, session_id="s", min_version=0, exclude="a").id == "b"
    assert choose_worker(workers[:1], session_id="s", min_version=0, exclude="a").id == "a"


def test_owner_is_the_less_loaded_and_never_a_draining_one() -> None:
    assert choose_owner([member("busy", load=9), member("idle")]).id == "idle"
    assert choose_owner([member("busy", load=9), member("leaving", draining=True)]).id == "busy"
    with pytest.raises(NoMember, match="DataProxy"):
        choose_owner([member("leaving", draining=True)])

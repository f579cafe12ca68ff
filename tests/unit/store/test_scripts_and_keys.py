from __future__ import annotations

import hashlib

import pytest

from rlrun.errors import InvalidRequest
from rlrun.proto import router_pb2
from rlrun.store.keys import Keys, check_id, role_name
from rlrun.store.scripts import load_script, script_names


def test_every_key_of_a_run_has_its_hash_tag() -> None:
    keys = Keys("r1")
    names = [keys.capacity, keys.trajectories, keys.policy, keys.session("s"), keys.interactions("s"), keys.rewards("s")]
    names += [
        keys.sessions("ACTIVE"),
        keys.key("k"),
        keys.group("g"),
        keys.member("worker", "w"),
        keys.members("worker"),
        keys.policy_version(3),
    ]
    assert all(name.startswith("rlrun:{r1}:") for name in names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["", "a{b", "a}b", "x" * 513])
def test_a_run_name_that_breaks_the_hash_tag_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="run name"):
        Keys(name)


@pytest.mark.parametrize("name", ["", "x" * 513, "s:interactions", "s:rewards"])
def test_an_id_that_could_name_another_sessions_key_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="session_id"):
        check_id(name, param="session_id")


def test_roles_are_named_like_the_services() -> None:
    assert role_name(router_pb2.ROLE_DATAPROXY) == "dataproxy"
    with pytest.raises(InvalidRequest):
        role_name(router_pb2.ROLE_UNSPECIFIED)


def test_a_script_carries_its_rules_its_pieces_and_the_sha_of_its_source() -> None:
    script = load_script("finish")
    assert "FINISH_QUEUE={ACTIVE='QUEUED'" in script.source
    assert "COMMIT=" not in script.source
    assert "local function move" in script.source
    assert script.sha == hashlib.sha1(script.source.encode()).hexdigest()


def test_the_hot_script_holds_nothing_it_does_not_need() -> None:
    assert "local function move" not in load_script("record").source


def test_pieces_are_no_scripts() -> None:
    assert "record" in script_names()
    assert not [name for name in script_names() if name.startswith("_")]

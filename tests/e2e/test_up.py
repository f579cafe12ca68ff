"""`rlrun up` as a user meets it: what it prints, what it survives, how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from rlrun.local.processes import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


class Up:
    """A running `rlrun up`."""

    def __init__(self, document: Path, data_dir: Path) -> None:
        self.data_dir = data_dir
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.output = data_dir.with_suffix(".output")
        command = [sys.executable, "-m", "rlrun.cli", "up", "-f", str(document), "--data-dir", str(data_dir), "--port", str(port)]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output)

    @property
    def printed(self) -> str:
        return self.output.read_text()

    def wait_for(self, what: Callable[[], bool], seconds: float = 90) -> None:
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline, self.printed
            time.sleep(0.1)

    def wait_printed(self, text: str) -> None:
        self.wait_for(lambda: text in self.printed or self.process.poll() is not None)
        assert text in self.printed

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def starts_a_session(self) -> bool:
        request = urllib.request.Request(
            f"{self.url}/rl/start_session",
            data=json.dumps({"task_id": "up"}).encode(),
            headers={"Authorization": f"Bearer {(self.data_dir / 'admin.key').read_text().strip()}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False


@contextmanager
def running(document: Path, data_dir: Path) -> Iterator[Up]:
    up = Up(document, data_dir)
    try:
        yield up
    finally:
        up.process.kill()
        up.process.wait()


def all_gone(processes: list[psutil.Process]) -> bool:
    return not [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def test_up_survives_its_redis_is_alone_on_its_data_and_leaves_nothing(tmp_path: Path, small_document: Callable[..., Path]) -> None:
    document = small_document(batch_size=4)
    with running(document, tmp_path / "data") as up:
        up.wait_printed("Ctrl-C ends everything")
        assert "[providers.models.custom.rlrun]" in up.printed, "what is to be pasted is printed as it is"
        assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
        assert up.starts_a_session()

        second = Up(document, tmp_path / "data")
        assert second.process.wait(60) == 1
        assert "another Redis works in" in up.printed + second.printed

        (redis,) = [one for one in up.children() if "redis-server" in one.name()]
        redis.kill()
        up.wait_printed("Redis ended; starting it again")
        up.wait_for(up.starts_a_session, 30)

        children = up.children()
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(60) == 0
        assert all_gone(children)


def test_a_killed_up_leaves_nothing(tmp_path: Path, small_document: Callable[..., Path]) -> None:
    with running(small_document(batch_size=4), tmp_path / "data") as up:
        up.wait_printed("Ctrl-C ends everything")
        children = up.children()
        assert len(children) == 4
        os.kill(up.process.pid, signal.SIGKILL)
        up.wait_for(lambda: all_gone(children), 60)


def test_ctrl_c_ends_a_start(tmp_path: Path, small_document: Callable[..., Path]) -> None:
    with running(small_document(batch_size=4), tmp_path / "data") as up:
        up.wait_for(lambda: len(up.children()) >= 3)
        children = up.children()
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(60) == 0
        assert all_gone(children)
        assert "Traceback" not in up.printed

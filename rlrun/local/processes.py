"""Child processes that never outlive us: started, watched, restarted after a crash, drained at the end."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlrun.errors import Unavailable

_PR_SET_PDEATHSIG = 1
FIRST_BACKOFF_SECONDS = 0.2
MAX_BACKOFF_SECONDS = 10.0
HEALTHY_SECONDS = 60.0


def end_with_parent(number: signal.Signals) -> Callable[[], None]:
    """For `preexec_fn`: the kernel sends the child this signal when we end, however we end (Linux).

    It does so too when the *thread* that starts the child ends.
    """
    libc, parent_pid = ctypes.CDLL(None, use_errno=True), os.getpid()

    def apply() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, number)
        # The parent may have ended before the call above.
        if os.getppid() != parent_pid:
            os._exit(1)

    return apply


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def end_process(process: subprocess.Popen[bytes], *, grace_seconds: float) -> int:
    """Asks politely, then insists; returns the exit code."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


@dataclass(kw_only=True)
class Backoff:
    """The waits before restarts: each twice as long, the first again after a run of HEALTHY_SECONDS."""

    num_restarts: int = 0

    def next_wait_seconds(self, *, ran_seconds: float) -> float:
        if ran_seconds >= HEALTHY_SECONDS:
            self.num_restarts = 0
        # The bound keeps a float from overflowing after a thousand restarts.
        wait = FIRST_BACKOFF_SECONDS * 2.0 ** min(self.num_restarts, 30)
        self.num_restarts += 1
        return min(MAX_BACKOFF_SECONDS, wait)


@dataclass(kw_only=True)
class Child:
    """One service process. `ops_port` answers `/readyz`."""

    name: str
    command: Sequence[str]
    environ: Mapping[str, str]
    ops_port: int
    log_path: Path
    process: subprocess.Popen[bytes] | None = None
    _backoff: Backoff = field(default_factory=Backoff, repr=False)
    _started: float = field(default=0.0, repr=False)
    _next_start: float = field(default=0.0, repr=False)

    def start(self) -> None:
        self._started = time.monotonic()
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=dict(self.environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A Ctrl-C goes to the supervisor alone, which ends the services in their order.
                start_new_session=True,
                preexec_fn=end_with_parent(signal.SIGTERM),
            )

    def restart_if_dead(self) -> int | None:
        """Returns the exit code of a child that died and is (or soon will be) started again."""
        assert self.process is not None
        if (code := self.process.poll()) is None:
            return None
        now = time.monotonic()
        if self._next_start == 0.0:
            self._next_start = now + self._backoff.next_wait_seconds(ran_seconds=now - self._started)
            return code
        if now >= self._next_start:
            self._next_start = 0.0
            self.start()
        return None

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ops_port}/readyz", timeout=1) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def wait_ready(self, timeout_seconds: float) -> None:
        """Raises:
        Unavailable: the child ended or was not ready in time; holds the end of its log.
        """
        deadline = time.monotonic() + timeout_seconds
        assert self.process is not None
        while not self.is_ready():
            if (code := self.process.poll()) is not None:
                raise Unavailable(f"{self.name} ended with exit code {code}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise Unavailable(f"{self.name} was not ready within {timeout_seconds:.0f} s:\n{self.log_tail()}")
            time.sleep(0.1)

    def log_tail(self, num_lines: int = 15) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()[-num_lines:]
        return "\n".join([*lines, f"(all of it: {self.log_path})"])


def inherited_environ() -> dict[str, str]:
    """Our environment without rlrun's own variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RLRUN_")}

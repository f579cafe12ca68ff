"""Child processes that never outlive us: started, watched, restarted after a crash, drained at the end."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlrun.errors import Unavailable

_PR_SET_PDEATHSIG = 1
MAX_BACKOFF_SECONDS = 10.0


def end_with_parent() -> None:
    """Run in the child before exec: the kernel ends it when the parent dies, however it dies (Linux)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


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
class Child:
    """One service process. `ops_port` answers `/readyz`."""

    name: str
    command: Sequence[str]
    environ: Mapping[str, str]
    ops_port: int
    log_path: Path
    num_restarts: int = 0
    process: subprocess.Popen[bytes] | None = None
    _next_start: float = field(default=0.0, repr=False)

    def start(self) -> None:
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, env=dict(self.environ), stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=end_with_parent
            )

    def restart_if_dead(self) -> int | None:
        """Returns the exit code of a child that died and is (or soon will be) started again."""
        assert self.process is not None
        if (code := self.process.poll()) is None:
            return None
        now = time.monotonic()
        if self._next_start == 0.0:
            self._next_start = now + min(MAX_BACKOFF_SECONDS, 0.2 * 2**self.num_restarts)
            return code
        if now >= self._next_start:
            self._next_start = 0.0
            self.num_restarts += 1
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

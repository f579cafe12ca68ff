"""What is measured: rlrun in one process or in several, other gateways, the bare mock. Each one knows its processes and its sessions."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import redis
import yaml

from harness.load import Client, http_request
from harness.text import CACHE_DIR, Material

ROOT = Path(__file__).resolve().parents[3]
BENCH_DIR = Path(__file__).resolve().parents[1]
READY_SECONDS = 60.0
SERVICES = ("router", "dataproxy", "worker", "gateway")


@dataclass(frozen=True, kw_only=True)
class Cores:
    """`product` carries what is measured, `load` the generator, `mock` the engine (the same one as `load` where there are two)."""

    product: int
    load: int
    mock: int

    @classmethod
    def choose(cls) -> Cores:
        available = sorted(os.sched_getaffinity(0))
        if len(available) < 2:
            raise SystemExit("error: the benchmark needs two cores, one for the product and one for the load")
        return cls(product=available[0], load=available[1], mock=available[2] if len(available) > 2 else available[1])


@dataclass(frozen=True)
class Route:
    """How a session is called: path and headers of its model calls."""

    path: str
    headers: tuple[tuple[str, str], ...] = ()

    def request(self, body: bytes) -> bytes:
        return http_request("POST", self.path, body, self.headers)


@dataclass(kw_only=True)
class Target:
    """A running product. `processes` maps a name to the process whose CPU and memory count under it."""

    name: str
    port: int
    processes: dict[str, psutil.Process] = field(default_factory=dict)
    redis_url: str | None = None
    records: bool = True
    profiles: dict[str, Path] = field(default_factory=dict)
    # CPU seconds by name and pid, those of children that have ended included (Redis forks to rewrite its file).
    _seen: dict[tuple[str, int], float] = field(default_factory=dict)

    async def open_sessions(self, count: int) -> list[Route]:
        return [Route("/v1/chat/completions") for _ in range(count)]

    def cpu_seconds(self) -> dict[str, float]:
        for name, process in self.processes.items():
            for one in _family(process):
                with contextlib.suppress(OSError):
                    # The kernel's CPU clock of another process (clock_getcpuclockid): nanoseconds, where `times` has hundredths of a second.
                    self._seen[name, one.pid] = time.clock_gettime((~one.pid << 3) | 2)
        return {name: sum(seconds for (owner, _), seconds in self._seen.items() if owner == name) for name in self.processes}

    def rss_bytes(self) -> dict[str, int]:
        return {name: sum(one.memory_info().rss for one in _family(process)) for name, process in self.processes.items()}

    def signal_profilers(self, number: signal.Signals) -> None:
        for name in self.profiles:
            self.processes[name].send_signal(number)


def _family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


class RlrunTarget(Target):
    admin_key: str = ""

    async def open_sessions(self, count: int) -> list[Route]:
        client = await Client.connect(self.port)
        routes: list[Route] = []
        for _ in range(count):
            body = json.dumps({"task_id": "bench"}).encode()
            request = http_request("POST", "/rl/start_session", body, [("Authorization", f"Bearer {self.admin_key}")])
            answer = json.loads(await client.call(request))
            routes.append(Route("/v1/chat/completions", (("Authorization", f"Bearer {answer['api_key']}"),)))
        client.close()
        return routes

    def store(self) -> redis.Redis:
        assert self.redis_url is not None
        return redis.Redis.from_url(self.redis_url)


class RllmTarget(Target):
    async def open_sessions(self, count: int) -> list[Route]:
        return [Route(f"/sessions/{secrets.token_hex(8)}/v1/chat/completions") for _ in range(count)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _spawn(command: Sequence[str], *, core: int, log: Path, environ: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Pinned before it runs; its own children inherit that."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            cwd=log.parent,
            env={**os.environ, **(environ or {})},
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )
    return process


def _wait_http(port: int, path: str, process: subprocess.Popen[bytes], log: Path, timeout_seconds: float = READY_SECONDS) -> None:
    deadline = time.monotonic() + timeout_seconds
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.settimeout(5)
            connection.sendall(http_request("GET", path, headers=[("Connection", "close")]))
            if connection.recv(64).startswith(b"HTTP/1.1 200"):
                return
        if process.poll() is not None or time.monotonic() > deadline:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
            raise SystemExit(f"error: {log.stem} did not become ready (exit code {process.poll()}):\n{tail}")
        time.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def work_dir(kept: Path | None) -> Iterator[Path]:
    """For logs and data of what is measured; deleted at the end unless it is `kept`."""
    if kept is not None:
        kept.mkdir(parents=True)
        yield kept.resolve()
        return
    path = Path(tempfile.mkdtemp(prefix="rlrun-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def mock_engine(material: Material, cores: Cores, directory: Path) -> Iterator[Target]:
    replies = directory / "replies.json"
    replies.write_text(json.dumps({length: vars(reply) for length, reply in material.replies.items()}))
    port, log = free_port(), directory / "mock.log"
    process = _spawn([sys.executable, "-m", "harness.mock", str(port), str(replies)], core=cores.mock, log=log, environ=_harness_path())
    try:
        _wait_http(port, "/v1/models", process, log)
        yield Target(name="direct to the mock", port=port, records=False)
    finally:
        _end(process)


def _harness_path() -> dict[str, str]:
    return {"PYTHONPATH": str(BENCH_DIR)}


@contextlib.contextmanager
def rlrun(
    material: Material, cores: Cores, directory: Path, *, mock_port: int, separate: bool, profile: bool = False, max_sessions: int = 100_000
) -> Iterator[RlrunTarget]:
    """Embedded Redis and the services, all on one core."""
    from rlrun.local.redis import EmbeddedRedis

    directory = directory / ("separate" if separate else "one")
    directory.mkdir()
    embedded = EmbeddedRedis(directory / "redis")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cores.product})
    try:
        embedded.start()
    finally:
        os.sched_setaffinity(0, before)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        admin_key = f"sk-rlrun-{secrets.token_urlsafe(32)}"
        (directory / "admin.key").write_text(admin_key)
        (directory / "admin.key").chmod(0o600)
        (directory / "run.yaml").write_text(yaml.safe_dump(_document(material, max_sessions)))
        ports = {name: free_port() for name in SERVICES}
        target = RlrunTarget(name="rlrun, a process each" if separate else "rlrun, one process", port=ports["gateway"])
        target.admin_key, target.redis_url = admin_key, embedded.url
        environ = {
            **_harness_path(),
            "RLRUN_CONFIG": str(directory / "run.yaml"),
            "RLRUN_REDIS_URL": embedded.url,
            "RLRUN_ROUTER": f"127.0.0.1:{ports['router']}",
            "RLRUN_ADMIN_KEY_FILE": str(directory / "admin.key"),
            "RLRUN_LOG_LEVEL": "WARNING",
            "BENCH_ENGINE_URL": f"http://127.0.0.1:{mock_port}",
        }
        waits = []
        for names in [(name,) for name in SERVICES] if separate else [SERVICES]:
            label = names[0] if separate else "all"
            ops_port, log = free_port(), directory / f"{label}.log"
            own = {**environ, "RLRUN_OPS_PORT": str(ops_port)}
            if profile:
                target.profiles[label] = directory / f"{label}.profile.json"
                own["BENCH_PROFILE"] = str(target.profiles[label])
            words = [f"{name}={ports[name]}" for name in names]
            process = _spawn([sys.executable, "-m", "harness.host", *words], core=cores.product, log=log, environ=own)
            processes.append(process)
            target.processes[label] = psutil.Process(process.pid)
            waits.append((ops_port, process, log))
        for ops_port, process, log in waits:
            _wait_http(ops_port, "/readyz", process, log)
        target.processes["redis"] = psutil.Process(int(target.store().info("server")["process_id"]))
        yield target
    finally:
        for process in reversed(processes):
            _end(process)
        embedded.close()


def _document(material: Material, max_sessions: int) -> dict[str, object]:
    return {
        "apiVersion": "rlrun.dev/v1alpha1",
        "kind": "RLRun",
        "metadata": {"name": "bench"},
        "spec": {
            "model": {"uri": f"file://{material.model_dir}", "name": "policy", "maxTotalTokens": 131_072},
            "gateway": {"limits": {"maxConcurrentRequests": 16_384}},
            "dataproxy": {"maxCachedSessions": 100_000},
            "worker": {"engine": {"maxRunning": 16_384, "maxWaiting": 16_384}},
            "rollout": {"admission": "Unlimited", "maxConcurrentSessions": max_sessions},
            "trainer": None,
            "redis": {"embedded": {}},
        },
    }


def peers_environment() -> Path:
    """An environment of its own for the other gateways, made once for each version of requirements/peers.txt."""
    pinned = ROOT / "requirements" / "peers.txt"
    path = CACHE_DIR / f"peers-{hashlib.sha256(pinned.read_bytes()).hexdigest()[:12]}"
    if not (path / ".installed").is_file():
        print(f"installing {pinned.relative_to(ROOT)} into {path} (once, about 400 MB) ...", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(path)], check=True)
        subprocess.run([str(path / "bin" / "python"), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(pinned)], check=True)
        (path / ".installed").touch()
    return path


@contextlib.contextmanager
def rllm_gateway(environment: Path, cores: Cores, directory: Path, *, mock_port: int, store: str) -> Iterator[Target]:
    port, log = free_port(), directory / f"rllm-{store}.log"
    command = [str(environment / "bin" / "rllm-model-gateway"), "--host", "127.0.0.1", "--port", str(port), "--log-level", "WARNING"]
    command += ["--worker", f"http://127.0.0.1:{mock_port}/v1", "--store", store, "--db-path", str(directory / f"rllm-{store}.db")]
    process = _spawn(command, core=cores.product, log=log)
    try:
        _wait_http(port, "/health", process, log)
        yield RllmTarget(name=f"rllm-model-gateway 0.1.0, {store}", port=port, processes={"gateway": psutil.Process(process.pid)})
    finally:
        _end(process)


@contextlib.contextmanager
def litellm_proxy(environment: Path, cores: Cores, directory: Path, *, mock_port: int) -> Iterator[Target]:
    port, log = free_port(), directory / "litellm.log"
    parameters = {"model": "openai/policy", "api_base": f"http://127.0.0.1:{mock_port}/v1", "api_key": "none"}
    config = directory / "litellm.yaml"
    config.write_text(yaml.safe_dump({"model_list": [{"model_name": "policy", "litellm_params": parameters}]}))
    command = [
        str(environment / "bin" / "litellm"),
        "--config",
        str(config),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--telemetry",
        "False",
    ]
    environ = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "PATH": f"{environment / 'bin'}:{os.environ['PATH']}"}
    process = _spawn(command, core=cores.product, log=log, environ=environ)
    try:
        _wait_http(port, "/health/liveliness", process, log, timeout_seconds=120)
        yield Target(name="LiteLLM proxy 1.80.0", port=port, processes={"proxy": psutil.Process(process.pid)}, records=False)
    finally:
        _end(process)

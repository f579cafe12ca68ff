"""A service as a real process: its ops port, its configuration errors, its end."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from rlrun.service import DEFAULT_PORTS, parse_services
from rlrun.spec.process_env import ProcessEnv

DOCUMENT = {
    "apiVersion": "rlrun.dev/v1alpha1",
    "kind": "RLRun",
    "metadata": {"name": "life-cycle"},
    "spec": {"model": {"uri": "file:///unused"}},
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(environ: dict[str, str], *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rlrun.service", *words], env={"PATH": "/usr/bin:/bin", **environ}, stderr=subprocess.PIPE, text=True
    )


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture
def environ(tmp_path: Path, redis_url: str) -> dict[str, str]:
    path = tmp_path / "rlrun.yaml"
    path.write_text(yaml.safe_dump(DOCUMENT))
    return {"RLRUN_CONFIG": str(path), "RLRUN_REDIS_URL": redis_url, "RLRUN_OPS_PORT": str(free_port())}


def test_a_service_becomes_ready_answers_its_ops_port_and_drains(environ: dict[str, str]) -> None:
    process = start(environ, f"router={free_port()}")
    base = f"http://127.0.0.1:{environ['RLRUN_OPS_PORT']}"
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                if get(f"{base}/readyz")[0] == 200:
                    break
            except OSError:
                pass
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert get(f"{base}/healthz") == (200, "ok\n")
        status = json.loads(get(f"{base}/status")[1])
        assert status["ready"] is True
        assert "router" in status
        assert "process_cpu_seconds_total" in get(f"{base}/metrics")[1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("words", "changes", "message"),
    [
        (["router"], {"RLRUN_REDIS_URL": ""}, "RLRUN_REDIS_URL is not set"),
        (["router"], {"RLRUN_CONFIG": ""}, "RLRUN_CONFIG is not set"),
        (["gateway"], {}, "RLRUN_ADMIN_KEY_FILE is not set"),
        (["router"], {"RLRUN_BIND": "0.0.0.0"}, "RLRUN_SERVICE_TOKEN_FILE or RLRUN_TLS_DIR"),
        (["router"], {"RLRUN_PROT": "1"}, "RLRUN_PROT: unknown variable; did you mean RLRUN_PORT?"),
        (["rooter"], {}, "'rooter' is not a service"),
        (["dataproxy"], {}, "config.json"),
    ],
)
def test_a_wrong_configuration_ends_with_code_2_and_names_the_variable(
    environ: dict[str, str], words: list[str], changes: dict[str, str], message: str
) -> None:
    process = start({**environ, **changes}, *words)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 2, stderr
    assert message in stderr
    assert "Traceback" not in stderr


def test_the_router_comes_first_and_ports_have_an_order_of_precedence() -> None:
    ports = parse_services(["gateway", "router=7000"], ProcessEnv(port=9999))
    assert list(ports.items()) == [("router", 7000), ("gateway", 9999)]
    assert parse_services(["worker"], ProcessEnv()) == {"worker": DEFAULT_PORTS["worker"]}

"""Every shell block and every RLRun document in the pages does what the page says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
import yaml

from rlrun import spec

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
READY_SECONDS = 180.0
UP = "rlrun up"


def blocks(language: str) -> list[tuple[str, str]]:
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.DOTALL | re.MULTILINE)
    return [(page.name, match[1]) for page in PAGES for match in pattern.finditer(page.read_text())]


def is_make(block: str) -> bool:
    return all(line.startswith("make ") for line in block.strip().splitlines())


def test_each_make_target_of_the_pages_exists() -> None:
    targets = [line.split()[1] for _, block in blocks("sh") if is_make(block) for line in block.strip().splitlines()]
    assert {"demo", "test", "lint"} <= set(targets)
    for target in targets:
        subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize(("page", "block"), blocks("yaml"))
def test_each_document_of_the_pages_is_valid(page: str, block: str) -> None:
    if "kind: RLRun" in block:
        assert spec.parse(yaml.safe_load(block))


@pytest.fixture
def environ() -> dict[str, str]:
    """The commands of the environment that runs the tests are on PATH."""
    bin_directory = Path(sys.executable).parent
    return {**os.environ, "PATH": f"{bin_directory}:{os.environ['PATH']}"}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_shell_blocks_run_in_order(environ: dict[str, str]) -> None:
    server: subprocess.Popen[bytes] | None = None
    children: list[psutil.Process] = []
    try:
        for page, block in blocks("sh"):
            if is_make(block):
                continue
            if block.startswith(UP):
                assert server is None, f"{page}: the second `{UP}`"
                server = subprocess.Popen(["bash", "-c", f"exec {block}"], cwd=ROOT, env=environ)
                wait_ready(server)
                continue
            ran = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60
            )
            assert ran.returncode == 0, f"{page}: {block}\n{ran.stdout}\n{ran.stderr}"
    finally:
        if server is not None:
            children = psutil.Process(server.pid).children(recursive=True)
            server.send_signal(signal.SIGINT)
            assert server.wait(60) == 0
    assert server is not None, f"no page shows `{UP}`"
    assert len(children) >= 4  # services, a worker, a trainer, Redis
    assert not [child for child in children if child.is_running()]


def wait_ready(server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            with urllib.request.urlopen("http://127.0.0.1:8080/health", timeout=2):
                return
        except OSError:
            assert server.poll() is None, "`rlrun up` ended"
            assert time.monotonic() < deadline, "`rlrun up` was not ready in time"
            time.sleep(0.5)

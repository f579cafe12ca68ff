"""A real Redis for all tests that want one: a server of this test process on a free port, and a run name for each test."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rlrun.local.redis import EmbeddedRedis, find_executable


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], EmbeddedRedis]]:
    """Starts the server of a binary once and returns it."""
    servers: dict[Path, EmbeddedRedis] = {}
    with ExitStack() as stack:

        def of(executable: Path) -> EmbeddedRedis:
            if executable not in servers:
                servers[executable] = stack.enter_context(EmbeddedRedis(tmp_path_factory.mktemp("redis"), executable=executable))
            return servers[executable]

        yield of


@pytest.fixture(scope="session")
def redis_url(request: pytest.FixtureRequest, redis_server: Callable[[Path], EmbeddedRedis]) -> str:
    """URL of a shared server; may be parametrised (indirectly) with the path of a binary."""
    return redis_server(getattr(request, "param", None) or find_executable()).url


@pytest.fixture
def run_name() -> str:
    """Tests share the server, never keys."""
    return f"test-{secrets.token_hex(6)}"

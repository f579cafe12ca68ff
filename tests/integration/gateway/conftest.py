"""The gateway behind a real uvicorn on loopback, in front of scripted services."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))

from rlrun_gateway.asgi import create_app
from rlrun_gateway.server import HttpServer
from rlrun_gateway.settings import GatewaySettings

from tests.unit.gateway.scripted import ADMIN_KEY, ScriptedRouter, ScriptedSessions


@pytest.fixture
def router() -> ScriptedRouter:
    return ScriptedRouter()


@pytest.fixture
def sessions() -> ScriptedSessions:
    return ScriptedSessions()


@pytest.fixture
async def serve(router: ScriptedRouter, sessions: ScriptedSessions) -> AsyncIterator[Callable[..., Any]]:
    """Starts a gateway with the given settings; answers its port."""
    running: list[HttpServer] = []

    async def start(**settings: Any) -> int:
        server = HttpServer(create_app(GatewaySettings(admin_key=ADMIN_KEY, **settings), router, sessions.at), bind="127.0.0.1", port=0)
        running.append(server)
        await server.start(lambda work, *, name: asyncio.create_task(work, name=name))
        return server.port

    yield start
    for server in running:
        await server.stop()


@pytest.fixture
async def port(serve: Callable[..., Any]) -> int:
    return int(await serve(max_body_bytes=100_000, body_timeout_seconds=1.0))

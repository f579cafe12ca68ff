"""The gateway behind a real uvicorn on loopback, in front of scripted services."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn

sys.path.insert(0, str(Path(__file__).parents[3]))

from rlrun_gateway.asgi import create_app
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
    running: list[tuple[uvicorn.Server, asyncio.Task[None]]] = []

    async def start(**settings: Any) -> int:
        app = create_app(GatewaySettings(admin_key=ADMIN_KEY, **settings), router, sessions.at)
        config = uvicorn.Config(app, host="127.0.0.1", port=0, http="httptools", log_config=None, lifespan="off", access_log=False)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server._serve())
        running.append((server, task))
        async with asyncio.timeout(10):
            while not server.started:
                await asyncio.sleep(0.005)
        return int(server.servers[0].sockets[0].getsockname()[1])

    yield start
    for server, task in running:
        server.force_exit = True
        server.should_exit = True
        await task


@pytest.fixture
async def port(serve: Callable[..., Any]) -> int:
    return int(await serve(max_body_bytes=100_000, body_timeout_seconds=1.0))

"""The gateway in process, in front of scripted services."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))

from rlrun_gateway.asgi import create_app
from rlrun_gateway.settings import GatewaySettings

from tests.unit.gateway.scripted import ADMIN_KEY, SESSION_KEY, ScriptedRouter, ScriptedSessions


@pytest.fixture
def router() -> ScriptedRouter:
    return ScriptedRouter()


@pytest.fixture
def sessions() -> ScriptedSessions:
    return ScriptedSessions()


@pytest.fixture
async def make_client(router: ScriptedRouter, sessions: ScriptedSessions) -> AsyncIterator[Callable[..., httpx.AsyncClient]]:
    """Builds a client of a gateway with other settings, and the session's key unless told otherwise."""
    clients: list[httpx.AsyncClient] = []

    def make(*, key: str | None = SESSION_KEY, admin: Any = None, **settings: Any) -> httpx.AsyncClient:
        app = create_app(GatewaySettings(admin_key=ADMIN_KEY, **settings), router, sessions.at, admin)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        transport = httpx.ASGITransport(app=app)
        client = httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers)
        clients.append(client)
        return client

    yield make
    for client in clients:
        await client.aclose()


@pytest.fixture
def client(make_client: Callable[..., httpx.AsyncClient]) -> httpx.AsyncClient:
    return make_client()


@pytest.fixture
def admin(make_client: Callable[..., httpx.AsyncClient]) -> httpx.AsyncClient:
    return make_client(key=ADMIN_KEY)

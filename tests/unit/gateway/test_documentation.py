from __future__ import annotations

import re
from pathlib import Path

from fastapi.routing import APIRoute
from rlrun_gateway.asgi import CHAT_PATHS, GatewayApp
from rlrun_gateway.chat_request import ChatBody
from rlrun_gateway.settings import GatewaySettings

from tests.unit.gateway.scripted import ScriptedRouter, ScriptedSessions

DOCUMENT = (Path(__file__).parents[3] / "docs" / "api.md").read_text()


def routes() -> set[str]:
    app = GatewayApp(GatewaySettings(admin_key="a"), ScriptedRouter(), ScriptedSessions().at, None)
    control = [route for route in app.control.routes if isinstance(route, APIRoute)]
    assert len(control) > 10
    found = {f"{method} {route.path.replace(':path', '')}" for route in control for method in route.methods}
    return found | {f"POST {path}" for path in CHAT_PATHS}


def test_every_route_is_documented_and_every_documented_route_exists():
    assert set(re.findall(r"^### `(.+)`$", DOCUMENT, re.MULTILINE)) == routes()


def test_every_field_of_a_chat_call_is_documented():
    missing = [name for name in ChatBody.__struct_fields__ if f"`{name}" not in DOCUMENT]
    assert missing == []

"""What to paste into a client so that it calls the policy with a session's key."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum


class Client(StrEnum):
    OPENAI = "openai"
    OPENCLAW = "openclaw"
    ZEROCLAW = "zeroclaw"


def provider_block(client: Client, *, base_url: str, api_key: str, model: str) -> str:
    return _BLOCKS[client](base_url.rstrip("/"), api_key, model)


def _openai(base_url: str, api_key: str, model: str) -> str:
    return f"export OPENAI_BASE_URL={base_url}/v1\nexport OPENAI_API_KEY={api_key}"


def _openclaw(base_url: str, api_key: str, model: str) -> str:
    free = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
    entry = {"id": model, "name": model, "reasoning": True, "input": ["text"], "cost": free, "contextWindow": 32768, "maxTokens": 8192}
    provider = {"baseUrl": f"{base_url}/v1", "apiKey": api_key, "api": "openai-completions", "models": [entry]}
    return json.dumps({"models": {"providers": {"rlrun": provider}}}, indent=2)


def _zeroclaw(base_url: str, api_key: str, model: str) -> str:
    # ZeroClaw describes tools in the prompt instead of sending them unless native_tools is on.
    return f"""schema_version = 3
[providers.models.custom.rlrun]
uri = {json.dumps(f"{base_url}/v1")}
api_key = {json.dumps(api_key)}
model = {json.dumps(model)}
native_tools = true
[agents.assistant]
model_provider = "custom.rlrun"
risk_profile = "assistant"
[risk_profiles.assistant]
level = "supervised"
"""


_BLOCKS: dict[Client, Callable[[str, str, str], str]] = {
    Client.OPENAI: _openai,
    Client.OPENCLAW: _openclaw,
    Client.ZEROCLAW: _zeroclaw,
}

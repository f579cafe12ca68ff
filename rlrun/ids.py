"""Identifiers: random, URL-safe, with a prefix that names the kind."""

from __future__ import annotations

import secrets


def _hex(length: int) -> str:
    return secrets.token_hex((length + 1) // 2)[:length]


def new_completion_id() -> str:
    """Id of an interaction, as OpenAI clients see it."""
    return f"chatcmpl-{_hex(29)}"


def new_tool_call_id() -> str:
    return f"call_{_hex(24)}"


def new_request_id() -> str:
    return f"req-{_hex(24)}"


def new_member_id(role: str) -> str:
    return f"{role}-{_hex(10)}"


def new_session_key() -> str:
    """A bearer secret for one session (256 bits)."""
    return f"sk-sess-{secrets.token_urlsafe(32)}"

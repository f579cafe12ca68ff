"""Limits and names of one gateway."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class GatewaySettings:
    """Everything that a gateway can be told. All time-outs are in seconds."""

    admin_key: str
    # The name that `/v1/models` lists and that every answer carries; the name a client sends is not checked.
    model_name: str = "policy"
    max_body_bytes: int = 8 * 1024 * 1024
    max_messages: int = 4096
    max_tools: int = 512
    # Model calls under way at once in this process; one more is answered 429.
    max_concurrent_requests: int = 1024
    request_timeout_seconds: float = 600.0
    # From the first to the last byte of a request's body.
    body_timeout_seconds: float = 30.0
    # Silence in a stream after which a comment is sent, so that no proxy in between closes it.
    keep_alive_seconds: float = 15.0
    # How long a call looks for a session's new owner. A lease takes up to 5 s to lapse.
    move_timeout_seconds: float = 8.0
    placement_cache_size: int = 16384
    placement_ttl_seconds: float = 30.0
    # Used when a request gives neither `max_tokens` nor `max_completion_tokens`; None leaves it to the session's owner.
    default_max_new_tokens: int | None = None

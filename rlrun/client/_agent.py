"""What an agent has to be: an object with an asynchronous `run`. It needs nothing of rlrun."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from rlrun.errors import ConfigError, InvalidRequest

Rewards = float | int | dict[str, float]
"""One reward for the last interaction, or one for each interaction id."""


@runtime_checkable
class AgentRunnable(Protocol):
    async def run(self, data: dict[str, Any], **kwargs: Any) -> Rewards:
        """Plays one episode and returns its reward.

        Inline, `kwargs` holds `base_url` (ends with /v1) and `api_key`; in a process of its own the agent finds them in the environment
        as OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY.
        """
        ...


def load_agent(name: str) -> AgentRunnable:
    """`package.module:Name`; a class is called without arguments.

    Raises:
        ConfigError: it cannot be imported, or has no `run`.
    """
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise ConfigError(f"agent {name!r}: write package.module:Class", param="agent")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"agent {name!r} cannot be imported: {error}", param="agent") from error
    agent = found() if isinstance(found, type) else found
    if not isinstance(agent, AgentRunnable):
        raise ConfigError(f"agent {name!r} has no method `async run(data, **kwargs)`", param="agent")
    return agent


def checked_rewards(value: object) -> Rewards:
    """Raises InvalidRequest for anything but finite numbers."""
    if _is_number(value):
        return value  # type: ignore[return-value]
    if isinstance(value, Mapping) and all(isinstance(name, str) and _is_number(one) for name, one in value.items()):
        return {name: float(one) for name, one in value.items()}
    raise InvalidRequest(
        f"the agent returned {value!r:.100} as its reward; return a finite number, or a dict from interaction id to number"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)

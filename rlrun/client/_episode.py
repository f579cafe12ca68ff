"""One episode: start a session, run the agent in it, set what it earned, end the session."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum
from typing import Any

from rlrun.client._agent import AgentRunnable, Rewards, checked_rewards, load_agent
from rlrun.client._async import AsyncSession, AsyncSessionClient
from rlrun.client._subprocess import run_in_subprocess
from rlrun.errors import ConfigError, InvalidRequest

log = logging.getLogger(__name__)


class Mode(Enum):
    INLINE = "Inline"
    """In this process and event loop."""
    SUBPROCESS = "Subprocess"
    """In a process of its own, which finds the session in its environment; for agents that block or keep global state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeResult:
    session_id: str
    rewards: Rewards
    interaction_count: int


async def run_episode(
    agent: AgentRunnable | str,
    data: dict[str, Any],
    client: AsyncSessionClient,
    *,
    mode: Mode = Mode.INLINE,
    task_id: str = "episode",
    group_id: str | None = None,
    group_size: int | None = None,
    timeout_seconds: float = 3600.0,
) -> EpisodeResult:
    """Runs `agent` once.

    An agent that raises gets no reward, so its session is never trained; the session is ended and the exception raised on. The same holds
    for rewards of which one names an interaction that the session does not have. Only a Gateway that fails between two rewards of a dict,
    for longer than the client's retries, leaves a session with some of them: it has no way to take a reward back, and what is not
    set counts as 0 in training.

    Args:
        agent: an object with `run`, or its import string `package.module:Class`, which a subprocess needs.
        data: the task, as JSON.
        timeout_seconds: of the agent's process.

    Raises:
        InvalidRequest: the agent returned something else than rewards, or a reward for an interaction that the session does not have.
    """
    if mode is Mode.SUBPROCESS and not isinstance(agent, str):
        raise ConfigError("mode Subprocess takes the agent as an import string, package.module:Class", param="agent")
    runnable = load_agent(agent) if isinstance(agent, str) and mode is Mode.INLINE else agent
    session = await client.start_session(task_id, group_id=group_id, group_size=group_size)
    try:
        if isinstance(runnable, str):
            value: object = await run_in_subprocess(runnable, data, environment(session), timeout_seconds=timeout_seconds)
        else:
            value = await runnable.run(data, base_url=session.base_url, api_key=session.api_key)
        rewards = checked_rewards(value)
        await _set_rewards(client, session, rewards)
    except BaseException:
        await _end_after_failure(session)
        raise
    return EpisodeResult(session_id=session.session_id, rewards=rewards, interaction_count=await session.end())


async def _set_rewards(client: AsyncSessionClient, session: AsyncSession, rewards: Rewards) -> None:
    """All or, where an id is unknown, none."""
    if not isinstance(rewards, dict):
        await session.set_reward(rewards)
        return
    if unknown := rewards.keys() - await client.interaction_ids(session.session_id):
        raise InvalidRequest(
            f"the agent returned rewards for {', '.join(sorted(unknown)):.200}, which session {session.session_id} does not have; "
            "use the ids of its completions"
        )
    for interaction_id, reward in rewards.items():
        await session.set_reward(reward, interaction_id)


async def _end_after_failure(session: AsyncSession) -> None:
    """Ends the session; a fault of the end is only logged, for the caller raises what came first."""
    try:
        await session.end()
    except Exception:
        log.warning("session %s could not be ended; it is ended when it has been idle for long enough", session.session_id, exc_info=True)


def environment(session: AsyncSession) -> dict[str, str]:
    """What the SDKs read; the Anthropic SDK adds `/v1` itself."""
    return {
        "OPENAI_BASE_URL": session.base_url,
        "OPENAI_API_KEY": session.api_key,
        "ANTHROPIC_BASE_URL": session.root_url,
        "ANTHROPIC_API_KEY": session.api_key,
    }

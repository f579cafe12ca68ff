"""Settings of a DataProxy, as plain values."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlrun.trajectory import RewardStyle


@dataclass(frozen=True, slots=True, kw_only=True)
class DataProxyOptions:
    """
    member_id               this replica, as the Router knows it; sessions of another owner are refused
    max_total_tokens        prompt plus output that the engine takes; None: the engine decides
    max_cached_sessions     sessions held in memory; others are read from Redis when called
    queue_trajectories      a trainer is configured: sessions that end with a reward go to it
    reward_style            how rewards spread in an export
    ephemeral_tail          last messages that match are not part of what the next call's history is compared with
    parse_tool_calls        <tool_call> markup becomes tool calls, where the request has tools
    parse_reasoning         <think> markup becomes reasoning_content
    call_timeout_seconds    bound on one model call
    max_worker_attempts     workers tried in a row without a new token before the call fails
    retry_pause_seconds     before the second attempt; doubles each time
    """

    member_id: str
    max_total_tokens: int | None = None
    max_cached_sessions: int = 4096
    queue_trajectories: bool = True
    reward_style: RewardStyle = RewardStyle.TREE
    ephemeral_tail: re.Pattern[str] | None = None
    parse_tool_calls: bool = True
    parse_reasoning: bool = True
    call_timeout_seconds: float = 600.0
    max_worker_attempts: int = 4
    retry_pause_seconds: float = 0.1

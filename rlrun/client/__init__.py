"""What users import: sessions over HTTP, and episodes of an agent of their own."""

from __future__ import annotations

from rlrun.client._agent import AgentRunnable, Rewards
from rlrun.client._async import AsyncSession, AsyncSessionClient
from rlrun.client._episode import EpisodeResult, Mode, run_episode
from rlrun.client._export import Export, ExportStyle
from rlrun.client._sync import Session, SessionClient
from rlrun.retry import RetryPolicy

__all__ = [
    "AgentRunnable",
    "AsyncSession",
    "AsyncSessionClient",
    "EpisodeResult",
    "Export",
    "ExportStyle",
    "Mode",
    "RetryPolicy",
    "Rewards",
    "Session",
    "SessionClient",
    "run_episode",
]

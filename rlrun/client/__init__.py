"""What users import: sessions over HTTP, episodes of an agent of their own, and an OpenAI client without a Gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlrun.client._agent import AgentRunnable, Rewards
from rlrun.client._async import AsyncSession, AsyncSessionClient
from rlrun.client._episode import EpisodeResult, Mode, run_episode
from rlrun.client._export import Export, ExportStyle
from rlrun.client._sync import Session, SessionClient
from rlrun.retry import RetryPolicy

if TYPE_CHECKING:
    from rlrun.client.direct import DirectOpenAI

__all__ = [
    "AgentRunnable",
    "AsyncSession",
    "AsyncSessionClient",
    "DirectOpenAI",
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


def __getattr__(name: str) -> Any:
    if name != "DirectOpenAI":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Needs the openai SDK and the services' packages, which sessions do without.
    from rlrun.client.direct import DirectOpenAI

    return DirectOpenAI

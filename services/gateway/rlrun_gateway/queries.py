"""What the administrative routes ask for; the implementation reads the store."""

from __future__ import annotations

from typing import Any, Protocol


class AdminQueries(Protocol):
    """Answers are JSON-able. Raises NotFound for an unknown session."""

    async def status(self) -> dict[str, Any]: ...
    async def sessions(self, state: str | None, limit: int) -> list[dict[str, Any]]: ...
    async def session(self, session_id: str) -> dict[str, Any]: ...
    async def weights(self) -> dict[str, Any]: ...

"""Policy versions: numbers that are never used twice, and the one that workers shall serve."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.errors import InvalidRequest
from rlrun.store import replies, scripts
from rlrun.store.connection import Connection

_NEXT = scripts.load("policy_next")
_PUBLISH = scripts.load("policy_publish")
_CURRENT = scripts.load("policy_current")


@dataclass(frozen=True, kw_only=True)
class PolicyInfo:
    """A published version. `parent`: the version that it was trained from, None for the first; `step`: the trainer's step."""

    version: int
    path: str
    fingerprint: str
    parent: int | None
    step: int
    lineage: str


class Policy:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def next_version(self) -> int:
        """Reserves a version, from 1 on. No number is given twice, whatever crashes in between; gaps are normal."""
        return int(await self._connection.run(_NEXT))

    async def publish(self, version: int, path: str, fingerprint: str, parent: int | None, step: int, lineage: str) -> None:
        """Makes `version` the current one; its files must be in place. The same publication may be repeated.

        Raises `Conflict` if this or a newer version was published.
        """
        if version < 0:
            raise InvalidRequest(f"version {version} must not be negative", param="version")
        parent_text = "" if parent is None else str(parent)
        answer = await self._connection.run(_PUBLISH, version, path, fingerprint, parent_text, step, lineage)
        if answer[0] != b"OK":
            replies.refuse(answer, session_id="")

    async def current(self) -> PolicyInfo | None:
        """None: nothing was published yet."""
        answer = await self._connection.run(_CURRENT)
        if answer[0] != b"OK":
            return None
        version = int(answer[1])
        row = replies.fields(answer[2], what=f"policy {version}")
        return PolicyInfo(
            version=version,
            path=row["path"],
            fingerprint=row["fingerprint"],
            parent=int(row["parent"]) if row["parent"] else None,
            step=int(row["step"]),
            lineage=row["lineage"],
        )

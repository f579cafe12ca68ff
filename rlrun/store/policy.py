"""Policy versions: numbers are given once, and the current one only grows."""

from __future__ import annotations

from rlrun.store.connection import Connection
from rlrun.store.replies import fields, refuse
from rlrun.store.scripts import load_script
from rlrun.store.types import PolicyInfo

_NEXT = load_script("policy_next")
_PUBLISH = load_script("policy_publish")
_CURRENT = load_script("policy_current")


class PolicyStore:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def next_version(self) -> int:
        """A number that no version had before, not even one that was never published. From 1; gaps are normal."""
        return int(await self._connection.run(_NEXT))

    async def publish(self, *, version: int, path: str, fingerprint: str, parent: int, step: int, lineage: str) -> None:
        """Makes a version, whose files are in place, the current one; may be repeated. Raises: Conflict for one that is not newer."""
        answer = await self._connection.run(_PUBLISH, version, path, fingerprint, parent, step, lineage)
        if answer[0] != b"OK":
            refuse(answer, session_id="")

    async def current(self) -> PolicyInfo | None:
        """None: nothing was published yet."""
        answer = await self._connection.run(_CURRENT)
        if answer[0] == b"MISSING":
            return None
        version = int(answer[1])
        found = fields(answer[2], what=f"policy version {version}")
        return PolicyInfo(
            version=version,
            path=found["path"],
            fingerprint=found["fingerprint"],
            parent=int(found["parent"]),
            step=int(found["step"]),
            lineage=found["lineage"],
        )

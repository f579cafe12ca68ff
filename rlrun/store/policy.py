"""Policy versions: numbers are given once, and the current one only grows."""

from __future__ import annotations

from rlrun.errors import Conflict
from rlrun.store.connection import store_errors
from rlrun.store.scripts import Scripts
from rlrun.store.types import PolicyInfo


class PolicyStore:
    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    async def next_version(self) -> int:
        """A number that no version had before, not even one that was never published."""
        with store_errors():
            return int(await self._scripts.run("policy_next"))

    async def publish(self, *, version: int, path: str, fingerprint: str, parent: int, step: int, lineage: str) -> None:
        """Makes a version the current one; may be repeated. Raises: Conflict for one that is not newer."""
        with store_errors():
            answer = await self._scripts.run("policy_publish", version, path, fingerprint, parent, step, lineage)
        if answer[0] == b"CONFLICT":
            raise Conflict(f"policy version {version} is not newer than the current version {int(answer[2])}")

    async def current(self) -> PolicyInfo | None:
        with store_errors():
            answer = await self._scripts.run("policy_current")
        if answer[0] == b"MISSING":
            return None
        fields = {answer[2][i].decode(): answer[2][i + 1].decode() for i in range(0, len(answer[2]), 2)}
        return PolicyInfo(
            version=int(answer[1]),
            path=fields["path"],
            fingerprint=fields["fingerprint"],
            parent=int(fields["parent"]),
            step=int(fields["step"]),
            lineage=fields["lineage"],
        )

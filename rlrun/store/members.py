"""Leases of service replicas."""

from __future__ import annotations

from rlrun.proto import router_pb2
from rlrun.store.connection import store_errors
from rlrun.store.keys import check_id, role_name
from rlrun.store.scripts import Scripts


class MemberStore:
    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    async def put(self, member: router_pb2.Member, *, ttl_seconds: float) -> None:
        """Takes or renews a lease."""
        check_id(member.id, param="member.id")
        with store_errors():
            await self._scripts.run(
                "members_put", role_name(member.role), member.id, member.SerializeToString(), max(1, int(ttl_seconds * 1000))
            )

    async def remove(self, role: router_pb2.Role.ValueType, member_id: str) -> None:
        with store_errors():
            await self._scripts.run("members_remove", role_name(role), member_id)

    async def list(self, role: router_pb2.Role.ValueType) -> list[router_pb2.Member]:
        """The members whose lease runs."""
        with store_errors():
            answer = await self._scripts.run("members_list", role_name(role))
        return [router_pb2.Member.FromString(value) for value in answer]

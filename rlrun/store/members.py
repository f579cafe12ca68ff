"""Leases of service replicas: a member is there until its lease ends."""

from __future__ import annotations

from rlrun.proto import router_pb2
from rlrun.store.connection import Connection
from rlrun.store.keys import check_id, role_name
from rlrun.store.scripts import load_script

_PUT = load_script("members_put")
_REMOVE = load_script("members_remove")
_LIST = load_script("members_list")


class MemberStore:
    """Raises `InvalidRequest` for a role that has no members."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def put(self, member: router_pb2.Member, *, ttl_seconds: float) -> None:
        """Takes or renews a lease."""
        member_id, ttl_milliseconds = check_id(member.id, param="member.id"), max(1, int(ttl_seconds * 1000))
        await self._connection.run(_PUT, role_name(member.role), member_id, member.SerializeToString(), ttl_milliseconds)

    async def remove(self, role: router_pb2.Role.ValueType, member_id: str) -> None:
        """Ends a lease at once: the sessions of a removed DataProxy may be claimed."""
        await self._connection.run(_REMOVE, role_name(role), member_id)

    async def list(self, role: router_pb2.Role.ValueType) -> list[router_pb2.Member]:
        """The members whose lease runs, by id."""
        answer = await self._connection.run(_LIST, role_name(role))
        return sorted((router_pb2.Member.FromString(value) for value in answer), key=lambda member: member.id)

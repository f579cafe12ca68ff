"""Members: the live replicas of each role, each a lease that ends by itself."""

from __future__ import annotations

import math

from rlrun.errors import InvalidRequest
from rlrun.proto import router_pb2
from rlrun.store import scripts
from rlrun.store.connection import Connection
from rlrun.store.keys import check_id, role_name

_PUT = scripts.load("members_put")
_REMOVE = scripts.load("members_remove")
_LIST = scripts.load("members_list")


class Members:
    """Raises `StoreUnavailable`; `InvalidRequest` for a role that has no members."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def put(self, member: router_pb2.Member, ttl_seconds: float) -> None:
        """Takes or renews the lease of `member` for `ttl_seconds`, with its present address and load."""
        if not ttl_seconds > 0:
            raise InvalidRequest(f"ttl_seconds {ttl_seconds} must be above 0", param="ttl_seconds")
        role, member_id = role_name(member.role), check_id(member.id, param="id")
        await self._connection.run(_PUT, role, member_id, member.SerializeToString(), math.ceil(ttl_seconds * 1000))

    async def remove(self, role: router_pb2.Role.ValueType, id: str) -> None:
        """Ends a lease at once: sessions of a removed DataProxy may be claimed."""
        await self._connection.run(_REMOVE, role_name(role), id)

    async def list(self, role: router_pb2.Role.ValueType) -> list[router_pb2.Member]:
        """The members whose lease holds, by id."""
        found = await self._connection.run(_LIST, role_name(role))
        return sorted((router_pb2.Member.FromString(data) for data in found), key=lambda member: member.id)

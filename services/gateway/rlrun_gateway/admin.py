"""What the administrative pages show, read from the store."""

from __future__ import annotations

from typing import Any

from rlrun.errors import NotFound
from rlrun.proto import common_pb2, router_pb2
from rlrun.store import SessionInfo, Store


def _session(info: SessionInfo) -> dict[str, Any]:
    return {
        "session_id": info.session_id,
        "task_id": info.task_id,
        "group_id": info.group_id,
        "group_size": info.group_size,
        "state": str(info.state),
        "reason": info.reason,
        "owner": info.owner_id,
        "fence": info.fence,
        "num_interactions": info.num_interactions,
        "created_unix_seconds": info.created_unix_seconds,
        "updated_unix_seconds": info.updated_unix_seconds,
    }


class StoreQueries:
    """Implements the gateway's AdminQueries."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def status(self) -> dict[str, Any]:
        capacity, policy = await self._store.capacity.get(), await self._store.policy.current()
        roles = [role for role in router_pb2.Role.values() if role]
        members = [member for role in roles for member in await self._store.members.list(role)]
        return {
            "policy_version": policy.version if policy else 0,
            "step": capacity.step,
            "sessions": {"running": capacity.running, "accepted": capacity.accepted, "granted": capacity.granted},
            "members": [
                {
                    "role": router_pb2.Role.Name(member.role).removeprefix("ROLE_").lower(),
                    "id": member.id,
                    "address": member.address,
                    "load": member.load,
                    "policy_version": member.policy_version,
                    "draining": member.draining,
                }
                for member in members
            ],
        }

    async def sessions(self, state: str | None, limit: int) -> list[dict[str, Any]]:
        return [_session(info) for info in await self._store.sessions.list(state=state, limit=limit)]

    async def session(self, session_id: str) -> dict[str, Any]:
        if await self._store.sessions.get(session_id) is None:
            raise NotFound(f"Session {session_id} not found")
        data = await self._store.sessions.load(session_id)
        return {
            "session": _session(data.info),
            "interactions": [
                {
                    "id": record.id,
                    "parent_id": record.parent_id or None,
                    "index": record.index,
                    "finish_reason": common_pb2.FinishReason.Name(record.finish_reason).removeprefix("FINISH_REASON_").lower(),
                    "content": record.content,
                    "num_new_prompt_tokens": len(record.new_prompt_ids) // 4,
                    "num_output_tokens": len(record.output_ids) // 4,
                    "versions": [{"num_tokens": span.num_tokens, "version": span.version} for span in record.versions],
                    "reward": data.rewards.get(record.id),
                }
                for record in sorted(data.records, key=lambda record: record.index)
            ],
        }

    async def weights(self) -> dict[str, Any]:
        policy = await self._store.policy.current()
        if policy is None:
            return {"version": 0, "path": None, "fingerprint": None}
        return {
            "version": policy.version,
            "path": policy.path,
            "fingerprint": policy.fingerprint,
            "step": policy.step,
            "lineage": policy.lineage,
        }

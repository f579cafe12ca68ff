"""A stand-in for the Gateway's control and chat routes: real HTTP, scripted answers, everything written down."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from aiohttp import web

from rlrun.trajectory import TrajectoryRow, row_to_json

ADMIN_KEY = "admin-key"


def fault(status: int, code: str, **headers: str) -> web.Response:
    body = {"error": {"message": f"made {code}", "type": "t", "param": None, "code": code}}
    return web.json_response(body, status=status, headers={name.replace("_", "-"): value for name, value in headers.items()})


@dataclass
class FakeGateway:
    """`faults[path]` are answered (or called) first, one per request; after them everything works."""

    faults: dict[str, list[web.Response | Callable[[web.Request], Awaitable[web.Response]]]] = field(default_factory=dict)
    starts: list[dict[str, Any]] = field(default_factory=list)
    rewards: dict[str, list[tuple[str | None, float]]] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    chats: list[dict[str, Any]] = field(default_factory=list)
    interaction_ids: set[str] = field(default_factory=set)
    policy_version: int = 0
    answer: Callable[[dict[str, Any]], dict[str, Any]] = lambda body: {"content": "?"}
    url: str = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        waiting = self.faults.get(request.path)
        if waiting:
            first = waiting.pop(0)
            return first if isinstance(first, web.Response) else await first(request)
        try:
            body = json.loads(await request.read() or b"{}")
        except ConnectionError:  # the client is gone
            return web.Response()
        if request.path in ("/rl/start_session", "/export_trajectories", "/admin/status") and key != ADMIN_KEY:
            return fault(403, "permission_denied")
        match request.path:
            case "/rl/start_session":
                self.starts.append(body)
                return web.json_response({"session_id": f"{body['task_id']}-{len(self.starts)}", "api_key": body["api_key"]})
            case "/rl/set_reward":
                self.rewards.setdefault(key, []).append((body["interaction_id"], body["reward"]))
                return web.json_response({"message": "success"})
            case "/rl/end_session":
                self.ended.append(key)
                return web.json_response({"message": "success", "interaction_count": 2})
            case "/export_trajectories":
                return web.json_response({"interactions": {"i-1": exported(body)}})
            case "/admin/status":
                workers = [{"role": "worker", "policy_version": self.policy_version}]
                return web.json_response({"policy_version": self.policy_version, "sessions": {"running": 3}, "members": workers})
            case "/v1/chat/completions":
                self.chats.append(body)
                return web.json_response(completion(self.answer(body)))
            case path if path.startswith("/admin/sessions/"):
                return web.json_response({"interactions": [{"id": one} for one in sorted(self.interaction_ids)]})
        return fault(404, "unknown_path")


def exported(request: dict[str, Any]) -> dict[str, Any]:
    row = TrajectoryRow(
        interaction_id="i-1",
        input_ids=np.array([5, 6, 7], dtype=np.int32),
        loss_mask=np.array([0, 0, 1], dtype=np.int32),
        logprobs=np.array([0, 0, -0.5], dtype=np.float32),
        versions=np.array([-1, -1, 4], dtype=np.int32),
        reward=request["discount"],
        temperature=1.0,
    )
    return {
        "tensor_dict": row_to_json(row),
        "reward": row.reward,
        "temperature": row.temperature,
        "interaction_id": row.interaction_id,
    }


def completion(message: dict[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": None} | message}
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
    return {"id": "c", "object": "chat.completion", "created": 0, "model": "default", "choices": [choice], "usage": usage}


@asynccontextmanager
async def serve() -> AsyncIterator[FakeGateway]:
    gateway = FakeGateway()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", gateway.handle)
    runner = web.AppRunner(application, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    gateway.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield gateway
    finally:
        await runner.cleanup()

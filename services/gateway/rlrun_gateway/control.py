"""Control routes: sessions, rewards, export, administration. Called once per episode, so FastAPI's comfort is worth its cost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from rlrun.auth import key_hash
from rlrun.errors import InvalidRequest, Overloaded, RlrunError
from rlrun.ids import new_session_key
from rlrun.proto import router_pb2, session_pb2
from rlrun.rpc.interfaces import RouterService, SessionService
from rlrun.trajectory import TrajectoryRow, row_to_json
from rlrun_gateway.access import Access
from rlrun_gateway.errors import HttpError, error_body, error_headers, internal_error
from rlrun_gateway.placements import Placements, SessionName
from rlrun_gateway.queries import AdminQueries
from rlrun_gateway.settings import GatewaySettings

# Where the outer app leaves the request's id, the session that its path names, and the path before that was taken out.
REQUEST_ID_KEY = "rlrun.request_id"
PATH_SESSION_KEY = "rlrun.path_session"
SENT_PATH_KEY = "rlrun.sent_path"
# Goes into URLs, Redis keys and logs.
_TASK_ID = r"^[A-Za-z0-9._:@+=~-]+$"
# Has to fit into a header.
_KEY = r"^[\x21-\x7e]+$"
_HEALTH_TIMEOUT_SECONDS = 2.0
_STYLES = {"individual": session_pb2.EXPORT_STYLE_INDIVIDUAL, "concat": session_pb2.EXPORT_STYLE_CONCAT}


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class StartSession(_Body):
    task_id: str = Field(min_length=1, max_length=200, pattern=_TASK_ID)
    api_key: str | None = Field(default=None, min_length=1, max_length=512, pattern=_KEY)
    group_id: str | None = Field(default=None, min_length=1, max_length=200, pattern=_TASK_ID)
    group_size: int | None = Field(default=None, ge=1, le=65536)


class SetReward(_Body):
    interaction_id: str | None = Field(default=None, min_length=1, max_length=200)
    reward: float = Field(ge=-1e30, le=1e30)


class GrantCapacity(_Body):
    amount: int = Field(default=1, ge=1, le=1_000_000)


class ExportTrajectories(_Body):
    session_id: str = Field(min_length=1, max_length=300)
    discount: float = Field(default=1.0, ge=0, le=1)
    style: Literal["individual", "concat"] = "individual"


class Json(Response):
    """JSON by msgspec: an export may hold a million numbers."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


class Sessions:
    """Starts, rewards, ends and exports sessions."""

    def __init__(self, access: Access, router: RouterService, placements: Placements) -> None:
        self._access = access
        self._router = router
        self._placements = placements
        self._starting: set[str] = set()

    async def start(self, body: StartSession) -> dict[str, Any]:
        key = body.api_key or new_session_key()
        if self._access.is_admin_key(key):
            raise InvalidRequest("Cannot use the admin API key as a session key.", param="api_key")
        hashed = key_hash(key)
        if hashed in self._starting:
            raise Overloaded("A refresh is already in progress for this key.")
        self._starting.add(hashed)
        try:
            placed = await self._router.place_session(
                router_pb2.PlaceSessionRequest(
                    task_id=body.task_id, key_hash=hashed, group_id=body.group_id or "", group_size=body.group_size or 0
                )
            )
        finally:
            self._starting.discard(hashed)
            self._placements.forget(SessionName(key_hash=hashed))
        return {"session_id": placed.placement.session_id, "api_key": key}

    async def set_reward(self, name: SessionName, body: SetReward) -> str:
        async def run(service: SessionService, placement: router_pb2.Placement, attempt: int) -> session_pb2.SetRewardResponse:
            request = session_pb2.SetRewardRequest(
                session=_reference(placement), interaction_id=body.interaction_id or "", reward=body.reward
            )
            return await service.set_reward(request)

        return (await self._placements.call(name, run, fresh=True, follow=False)).interaction_id

    async def end(self, name: SessionName) -> int:
        async def run(service: SessionService, placement: router_pb2.Placement, attempt: int) -> session_pb2.EndSessionResponse:
            return await service.end_session(session_pb2.EndSessionRequest(session=_reference(placement)))

        return (await self._placements.call(name, run, fresh=True, follow=False)).interaction_count

    async def export(self, body: ExportTrajectories) -> dict[str, Any]:
        async def run(service: SessionService, placement: router_pb2.Placement, attempt: int) -> session_pb2.ExportTrajectoriesResponse:
            return await service.export_trajectories(
                session_pb2.ExportTrajectoriesRequest(session=_reference(placement), discount=body.discount, style=_STYLES[body.style])
            )

        exported = await self._placements.call(SessionName(session_id=body.session_id), run, fresh=True, follow=False)
        return {"interactions": {one.interaction_id: interaction_json(one) for one in exported.interactions}}


def interaction_json(exported: session_pb2.ExportedInteraction) -> dict[str, Any]:
    row = TrajectoryRow(
        interaction_id=exported.interaction_id,
        input_ids=np.frombuffer(exported.input_ids, dtype="<i4"),
        loss_mask=np.frombuffer(exported.loss_mask, dtype="<i4"),
        logprobs=np.frombuffer(exported.logprobs, dtype="<f4"),
        versions=np.frombuffer(exported.versions, dtype="<i4"),
        reward=exported.reward,
        temperature=exported.temperature,
    )
    return {
        "tensor_dict": row_to_json(row),
        "reward": exported.reward,
        "temperature": exported.temperature,
        "interaction_id": exported.interaction_id,
    }


def _reference(placement: router_pb2.Placement) -> session_pb2.SessionRef:
    return session_pb2.SessionRef(session_id=placement.session_id, fence=placement.fence)


def create_control_app(
    settings: GatewaySettings, access: Access, router: RouterService, placements: Placements, admin: AdminQueries | None
) -> FastAPI:
    """The app behind every path that is not a chat call. Paths have neither the `/v1` prefix nor a trailing slash here."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, default_response_class=Json)
    app.add_exception_handler(RlrunError, _on_error)
    app.add_exception_handler(HttpError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_bug)
    _add_session_routes(app, access, Sessions(access, router, placements), router)
    _add_model_routes(app, settings, access, router, placements)
    _add_admin_routes(app, access, router, admin)
    return app


def _add_session_routes(app: FastAPI, access: Access, sessions: Sessions, router: RouterService) -> None:
    @app.post("/rl/start_session")
    async def start_session(request: Request, body: StartSession) -> Json:
        access.require_admin(request.scope["headers"])
        return Json(await sessions.start(body))

    @app.post("/rl/set_reward")
    async def set_reward(request: Request, body: SetReward) -> Json:
        interaction_id = await sessions.set_reward(_session_name(access, request), body)
        return Json({"message": "success", "interaction_id": interaction_id})

    @app.post("/rl/end_session")
    async def end_session(request: Request) -> Json:
        return Json({"message": "success", "interaction_count": await sessions.end(_session_name(access, request))})

    @app.post("/grant_capacity")
    async def grant_capacity(request: Request, body: GrantCapacity | None = None) -> Json:
        access.require_admin(request.scope["headers"])
        amount = body.amount if body is not None else 1
        granted = await router.grant_capacity(router_pb2.GrantCapacityRequest(amount=amount))
        return Json({"capacity": granted.capacity})

    @app.post("/export_trajectories")
    async def export_trajectories(request: Request, body: ExportTrajectories) -> Json:
        access.require_admin(request.scope["headers"])
        return Json(await sessions.export(body))


def _add_model_routes(app: FastAPI, settings: GatewaySettings, access: Access, router: RouterService, placements: Placements) -> None:
    model = {"id": settings.model_name, "object": "model", "created": 0, "owned_by": "rlrun"}

    async def require_any_key(request: Request) -> None:
        if not access.is_admin(request.scope["headers"]):
            await placements.locate(_session_name(access, request))

    @app.get("/models")
    async def list_models(request: Request) -> Json:
        await require_any_key(request)
        return Json({"object": "list", "data": [model]})

    @app.get("/models/{model_id:path}")
    async def get_model(request: Request, model_id: str) -> Json:
        await require_any_key(request)
        if model_id != settings.model_name:
            raise HttpError(
                404, "model_not_found", f"The model {model_id[:80]!r} does not exist here; this gateway serves {settings.model_name!r}"
            )
        return Json(model)

    @app.get("/health")
    async def health() -> Json:
        """No key: load balancers ask."""
        try:
            async with asyncio.timeout(_HEALTH_TIMEOUT_SECONDS):
                members = (await router.list_members(router_pb2.ListMembersRequest())).members
        except (RlrunError, TimeoutError) as error:
            reason = error.code if isinstance(error, RlrunError) else "deadline_exceeded"
            return Json({"status": "unavailable", "reason": reason, "members": {}, "workers": 0}, status_code=503)
        counts = _count_by_role(members)
        return Json({"status": "ok", "members": counts, "workers": counts.get("worker", 0)})


def _add_admin_routes(app: FastAPI, access: Access, router: RouterService, admin: AdminQueries | None) -> None:
    def queries(request: Request) -> AdminQueries:
        access.require_admin(request.scope["headers"])
        if admin is None:
            raise HttpError(501, "not_implemented", "This gateway has no access to the run's store")
        return admin

    @app.get("/admin/status")
    async def status(request: Request) -> Json:
        access.require_admin(request.scope["headers"])
        if admin is not None:
            return Json(await admin.status())
        members = (await router.list_members(router_pb2.ListMembersRequest())).members
        return Json({"members": [_member(member) for member in members]})

    @app.get("/admin/sessions")
    async def list_sessions(
        request: Request,
        state: Annotated[str | None, Query(max_length=40)] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Json:
        return Json({"sessions": await queries(request).sessions(state.upper() if state else None, limit)})

    @app.get("/admin/sessions/{session_id}")
    async def get_session(request: Request, session_id: str) -> Json:
        return Json(await queries(request).session(session_id))

    @app.get("/admin/weights")
    async def weights(request: Request) -> Json:
        return Json(await queries(request).weights())


def _session_name(access: Access, request: Request) -> SessionName:
    return access.session_name(request.scope["headers"], request.scope[PATH_SESSION_KEY])


def _count_by_role(members: Sequence[router_pb2.Member]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for member in members:
        role = _role(member)
        counts[role] = counts.get(role, 0) + 1
    return counts


def _role(member: router_pb2.Member) -> str:
    return router_pb2.Role.Name(member.role).removeprefix("ROLE_").lower()


def _member(member: router_pb2.Member) -> dict[str, Any]:
    return {
        "role": _role(member),
        "id": member.id,
        "address": member.address,
        "load": member.load,
        "policy_version": member.policy_version,
        "draining": member.draining,
    }


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, (RlrunError, HttpError))
    answer = Response(error_body(error, detail=error.message), status_code=error.http_status, media_type="application/json")
    answer.raw_headers.extend(error_headers(error))
    return answer


async def _on_invalid(request: Request, error: Exception) -> Response:
    """422, as FastAPI's clients know it, with the same list in `detail`."""
    assert isinstance(error, RequestValidationError)
    faults = [{"loc": [str(part) for part in fault["loc"]], "msg": fault["msg"], "type": fault["type"]} for fault in error.errors()[:20]]
    first = faults[0]
    fields = [part for part in first["loc"] if part not in ("body", "query", "path")]
    param = ".".join(fields) or None
    fault = HttpError(422, "invalid_request", f"{param or 'body'}: {first['msg']}")
    fault.param = param
    return Response(error_body(fault, detail=faults), status_code=422, media_type="application/json")


async def _on_http(request: Request, error: Exception) -> Response:
    """Unknown paths and wrong methods."""
    assert isinstance(error, HTTPException)
    code = {404: "unknown_path", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    message = f"{request.method} {request.scope[SENT_PATH_KEY][:200]}: {error.detail}"
    fault = HttpError(error.status_code, code, message)
    return Response(
        error_body(fault, detail=error.detail), status_code=error.status_code, headers=error.headers, media_type="application/json"
    )


async def _on_bug(request: Request, error: Exception) -> Response:
    """Only the answer: the error goes on to the outer app, which logs it."""
    fault = internal_error(request.scope[REQUEST_ID_KEY])
    return Response(error_body(fault, detail=fault.message), status_code=fault.http_status, media_type="application/json")

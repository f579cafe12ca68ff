"""The gateway as one ASGI app: finds the route, and turns whatever goes wrong into an answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from rlrun.errors import DeadlineExceeded, InvalidRequest, RlrunError
from rlrun.rpc.interfaces import RouterService, SessionService
from rlrun_gateway.access import Access
from rlrun_gateway.chat import ChatRoute
from rlrun_gateway.control import PATH_SESSION_KEY, REQUEST_ID_KEY, SENT_PATH_KEY, create_control_app
from rlrun_gateway.errors import HttpError, error_body, error_headers, internal_error
from rlrun_gateway.http import (
    JSON_TYPE,
    AsgiApp,
    ClientDisconnected,
    Exchange,
    Message,
    Receive,
    Scope,
    Send,
    cancelled_by_disconnect,
    check_json_type,
    read_body,
)
from rlrun_gateway.metrics import RouteMetrics
from rlrun_gateway.placements import Placements
from rlrun_gateway.queries import AdminQueries
from rlrun_gateway.settings import GatewaySettings

CHAT_PATHS = ("/chat/completions", "/sessions/{id}/chat/completions")
_PREFIX = re.compile(r"(?:/v1(?=/))?(?:/sessions/([^/]+)(?=/))?(?:/v1(?=/))?")
_CHAT = re.compile(_PREFIX.pattern + r"/chat/completions/?")
_CONTROL_LABELS = (
    "/rl/start_session", "/rl/set_reward", "/rl/end_session", "/grant_capacity", "/export_trajectories", "/models", "/health",
    "/admin/status", "/admin/sessions", "/admin/sessions/{id}", "/admin/weights", "/models/{id}", "other",
)  # fmt: skip
# Waits for capacity, possibly minutes: pointless once nobody waits for its answer.
_CANCELLED_WITH_CLIENT = "/rl/start_session"
_MAX_CONTROL_BODY_BYTES = 1024 * 1024


def create_app(
    settings: GatewaySettings,
    router: RouterService,
    session_service: Callable[[str], SessionService],
    admin: AdminQueries | None = None,
) -> AsgiApp:
    """`session_service` gives the SessionService at an owner's address; `admin` answers the administrative routes."""
    return GatewayApp(settings, router, session_service, admin)


class GatewayApp:
    def __init__(
        self,
        settings: GatewaySettings,
        router: RouterService,
        session_service: Callable[[str], SessionService],
        admin: AdminQueries | None,
    ) -> None:
        access = Access(settings.admin_key)
        placements = Placements(router, session_service, settings)
        self._settings = settings
        self._chat = ChatRoute(settings, access, placements)
        self.control = create_control_app(settings, access, router, placements, admin)
        self._chat_metrics = RouteMetrics("/chat/completions")
        self._control_metrics = {label: RouteMetrics(label) for label in _CONTROL_LABELS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await _lifespan(receive, send)
        path = scope["path"]
        while "//" in path:
            path = path.replace("//", "/")
        exchange = Exchange(scope, receive, send)
        if (found := _CHAT.fullmatch(path)) is not None:
            metrics, work = self._chat_metrics, self._answer_chat(exchange, found.group(1) or "")
        else:
            path_session, path = _control_path(path)
            metrics, work = self._metrics_of(path), self._answer_control(exchange, path, path_session)
        metrics.in_flight.inc()
        try:
            await work
        except ClientDisconnected:
            metrics.disconnects.inc()
            exchange.status = 499
        except (RlrunError, HttpError) as error:
            exchange.log_unserved(error)
            await _answer_error(exchange, error, detail=metrics is not self._chat_metrics)
        except Exception as error:
            exchange.log_bug(error)
            await _answer_error(exchange, internal_error(exchange.request_id), detail=metrics is not self._chat_metrics)
        finally:
            metrics.in_flight.dec()
            metrics.answered(exchange.status, exchange.elapsed())

    async def _answer_chat(self, exchange: Exchange, path_session: str) -> None:
        if exchange.scope["method"] != "POST":
            raise HttpError(405, "method_not_allowed", "Send chat completions with POST", headers=((b"allow", b"POST"),))
        await self._chat.handle(exchange, path_session)

    async def _answer_control(self, exchange: Exchange, path: str, path_session: str) -> None:
        body = await read_body(
            exchange,
            max_bytes=min(_MAX_CONTROL_BODY_BYTES, self._settings.max_body_bytes),
            timeout_seconds=self._settings.body_timeout_seconds,
        )
        if body:
            check_json_type(exchange.headers)
            _check_utf8(body)
        scope = {**exchange.scope, "path": path, "raw_path": path.encode(), "root_path": ""}
        scope |= {REQUEST_ID_KEY: exchange.request_id, PATH_SESSION_KEY: path_session, SENT_PATH_KEY: exchange.scope["path"]}
        try:
            async with asyncio.timeout(self._settings.request_timeout_seconds):
                if path == _CANCELLED_WITH_CLIENT:
                    async with cancelled_by_disconnect(exchange):
                        await self.control(scope, _replay(body), exchange.forward)
                else:
                    await self.control(scope, _replay(body), exchange.forward)
        except TimeoutError:
            raise DeadlineExceeded(f"No answer within {self._settings.request_timeout_seconds:g} s, the limit of this gateway") from None

    def _metrics_of(self, path: str) -> RouteMetrics:
        if path.startswith("/admin/sessions/"):
            path = "/admin/sessions/{id}"
        elif path.startswith("/models/"):
            path = "/models/{id}"
        return self._control_metrics.get(path) or self._control_metrics["other"]


def _control_path(path: str) -> tuple[str, str]:
    """The session that the path names, and the rest without its optional parts."""
    found = _PREFIX.match(path)
    assert found is not None
    return found.group(1) or "", path[found.end() :].rstrip("/") or "/"


def _check_utf8(body: bytes) -> None:
    """The parser behind would also take UTF-16 and UTF-32, whose ASCII has bytes that are 0."""
    try:
        if not body.isascii():
            body.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The request's body is not UTF-8: {error}; send one JSON object in UTF-8") from None
    if b"\0" in body:
        raise InvalidRequest("The request's body holds a byte 0, which JSON does not; send one JSON object in UTF-8")


def _replay(body: bytes) -> Receive:
    """An ASGI `receive` for a body that was read already; then silence, since the outer app watches the client."""
    given = False

    async def receive() -> Message:
        nonlocal given
        if given:
            await asyncio.Event().wait()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


async def _answer_error(exchange: Exchange, error: RlrunError | HttpError, *, detail: bool) -> None:
    if exchange.started:
        # The stream's own handler has said what it could; a second answer cannot follow.
        return
    await exchange.refuse(
        error.http_status, [JSON_TYPE, *error_headers(error)], error_body(error, detail=error.message if detail else None)
    )


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return

"""Puts the gateway on its port."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlrun import auth
from rlrun.errors import ConfigError
from rlrun.proto import router_pb2
from rlrun.service import Component, Membership, ServiceContext
from rlrun_gateway.admin import StoreQueries
from rlrun_gateway.asgi import create_app
from rlrun_gateway.server import HttpServer
from rlrun_gateway.settings import GatewaySettings


def settings_of(context: ServiceContext) -> GatewaySettings:
    """Raises:
    ConfigError: no admin key file is given.
    """
    if context.env.admin_key_file is None:
        raise ConfigError("RLRUN_ADMIN_KEY_FILE is not set; give the path of a file that holds the admin key", param="RLRUN_ADMIN_KEY_FILE")
    run = context.run.spec
    limits = run.gateway.limits
    return GatewaySettings(
        admin_key=auth.read_key_file(context.env.admin_key_file, variable="RLRUN_ADMIN_KEY_FILE"),
        model_name=run.model.name,
        max_body_bytes=limits.max_body_bytes,
        max_messages=limits.max_messages,
        max_concurrent_requests=limits.max_concurrent_requests,
        request_timeout_seconds=limits.request_timeout_seconds,
        keep_alive_seconds=limits.keep_alive_seconds,
        default_max_new_tokens=limits.default_max_new_tokens,
        move_timeout_seconds=run.router.lease_seconds + 5.0,
    )


class GatewayComponent:
    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        app = create_app(settings_of(context), context.router(), context.peers.session, StoreQueries(context.store))
        self._server = HttpServer(app, bind=context.bind, port=context.port)
        self._membership = Membership(context, router_pb2.ROLE_GATEWAY, lambda member: None)

    async def start(self) -> None:
        await self._membership.start()
        await self._server.start(self._context.spawn)

    async def drain(self) -> None:
        await self._server.stop()

    async def stop(self) -> None:
        await self._membership.stop()

    def status(self) -> Mapping[str, Any]:
        return {"address": self._context.advertise}


def build(context: ServiceContext) -> Component:
    return GatewayComponent(context)

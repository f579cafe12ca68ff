"""A gRPC server over interface implementations: a thin shell, one handler for every method."""

from __future__ import annotations

import hmac
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from rlrun.errors import ConfigError, Internal, RlrunError, Unauthenticated
from rlrun.rpc.tls import Security, is_loopback
from rlrun.rpc.wire import CHANNEL_OPTIONS, TOKEN_HEADER, Method, error_to_trailer, methods

log = logging.getLogger(__name__)


class RpcServer:
    """Serves implementations of the interfaces, and gRPC health, on one port.

    Raises:
        ConfigError: the address is not loopback and neither a service token nor TLS is configured, or the port is taken.
    """

    def __init__(self, *, bind: str, port: int, security: Security) -> None:
        if not (security.token or security.tls_dir) and not is_loopback(bind):
            raise ConfigError(
                f"RLRUN_BIND={bind}: plaintext without a token is served on loopback only; set RLRUN_SERVICE_TOKEN_FILE or RLRUN_TLS_DIR",
                param="RLRUN_BIND",
            )
        self._security = security
        self._server = grpc.aio.server(options=CHANNEL_OPTIONS, maximum_concurrent_rpcs=8192)
        self._health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        address = f"{bind}:{port}"
        credentials = security.server_credentials()
        try:
            self.port = self._server.add_secure_port(address, credentials) if credentials else self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {address}: {error}; is another process using the port?", param="RLRUN_PORT") from error

    def add(self, service: ServiceDescriptor, implementation: Any) -> None:
        """Exposes every method of `service` through `implementation`, an object of the matching interface."""
        handlers = {
            method.path.rpartition("/")[2]: self._handler(method, getattr(implementation, method.attribute)) for method in methods(service)
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))

    async def start(self) -> None:
        await self._server.start()
        await self.set_serving(True)

    async def set_serving(self, serving: bool) -> None:
        states = health_pb2.HealthCheckResponse
        await self._health.set("", states.SERVING if serving else states.NOT_SERVING)

    async def stop(self, grace_seconds: float) -> None:
        await self._server.stop(grace_seconds)

    def _handler(self, method: Method, implementation: Any) -> Any:
        serializers = {
            "request_deserializer": method.request_class.FromString,
            "response_serializer": method.response_class.SerializeToString,
        }
        if not method.streams:

            async def unary(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
                try:
                    self._authenticate(context)
                    return await implementation(request)
                except Exception as error:
                    await _abort(context, error, method.path)

            return grpc.unary_unary_rpc_method_handler(unary, **serializers)

        async def stream(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            try:
                self._authenticate(context)
                async with aclosing(implementation(request)) as events:
                    async for event in events:
                        yield event
            except Exception as error:
                await _abort(context, error, method.path)

        return grpc.unary_stream_rpc_method_handler(stream, **serializers)

    def _authenticate(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        if self._security.token is None:
            return
        for name, value in context.invocation_metadata() or ():
            if name == TOKEN_HEADER and isinstance(value, str) and hmac.compare_digest(value, self._security.token):
                return
        raise Unauthenticated("the service token is missing or wrong; all services of a run share RLRUN_SERVICE_TOKEN_FILE")


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: Exception, path: str) -> None:
    if not isinstance(error, RlrunError):
        log.exception("unhandled error in %s", path)
        error = Internal(f"internal error in {path}: {type(error).__name__}")
    await context.abort(error.grpc_status, error.message, trailing_metadata=error_to_trailer(error))

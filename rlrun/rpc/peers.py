"""Who can be called: services of this process directly, all others over one gRPC channel per peer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from rlrun.proto import inference_pb2, router_pb2, session_pb2, trainer_pb2
from rlrun.rpc.interfaces import InferenceService, RouterService, SessionService, TrainerService
from rlrun.rpc.tls import Security
from rlrun.rpc.wire import CHANNEL_OPTIONS, TOKEN_HEADER, error_from_rpc, methods

ROUTER = router_pb2.DESCRIPTOR.services_by_name["RouterService"]
SESSION = session_pb2.DESCRIPTOR.services_by_name["SessionService"]
INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
TRAINER = trainer_pb2.DESCRIPTOR.services_by_name["TrainerService"]


class Peers:
    """Finds the implementation behind an address. Share one per process; close it at the end."""

    def __init__(self, *, security: Security) -> None:
        self._security = security
        self._local: dict[tuple[str, str], Any] = {}
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._clients: dict[tuple[str, str], Any] = {}

    def publish(self, service: ServiceDescriptor, address: str, implementation: Any) -> None:
        """Lets callers in this process reach `implementation` without a socket."""
        self._local[service.name, address] = implementation

    def router(self, address: str) -> RouterService:
        return cast(RouterService, self._find(ROUTER, address))

    def session(self, address: str) -> SessionService:
        return cast(SessionService, self._find(SESSION, address))

    def inference(self, address: str) -> InferenceService:
        return cast(InferenceService, self._find(INFERENCE, address))

    def trainer(self, address: str) -> TrainerService:
        return cast(TrainerService, self._find(TRAINER, address))

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        self._clients.clear()
        for channel in channels.values():
            await channel.close()

    def _find(self, service: ServiceDescriptor, address: str) -> Any:
        key = (service.name, address)
        if (found := self._local.get(key) or self._clients.get(key)) is None:
            found = self._clients[key] = _Client(self._channel(address), service, peer=address, token=self._security.token)
        return found

    def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            # A name with several addresses (a headless Kubernetes service) is balanced over all of them.
            options = [*CHANNEL_OPTIONS, ("grpc.lb_policy_name", "round_robin")]
            credentials = self._security.channel_credentials()
            channel = (
                grpc.aio.secure_channel(address, credentials, options=options)
                if credentials
                else grpc.aio.insecure_channel(address, options=options)
            )
            self._channels[address] = channel
        return channel


class _Client:
    """Has one method per RPC, with the names and errors of the interface."""

    def __init__(self, channel: grpc.aio.Channel, service: ServiceDescriptor, *, peer: str, token: str | None) -> None:
        metadata = ((TOKEN_HEADER, token),) if token else None
        for method in methods(service):
            factory = channel.unary_stream if method.streams else channel.unary_unary
            call = factory(
                method.path,
                request_serializer=method.request_class.SerializeToString,
                response_deserializer=method.response_class.FromString,
            )
            name = f"{service.name} at {peer}"
            setattr(self, method.attribute, (_stream if method.streams else _unary)(call, name, metadata))


def _unary(call: Any, peer: str, metadata: Any) -> Callable[[Any], Awaitable[Any]]:
    async def invoke(request: Any) -> Any:
        try:
            return await call(request, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error, peer=peer) from None

    return invoke


def _stream(call: Any, peer: str, metadata: Any) -> Callable[[Any], AsyncIterator[Any]]:
    async def invoke(request: Any) -> AsyncIterator[Any]:
        stream = call(request, metadata=metadata)
        try:
            async for event in stream:
                yield event
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error, peer=peer) from None
        finally:
            stream.cancel()

    return invoke

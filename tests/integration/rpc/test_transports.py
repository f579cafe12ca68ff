"""The same interface, errors and cancellation over a socket and inside one process."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlrun.errors import ConfigError, NoCapacity, SessionMoved, Unauthenticated, Unavailable
from rlrun.proto import router_pb2, session_pb2
from rlrun.rpc import peers as rpc_peers
from rlrun.rpc.interfaces import RouterService, SessionService
from rlrun.rpc.peers import Peers
from rlrun.rpc.server import RpcServer
from rlrun.rpc.tls import Security


class FakeSessions:
    def __init__(self) -> None:
        self.closed = asyncio.Event()

    async def set_reward(self, request: session_pb2.SetRewardRequest) -> session_pb2.SetRewardResponse:
        if request.reward < 0:
            raise SessionMoved("stale fence", retry_after_seconds=0.25)
        return session_pb2.SetRewardResponse(interaction_id=request.interaction_id)

    async def generate_stream(self, request: session_pb2.GenerateRequest) -> AsyncIterator[session_pb2.GenerateEvent]:
        try:
            for index in range(1_000_000):
                yield session_pb2.GenerateEvent(delta=session_pb2.GenerateDelta(content=str(index)))
                await asyncio.sleep(0)
        finally:
            self.closed.set()

    def __getattr__(self, name: str) -> object:
        async def unused(request: object) -> object:
            raise NotImplementedError(name)

        return unused


@pytest.fixture(params=["grpc", "process"])
async def transport(request: pytest.FixtureRequest) -> AsyncIterator[SimpleNamespace]:
    sessions, security = FakeSessions(), Security(token="secret")
    client = Peers(security=security)
    server = RpcServer(bind="127.0.0.1", port=0, security=security)
    server.add(rpc_peers.SESSION, sessions)
    await server.start()
    address = f"127.0.0.1:{server.port}"
    if request.param == "process":
        client.publish(rpc_peers.SESSION, address, sessions)
    yield SimpleNamespace(service=client.session(address), sessions=sessions, address=address, kind=request.param)
    await client.close()
    await server.stop(0)


async def test_answer_and_error_are_the_same_on_both_transports(transport: SimpleNamespace) -> None:
    service: SessionService = transport.service
    answer = await service.set_reward(session_pb2.SetRewardRequest(interaction_id="i", reward=1))
    assert answer.interaction_id == "i"
    with pytest.raises(SessionMoved, match="stale fence") as raised:
        await service.set_reward(session_pb2.SetRewardRequest(reward=-1))
    assert raised.value.retry_after_seconds == 0.25


async def test_leaving_a_stream_ends_the_work_behind_it(transport: SimpleNamespace) -> None:
    stream = transport.service.generate_stream(session_pb2.GenerateRequest())
    received = [event.delta.content async for event in _take(stream, 3)]
    assert received == ["0", "1", "2"]
    await stream.aclose()
    async with asyncio.timeout(2):
        await transport.sessions.closed.wait()


async def _take(stream: AsyncIterator[session_pb2.GenerateEvent], count: int) -> AsyncIterator[session_pb2.GenerateEvent]:
    for _ in range(count):
        yield await anext(stream)


async def test_wrong_token_is_refused_and_a_dead_peer_is_unavailable() -> None:
    server = RpcServer(bind="127.0.0.1", port=0, security=Security(token="right"))
    server.add(rpc_peers.SESSION, FakeSessions())
    await server.start()
    client = Peers(security=Security(token="wrong"))
    service = client.session(f"127.0.0.1:{server.port}")
    with pytest.raises(Unauthenticated, match="RLRUN_SERVICE_TOKEN_FILE"):
        await service.set_reward(session_pb2.SetRewardRequest())
    await server.stop(0)
    with pytest.raises(Unavailable, match="SessionService at 127"):
        await service.set_reward(session_pb2.SetRewardRequest())
    await client.close()


def test_plaintext_without_token_is_loopback_only(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="loopback"):
        RpcServer(bind="0.0.0.0", port=0, security=Security())


async def test_overload_keeps_its_class_over_the_wire() -> None:
    class Full(FakeSessions):
        async def place_session(self, request: router_pb2.PlaceSessionRequest) -> router_pb2.PlaceSessionResponse:
            raise NoCapacity("no capacity", retry_after_seconds=3)

    server = RpcServer(bind="127.0.0.1", port=0, security=Security())
    server.add(rpc_peers.ROUTER, Full())
    await server.start()
    client = Peers(security=Security())
    service: RouterService = client.router(f"127.0.0.1:{server.port}")
    with pytest.raises(NoCapacity) as raised:
        await service.place_session(router_pb2.PlaceSessionRequest())
    assert raised.value.retry_after_seconds == 3
    await client.close()
    await server.stop(0)

"""Puts a DataProxy on its port."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from rlrun.models import model_directory
from rlrun.proto import router_pb2
from rlrun.rpc import peers
from rlrun.rpc.server import RpcServer
from rlrun.service import Component, Membership, ServiceContext
from rlrun.spec import RunSpec
from rlrun.trajectory import RewardStyle
from rlrun_dataproxy.dataproxy import DataProxy
from rlrun_dataproxy.options import DataProxyOptions
from rlrun_dataproxy.tokenizer import ChatTokenizer


def options_of(run: RunSpec, *, member_id: str) -> DataProxyOptions:
    tail = run.dataproxy.ephemeral_tail
    return DataProxyOptions(
        member_id=member_id,
        max_total_tokens=run.model.max_total_tokens,
        max_cached_sessions=run.dataproxy.max_cached_sessions,
        queue_trajectories=run.trainer is not None,
        reward_style=RewardStyle(run.rollout.reward_propagation.value),
        ephemeral_tail=re.compile(tail.pattern) if tail.enabled and tail.pattern else None,
        parse_tool_calls=run.model.tool_call_parser is not None,
        parse_reasoning=run.model.reasoning_parser is not None,
        call_timeout_seconds=run.gateway.limits.request_timeout_seconds,
    )


class DataProxyComponent:
    def __init__(self, context: ServiceContext) -> None:
        self._proxy = DataProxy(
            store=context.store,
            router=context.router(),
            connect=context.peers.inference,
            tokenizer=ChatTokenizer.load(model_directory(context.run.spec.model.uri)),
            options=options_of(context.run.spec, member_id=context.member_id),
        )
        self._server = RpcServer(bind=context.bind, port=context.port, security=context.security)
        self._server.add(peers.SESSION, self._proxy)
        context.peers.publish(peers.SESSION, context.advertise, self._proxy)
        self._membership = Membership(context, router_pb2.ROLE_DATAPROXY, self._observe)

    async def start(self) -> None:
        await self._server.start()
        await self._membership.start()

    async def drain(self) -> None:
        """Takes no new sessions and lets running calls end; the caller bounds the time."""
        await self._membership.drain()
        await self._server.set_serving(False)
        while self._proxy.num_running_calls:
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        # With the lease given back the sessions move to another replica at once.
        await self._membership.stop()
        await self._server.stop(grace_seconds=1)

    def status(self) -> Mapping[str, Any]:
        return {"running_calls": self._proxy.num_running_calls, "cached_sessions": self._proxy.num_cached_sessions}

    def _observe(self, member: router_pb2.Member) -> None:
        member.load = self._proxy.num_running_calls


def build(context: ServiceContext) -> Component:
    return DataProxyComponent(context)

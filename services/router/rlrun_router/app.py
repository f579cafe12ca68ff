"""Puts the Router on its port."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlrun.proto import router_pb2
from rlrun.rpc import peers
from rlrun.rpc.server import RpcServer
from rlrun.service import Component, Membership, ServiceContext
from rlrun.spec import RunSpec
from rlrun.store import Admission, AdmissionMode
from rlrun_router.router import Router, RouterSettings
from rlrun_router.sweeper import Sweeper


def settings_of(run: RunSpec) -> RouterSettings:
    rollout, trainer = run.rollout, run.trainer
    return RouterSettings(
        lease_seconds=run.router.lease_seconds,
        admission=Admission(
            mode=AdmissionMode(rollout.admission.value),
            max_concurrent=rollout.max_concurrent_sessions,
            max_staleness=rollout.max_head_off_policyness,
            batch_size=trainer.batch_size if trainer else 1,
        ),
        refresh_timeout_seconds=rollout.refresh_timeout_seconds,
        queue_finished=trainer is not None,
    )


class RouterComponent:
    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._router = Router(context.store, settings_of(context.run.spec))
        self._server = RpcServer(bind=context.bind, port=context.port, security=context.security)
        self._server.add(peers.ROUTER, self._router)
        context.peers.publish(peers.ROUTER, context.router_address, self._router)
        self._membership = Membership(context, router_pb2.ROLE_ROUTER, lambda member: None)
        self._sweeper = Sweeper(context.store, context.run.spec)

    async def start(self) -> None:
        await self._server.start()
        await self._membership.start()
        self._context.spawn(self._sweeper.run(), name="sweeper")

    async def drain(self) -> None:
        await self._server.set_serving(False)

    async def stop(self) -> None:
        await self._membership.stop()
        await self._server.stop(grace_seconds=1)

    def status(self) -> Mapping[str, Any]:
        return {"address": self._context.advertise, "swept": self._sweeper.num_swept}


def build(context: ServiceContext) -> Component:
    return RouterComponent(context)

"""Puts the trainer on its port."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from rlrun.proto import common_pb2, router_pb2, trainer_pb2
from rlrun.rpc import peers
from rlrun.rpc.server import RpcServer
from rlrun.service import Component, Membership, ServiceContext
from rlrun_trainer.loop import TrainingLoop, directories_of


class TrainerControl:
    """Implements TrainerService over the loop."""

    def __init__(self, loop: TrainingLoop) -> None:
        self._loop = loop

    async def get_status(self, request: common_pb2.Empty) -> trainer_pb2.TrainerStatus:
        return self.snapshot()

    async def checkpoint(self, request: common_pb2.Empty) -> trainer_pb2.TrainerStatus:
        await self._loop.checkpoint()
        return self.snapshot()

    async def pause(self, request: common_pb2.Empty) -> trainer_pb2.TrainerStatus:
        self._loop.paused = True
        return self.snapshot()

    async def resume(self, request: common_pb2.Empty) -> trainer_pb2.TrainerStatus:
        self._loop.paused = False
        return self.snapshot()

    async def stop(self, request: common_pb2.Empty) -> trainer_pb2.TrainerStatus:
        await self._loop.stop()
        return self.snapshot()

    def snapshot(self) -> trainer_pb2.TrainerStatus:
        loop = self._loop
        return trainer_pb2.TrainerStatus(
            step=loop.step,
            policy_version=loop.version,
            total_steps=loop.total_steps,
            paused=loop.paused,
            buffered=loop.num_buffered,
            phase=loop.phase,
            metrics=loop.metrics,
        )


class TrainerComponent:
    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._loop = TrainingLoop(context.store, context.run, directories_of(context.run))
        self._control = TrainerControl(self._loop)
        self._server = RpcServer(bind=context.bind, port=context.port, security=context.security)
        self._server.add(peers.TRAINER, self._control)
        context.peers.publish(peers.TRAINER, context.advertise, self._control)
        self._membership = Membership(context, router_pb2.ROLE_TRAINER, self._observe)
        self._training: asyncio.Task[Any] | None = None

    async def start(self) -> None:
        await self._loop.load()
        await self._server.start()
        await self._membership.start()
        self._training = self._context.spawn(self._loop.run(), name="training")

    async def drain(self) -> None:
        """Finishes the step under way, keeps it in a checkpoint and lets the other ranks end. Raises what the training died of."""
        self._loop.stopping = True
        if self._training is not None:
            await self._training
        await self._loop.release_ranks()

    async def stop(self) -> None:
        await self._membership.stop()
        await self._server.stop(grace_seconds=1)

    def status(self) -> Mapping[str, Any]:
        snapshot = self._control.snapshot()
        return {
            "step": snapshot.step,
            "policy_version": snapshot.policy_version,
            "phase": snapshot.phase,
            "metrics": dict(snapshot.metrics),
        }

    def _observe(self, member: router_pb2.Member) -> None:
        member.load, member.policy_version = self._loop.num_buffered, self._loop.version


def build(context: ServiceContext) -> Component:
    return TrainerComponent(context)

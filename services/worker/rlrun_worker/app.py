"""Puts an engine on its port: serves the newest policy version, and follows the ones that come."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlrun.errors import ConfigError, RlrunError
from rlrun.models import model_directory
from rlrun.proto import common_pb2, inference_pb2, router_pb2
from rlrun.rpc import peers
from rlrun.rpc.server import RpcServer
from rlrun.service import Component, Membership, ServiceContext
from rlrun.spec import Device, RunSpec, UpdateMode
from rlrun_worker.engine import EngineAdapter
from rlrun_worker.service import InferenceWorker

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
STATUS_SECONDS = 0.5


def engine_of(run: RunSpec) -> EngineAdapter:
    """Raises:
    ConfigError: the engine has no adapter in this build.
    """
    engine = run.worker.engine
    if engine.name != "torch":
        raise ConfigError(f"spec.worker.engine.name: {engine.name} has no adapter yet; use torch", param="spec.worker.engine.name")
    if run.worker.update_policy.mode is not UpdateMode.CONTINUE:
        raise ConfigError(
            f"spec.worker.updatePolicy.mode: {run.worker.update_policy.mode} is not available yet; use Continue",
            param="spec.worker.updatePolicy.mode",
        )
    pool, context = engine.max_total_tokens, run.model.max_total_tokens
    torch_engine = importlib.import_module("rlrun_worker.torch_engine")
    torch = importlib.import_module("torch")
    cuda = engine.device is Device.CUDA or (engine.device is Device.AUTO and torch.cuda.is_available())
    adapter: EngineAdapter = torch_engine.TorchEngine(
        torch_engine.TorchEngineOptions(
            model_path=model_directory(run.model.uri),
            name=run.model.name,
            device="cuda" if cuda else "cpu",
            num_slots=engine.max_running if pool is None else min(engine.max_running, pool // context),
            max_len_tokens=context,
            max_waiting=engine.max_waiting,
            num_threads=engine.num_threads or 0,
        )
    )
    return adapter


class WorkerComponent:
    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._engine = engine_of(context.run.spec)
        self._worker = InferenceWorker(self._engine)
        self._server = RpcServer(bind=context.bind, port=context.port, security=context.security)
        self._server.add(peers.INFERENCE, self._worker)
        context.peers.publish(peers.INFERENCE, context.advertise, self._worker)
        self._membership = Membership(context, router_pb2.ROLE_WORKER, self._observe)
        self._status = inference_pb2.WorkerStatus()

    async def start(self) -> None:
        """Not ready, and not registered, before the current policy version is in place."""
        await self._engine.start()
        if (policy := await self._context.store.policy.current()) is not None:
            await self._engine.load_weights(policy.version, Path(policy.path))
        await self._refresh()
        await self._server.start()
        await self._membership.start()
        self._context.spawn(self._follow_policy(), name="policy watch")
        self._context.spawn(self._refresh_often(), name="engine status")

    async def drain(self) -> None:
        await self._membership.drain()
        await self._server.set_serving(False)
        while self._status.running or self._status.waiting:
            await asyncio.sleep(0.1)
            await self._refresh()

    async def stop(self) -> None:
        await self._membership.stop()
        await self._server.stop(grace_seconds=1)
        await self._engine.close()

    def status(self) -> Mapping[str, Any]:
        return {field.name: getattr(self._status, field.name) for field in self._status.DESCRIPTOR.fields}

    def _observe(self, member: router_pb2.Member) -> None:
        member.load = self._status.running + self._status.waiting
        member.capacity = self._context.run.spec.worker.engine.max_running
        member.policy_version = self._status.policy_version
        member.fingerprint = self._status.fingerprint

    async def _refresh(self) -> None:
        self._status = await self._worker.get_status(common_pb2.Empty())

    async def _refresh_often(self) -> None:
        while True:
            await asyncio.sleep(STATUS_SECONDS)
            await self._refresh()

    async def _follow_policy(self) -> None:
        """A version that cannot be loaded is reported and skipped: the worker goes on with the one it has."""
        skipped = -1
        while True:
            known = max(self._status.policy_version, skipped)
            try:
                async for update in self._context.router().watch_policy(router_pb2.WatchPolicyRequest(known_version=known)):
                    try:
                        await self._engine.load_weights(update.version, Path(update.path))
                    except RlrunError as error:
                        skipped = update.version
                        log.error("version %d is not served: %s", update.version, error)
                    await self._refresh()
                    await self._membership.report()
            except RlrunError as error:
                log.warning("policy watch interrupted: %s", error)
            await asyncio.sleep(RETRY_SECONDS)


def build(context: ServiceContext) -> Component:
    return WorkerComponent(context)

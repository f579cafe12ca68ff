"""Ends what nobody ends: idle sessions, finished ones without reward, old records. Safe to run in every replica."""

from __future__ import annotations

import asyncio
import logging

from rlrun.errors import StoreUnavailable
from rlrun.spec import RunSpec
from rlrun.store import Store

log = logging.getLogger(__name__)

SWEEP_SECONDS = 5.0
BATCH = 100


class Sweeper:
    def __init__(self, store: Store, run: RunSpec) -> None:
        self._store = store
        self._rollout = run.rollout
        self._queue = run.trainer is not None
        self.num_swept = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self.sweep()
            except StoreUnavailable as error:
                log.warning("sweep put off: %s", error)

    async def sweep(self) -> None:
        """One pass: bounded work, the rest waits for the next one."""
        swept = await self._store.sessions.sweep(
            idle_seconds=self._rollout.session_timeout_seconds,
            finished_seconds=self._rollout.session_timeout_seconds,
            limit=BATCH,
            queue=self._queue,
        )
        self.num_swept += len(swept)
        for session in swept:
            log.info("session %s is %s now %s", session.session_id, session.state, session.reason)
        await self._store.sessions.delete_old(retention_seconds=self._rollout.finished_retention_seconds, limit=BATCH)

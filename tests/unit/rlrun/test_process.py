"""The life cycle of components that do not behave."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from typing import Any

import pytest

from rlrun.local.supervisor import free_port
from rlrun.service import Component, Process


class Recorder:
    """A component that notes what is asked of it."""

    def __init__(self, notes: list[str], name: str) -> None:
        self._notes, self._name = notes, name

    async def start(self) -> None:
        self._notes.append(f"{self._name} start")

    async def drain(self) -> None:
        self._notes.append(f"{self._name} drain")

    async def stop(self) -> None:
        self._notes.append(f"{self._name} stop")

    def status(self) -> Mapping[str, Any]:
        return {}


class NeverStarts(Recorder):
    async def start(self) -> None:
        await super().start()
        await asyncio.Event().wait()


class CannotDrain(Recorder):
    async def drain(self) -> None:
        raise RuntimeError("its loop died before")


async def run(components: Mapping[str, Component]) -> None:
    await Process(components, [], bind="127.0.0.1", ops_port=free_port()).run()


async def test_a_signal_ends_a_process_that_is_still_starting() -> None:
    notes: list[str] = []
    asyncio.get_running_loop().call_later(0.2, os.kill, os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(5):
        await run({"a": Recorder(notes, "a"), "b": NeverStarts(notes, "b")})
    assert notes == ["a start", "b start", "b drain", "a drain", "b stop", "a stop"]


async def test_what_fails_to_drain_holds_nobody_back(caplog: pytest.LogCaptureFixture) -> None:
    notes: list[str] = []
    asyncio.get_running_loop().call_later(0.2, os.kill, os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(5):
        await run({"a": Recorder(notes, "a"), "b": CannotDrain(notes, "b")})
    assert notes == ["a start", "b start", "a drain", "b stop", "a stop"]
    assert "b: drain failed" in caplog.text
    assert "its loop died before" in caplog.text


async def test_a_failed_start_is_what_the_process_ends_with_and_everything_is_given_back() -> None:
    class Fails(Recorder):
        async def start(self) -> None:
            raise OSError("no such device")

    notes: list[str] = []
    with pytest.raises(OSError, match="no such device"):
        await run({"a": Recorder(notes, "a"), "b": Fails(notes, "b")})
    assert notes == ["a start", "b drain", "a drain", "b stop", "a stop"]

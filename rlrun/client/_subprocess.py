"""An agent in a process of its own: JSON on its standard input, JSON on its standard output, no pickle."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from rlrun.errors import DeadlineExceeded, Internal, InvalidRequest
from rlrun.local.processes import inherited_environ

_STDERR_TAIL_BYTES = 4000


class AgentFailed(Internal):
    """The agent raised, or its process ended without an answer; the message ends with the tail of its standard error."""


async def run_in_subprocess(agent: str, data: Mapping[str, Any], environment: Mapping[str, str], *, timeout_seconds: float) -> object:
    """Returns what the agent's `run` returned. The process is killed when the time is up or the caller is cancelled."""
    try:
        task = msgspec.json.encode({"agent": agent, "data": data})
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"data for a subprocess agent must be JSON: {error}", param="data") from error
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "rlrun.client._child",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_environ(environment),
    )
    try:
        async with asyncio.timeout(timeout_seconds):
            output, errors = await process.communicate(task)
    except TimeoutError as error:
        raise DeadlineExceeded(f"agent {agent}: no reward within {timeout_seconds:g} s; its process was killed") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    tail = errors[-_STDERR_TAIL_BYTES:].decode(errors="replace").strip()
    if process.returncode != 0:
        raise AgentFailed(f"agent {agent}: process ended with {process.returncode}\n{tail}")
    try:
        return msgspec.json.decode(output, type=dict[str, Any])["reward"]
    except (msgspec.DecodeError, KeyError) as error:
        raise AgentFailed(f"agent {agent}: process gave no reward\n{tail}") from error


def _environ(session: Mapping[str, str]) -> dict[str, str]:
    """Ours with the session's variables, without rlrun's own keys and addresses and without a token that the SDK would send as well."""
    environ = {**inherited_environ(), **session}
    environ.pop("ANTHROPIC_AUTH_TOKEN", None)
    return environ

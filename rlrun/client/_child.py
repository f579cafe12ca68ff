"""The agent's process: `python -m rlrun.client._child`, started by `run_in_subprocess`."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import msgspec

from rlrun.client._agent import checked_rewards, load_agent


class _Task(msgspec.Struct, forbid_unknown_fields=True):
    agent: str
    data: dict[str, Any]


def main() -> None:
    # What the agent prints goes to standard error; the answer has the old standard output for itself.
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)
        task = msgspec.json.decode(sys.stdin.buffer.read(), type=_Task)
        sys.path.insert(0, os.getcwd())
        rewards = checked_rewards(asyncio.run(_run(task)))
        answer.write(msgspec.json.encode({"reward": rewards}))


async def _run(task: _Task) -> object:
    return await load_agent(task.agent).run(task.data)


if __name__ == "__main__":
    main()

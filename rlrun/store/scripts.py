"""The Lua scripts: put together from their parts, called by hash, loaded again when Redis lost them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from rlrun.store.keys import SCHEMA
from rlrun.store.states import SessionEvent, lua_rules

_FOLDER = files("rlrun.store") / "lua"
Argument = str | bytes | int | float


@dataclass(frozen=True, slots=True)
class Script:
    source: str
    sha: str


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text()


def load_script(name: str) -> Script:
    """`lua/<name>.lua` after the common part, the schema number, the rules that it uses and the parts that it says it needs."""
    body = _read(name)
    parts = [_read("_base"), f"local SCHEMA={SCHEMA}"]
    needed = re.search(r"^-- needs: (.+)$", body, re.MULTILINE)
    parts += [_read(f"_{part.strip()}") for part in needed.group(1).split(",")] if needed else []
    events = frozenset(SessionEvent(event) for event in re.findall(r"\bRULES\.([A-Z_]+)", body))
    if events:
        parts.append(lua_rules(events))
    source = "\n".join([*parts, body])
    return Script(source, hashlib.sha1(source.encode()).hexdigest())


class Scripts:
    """Runs scripts for one run; the only key a script is given is the run's prefix, which fixes the slot."""

    def __init__(self, redis: Redis, prefix: str) -> None:
        self._redis = redis
        self._prefix = prefix
        self._scripts: dict[str, Script] = {}

    def script(self, name: str) -> Script:
        if name not in self._scripts:
            self._scripts[name] = load_script(name)
        return self._scripts[name]

    async def run(self, name: str, *arguments: Argument) -> Any:
        script = self.script(name)
        try:
            return await self._redis.evalsha(script.sha, 1, self._prefix, *arguments)
        except NoScriptError:
            return await self._redis.eval(script.source, 1, self._prefix, *arguments)

    async def run_many(self, name: str, calls: Sequence[Sequence[Argument]]) -> list[Any]:
        """One round trip for all calls; each result is an answer or the exception of that call."""
        script = self.script(name)
        for attempt in range(2):
            async with self._redis.pipeline(transaction=False) as pipeline:
                if attempt:
                    pipeline.script_load(script.source)
                for arguments in calls:
                    pipeline.evalsha(script.sha, 1, self._prefix, *arguments)
                results = await pipeline.execute(raise_on_error=False)
            if not any(isinstance(result, NoScriptError) for result in results):
                return results[attempt:]
        raise NoScriptError(f"script {name} cannot be loaded")

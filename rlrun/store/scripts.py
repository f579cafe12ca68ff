"""The Lua scripts: one file per transition. Each gets the base and the rules of `states.py` that it names."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib import resources

from rlrun.store.keys import SCHEMA
from rlrun.store.states import SessionEvent, lua_rules

_FILES = resources.files(__package__) / "lua"
_NEEDS = re.compile(r"^-- needs: (.+)$", re.MULTILINE)
_RULES = re.compile(r"\bRULES\.([A-Z_]+)")


@dataclass(frozen=True, kw_only=True)
class Script:
    """`sha` is what EVALSHA wants: the SHA-1 of `source`."""

    name: str
    source: str
    sha: str


def load(name: str) -> Script:
    """Builds the script of `lua/<name>.lua`."""
    body = (_FILES / f"{name}.lua").read_text(encoding="utf-8")
    parts = [f"local SCHEMA={SCHEMA}"]
    if events := frozenset(SessionEvent(found) for found in _RULES.findall(body)):
        parts.append(lua_rules(events))
    needed = _NEEDS.search(body)
    pieces = ("base", *(needed.group(1).split() if needed else ()))
    parts += [(_FILES / f"_{piece}.lua").read_text(encoding="utf-8") for piece in pieces]
    source = "\n".join([*parts, body])
    return Script(name=name, source=source, sha=hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def names() -> list[str]:
    """All transitions, for tests and for loading them at the start."""
    return sorted(
        file.name.removesuffix(".lua") for file in _FILES.iterdir() if file.name.endswith(".lua") and not file.name.startswith("_")
    )

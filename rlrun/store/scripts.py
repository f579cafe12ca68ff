"""The Lua scripts: one file per transition, put together from their parts."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files

from rlrun.store.keys import SCHEMA
from rlrun.store.states import SessionEvent, lua_rules

_FOLDER = files("rlrun.store") / "lua"
_NEEDS = re.compile(r"^-- needs: (.+)$", re.MULTILINE)
_RULES = re.compile(r"\bRULES\.([A-Z_]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """`sha` is what EVALSHA wants: the SHA-1 of `source`."""

    name: str
    source: str
    sha: str


def load_script(name: str) -> Script:
    """`lua/<name>.lua` after the schema number, the rules of `states.py` that it uses, the base, and the parts that it says it needs."""
    body = _read(name)
    parts = [f"local SCHEMA={SCHEMA}"]
    if events := frozenset(SessionEvent(found) for found in _RULES.findall(body)):
        parts.append(lua_rules(events))
    needed = _NEEDS.search(body)
    parts += [_read(f"_{part}") for part in ("base", *(needed.group(1).split() if needed else ()))]
    source = "\n".join([*parts, body])
    return Script(name=name, source=source, sha=hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def script_names() -> list[str]:
    """All transitions; files that start with an underscore are parts."""
    found = (file.name for file in _FOLDER.iterdir() if file.name.endswith(".lua") and not file.name.startswith("_"))
    return sorted(name.removesuffix(".lua") for name in found)


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")

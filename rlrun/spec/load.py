"""From a YAML file to a checked RLRun; every way to get it wrong has a message."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from rlrun.errors import ConfigError
from rlrun.spec.messages import format_errors, render
from rlrun.spec.run import API_VERSION, KIND, RLRun

MAX_DOCUMENT_BYTES = 1024 * 1024
MAX_NUMBER_LENGTH = 100  # Python refuses to read integers of thousands of digits


def load(path: str | Path) -> RLRun:
    """Reads and checks a document.

    Raises:
        ConfigError: the file cannot be read or the document is wrong; the message lists every fault, one a line.
    """
    source = str(path)
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{source}: {error.strerror}; give the path of an RLRun document", param=source) from error
    if len(data) > MAX_DOCUMENT_BYTES:
        raise ConfigError(
            f"{source}: larger than {MAX_DOCUMENT_BYTES} bytes; an RLRun document has a few kB: is it the right file?", param=source
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: byte {error.start} is not UTF-8; save the file as UTF-8", param=source) from error
    return loads(text, source=source)


def loads(text: str, *, source: str = "document") -> RLRun:
    """Checks a document given as YAML (or JSON, which is YAML). Raises as `load`."""
    return parse(_read_yaml(text, source), source=source)


def parse(document: object, *, source: str = "document") -> RLRun:
    """Checks a document given as plain values, as YAML or the Kubernetes API give it. Raises as `load`."""
    if not isinstance(document, Mapping):
        raise ConfigError(f"{source}: got {render(document)}; must be an object with apiVersion, kind, metadata and spec", param=source)
    for name, expected in (("kind", KIND), ("apiVersion", API_VERSION)):
        given = document.get(name)
        if given != expected:
            got = f"got {render(given)}" if name in document else "missing"
            raise ConfigError(f"{source}: {name}: {got}; must be {expected}; correct it, or give an RLRun document", param=name)
    try:
        return RLRun.model_validate_json(json.dumps(document, default=str), strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        raise ConfigError(f"{source}:\n{format_errors(error, RLRun)}", param=source) from error


def _read_yaml(text: str, source: str) -> object:
    try:
        documents = [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        remedy = "" if "; " in str(error.problem) else "; correct the YAML"
        raise ConfigError(f"{source}: {where}{error.problem}{remedy}", param=source) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not YAML ({error}); correct it", param=source) from error
    except RecursionError as error:
        raise ConfigError(f"{source}: nested too deeply; an RLRun document has fewer than ten levels", param=source) from error
    if not documents:
        raise ConfigError(f"{source}: empty; write an RLRun document, see examples/", param=source)
    if len(documents) > 1:
        raise ConfigError(f"{source}: holds {len(documents)} YAML documents; keep one RLRun per file", param=source)
    return documents[0]


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2, unique keys, no tags, and no aliases (which can expand without bound)."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _fault("aliases are not supported; repeat the value", event)
        if getattr(event, "tag", None) is not None:
            raise _fault(f"tag {event.tag} is not supported; remove it", event)
        if isinstance(event, yaml.ScalarEvent):
            if len(event.value) > MAX_NUMBER_LENGTH and event.implicit[0] and event.value.lstrip("+-").isdigit():
                raise _fault(f"number of {len(event.value)} digits; shorten it, or put it in quotes", event)
            if any("\ud800" <= character <= "\udfff" for character in event.value):
                raise _fault("half of a surrogate pair is no character; write the whole character", event)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _fault(f"field name {key!r} is not a string; put it in quotes", key_node)
            if key in seen:
                raise _fault(f"field {key!r} is given twice; remove one", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def _fault(problem: str, where: yaml.Node | yaml.Event) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=where.start_mark)  # type: ignore[arg-type]


def _construct_float(loader: _Loader, node: yaml.ScalarNode) -> float:
    text = str(loader.construct_scalar(node)).lower()
    special = {".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}
    return special[text] if text in special else float(text)


_Loader.yaml_implicit_resolvers = {}
# SafeLoader reads YAML 1.1, where `1e-5` is a string, `1:30` is 90 and `no` is false; kubectl and JSON disagree.
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first)
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)

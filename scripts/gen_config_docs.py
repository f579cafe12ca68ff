"""Generates docs/configuration.md from rlrun/spec; `--check` fails if the committed page differs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlrun.spec import json_schema

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "configuration.md"

HEAD = """# Configuration

One document, `RLRun`, configures everything: `rlrun up -f rlrun.yaml`, docker compose (mounted) and `kubectl apply -f rlrun.yaml`
read the same file. `rlrun validate -f rlrun.yaml` lists every fault of a document with its field, value, limit and remedy.
`rlrun schema` prints the JSON Schema for editors. Every field that has a default may be left out.

This page is generated from `rlrun/spec` by `scripts/gen_config_docs.py`; edit the models, not the page.

The smallest document:

```yaml
apiVersion: rlrun.dev/v1alpha1
kind: RLRun
metadata: {name: demo}
spec:
  model: {uri: "tiny://digits"}
```
"""

VARIABLES = """## Process-level variables

A service reads these from its environment; `rlrun up`, the compose file and the operator set them. Any other variable that begins
with `RLRUN_` is an error. An empty variable counts as absent.

| variable | default | meaning |
|---|---|---|
| `RLRUN_CONFIG` | | path of the RLRun document |
| `RLRUN_BIND` | `127.0.0.1` | address to listen on |
| `RLRUN_PORT` | the service's own | port, 1 to 65535 |
| `RLRUN_OPS_PORT` | the service's own | port of `/healthz`, `/readyz`, `/metrics`, `/status` |
| `RLRUN_ADVERTISE` | | address at which other services reach this one |
| `RLRUN_REDIS_URL` | `spec.redis.url` | `redis://`, `rediss://` or `unix://`; may hold a password |
| `RLRUN_ROUTER` | | `host:port` of every Router, separated by commas |
| `RLRUN_ADMIN_KEY_FILE` | | file with the admin key |
| `RLRUN_SERVICE_TOKEN_FILE` | | file with the token that services show each other |
| `RLRUN_TLS_DIR` | | directory with `tls.crt`, `tls.key`, `ca.crt` for mTLS between services |
| `RLRUN_LOG_FORMAT` | `text` | `text` or `json` |
| `RLRUN_LOG_LEVEL` | `INFO` | `DEBUG`, `INFO`, `WARNING` or `ERROR` |

The command line's client commands also read `RLRUN_URL` (the gateway's base URL) and `RLRUN_SESSION_KEY`; services pass over both.
"""


def page() -> str:
    schema = json_schema()
    definitions: dict[str, Any] = schema["$defs"]
    sections = [_section("RLRun", "", schema, definitions)]
    sections += [_section(path, f"`{path}`", node, definitions) for path, node in _objects("", schema, definitions)]
    return "\n".join([HEAD, *sections, VARIABLES])


def _objects(path: str, node: dict[str, Any], definitions: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of the document with its path, in the document's order, depth first."""
    for name, field in node.get("properties", {}).items():
        for suffix, child in _children(field, definitions):
            child_path = f"{path}.{name}".lstrip(".") + suffix
            yield child_path, child
            yield from _objects(child_path, child, definitions)


def _children(field: dict[str, Any], definitions: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    if "discriminator" in field:
        yield "", _merge([_resolve(variant, definitions) for variant in field["oneOf"]])
        return
    for variant in _variants(field):
        suffix, variant = ("[]", variant["items"]) if variant.get("type") == "array" else ("", variant)
        resolved = _resolve(variant, definitions)
        if "properties" in resolved:
            yield suffix, resolved


def _merge(variants: list[dict[str, Any]]) -> dict[str, Any]:
    """One object for a union told apart by `name`; a default that depends on the name is spelled out as `x-defaults`."""
    names = [variant["properties"]["name"]["const"] for variant in variants]
    properties: dict[str, Any] = {"name": {"enum": names, "description": "Which algorithm; sets the defaults of the other fields."}}
    for field_name, field in variants[0]["properties"].items():
        if field_name == "name":
            continue
        defaults = {name: variant["properties"][field_name].get("default") for name, variant in zip(names, variants, strict=True)}
        differs = any(default != defaults[names[0]] for default in defaults.values())
        properties[field_name] = {**field, "x-defaults": defaults} if differs else field
    descriptions = " ".join(f"`{name}`: {variant['description']}" for name, variant in zip(names, variants, strict=True))
    return {"description": descriptions, "properties": properties, "required": ["name"]}


def _variants(field: dict[str, Any]) -> list[dict[str, Any]]:
    return [variant for variant in field.get("anyOf") or field.get("oneOf") or [field] if variant.get("type") != "null"]


def _resolve(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in node:
        return node
    resolved: dict[str, Any] = definitions[node["$ref"].rpartition("/")[2]]
    return resolved


def _section(path: str, title: str, node: dict[str, Any], definitions: dict[str, Any]) -> str:
    lines = [f"## {title or path}", "", node.get("description", ""), "", "| field | type | default | meaning |", "|---|---|---|---|"]
    required = set(node.get("required", []))
    for name, field in node.get("properties", {}).items():
        default = "required" if name in required else _default(field, definitions)
        cells = (f"`{name}`", _type(field, definitions), default, _meaning(field, definitions))
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _meaning(field: dict[str, Any], definitions: dict[str, Any]) -> str:
    """The field's description; pydantic leaves out one that repeats its object's."""
    if "description" in field:
        return str(field["description"])
    return next((str(child["description"]) for _, child in _children(field, definitions)), "")


def _default(field: dict[str, Any], definitions: dict[str, Any]) -> str:
    if "x-defaults" in field:
        shown = {
            name: {"default": default} if default is None else {**field, "default": default}
            for name, default in field["x-defaults"].items()
        }
        return ", ".join(
            f"{name}: {_default({k: v for k, v in one.items() if k != 'x-defaults'}, definitions)}" for name, one in shown.items()
        )
    default = field.get("default")
    if "discriminator" in field and isinstance(default, dict):
        return f"name: {default['name']}"
    if isinstance(default, dict):
        given = {name: value for name, value in default.items() if value is not None and value != _own_default(field, name, definitions)}
        return f"`{json.dumps(given)}`" if given else "its defaults" if default else "`{}`"
    return f"`{json.dumps(default)}`" if not isinstance(default, str) else f"`{default}`"


def _own_default(field: dict[str, Any], name: str, definitions: dict[str, Any]) -> Any:
    """What the field's object gives the name where nothing is set."""
    for _, child in _children(field, definitions):
        return child["properties"].get(name, {}).get("default")
    return None


def _type(field: dict[str, Any], definitions: dict[str, Any]) -> str:
    if "discriminator" in field:
        return "object, by name: " + ", ".join(_resolve(variant, definitions)["properties"]["name"]["const"] for variant in field["oneOf"])
    nullable = any(variant.get("type") == "null" for variant in field.get("anyOf", []))
    text = " or ".join(_plain_type(_resolve(variant, definitions), definitions) for variant in _variants(field))
    return f"{text} or null" if nullable else text


def _plain_type(node: dict[str, Any], definitions: dict[str, Any]) -> str:
    if "const" in node:
        return f"`{node['const']}`"
    if "enum" in node:
        return ", ".join(f"`{value}`" for value in node["enum"])
    if node.get("type") == "array":
        return "list of " + _plain_type(_resolve(node["items"], definitions), definitions)
    if node.get("type") == "object" and "properties" not in node and isinstance(node.get("additionalProperties"), dict):
        return "map of strings"
    bounds = [
        f"{sign} {node[key]}"
        for key, sign in (("exclusiveMinimum", ">"), ("minimum", ">="), ("exclusiveMaximum", "<"), ("maximum", "<="))
        if key in node
    ]
    return " ".join([str(node.get("type", "any")), ", ".join(bounds)]).strip()


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        if not TARGET.is_file() or TARGET.read_text() != text:
            print(f"{TARGET.relative_to(ROOT)} is stale; run scripts/gen_config_docs.py and commit the result", file=sys.stderr)
            return 1
        return 0
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

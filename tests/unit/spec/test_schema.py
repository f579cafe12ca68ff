import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlrun.spec import RLRun, json_schema, loads

ROOT = Path(__file__).parents[3]


def walk(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for child in node.values():
            yield from walk(child)
    elif isinstance(node, list):
        for child in node:
            yield from walk(child)


def properties() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, definition in json_schema()["$defs"].items():
        for field, schema in definition.get("properties", {}).items():
            yield name, field, schema


def test_the_schema_refuses_unknown_fields_in_every_object() -> None:
    objects = [node for node in walk(json_schema()) if node.get("type") == "object" and "properties" in node]
    assert len(objects) > 20
    assert [node["title"] for node in objects if node.get("additionalProperties") is not False] == []


def test_every_reference_resolves() -> None:
    schema = json_schema()
    references = {node["$ref"] for node in walk(schema) if isinstance(node.get("$ref"), str)}
    assert {reference.rpartition("/")[2] for reference in references} <= schema["$defs"].keys()


def test_every_field_is_described() -> None:
    for model, field, schema in properties():
        assert schema.get("description") or "$ref" in schema, f"{model}.{field}"


def test_fields_are_camel_case_and_enum_values_begin_with_a_capital() -> None:
    for model, field, _ in properties():
        assert field[0].islower(), f"{model}.{field}"
        assert "_" not in field, f"{model}.{field}"
    enums = {name: definition["enum"] for name, definition in json_schema()["$defs"].items() if "enum" in definition}
    for name, values in enums.items():
        assert all(value[0].isupper() and value.isalnum() for value in values), name


def test_every_string_and_list_is_bounded() -> None:
    # Kubernetes prices validation rules by these bounds.
    for node in walk(json_schema()):
        if node.get("type") == "string" and not {"enum", "const"} & node.keys() and "title" in node:
            assert "maxLength" in node or "pattern" in node, node
        if node.get("type") == "array":
            assert "maxItems" in node, node


def test_every_default_is_in_the_schema() -> None:
    for name, definition in json_schema()["$defs"].items():
        required = definition.get("required", [])
        for field, schema in definition.get("properties", {}).items():
            assert field in required or "default" in schema, f"{name}.{field}"


def test_defaults_satisfy_their_own_rules() -> None:
    run = loads('{"apiVersion": "rlrun.dev/v1alpha1", "kind": "RLRun", "metadata": {"name": "a"}, "spec": {"model": {"uri": "tiny://a"}}}')
    assert RLRun.model_validate(run.model_dump(by_alias=True)) == run


def test_the_configuration_page_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "gen_config_docs.py", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

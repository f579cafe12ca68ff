"""The document's JSON Schema, from which the CRD, the editor schema and docs/configuration.md are made."""

from __future__ import annotations

from typing import Any

from rlrun.spec.run import RLRun


def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 with the document's field names; defaults and limits included."""
    schema = RLRun.model_json_schema(by_alias=True, mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}

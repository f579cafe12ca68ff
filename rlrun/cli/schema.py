"""`rlrun schema`: the document's JSON Schema, for editors and other programs."""

from __future__ import annotations

from rlrun.cli.outcome import JsonOption, print_json
from rlrun.spec import json_schema


def schema(as_json: JsonOption = True) -> None:
    """Prints the JSON Schema of the RLRun document (always JSON)."""
    print_json(json_schema())

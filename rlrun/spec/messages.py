"""Pydantic's errors as one line per fault: where, what was given, the limit, the remedy."""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from rlrun.spec.base import RULES_ERROR, Fault

MAX_VALUE_LENGTH = 80


def format_errors(error: ValidationError, model: type[BaseModel]) -> str:
    """Every fault of the document, one line each."""
    return "\n".join(line for details in error.errors(include_url=False) for line in _lines(details, model))


def _lines(details: ErrorDetails, model: type[BaseModel]) -> Iterator[str]:
    place = _Place(model, details["loc"])
    context = details.get("ctx", {})
    if details["type"] == RULES_ERROR:
        faults: list[Fault] = context["faults"]
        for fault in faults:
            yield f"{_join(place.path, fault.path)}: got {render(fault.value)}; {fault.reason}"
    elif details["type"] == "json_invalid":
        yield f"the document: {context['error']}; an RLRun document has fewer than ten levels and Unicode text"
    elif details["type"] == "missing":
        yield f"{place.path}: missing; must be given{_meaning(place.field)}"
    elif details["type"] == "extra_forbidden":
        yield f"{place.path}: unknown field; {_suggest(str(details['loc'][-1]), place.parent)}"
    else:
        yield f"{place.path}: got {render(details['input'])}; {_limit(details, place)}{_meaning(place.field)}"


def _limit(details: ErrorDetails, place: _Place) -> str:
    kind = details["type"]
    context: Mapping[str, Any] = details.get("ctx", {})
    if kind in ("enum", "literal_error"):
        choices = _choices(place.field)
        return f"must be {_one_of(choices)}{_did_you_mean(details['input'], choices)}"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tags = list(_variants(place.field))
        given = details["input"].get("name") if isinstance(details["input"], dict) else None
        return f"name must be {_one_of(tags)}{_did_you_mean(given, tags)}"
    template = _TEMPLATES.get(kind)
    return template.format(**context) if template is not None else details["msg"]


_TEMPLATES = {
    "greater_than": "must be > {gt}",
    "greater_than_equal": "must be >= {ge}",
    "less_than": "must be < {lt}",
    "less_than_equal": "must be <= {le}",
    "finite_number": "must be a finite number",
    "int_type": "must be an integer, without quotes",
    "int_from_float": "must be an integer",
    "float_type": "must be a number, without quotes",
    "bool_type": "must be true or false",
    "string_type": "must be a string; put it in quotes",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must have at least {min_length} entries",
}


class _Place:
    """The document's path of a pydantic location, with the field and the object it lies in."""

    def __init__(self, root: type[BaseModel], location: tuple[int | str, ...]) -> None:
        self.path = ""
        self.field: FieldInfo | None = None
        self.parent: type[BaseModel] | None = root
        model: type[BaseModel] | None = root
        for element in location:
            if isinstance(element, int):
                self.path += f"[{element}]"
                self.field = None
                continue
            variants = _variants(self.field)
            if model is None and element in variants:  # the tag of a union: not part of the document
                model = variants[element]
                continue
            self.path = _join(self.path, element)
            self.parent = model
            self.field = _fields(model).get(element)
            model = _model_of(self.field.annotation) if self.field is not None else None


def _join(prefix: str, path: str) -> str:
    return f"{prefix}.{path}" if prefix and path else prefix or path or "the document"


def _fields(model: type[BaseModel] | None) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()} if model is not None else {}


def _flatten(annotation: Any) -> Iterator[Any]:
    """The plain types inside unions, lists and annotations."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _flatten(get_args(annotation)[0])
    elif origin in (Union, types.UnionType, tuple, list):
        for argument in get_args(annotation):
            yield from _flatten(argument)
    else:
        yield annotation


def _models(annotation: Any) -> list[type[BaseModel]]:
    return [kind for kind in _flatten(annotation) if isinstance(kind, type) and issubclass(kind, BaseModel)]


def _model_of(annotation: Any) -> type[BaseModel] | None:
    models = _models(annotation)
    return models[0] if len(models) == 1 else None


def _variants(field: FieldInfo | None) -> dict[str, type[BaseModel]]:
    """Tag -> model of a field that is a union told apart by `name`."""
    models = _models(field.annotation) if field is not None else []
    return {str(model.model_fields["name"].default): model for model in models} if len(models) > 1 else {}


def _choices(field: FieldInfo | None) -> list[str]:
    choices: list[str] = []
    for kind in _flatten(field.annotation) if field is not None else ():
        if get_origin(kind) is Literal:
            choices += [str(choice) for choice in get_args(kind)]
        elif hasattr(kind, "__members__"):
            choices += [str(member.value) for member in kind]
    return choices


def _one_of(choices: list[str]) -> str:
    return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"


def _did_you_mean(given: object, choices: list[str]) -> str:
    match = closest(given, choices)
    return f"; did you mean {match}?" if match is not None else ""


def closest(given: object, choices: list[str]) -> str | None:
    """The choice that a typing mistake most likely meant; upper and lower case and separators do not count."""
    folded = {_fold(choice): choice for choice in choices}
    matches = difflib.get_close_matches(_fold(str(given)), folded, n=1, cutoff=0.7)
    return folded[matches[0]] if matches else None


def _fold(text: str) -> str:
    return text.lower().replace("_", "").replace("-", "")


def _suggest(name: str, parent: type[BaseModel] | None) -> str:
    fields = list(_fields(parent))
    match = closest(name, fields)
    if match is not None:
        return f"did you mean {match}?"
    return f"remove it; known here: {', '.join(fields)}" if fields else "remove it; nothing is allowed here"


def _meaning(field: FieldInfo | None) -> str:
    return f" ({field.description.rstrip('.')})" if field is not None and field.description else ""


def render(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_VALUE_LENGTH else text[: MAX_VALUE_LENGTH - 3] + "..."

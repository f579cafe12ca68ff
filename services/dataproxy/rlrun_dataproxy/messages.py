"""Messages as the client sent them (raw JSON) -> a checked value, its form for the chat template, its identity.

Two messages are the same turn if their canonical forms agree: absent, null and empty content are one; text parts are their text;
arguments of tool calls are compared as JSON; reasoning is not compared, since clients are free to leave it out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from rlrun.errors import InvalidRequest

_encode_sorted = msgspec.json.Encoder(order="deterministic").encode
_TEXT_PARTS = ("text", "input_text", "output_text")


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


_ROLES = {role.value: role for role in Role} | {"developer": Role.SYSTEM}


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A checked message. `for_template` is what chat templates know: text content, arguments of calls as objects."""

    role: Role
    text: str
    for_template: Mapping[str, Any]
    digest: bytes


def parse_message(raw: bytes, index: int) -> Message:
    """One message of a request.

    Raises:
        InvalidRequest: `param` names the field, for example `messages[3].content`.
    """
    where = f"messages[{index}]"
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"{where} is not JSON: {error}", param=where) from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} must be an object, not {_kind(value)}", param=where)
    role = _ROLES.get(given) if isinstance(given := value.get("role"), str) else None
    if role is None:
        allowed = ", ".join(_ROLES)
        raise InvalidRequest(f"{where}.role is {given!r}; allowed: {allowed}", param=f"{where}.role")
    text = _text_of(value.get("content"), where)
    calls = _tool_calls(value.get("tool_calls"), role, where)
    plain: dict[str, Any] = {"role": role.value}
    if text:
        plain["content"] = text
    for key in ("name", "tool_call_id"):
        if (field := value.get(key)) is not None:
            plain[key] = _string(field, f"{where}.{key}")
    if calls:
        plain["tool_calls"] = calls
    for_template = {**plain, "content": text}
    if role is Role.ASSISTANT and (reasoning := value.get("reasoning_content")) is not None:
        for_template["reasoning_content"] = _string(reasoning, f"{where}.reasoning_content")
    return Message(role=role, text=text, for_template=for_template, digest=_digest(plain))


def answer_digest(content: str, calls: Sequence[tuple[str, str, str]]) -> bytes:
    """Identity of an answer's message. `calls`: id, name, arguments as JSON text."""
    plain: dict[str, Any] = {"role": Role.ASSISTANT.value}
    if content:
        plain["content"] = content
    if calls:
        plain["tool_calls"] = [_call(call_id, name, _arguments(arguments)) for call_id, name, arguments in calls]
    return _digest(plain)


def parse_tools(raw: bytes) -> list[Any] | None:
    """Tool definitions for the template; None when there are none."""
    tools = _json(raw, "tools")
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise InvalidRequest(f"tools must be a list, not {_kind(tools)}", param="tools")
    for i, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise InvalidRequest(f"tools[{i}] must be an object, not {_kind(tool)}", param=f"tools[{i}]")
    return tools or None


def parse_template_kwargs(raw: bytes) -> dict[str, Any]:
    kwargs = _json(raw, "chat_template_kwargs")
    if kwargs is None:
        return {}
    if not isinstance(kwargs, dict):
        raise InvalidRequest(f"chat_template_kwargs must be an object, not {_kind(kwargs)}", param="chat_template_kwargs")
    return kwargs


def canonical(value: Any) -> bytes:
    """JSON that does not depend on the order of keys."""
    return _encode_sorted(value)


def _json(raw: bytes, param: str) -> Any:
    if not raw:
        return None
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"{param} is not JSON: {error}", param=param) from error


def _text_of(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    param = f"{where}.content"
    if not isinstance(content, list):
        raise InvalidRequest(f"{param} must be a string or a list of text parts, not {_kind(content)}", param=param)
    texts: list[str] = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in _TEXT_PARTS:
            kind = part.get("type") if isinstance(part, dict) else _kind(part)
            raise InvalidRequest(f"{param} holds a part of type {kind!r}; this model takes text parts only", param=param)
        texts.append(_string(part.get("text"), param))
    return "\n".join(texts)


def _tool_calls(value: Any, role: Role, where: str) -> list[dict[str, Any]]:
    param = f"{where}.tool_calls"
    if value is None or value == []:
        return []
    if role is not Role.ASSISTANT:
        raise InvalidRequest(f"{param} is only allowed in a message of role assistant", param=param)
    if not isinstance(value, list):
        raise InvalidRequest(f"{param} must be a list, not {_kind(value)}", param=param)
    calls: list[dict[str, Any]] = []
    for one in value:
        function = one.get("function") if isinstance(one, dict) else None
        if not isinstance(function, dict):
            raise InvalidRequest(f"{param} must hold function calls: objects with id, type and function", param=param)
        name = _string(function.get("name"), param)
        arguments = function.get("arguments")
        call_id = one.get("id")
        calls.append(
            _call(
                _string(call_id, param) if call_id is not None else "",
                name,
                _arguments(arguments) if isinstance(arguments, str | None) else arguments,
            )
        )
    return calls


def _call(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": call_id, **call} if call_id else call


def _arguments(text: str | None) -> Any:
    if not text:
        return {}
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return text


def _string(value: Any, param: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{param} must be a string, not {_kind(value)}", param=param)
    return value


def _digest(plain: Mapping[str, Any]) -> bytes:
    return hashlib.blake2b(canonical(plain), digest_size=16).digest()


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")

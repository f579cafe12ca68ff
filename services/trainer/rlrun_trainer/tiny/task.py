"""The digits task: ask for a key, call `lookup`, answer the digit that the tool named.

`examples/digits/agent.py` plays the same task over HTTP; the wording there must stay the wording here.
"""

from __future__ import annotations

import json
from typing import Any

Message = dict[str, Any]

DIGITS = "0123456789"
KEYS = tuple(
    (
        "amber basil cedar delta ember flint grape hazel ivory jade kelp lemon maple north olive pearl "
        "quartz river stone tulip umber violet willow yarrow zinc apple brook cloud dusk frost glade honey"
    ).split()
)
LOOKUP_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "lookup",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}


def question(key: str) -> Message:
    return {"role": "user", "content": f'Digit of "{key}"?'}


def tool_call(key: str, call_id: str = "call_0") -> Message:
    function = {"name": "lookup", "arguments": json.dumps({"key": key})}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": call_id, "type": "function", "function": function}]}


def tool_result(digit: str, call_id: str = "call_0") -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": f"digit: {digit}"}


def answer(digit: str) -> Message:
    return {"role": "assistant", "content": digit}

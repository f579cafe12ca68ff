"""The digits task: ask for a key, call `lookup`, answer the digit that the tool named.

`examples/digits/agent.py` plays the same task over HTTP; the wording there must stay the wording here.
"""

from __future__ import annotations

import json
import random
from typing import Any

Message = dict[str, Any]

DIGITS = "0123456789"
KEY_LENGTH = 3
LOOKUP_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "lookup",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}


def draw_key(rng: random.Random) -> str:
    return "".join(rng.choices(DIGITS, k=KEY_LENGTH))


def question(key: str) -> Message:
    return {"role": "user", "content": f'Digit of "{key}"?'}


def tool_call(key: str, call_id: str = "call_0") -> Message:
    function = {"name": "lookup", "arguments": json.dumps({"key": key})}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": call_id, "type": "function", "function": function}]}


def tool_result(digit: str, call_id: str = "call_0") -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": f"digit: {digit}"}


def answer(digit: str) -> Message:
    return {"role": "assistant", "content": digit}

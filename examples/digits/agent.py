"""An agent that knows nothing of rlrun: the OpenAI SDK, one tool, two calls. It earns a reward for the digit that the tool told it.

agent = DigitsAgent()
reward = await agent.run({"key": "472", "digit": "7"}, base_url="http://127.0.0.1:8080/v1", api_key="...")
"""

from __future__ import annotations

import json
from typing import Any

from openai import AsyncOpenAI
from openai.types.chat import (
    ChatCompletionMessage,
    ChatCompletionMessageFunctionToolCall,
    ChatCompletionMessageParam,
    ChatCompletionToolParam,
)

CORRECT, WELL_FORMED, CALLED = 1.0, 0.1, 0.05
UNKNOWN = "unknown key"

LOOKUP: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "lookup",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}


class DigitsAgent:
    """Asks for a key's digit, runs the `lookup` that the model calls, and lets the model answer.

    The digit is drawn anew for each session, so nothing but reading the tool's result earns the full reward.
    """

    def __init__(self, *, model: str = "default", max_tokens: int = 32, max_retries: int = 10) -> None:
        self._model = model
        self._max_tokens = max_tokens
        self._max_retries = max_retries
        self.output_tokens = 0
        """Sampled in all runs of this object."""

    async def run(self, data: dict[str, Any], **kwargs: Any) -> float:
        """`data` holds `key` and `digit`. Without `base_url` and `api_key` the SDK reads OPENAI_BASE_URL and OPENAI_API_KEY."""
        http_client = kwargs.get("http_client")
        client = AsyncOpenAI(
            base_url=kwargs.get("base_url"), api_key=kwargs.get("api_key"), http_client=http_client, max_retries=self._max_retries
        )
        try:
            return await self._play(client, data["key"], data["digit"])
        finally:
            if http_client is None:  # one that was lent stays open
                await client.close()

    async def _play(self, client: AsyncOpenAI, key: str, digit: str) -> float:
        messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": f'Digit of "{key}"?'}]
        asked = await self._ask(client, messages)
        call = asked.tool_calls[0] if asked.tool_calls else None
        if not isinstance(call, ChatCompletionMessageFunctionToolCall):
            return 0.0
        result = lookup(call.function.name, call.function.arguments, {key: digit})
        if result is None:
            return 0.0
        if result == UNKNOWN:
            return CALLED
        messages.append(
            {
                "role": "assistant",
                "content": asked.content,
                "tool_calls": [{"id": call.id, "type": "function", "function": call.function.model_dump(include={"name", "arguments"})}],  # type: ignore[typeddict-item]
            }
        )
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        answered = (await self._ask(client, messages)).content or ""
        if answered.strip() == digit:
            return CORRECT
        return WELL_FORMED if len(answered.strip()) == 1 and answered.strip().isdigit() else CALLED

    async def _ask(self, client: AsyncOpenAI, messages: list[ChatCompletionMessageParam]) -> ChatCompletionMessage:
        completion = await client.chat.completions.create(
            model=self._model, messages=messages, tools=[LOOKUP], max_tokens=self._max_tokens, temperature=1.0
        )
        self.output_tokens += completion.usage.completion_tokens if completion.usage else 0
        return completion.choices[0].message


def lookup(name: str, arguments: str, table: dict[str, str]) -> str | None:
    """The tool. None where the model's call makes no sense."""
    try:
        key = json.loads(arguments)["key"]
    except (ValueError, KeyError, TypeError):
        return None
    if name != "lookup" or not isinstance(key, str):
        return None
    return f"digit: {table[key]}" if key in table else UNKNOWN

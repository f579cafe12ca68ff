"""A session's answer becomes OpenAI JSON: one completion, or the chunks of a stream. Functions of values."""

from __future__ import annotations

import array
import math
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from rlrun.errors import RlrunError, Unavailable
from rlrun.proto import common_pb2, session_pb2
from rlrun_gateway.errors import HttpError, error_body

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
# What OpenAI answers for a token outside the model's distribution; JSON has no infinity.
_LOWEST_LOGPROB = -9999.0
_FINISH = {
    common_pb2.FINISH_REASON_STOP: "stop",
    common_pb2.FINISH_REASON_LENGTH: "length",
    common_pb2.FINISH_REASON_TOOL_CALLS: "tool_calls",
}


class _Function(msgspec.Struct):
    name: str | UnsetType
    arguments: str


class _ToolCall(msgspec.Struct):
    function: _Function
    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class _TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class _TokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[_TopLogprob]


class _Logprobs(msgspec.Struct):
    content: list[_TokenLogprob]
    refusal: None = None


class _Message(msgspec.Struct):
    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[_ToolCall] | UnsetType = UNSET


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str
    logprobs: _Logprobs | None
    index: int = 0


class _PromptDetails(msgspec.Struct):
    cached_tokens: int


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: int


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: _PromptDetails
    completion_tokens_details: _CompletionDetails


class _Completion(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[_Choice]
    usage: _Usage
    system_fingerprint: str
    object: str = "chat.completion"


class _Delta(msgspec.Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[_ToolCall] | UnsetType = UNSET


_encode = msgspec.json.Encoder().encode


def completion(response: session_pb2.GenerateResponse, model: str) -> bytes:
    """One `chat.completion` object."""
    calls = [
        _ToolCall(function=_Function(name=call.name, arguments=call.arguments), id=call.id, type="function") for call in response.tool_calls
    ]
    message = _Message(
        content=response.content or (None if calls else ""),
        reasoning_content=response.reasoning_content or UNSET,
        tool_calls=calls or UNSET,
    )
    choice = _Choice(
        message=message,
        finish_reason=finish_reason(response),
        logprobs=_logprobs(response.logprobs) if response.HasField("logprobs") else None,
    )
    return _encode(
        _Completion(
            id=response.interaction_id,
            created=response.created_unix_seconds,
            model=model,
            choices=[choice],
            usage=_usage(response.usage),
            system_fingerprint=_fingerprint(response),
        )
    )


def finish_reason(response: session_pb2.GenerateResponse) -> str:
    """Raises Unavailable for an answer that broke off: clients would take it for a whole one."""
    reason = _FINISH.get(response.finish_reason)
    if reason is None:
        raise Unavailable("The model's answer was aborted before its end; try again.")
    return reason


def error_event(error: RlrunError | HttpError) -> bytes:
    """The last event of a stream that failed after its first byte."""
    return b"data: " + error_body(error) + b"\n\n"


class ChunkWriter:
    """Renders the events of one stream; what all its chunks share is encoded once."""

    def __init__(self, *, start: session_pb2.GenerateStart, model: str, include_usage: bool) -> None:
        self._head = (
            b'data: {"id":'
            + _encode(start.interaction_id)
            + b',"object":"chat.completion.chunk","created":'
            + str(start.created_unix_seconds).encode()
            + b',"model":'
            + _encode(model)
        )
        self._include_usage = include_usage
        self._tail = (b',"usage":null' if include_usage else b"") + b"}\n\n"

    def role(self) -> bytes:
        return self._chunk(_Delta(role="assistant", content=""))

    def delta(self, delta: session_pb2.GenerateDelta) -> bytes:
        calls = [_delta_call(call) for call in delta.tool_calls]
        logprobs = _encode(_logprobs(delta.logprobs)) if delta.HasField("logprobs") else b"null"
        return self._chunk(
            _Delta(
                content=delta.content or UNSET,
                reasoning_content=delta.reasoning_content or UNSET,
                tool_calls=calls or UNSET,
            ),
            logprobs=logprobs,
        )

    def end(self, response: session_pb2.GenerateResponse) -> bytes:
        """Last chunk, usage if asked for, `[DONE]`: one write."""
        fingerprint = b',"system_fingerprint":' + _encode(_fingerprint(response))
        last = self._chunk(_Delta(), finish=_encode(finish_reason(response)), more=fingerprint)
        if self._include_usage:
            last += self._head + fingerprint + b',"choices":[],"usage":' + _encode(_usage(response.usage)) + b"}\n\n"
        return last + DONE

    def _chunk(self, delta: _Delta, *, logprobs: bytes = b"null", finish: bytes = b"null", more: bytes = b"") -> bytes:
        return b"".join(
            (
                self._head,
                more,
                b',"choices":[{"index":0,"delta":',
                _encode(delta),
                b',"logprobs":',
                logprobs,
                b',"finish_reason":',
                finish,
                b"}]",
                self._tail,
            )
        )


def _delta_call(call: session_pb2.ToolCall) -> _ToolCall:
    return _ToolCall(
        function=_Function(name=call.name or UNSET, arguments=call.arguments),
        index=call.index,
        id=call.id or UNSET,
        type="function" if call.id else UNSET,
    )


def _fingerprint(response: session_pb2.GenerateResponse) -> str:
    return f"policy-{response.policy_version}"


def _usage(usage: common_pb2.Usage) -> _Usage:
    return _Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=_PromptDetails(cached_tokens=usage.cached_tokens),
        completion_tokens_details=_CompletionDetails(reasoning_tokens=usage.reasoning_tokens),
    )


def _logprobs(given: session_pb2.TokenLogprobs) -> _Logprobs:
    values = _floats(given.logprobs)
    top_values = _floats(given.top_logprobs)
    content: list[_TokenLogprob] = []
    for position, (token, value) in enumerate(zip(given.tokens, values, strict=True)):
        span = slice(position * given.k, (position + 1) * given.k)
        top = [
            _TopLogprob(token=_text(other), logprob=other_value, bytes=list(other))
            for other, other_value in zip(given.top_tokens[span], top_values[span], strict=True)
        ]
        content.append(_TokenLogprob(token=_text(token), logprob=value, bytes=list(token), top_logprobs=top))
    return _Logprobs(content=content)


def _floats(packed: bytes) -> Sequence[float]:
    return [value if math.isfinite(value) else _LOWEST_LOGPROB for value in array.array("f", packed)]


def _text(token: bytes) -> str:
    return token.decode("utf-8", errors="replace")

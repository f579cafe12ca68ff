"""An OpenAI chat body becomes a GenerateRequest. A function of bytes: no socket, no session."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw

from rlrun.errors import InvalidRequest
from rlrun.proto import session_pb2
from rlrun_gateway.settings import GatewaySettings

MAX_STOP = 16
# Below this, logits / temperature leaves the range of float32.
_MIN_TEMPERATURE = 1e-4
_Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Kind(msgspec.Struct):
    type: str


class ChatBody(msgspec.Struct, forbid_unknown_fields=True):
    """Every field of the body that has an effect, and those that are accepted without one."""

    messages: list[Raw]
    model: str | None = None
    tools: Raw = Raw()
    tool_choice: Raw = Raw()
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    store: bool | None = None
    n: int | None = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    max_total_tokens: _Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Annotated[list[Annotated[int, Meta(ge=0, le=2**31 - 1)]], Meta(max_length=64)] | None = None
    ignore_eos: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    response_format: _Kind | None = None
    modalities: list[str] | None = None
    chat_template_kwargs: dict[str, Raw] | None = None
    extra_body: dict[str, Raw] | None = None
    # Would change the answer and cannot be honoured: refused unless empty.
    logit_bias: dict[str, float] | None = None
    functions: Raw = Raw()
    function_call: Raw = Raw()
    audio: Raw = Raw()
    web_search_options: Raw = Raw()


class _Part(msgspec.Struct):
    type: str
    text: str | None = None


class _FunctionCall(msgspec.Struct):
    name: str
    arguments: str


class _MessageToolCall(msgspec.Struct):
    function: _FunctionCall
    id: str | None = None
    type: str | None = None


class _Message(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    tool_calls: list[_MessageToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class _Function(msgspec.Struct):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Tool(msgspec.Struct):
    function: _Function
    type: Literal["function"]


class _NamedTool(msgspec.Struct):
    type: str


_body_decoder = msgspec.json.Decoder(ChatBody)
_fields_decoder = msgspec.json.Decoder(dict[str, Raw])
_message_decoder = msgspec.json.Decoder(_Message)
_tools_decoder = msgspec.json.Decoder(list[_Tool])
_choice_decoder = msgspec.json.Decoder(str | _NamedTool)
_KNOWN = frozenset(ChatBody.__struct_fields__)
_UNSUPPORTED_PARTS = frozenset({"image_url", "input_audio", "file", "input_image", "input_file", "video_url"})
# Halves of a pair may be sent alone, and then they are no text.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
# Part of a header: what a client calls a field must not end a line.
_PRINTABLE_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatCall:
    """One model call as the client asked for it. `request.session` is still empty."""

    request: session_pb2.GenerateRequest
    stream: bool
    include_usage: bool
    ignored: tuple[str, ...]


def parse_chat(body: bytes, settings: GatewaySettings) -> ChatCall:
    """Raises InvalidRequest: says which field is wrong, what is allowed, and where JSON breaks off."""
    _check_text(body)
    chat, ignored = _decode_body(body)
    _refuse_unsupported(chat)
    request = session_pb2.GenerateRequest(
        messages=_messages(chat.messages, settings.max_messages), max_total_tokens=chat.max_total_tokens, store=chat.store is not False
    )
    max_new_tokens = chat.max_completion_tokens or chat.max_tokens or settings.default_max_new_tokens
    if max_new_tokens is not None:
        request.max_new_tokens = max_new_tokens
    _set_tools(chat, request, settings, ignored)
    _set_sampling(chat, request)
    if chat.logprobs:
        request.logprobs = True
        request.top_logprobs = chat.top_logprobs or 0
    elif chat.top_logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    if chat.chat_template_kwargs:
        request.chat_template_kwargs = msgspec.json.encode(chat.chat_template_kwargs)
    options = chat.stream_options
    return ChatCall(
        request=request,
        stream=bool(chat.stream),
        include_usage=bool(options is not None and options.include_usage),
        ignored=tuple(ignored),
    )


def _check_text(body: bytes) -> None:
    """What the typed parser skips must be sound as well: messages go on as they are."""
    try:
        if not body.isascii():
            body.decode()
        if _SURROGATE.search(body):
            msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _malformed(error) from None


def _decode_body(body: bytes) -> tuple[ChatBody, list[str]]:
    try:
        chat = _body_decoder.decode(body)
        if not chat.extra_body:
            return chat, []
    except msgspec.ValidationError as error:
        if "unknown field" not in str(error):
            raise _invalid(error) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _malformed(error) from None
    return _decode_with_extras(body)


def _decode_with_extras(body: bytes) -> tuple[ChatBody, list[str]]:
    """The slower way: takes out what is not known, and lifts the fields of a literal `extra_body`."""
    try:
        fields = _fields_decoder.decode(body)
        extra = fields.pop("extra_body", None)
        if extra is not None and bytes(extra) != b"null":
            fields = _fields_decoder.decode(extra) | fields
            fields.pop("extra_body", None)
        ignored = [name for name in fields if name not in _KNOWN]
        for name in ignored:
            del fields[name]
        return _body_decoder.decode(msgspec.json.encode(fields)), ignored
    except msgspec.ValidationError as error:
        raise _invalid(error) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _malformed(error) from None


def _refuse_unsupported(chat: ChatBody) -> None:
    if chat.n is not None and chat.n != 1:
        raise InvalidRequest(f"n is {chat.n}; only 1 is supported, call again for another answer", param="n")
    if chat.max_tokens is not None and chat.max_completion_tokens is not None:
        raise InvalidRequest("max_tokens and max_completion_tokens are the same limit; give one of them", param="max_tokens")
    if chat.response_format is not None and chat.response_format.type != "text":
        kind = chat.response_format.type
        raise InvalidRequest(f"response_format {kind[:40]!r} is not supported; only 'text' is", param="response_format")
    if chat.modalities and chat.modalities != ["text"]:
        raise InvalidRequest('modalities: only ["text"] is supported', param="modalities")
    if chat.stream_options is not None and not chat.stream:
        raise InvalidRequest("stream_options is only allowed with stream: true", param="stream_options")
    if chat.logit_bias:
        raise InvalidRequest("logit_bias is not supported: biased tokens could not be trained on", param="logit_bias")
    for name, raw in (("functions", chat.functions), ("function_call", chat.function_call)):
        if _given(raw):
            raise InvalidRequest(f"{name} is the form that `tools` replaced; send tools and tool_choice", param=name)
    for name, raw in (("audio", chat.audio), ("web_search_options", chat.web_search_options)):
        if _given(raw):
            raise InvalidRequest(f"{name} is not supported", param=name)


def _given(raw: Raw) -> bool:
    """A field that is left to later: `Raw` is empty where it is absent."""
    return len(raw) > 0 and bytes(raw) != b"null"


def _messages(raws: list[Raw], max_messages: int) -> list[bytes]:
    if not raws:
        raise InvalidRequest("messages is empty; send at least one", param="messages")
    if len(raws) > max_messages:
        raise InvalidRequest(f"messages has {len(raws)} entries; the limit is {max_messages}", param="messages")
    messages: list[bytes] = []
    for index, raw in enumerate(raws):
        try:
            message = _message_decoder.decode(raw)
        except msgspec.ValidationError as error:
            raise _invalid(error, prefix=f"messages[{index}]") from None
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise _malformed(error, prefix=f"messages[{index}]") from None
        if isinstance(message.content, list):
            for part in message.content:
                if part.type in _UNSUPPORTED_PARTS:
                    raise InvalidRequest(
                        f"messages[{index}].content has a part of type {part.type!r}; this model reads text only",
                        param=f"messages[{index}].content",
                    )
        messages.append(bytes(raw))
    return messages


def _set_tools(chat: ChatBody, request: session_pb2.GenerateRequest, settings: GatewaySettings, ignored: list[str]) -> None:
    request.tool_choice = session_pb2.TOOL_CHOICE_AUTO
    if _given(chat.tools):
        try:
            tools = _tools_decoder.decode(chat.tools)
        except msgspec.ValidationError as error:
            raise _invalid(error, prefix="tools") from None
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise _malformed(error, prefix="tools") from None
        if len(tools) > settings.max_tools:
            raise InvalidRequest(f"tools has {len(tools)} entries; the limit is {settings.max_tools}", param="tools")
        if tools:
            request.tools = bytes(chat.tools)
        if any(tool.function.strict for tool in tools):
            ignored.append("tools.function.strict")
    if _given(chat.tool_choice):
        request.tool_choice = _tool_choice(chat.tool_choice)


def _tool_choice(raw: Raw) -> session_pb2.ToolChoice.ValueType:
    try:
        choice = _choice_decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise _invalid(error, prefix="tool_choice") from None
    except msgspec.DecodeError as error:
        raise _malformed(error, prefix="tool_choice") from None
    if choice == "auto":
        return session_pb2.TOOL_CHOICE_AUTO
    if choice == "none":
        return session_pb2.TOOL_CHOICE_NONE
    shown = choice if isinstance(choice, str) else f"of type {choice.type}"
    raise InvalidRequest(
        f"tool_choice {shown[:60]!r} is not supported: the model's output is not forced, since forced tokens cannot be trained on; "
        "use 'auto' or 'none'",
        param="tool_choice",
    )


def _set_sampling(chat: ChatBody, request: session_pb2.GenerateRequest) -> None:
    sampling = request.sampling
    sampling.SetInParent()
    if chat.temperature is not None:
        if 0 < chat.temperature < _MIN_TEMPERATURE:
            raise InvalidRequest(
                f"temperature is {chat.temperature:g}; use 0 for greedy, or at least {_MIN_TEMPERATURE:g}", param="temperature"
            )
        sampling.temperature = chat.temperature
    if chat.top_p is not None:
        sampling.top_p = chat.top_p
    if chat.top_k is not None:
        sampling.top_k = max(0, chat.top_k)
    if chat.presence_penalty:
        sampling.presence_penalty = chat.presence_penalty
    if chat.frequency_penalty:
        sampling.frequency_penalty = chat.frequency_penalty
    if chat.repetition_penalty is not None:
        sampling.repetition_penalty = chat.repetition_penalty
    if chat.seed is not None:
        sampling.seed = chat.seed
    if chat.ignore_eos:
        sampling.ignore_eos = True
    if chat.stop_token_ids:
        sampling.stop_token_ids.extend(chat.stop_token_ids)
    if chat.stop is not None:
        sampling.stop.extend(_stop(chat.stop))


def _stop(stop: str | list[str]) -> list[str]:
    strings = [stop] if isinstance(stop, str) else stop
    if len(strings) > MAX_STOP:
        raise InvalidRequest(f"stop has {len(strings)} strings; the limit is {MAX_STOP}", param="stop")
    if any(not text for text in strings):
        raise InvalidRequest("stop holds an empty string; it would end every answer at once", param="stop")
    return strings


def _invalid(error: msgspec.ValidationError, *, prefix: str = "") -> InvalidRequest:
    """Turns "Expected `int`, got `str` - at `$.seed`" into a message that begins with the field."""
    text = str(error)
    found = _PATH.search(text)
    path = found.group(1) if found else ""
    where = prefix + ("." if prefix and path and not path.startswith("[") else "") + path
    what = text[: found.start()] if found else text
    if not where and (missing := re.search(r"required field `(\w+)`", what)):
        where = missing.group(1)
    return InvalidRequest(f"{where}: {what}" if where else f"The request's body: {what}", param=where or None)


def _malformed(error: Exception, *, prefix: str = "The request's body") -> InvalidRequest:
    what = "JSON nested too deeply" if isinstance(error, RecursionError) else str(error)
    return InvalidRequest(f"{prefix}: {what}; send one JSON object in UTF-8")


def header_of_ignored(ignored: tuple[str, ...]) -> bytes:
    """Value of `x-rlrun-ignored`."""
    names = [name if _PRINTABLE_NAME.fullmatch(name) else "?" for name in ignored[:32]]
    return ", ".join(names).encode()

"""What the official SDK makes of the gateway's answers."""

from __future__ import annotations

import asyncio

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from rlrun.errors import ContextLengthExceeded, NoCapacity, SessionGone, StoreUnavailable, Unavailable
from rlrun.proto import common_pb2, session_pb2
from tests.unit.gateway.scripted import ADMIN_KEY, SESSION_KEY, answer, delta_event, done_event, floats, start_event

HELLO = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture
async def client(port):
    async with AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=SESSION_KEY, max_retries=0) as made:
        yield made


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/", "/sessions/task-0/v1", "/sessions/task-0"])
async def test_every_spelling_of_the_base_url_works(port, suffix):
    async with AsyncOpenAI(base_url=f"http://127.0.0.1:{port}{suffix}", api_key=SESSION_KEY) as client:
        completion = await client.chat.completions.create(model="any", messages=HELLO)
    assert completion.choices[0].message.content == "Hello there"


async def test_a_completion_parses(client):
    completion = await client.chat.completions.create(model="any", messages=HELLO, temperature=0.5, max_completion_tokens=5)
    assert completion.id == "chatcmpl-1"
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage.total_tokens == 10
    assert completion.usage.prompt_tokens_details.cached_tokens == 5
    assert completion.usage.completion_tokens_details.reasoning_tokens == 1
    assert completion._request_id.startswith("req-")
    assert completion.system_fingerprint == "policy-4"


async def test_the_sync_client_works(port):
    def call():
        with OpenAI(base_url=f"http://127.0.0.1:{port}", api_key=SESSION_KEY) as client:
            whole = client.chat.completions.create(model="any", messages=HELLO)
            chunks = list(client.chat.completions.create(model="any", messages=HELLO, stream=True))
            return whole, chunks

    whole, chunks = await asyncio.to_thread(call)
    assert whole.choices[0].message.content == "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello there"


async def test_tool_calls_and_reasoning_parse(client, sessions):
    call = session_pb2.ToolCall(id="call_1", name="search", arguments='{"q": 1}')
    sessions.script = [answer("", tool_calls=[call], reasoning_content="hm", finish_reason=common_pb2.FINISH_REASON_TOOL_CALLS)]
    completion = await client.chat.completions.create(model="any", messages=HELLO, tools=TOOLS, tool_choice="auto")
    message = completion.choices[0].message
    assert message.content is None
    assert (message.tool_calls[0].id, message.tool_calls[0].function.name) == ("call_1", "search")
    assert message.reasoning_content == "hm"
    # The answer, sent back as the SDK writes it, is a legal message.
    again = await client.chat.completions.create(
        model="any", messages=[*HELLO, message.to_dict(), {"role": "tool", "tool_call_id": "call_1", "content": "x"}]
    )
    assert again.choices[0].message.content == "Hello there"


async def test_logprobs_parse(client, sessions):
    given = session_pb2.TokenLogprobs(tokens=[b"a"], logprobs=floats(-0.5), k=1, top_tokens=[b"a"], top_logprobs=floats(-0.5))
    sessions.script = [answer(logprobs=given)]
    completion = await client.chat.completions.create(model="any", messages=HELLO, logprobs=True, top_logprobs=1)
    assert completion.choices[0].logprobs.content[0].top_logprobs[0].logprob == -0.5


async def test_the_streaming_helper_assembles_the_answer(client, sessions):
    sessions.events = [
        start_event(),
        delta_event(reasoning_content="hm"),
        delta_event("Let me see"),
        delta_event(tool_calls=[session_pb2.ToolCall(index=0, id="call_1", name="search", arguments="")]),
        delta_event(tool_calls=[session_pb2.ToolCall(index=0, arguments='{"q":')]),
        delta_event(tool_calls=[session_pb2.ToolCall(index=0, arguments="1}")]),
        delta_event(tool_calls=[session_pb2.ToolCall(index=1, id="call_2", name="search", arguments="{}")]),
        done_event(finish_reason=common_pb2.FINISH_REASON_TOOL_CALLS),
    ]
    async with client.chat.completions.stream(model="any", messages=HELLO, tools=TOOLS, stream_options={"include_usage": True}) as stream:
        completion = await stream.get_final_completion()
    message = completion.choices[0].message
    assert message.content == "Let me see"
    assert [call.function.arguments for call in message.tool_calls] == ['{"q":1}', "{}"]
    assert completion.choices[0].finish_reason == "tool_calls"
    assert completion.usage.completion_tokens == 3


async def test_the_first_chunk_comes_before_the_answer_is_complete(client, sessions):
    gate = asyncio.Event()
    sessions.events = [start_event(), delta_event("a"), gate, delta_event("b"), done_event()]
    stream = await client.chat.completions.create(model="any", messages=HELLO, stream=True)
    chunks = stream.__aiter__()
    assert (await anext(chunks)).choices[0].delta.role == "assistant"
    assert (await anext(chunks)).choices[0].delta.content == "a"
    gate.set()
    assert [chunk.choices[0].finish_reason async for chunk in chunks] == [None, "stop"]


async def test_an_error_inside_a_stream_is_raised(client, sessions):
    sessions.events = [start_event(), delta_event("a"), Unavailable("worker lost")]
    stream = await client.chat.completions.create(model="any", messages=HELLO, stream=True)
    with pytest.raises(openai.APIError, match="worker lost"):
        [chunk async for chunk in stream]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (ContextLengthExceeded("too long", param="messages"), openai.BadRequestError, "context_length_exceeded"),
        (NoCapacity("full"), openai.RateLimitError, "no_capacity"),
        (StoreUnavailable("redis"), openai.InternalServerError, "store_unavailable"),
        (ValueError("bug"), openai.InternalServerError, "internal"),
    ],
)
async def test_errors_become_the_sdks_classes(client, sessions, error, kind, code, stream):
    sessions.script = [error]
    with pytest.raises(kind) as caught:
        await client.chat.completions.create(model="any", messages=HELLO, stream=stream)
    assert caught.value.code == code
    assert caught.value.request_id.startswith("req-")


async def test_faults_of_the_request_become_the_sdks_classes(port, client, sessions):
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="any", messages=HELLO, n=2)
    assert caught.value.param == "n"
    sessions.script = [SessionGone("ended")]
    with pytest.raises(openai.APIStatusError) as gone:
        await client.chat.completions.create(model="any", messages=HELLO)
    assert gone.value.status_code == 410
    with pytest.raises(openai.APIStatusError) as large:
        await client.chat.completions.create(model="any", messages=[{"role": "user", "content": "x" * 200_000}])
    assert large.value.status_code == 413
    async with AsyncOpenAI(base_url=f"http://127.0.0.1:{port}", api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            await stranger.chat.completions.create(model="any", messages=HELLO)
    async with AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/sessions/none", api_key=ADMIN_KEY, max_retries=0) as admin:
        with pytest.raises(openai.NotFoundError):
            await admin.chat.completions.create(model="any", messages=HELLO)


async def test_the_sdk_retries_what_it_is_told_to_and_says_so(port, sessions):
    sessions.script = [StoreUnavailable("redis", retry_after_seconds=0.01), NoCapacity("full", retry_after_seconds=0.01)]
    async with AsyncOpenAI(base_url=f"http://127.0.0.1:{port}", api_key=SESSION_KEY, max_retries=2) as client:
        completion = await client.chat.completions.create(model="any", messages=HELLO)
    assert completion.choices[0].message.content == "Hello there"
    assert [request.retry_count for request in sessions.requests] == [0, 1, 2]


async def test_models_are_listed(client):
    assert [model.id async for model in client.models.list()] == ["policy"]
    assert (await client.models.retrieve("policy")).owned_by == "rlrun"

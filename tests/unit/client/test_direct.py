"""DirectOpenAI in front of a scripted engine: no socket, no Redis, no weights."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import logging
import socket
import sys
from array import array
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest
from rlrun_dataproxy.direct import MemorySession, MemorySessions
from rlrun_dataproxy.options import DataProxyOptions
from rlrun_dataproxy.tokenizer import ChatTokenizer
from rlrun_gateway.in_process import InProcessExchange

import rlrun.client
from rlrun.client import DirectOpenAI
from rlrun.errors import ConfigError, InvalidRequest, Overloaded, Unavailable
from rlrun.proto import common_pb2, inference_pb2
from rlrun.store.sessions import SessionStore
from rlrun.trajectory import RewardStyle

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@dataclass
class ScriptedEngine:
    """Answers with texts in order, then "ok"; an error among them is raised. `gate` unset: calls wait."""

    tokenizer: ChatTokenizer
    texts: list[str | Exception] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    num_cancelled: int = 0
    version: int = 3

    def __post_init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Event()

    async def _ids(self, request: inference_pb2.InferRequest) -> list[int]:
        self.prompts.append(list(array("i", request.prompt_ids)))
        text = self.texts.pop(0) if self.texts else "ok"
        self.arrived.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        if isinstance(text, Exception):
            raise text
        return self.tokenizer.encode(text + "<|im_end|>")

    def _piece(self, ids: list[int], finish: Any) -> inference_pb2.InferResponse:
        return inference_pb2.InferResponse(
            output_ids=array("i", ids).tobytes(),
            logprobs=array("f", [-0.5] * len(ids)).tobytes(),
            versions=[common_pb2.VersionSpan(num_tokens=len(ids), version=self.version)],
            finish_reason=finish,
        )

    async def infer(self, request: inference_pb2.InferRequest, /) -> inference_pb2.InferResponse:
        return self._piece(await self._ids(request), common_pb2.FINISH_REASON_STOP)

    async def infer_stream(self, request: inference_pb2.InferRequest, /) -> AsyncIterator[inference_pb2.InferResponse]:
        *first, last = await self._ids(request)
        for token in first:
            yield self._piece([token], common_pb2.FINISH_REASON_UNSPECIFIED)
            await asyncio.sleep(0)
        yield self._piece([last], common_pb2.FINISH_REASON_STOP)


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = Path(__file__).parents[1] / "dataproxy" / "conftest.py"
    spec = importlib.util.spec_from_file_location("direct_small_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Path(module._write_model(tmp_path_factory.mktemp("direct")))


@pytest.fixture(scope="session")
def small_tokenizer(small_model: Path) -> ChatTokenizer:
    return ChatTokenizer.load(small_model)


@pytest.fixture
def engine(small_tokenizer: ChatTokenizer) -> ScriptedEngine:
    return ScriptedEngine(small_tokenizer)


@pytest.fixture
async def client(engine: ScriptedEngine, small_model: Path) -> AsyncIterator[DirectOpenAI]:
    async with make(engine, small_model) as made:
        yield made


def make(engine: ScriptedEngine, model: Path, **options: Any) -> DirectOpenAI:
    return DirectOpenAI(engine, model, **options)  # type: ignore[arg-type]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def ask(client: DirectOpenAI, messages: list[Any], **options: Any) -> Any:
    return await client.chat.completions.create(model="any", messages=messages, **options)


async def read(client: DirectOpenAI, messages: list[Any], **options: Any) -> None:
    async for _ in await ask(client, messages, **options):
        pass


async def turns(client: DirectOpenAI, *texts: str) -> list[str]:
    """One conversation; returns the ids of its completions."""
    messages: list[Any] = []
    ids = []
    for text in texts:
        completion = await ask(client, [*messages, user(text)])
        messages += [user(text), completion.choices[0].message.model_dump(exclude_none=True)]
        ids.append(completion.id)
    return ids


async def test_a_completion_needs_no_socket(
    engine: ScriptedEngine, small_model: Path, small_tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    engine.texts = ["It rains"]
    async with make(engine, small_model) as client:
        assert isinstance(client, openai.AsyncOpenAI)
        completion = await ask(client, [user("weather?")])
    assert completion.choices[0].message.content == "It rains"
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage.prompt_tokens == len(engine.prompts[0])
    assert completion.system_fingerprint == "policy-3"
    row = client.export_interactions()[completion.id]
    assert row.input_ids.tolist() == engine.prompts[0] + small_tokenizer.encode("It rains<|im_end|>")
    assert row.loss_mask.sum() == completion.usage.completion_tokens
    assert set(row.versions[row.loss_mask == 1].tolist()) == {3}


async def test_a_turn_extends_the_recorded_ids(client: DirectOpenAI, engine: ScriptedEngine, small_tokenizer: ChatTokenizer) -> None:
    engine.texts = ["one", "two", "three"]
    await turns(client, "a", "b", "c")
    first, second, third = engine.prompts
    assert second[: len(first)] == first
    assert third[: len(second)] == second
    assert second[len(first) :][:2] == small_tokenizer.encode("one<|im_end|>")[:2]


async def test_a_tool_call_and_its_result(client: DirectOpenAI, engine: ScriptedEngine) -> None:
    engine.texts = [CALL, "rain"]
    asked = await ask(client, [user("weather?")], tools=[WEATHER])
    assert asked.choices[0].finish_reason == "tool_calls"
    [call] = asked.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Oslo"}')
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    answered = await ask(client, [user("weather?"), asked.choices[0].message, result], tools=[WEATHER])
    client.set_last_reward(1.0)
    assert list(client.export_interactions("concat")) == [answered.id]


async def test_a_stream_arrives_while_the_engine_works(client: DirectOpenAI, engine: ScriptedEngine) -> None:
    engine.texts = ["It rains in Oslo"]
    engine.gate.clear()
    stream = await ask(client, [user("weather?")], stream=True, stream_options={"include_usage": True})
    first = await anext(stream)
    assert first.choices[0].delta.role == "assistant"
    assert not client.export_interactions()
    engine.gate.set()
    chunks = [chunk async for chunk in stream]
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert len(pieces) > 1
    assert "".join(pieces) == "It rains in Oslo"
    assert chunks[-1].usage.completion_tokens > 1
    assert list(client.export_interactions()) == [first.id]


async def test_a_stream_that_is_left_stops_the_engine_and_is_not_recorded(client: DirectOpenAI, engine: ScriptedEngine) -> None:
    engine.gate.clear()
    async with await ask(client, [user("weather?")], stream=True) as stream:
        await anext(stream)
        await engine.arrived.wait()
    while not engine.num_cancelled:
        await asyncio.sleep(0)
    assert client.export_interactions() == {}


async def test_the_sdk_s_own_stream_helper(client: DirectOpenAI, engine: ScriptedEngine) -> None:
    engine.texts = ["It rains"]
    async with client.chat.completions.stream(model="any", messages=[user("weather?")]) as stream:  # type: ignore[list-item]
        completion = await stream.get_final_completion()
    assert completion.choices[0].message.content == "It rains"


async def test_rewards_by_id_and_for_the_last(client: DirectOpenAI) -> None:
    first, second = await turns(client, "a", "b")
    client.set_reward(first, 1)
    client.set_last_reward(2.0)
    client.set_last_reward(3.0)
    assert [row.reward for row in client.export_interactions().values()] == [1.0, 3.0]
    assert list(client.export_interactions()) == [first, second]


async def test_a_reward_that_makes_no_sense_says_why(client: DirectOpenAI) -> None:
    with pytest.raises(InvalidRequest, match="No interactions in session"):
        client.set_last_reward(1.0)
    [only] = await turns(client, "a")
    with pytest.raises(InvalidRequest, match="Interaction chatcmpl-x not found"):
        client.set_reward("chatcmpl-x", 1.0)
    with pytest.raises(InvalidRequest, match="interaction_id is empty"):
        client.set_reward("", 1.0)
    with pytest.raises(InvalidRequest, match="must be a finite number"):
        client.set_reward(only, float("nan"))
    assert client.export_interactions()[only].reward == 0.0


@pytest.mark.parametrize(
    ("given", "discount", "expected"),
    [
        ([None, None, 10.0], 0.9, [8.1, 9.0, 10.0]),
        ([1.0, None, 2.0], 0.5, [1.5, 1.0, 2.0]),
        ([1.0, 2.0, 3.0], 1.0, [6.0, 5.0, 3.0]),
        ([1.0, 2.0, 3.0], 0.0, [1.0, 2.0, 3.0]),
    ],
)
async def test_rewards_flow_back_over_the_turns(
    client: DirectOpenAI, given: list[float | None], discount: float, expected: list[float]
) -> None:
    ids = await turns(client, "a", "b", "c")
    for interaction_id, reward in zip(ids, given, strict=True):
        if reward is not None:
            client.set_reward(interaction_id, reward)
    assert list(client.apply_reward_discount(turn_discount=discount).values()) == pytest.approx(expected)
    assert [row.reward for row in client.export_interactions().values()] == pytest.approx(expected)
    assert [row.reward for row in client.export_interactions("concat").values()] == pytest.approx(expected[-1:])


async def test_the_discount_is_applied_once(client: DirectOpenAI, caplog: pytest.LogCaptureFixture) -> None:
    await turns(client, "a", "b")
    with pytest.raises(InvalidRequest, match="between 0 and 1"):
        client.apply_reward_discount(1.5)
    with caplog.at_level(logging.WARNING):
        assert list(client.apply_reward_discount().values()) == [0.0, 0.0]
    assert "has no reward" in caplog.text
    for one in (client, client.with_options(timeout=1)):
        with pytest.raises(RuntimeError, match=r"^apply_reward_discount should only be called once\.$"):
            one.apply_reward_discount(0.9)


@pytest.mark.parametrize(("style", "expected"), [(RewardStyle.TREE, [0.0, 0.0, 1.0]), (RewardStyle.LINEAR, [0.25, 0.5, 1.0])])
async def test_only_the_linear_style_crosses_conversations(
    engine: ScriptedEngine, small_model: Path, style: RewardStyle, expected: list[float]
) -> None:
    async with make(engine, small_model, reward_style=style) as client:
        for text in ("a", "b", "c"):
            await turns(client, text)
        client.set_last_reward(1.0)
        assert list(client.apply_reward_discount(0.5).values()) == expected


async def test_concat_gives_the_leaves_with_all_turns_trained(client: DirectOpenAI, engine: ScriptedEngine) -> None:
    engine.texts = ["root", "left", "right"]
    root = await ask(client, [user("a")])
    said = root.choices[0].message.model_dump(exclude_none=True)
    left = await ask(client, [user("a"), said, user("l")])
    right = await ask(client, [user("a"), said, user("r")])
    leaves = client.export_interactions(style="concat")
    assert list(leaves) == [left.id, right.id]
    for leaf in (left, right):
        assert leaves[leaf.id].loss_mask.sum() == root.usage.completion_tokens + leaf.usage.completion_tokens
    assert list(client.export_interactions(style="individual")) == [root.id, left.id, right.id]
    with pytest.raises(InvalidRequest, match="individual or concat"):
        client.export_interactions(style="both")  # type: ignore[arg-type]


async def test_an_unstored_call_is_neither_rewarded_nor_exported(client: DirectOpenAI) -> None:
    completion = await ask(client, [user("a")], store=False)
    with pytest.raises(InvalidRequest, match="not found"):
        client.set_reward(completion.id, 1.0)
    assert client.export_interactions() == {}
    assert client.apply_reward_discount() == {}


@pytest.mark.parametrize(
    ("options", "text", "error", "code"),
    [
        ({"messages": []}, "ok", openai.BadRequestError, "invalid_request"),
        ({"n": 2}, "ok", openai.BadRequestError, "invalid_request"),
        ({"extra_body": {"max_total_tokens": 1}}, "ok", openai.BadRequestError, "context_length_exceeded"),
        ({}, Overloaded("the queue is full"), openai.RateLimitError, "overloaded"),
        ({}, RuntimeError("a bug"), openai.InternalServerError, "internal"),
    ],
)
async def test_errors_are_those_of_the_sdk(
    engine: ScriptedEngine, small_model: Path, options: dict[str, Any], text: Any, error: type[openai.APIStatusError], code: str
) -> None:
    engine.texts = [text]
    async with make(engine, small_model, max_retries=0) as client:
        for stream in (False, True):
            engine.texts = [text]
            # An engine's fault comes after the stream has begun.
            with pytest.raises(openai.APIError if stream else error) as raised:
                await read(client, **({"messages": [user("a")]} | options), stream=stream)
            assert raised.value.code == code


async def test_an_engine_that_is_away_is_told_without_a_wait_for_another_owner(engine: ScriptedEngine, small_model: Path) -> None:
    engine.texts = [Unavailable("the engine is gone") for _ in range(20)]
    async with make(engine, small_model, max_retries=0) as client:
        with pytest.raises(openai.InternalServerError) as raised:
            await ask(client, [user("a")])
    assert raised.value.status_code == 503
    assert len(engine.prompts) == DataProxyOptions(member_id="").max_worker_attempts


async def test_what_the_gateway_lacks_is_not_found(client: DirectOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["policy"]
    with pytest.raises(openai.NotFoundError):
        await client.embeddings.create(model="any", input="a")


async def test_the_sdk_retries_and_the_answer_is_recorded_once(engine: ScriptedEngine, small_model: Path) -> None:
    engine.texts = [Overloaded("full", retry_after_seconds=0.001), "second try"]
    async with make(engine, small_model, max_retries=1) as client:
        completion = await ask(client, [user("a")])
        assert completion.choices[0].message.content == "second try"
        assert list(client.export_interactions()) == [completion.id]


async def test_a_time_out_stops_the_engine(client: DirectOpenAI, engine: ScriptedEngine) -> None:
    engine.gate.clear()
    with pytest.raises(openai.APITimeoutError):
        await ask(client.with_options(timeout=0.05, max_retries=0), [user("a")])
    while not engine.num_cancelled:
        await asyncio.sleep(0)
    assert client.export_interactions() == {}


async def test_two_clients_do_not_mix(client: DirectOpenAI, engine: ScriptedEngine, small_model: Path) -> None:
    async with make(engine, small_model) as other, client.new_session() as third:
        clients = [client, other, third]
        ids = await asyncio.gather(*(turns(one, "same", "words") for one in clients))
        for number, one in enumerate(clients):
            one.set_last_reward(number)
            assert list(one.export_interactions()) == ids[number]
        with pytest.raises(InvalidRequest, match="not found"):
            other.set_reward(ids[0][0], 1.0)
        with pytest.raises(openai.AuthenticationError):
            await ask(client.with_options(api_key="unknown"), [user("a")])
        assert [row.reward for one in clients for row in one.export_interactions("concat").values()] == [0.0, 1.0, 2.0]


async def test_a_closed_client_keeps_its_rows_and_takes_no_calls(client: DirectOpenAI, engine: ScriptedEngine) -> None:
    third = client.new_session()
    [kept] = await turns(client, "a")
    engine.gate.clear()
    engine.arrived.clear()
    running = asyncio.create_task(ask(client, [user("b")]))
    await engine.arrived.wait()
    await client.close()
    with pytest.raises(openai.APIStatusError) as raised:
        await running
    assert raised.value.status_code == 410
    client.set_reward(kept, 1.0)
    assert [row.reward for row in client.export_interactions().values()] == [1.0]
    with pytest.raises((openai.APIConnectionError, RuntimeError)):
        await ask(client, [user("c")])
    await client.close()
    engine.gate.set()
    assert await turns(third, "still open")
    closed = third.new_session()
    await closed.close()
    with pytest.raises(openai.AuthenticationError):
        await ask(third.with_options(api_key=closed.api_key), [user("d")])
    await third.close()


async def test_the_session_can_be_steered_over_its_control_routes(client: DirectOpenAI) -> None:
    [only] = await turns(client, "a")
    await client.post("/rl/set_reward", body={"reward": 2.0}, cast_to=object)
    assert client.export_interactions()[only].reward == 2.0
    assert await client.post("/rl/end_session", cast_to=object) == {"message": "success", "interaction_count": 1}
    with pytest.raises(openai.APIStatusError, match="is FINISHED"):
        await ask(client, [user("b")])


def test_a_missing_package_or_model_says_what_to_do(
    engine: ScriptedEngine, tmp_path: Path, small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json does not exist"):
        make(engine, tmp_path)
    monkeypatch.setitem(sys.modules, "rlrun_gateway.asgi", None)
    with pytest.raises(ConfigError, match=r"pip install 'rlrun\[openai,gateway,dataproxy\]'"):
        make(engine, small_model)
    monkeypatch.setitem(sys.modules, "openai", None)
    monkeypatch.delitem(sys.modules, "rlrun.client.direct")
    with pytest.raises(ConfigError, match="openai"):
        _ = rlrun.client.DirectOpenAI
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        rlrun.client.Nothing  # noqa: B018


@pytest.mark.parametrize("sent", [[], [{"type": "http.response.start", "status": 200}]])
@pytest.mark.parametrize("error", [None, ZeroDivisionError("a bug")])
async def test_an_app_that_ends_too_early_breaks_the_exchange_off(sent: list[Any], error: Exception | None) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"] == b"{}"
        for message in sent:
            await send(message)
        if error is not None:
            raise error

    exchange = InProcessExchange(app, method="POST", path="/v1/x", query=b"", headers=[], body=b"{}")
    if sent:
        assert await exchange.start() == (200, [])
    for read in (exchange.next_chunk, exchange.next_chunk) if sent else (exchange.start,):
        with pytest.raises(ConnectionResetError) as raised:
            await read()
        assert raised.value.__cause__ is error
    exchange.close()
    await exchange.wait_ended()


def test_memory_has_the_store_s_signatures() -> None:
    for name in ("by_key", "get", "load", "record", "set_reward", "finish", "mark_exported"):
        assert inspect.signature(getattr(MemorySessions, name)) == inspect.signature(getattr(SessionStore, name)), name
    assert MemorySession(session_id="s", key_hash="k", clock=lambda: 1.0).info().num_interactions == 0

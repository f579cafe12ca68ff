"""A DataProxy over a real Redis, with an engine that answers what the test wrote down."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import uuid
from array import array
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from rlrun_dataproxy.dataproxy import DataProxy
from rlrun_dataproxy.options import DataProxyOptions
from rlrun_dataproxy.tokenizer import ChatTokenizer

from rlrun.errors import NoMember, Unavailable
from rlrun.proto import common_pb2, inference_pb2, router_pb2, session_pb2
from rlrun.store import Admission, AdmissionMode, Store

FINISH = {
    "stop": common_pb2.FINISH_REASON_STOP,
    "length": common_pb2.FINISH_REASON_LENGTH,
    "abort": common_pb2.FINISH_REASON_ABORT,
}


def packed(ids: Sequence[int]) -> bytes:
    return array("i", ids).tobytes()


def unpacked(ids: bytes) -> list[int]:
    return list(array("i", ids))


@dataclass
class Answer:
    """What the engine does with one call. `lose_after`: the worker is lost after that many tokens."""

    ids: list[int]
    finish: str = "stop"
    version: int = 1
    lose_after: int | None = None
    matched_stop: str = ""


@dataclass
class ScriptedEngine:
    """Answers calls in order; the last answer repeats. `gate` unset: calls wait."""

    name: str
    answers: list[Answer] = field(default_factory=list)
    requests: list[inference_pb2.InferRequest] = field(default_factory=list)
    num_cancelled: int = 0

    def __post_init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Event()

    def _take(self, request: inference_pb2.InferRequest) -> Answer:
        copied = inference_pb2.InferRequest()
        copied.CopyFrom(request)
        self.requests.append(copied)
        self.arrived.set()
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    async def _wait(self) -> None:
        try:
            await self.gate.wait()
        except (asyncio.CancelledError, GeneratorExit):
            self.num_cancelled += 1
            raise

    async def infer(self, request: inference_pb2.InferRequest, /) -> inference_pb2.InferResponse:
        answer = self._take(request)
        await self._wait()
        if answer.lose_after is not None:
            raise Unavailable(f"{self.name} is gone")
        return piece(answer, answer.ids, request, finish=FINISH[answer.finish])

    async def infer_stream(self, request: inference_pb2.InferRequest, /) -> AsyncIterator[inference_pb2.InferResponse]:
        answer = self._take(request)
        await self._wait()
        cut = answer.ids if answer.lose_after is None else answer.ids[: answer.lose_after]
        for token in cut[:-1]:
            yield piece(answer, [token], request)
            await asyncio.sleep(0)
        if answer.lose_after is not None:
            if cut:
                yield piece(answer, cut[-1:], request)
            raise Unavailable(f"{self.name} is gone")
        yield piece(answer, cut[-1:], request, finish=FINISH[answer.finish])


def piece(answer: Answer, ids: list[int], request: inference_pb2.InferRequest, finish: Any = 0) -> inference_pb2.InferResponse:
    k = request.top_logprobs
    return inference_pb2.InferResponse(
        output_ids=packed(ids),
        logprobs=array("f", [-0.5] * len(ids)).tobytes(),
        versions=[common_pb2.VersionSpan(num_tokens=len(ids), version=answer.version)],
        finish_reason=finish,
        top_logprobs=common_pb2.TopLogprobs(
            k=k, ids=packed([token for token in ids for _ in range(k)]), logprobs=array("f", [-0.5] * len(ids) * k).tobytes()
        ),
        matched_stop=answer.matched_stop if finish else "",
    )


@dataclass
class ScriptedRouter:
    """Gives the first worker that is not excluded."""

    workers: list[str]
    num_assigned: int = 0

    async def assign_worker(self, request: router_pb2.AssignWorkerRequest, /) -> router_pb2.AssignWorkerResponse:
        self.num_assigned += 1
        for name in self.workers:
            if name != request.exclude_worker_id:
                return router_pb2.AssignWorkerResponse(worker_id=name, address=name)
        if not self.workers:
            raise NoMember("no worker")
        return router_pb2.AssignWorkerResponse(worker_id=self.workers[0], address=self.workers[0])


class World:
    """One run: its store, engines, router, tokenizer, and DataProxies by name."""

    def __init__(self, store: Store, tokenizer: ChatTokenizer) -> None:
        self.store = store
        self.tokenizer = tokenizer
        self.engines = {name: ScriptedEngine(name, [Answer(self.text("ok"))]) for name in ("w1", "w2")}
        self.router = ScriptedRouter(list(self.engines))
        self.proxy = self.make_proxy("dp1")

    @property
    def engine(self) -> ScriptedEngine:
        return self.engines["w1"]

    def text(self, text: str, *, end: bool = True) -> list[int]:
        return self.tokenizer.encode(text + ("<|im_end|>" if end else ""))

    def make_proxy(self, member_id: str, **options: Any) -> DataProxy:
        return DataProxy(
            store=self.store,
            router=self.router,  # type: ignore[arg-type]
            connect=self.engines.__getitem__,  # type: ignore[arg-type]
            tokenizer=self.tokenizer,
            options=DataProxyOptions(member_id=member_id, retry_pause_seconds=0.001, **options),
            clock=lambda: 1_700_000_000.0,
        )

    async def session(self, owner: str = "dp1") -> session_pb2.SessionRef:
        name = uuid.uuid4().hex
        await self.store.members.put(router_pb2.Member(role=router_pb2.ROLE_DATAPROXY, id=owner, address=owner), ttl_seconds=60)
        info = await self.store.sessions.place(
            session_id=f"task-{name}",
            task_id="task",
            group_id=f"group-{name}",
            group_size=1,
            key_hash=name,
            owner_id=owner,
            admission=Admission(mode=AdmissionMode.UNLIMITED, max_concurrent=1000, max_staleness=0, batch_size=1),
        )
        return session_pb2.SessionRef(session_id=info.session_id, fence=info.fence)

    async def records(self, ref: session_pb2.SessionRef) -> list[session_pb2.InteractionRecord]:
        data = await self.store.sessions.load(ref.session_id)
        return list(data.records)

    def answers(self, *texts: str, engine: str = "w1", **fields: Any) -> list[list[int]]:
        """Lets an engine answer these texts, in order; returns their ids."""
        end = fields.get("finish", "stop") == "stop" and not fields.get("matched_stop")
        scripted = [Answer(self.text(text, end=end), **fields) for text in texts]
        self.engines[engine].answers[:] = scripted
        return [answer.ids for answer in scripted]

    chat = staticmethod(lambda *args, **fields: chat(*args, **fields))
    said = staticmethod(lambda response: said(response))
    packed = staticmethod(packed)
    unpacked = staticmethod(unpacked)


def chat(ref: session_pb2.SessionRef, *messages: Any, tools: Any = None, **fields: Any) -> session_pb2.GenerateRequest:
    """A request; a plain string is a user message."""
    shown = [{"role": "user", "content": one} if isinstance(one, str) else one for one in messages]
    fields.setdefault("store", True)
    return session_pb2.GenerateRequest(
        session=ref,
        messages=[json.dumps(one).encode() for one in shown],
        tools=json.dumps(tools).encode() if tools else b"",
        **fields,
    )


def said(response: session_pb2.GenerateResponse) -> dict[str, Any]:
    """The message that a client sends back for an answer."""
    message: dict[str, Any] = {"role": "assistant", "content": response.content or None, "refusal": None}
    if response.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in response.tool_calls
        ]
    return message


@pytest.fixture(scope="session")
def chat_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    path = Path(__file__).parents[2] / "unit" / "dataproxy" / "conftest.py"
    spec = importlib.util.spec_from_file_location("dataproxy_small_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return ChatTokenizer.load(module._write_model(tmp_path_factory.mktemp("model")))


@pytest_asyncio.fixture
async def world(redis_url: str, chat_tokenizer: ChatTokenizer) -> AsyncIterator[World]:
    store = await Store.connect(redis_url, run=f"test-{uuid.uuid4().hex[:8]}")
    try:
        yield World(store, chat_tokenizer)
    finally:
        await store.close()

"""DirectOpenAI on a real engine, in process and over gRPC; its store against Redis; the blocks of docs/client.md."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from client_fake_gateway import ADMIN_KEY, FakeGateway
from rlrun_dataproxy.direct import MemorySessions
from rlrun_dataproxy.tokenizer import ChatTokenizer
from rlrun_worker.service import InferenceWorker, build_engine
from transformers import Qwen3Config, Qwen3ForCausalLM

from rlrun.client import DirectOpenAI
from rlrun.errors import RlrunError
from rlrun.proto import inference_pb2, session_pb2
from rlrun.rpc import peers as rpc_peers
from rlrun.rpc.peers import Peers
from rlrun.rpc.server import RpcServer
from rlrun.rpc.tls import Security
from rlrun.store import Admission, AdmissionMode, SessionData, SessionInfo, Store

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "client.md"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights under a tokenizer and a template with tools."""
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("direct_small_model", ROOT / "tests" / "unit" / "dataproxy" / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    directory = tmp_path_factory.mktemp("direct")
    module._write_model(directory)
    tokenizer = ChatTokenizer.load(directory)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer.vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=1024, bos_token_id=None, eos_token_id=list(tokenizer.eos_ids),
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(directory)
    return directory


@pytest.fixture
async def worker(model: Path) -> AsyncIterator[InferenceWorker]:
    engine = build_engine("torch", model_path=model, num_slots=4, max_len_tokens=1024, num_threads=1)
    await engine.start()
    yield InferenceWorker(engine)
    await engine.close()


@pytest.fixture
async def worker_port(worker: InferenceWorker) -> AsyncIterator[int]:
    server = RpcServer(bind="127.0.0.1", port=0, security=Security())
    server.add(rpc_peers.INFERENCE, worker)
    await server.start()
    yield server.port
    await server.stop(grace_seconds=0)


async def talk(client: DirectOpenAI, *texts: str, **options: Any) -> list[str]:
    """One conversation, every other turn streamed; returns the ids of its completions."""
    messages: list[Any] = []
    ids = []
    for number, text in enumerate(texts):
        messages.append({"role": "user", "content": text})
        answer: Any = await client.chat.completions.create(model="any", messages=messages, max_tokens=8, stream=bool(number % 2), **options)
        if number % 2:
            chunks = [chunk async for chunk in answer]
            said = {"role": "assistant", "content": "".join(chunk.choices[0].delta.content or "" for chunk in chunks)}
            ids.append(chunks[0].id)
        else:
            said = answer.choices[0].message
            ids.append(answer.id)
        messages.append(said)
    return ids


@pytest.mark.parametrize("over", ["process", "grpc"])
async def test_rows_hold_what_the_engine_sampled(over: str, worker: InferenceWorker, worker_port: int, model: Path) -> None:
    peers = Peers(security=Security())
    engine: Any = worker if over == "process" else peers.inference(f"127.0.0.1:{worker_port}")
    async with DirectOpenAI(engine, model) as client:
        ids = await talk(client, "one", "two", "three", temperature=1.0, seed=5)
        client.set_last_reward(10.0)
        client.apply_reward_discount(0.9)
        rows = client.export_interactions()
        [leaf] = client.export_interactions("concat").values()
    await peers.close()
    assert list(rows) == ids
    assert [row.reward for row in rows.values()] == pytest.approx([8.1, 9.0, 10.0])
    assert leaf.interaction_id == ids[-1]
    assert leaf.loss_mask.sum() == sum(row.loss_mask.sum() for row in rows.values())
    scored = await worker.score(inference_pb2.ScoreRequest(ids=leaf.input_ids.astype("<i4").tobytes(), temperature=1.0))
    trained = leaf.loss_mask == 1
    np.testing.assert_allclose(leaf.logprobs[trained], np.frombuffer(scored.logprobs, "<f4")[trained], atol=1e-3)


async def test_many_sessions_at_once_do_not_mix(worker: InferenceWorker, model: Path) -> None:
    first = DirectOpenAI(worker, model)
    clients = [first, *(first.new_session() for _ in range(7)), DirectOpenAI(worker, model)]
    ids = await asyncio.gather(*(talk(client, f"number {number}", "again") for number, client in enumerate(clients)))
    for number, client in enumerate(clients):
        client.set_last_reward(number)
        assert list(client.export_interactions()) == ids[number]
        assert [row.reward for row in client.export_interactions("concat").values()] == [number]
        await client.close()


async def test_an_agent_with_a_client_of_its_own_reaches_the_session(
    worker: InferenceWorker, model: Path, digits_agent: ModuleType
) -> None:
    async with DirectOpenAI(worker, model) as client:
        reward = await digits_agent.DigitsAgent().run(
            {"key": "472", "digit": "7"}, base_url=client.base_url, api_key=client.api_key, http_client=client.http_client
        )
        client.set_last_reward(reward)
        assert [row.reward for row in client.export_interactions().values()] == [reward]


# The store in memory against the one in Redis


async def pass_over_a_rewardless_record(sessions: Any, name: str) -> Any:
    await sessions.record(name, 1, record("i3", 3), rewardless=True)
    return await sessions.set_reward(name, 1, "", 4.0, queue=False)


async def keep_a_reward_at_the_end(sessions: Any, name: str) -> Any:
    await sessions.set_reward(name, 1, "i0", 4.0, queue=False)
    return await sessions.finish(name, queue=False, default_reward=0.5)


STATES = {"ACTIVE": [], "FINISHED": ["finish"], "EXPORTED": ["finish", "export"]}
STEPS: dict[str, Callable[[Any, str], Awaitable[Any]]] = {
    "record": lambda sessions, name: sessions.record(name, 1, record("i2", 2)),
    "record again": lambda sessions, name: sessions.record(name, 1, record("i0", 0)),
    "record rewardless": lambda sessions, name: sessions.record(name, 1, record("i3", 3), rewardless=True),
    "reward after a rewardless record": pass_over_a_rewardless_record,
    "finish after a reward": keep_a_reward_at_the_end,
    "record without id": lambda sessions, name: sessions.record(name, 1, record("", 2)),
    "record with an old fence": lambda sessions, name: sessions.record(name, 0, record("i2", 2)),
    "record elsewhere": lambda sessions, name: sessions.record(f"{name}-other", 1, record("i2", 2)),
    "reward": lambda sessions, name: sessions.set_reward(name, 1, "i0", 2.0, queue=False),
    "reward the last": lambda sessions, name: sessions.set_reward(name, 1, "", -1.0, queue=False),
    "reward an unknown one": lambda sessions, name: sessions.set_reward(name, 1, "i9", 1.0, queue=False),
    "reward nan": lambda sessions, name: sessions.set_reward(name, 1, "i0", float("nan"), queue=False),
    "reward with an old fence": lambda sessions, name: sessions.set_reward(name, 2, "i0", 1.0, queue=False),
    "finish": lambda sessions, name: sessions.finish(name, queue=False, default_reward=None),
    "finish with a fence": lambda sessions, name: sessions.finish(name, fence=1, queue=False, default_reward=None),
    "finish with an old fence": lambda sessions, name: sessions.finish(name, fence=7, queue=False, default_reward=None),
    "finish with a reward": lambda sessions, name: sessions.finish(name, queue=False, default_reward=0.5),
    "finish elsewhere": lambda sessions, name: sessions.finish(f"{name}-other", queue=False, default_reward=None),
    "export": lambda sessions, name: sessions.mark_exported(name),
    "get": lambda sessions, name: sessions.get(name),
    "get elsewhere": lambda sessions, name: sessions.get(f"{name}-other"),
    "by key": lambda sessions, name: sessions.by_key(f"key-{name}"),
    "by another key": lambda sessions, name: sessions.by_key("other"),
    "load elsewhere": lambda sessions, name: sessions.load(f"{name}-other"),
}


def record(interaction_id: str, index: int) -> session_pb2.InteractionRecord:
    return session_pb2.InteractionRecord(schema=1, id=interaction_id, index=index, content=f"answer {index}")


def seen(info: SessionInfo) -> tuple[Any, ...]:
    return (info.session_id, info.state, info.reason, info.key_hash, info.owner_id, info.fence, info.num_interactions, info.has_reward)


async def outcome(step: Awaitable[Any]) -> Any:
    try:
        value = await step
    except RlrunError as error:
        return type(error), str(error), error.param
    match value:
        case SessionInfo():
            return seen(value)
        case SessionData():
            return seen(value.info), [one.SerializeToString() for one in value.records], dict(value.rewards)
        case _:
            return value


@pytest.mark.parametrize("interactions", [0, 2])
@pytest.mark.parametrize("state", STATES)
async def test_memory_answers_as_redis_does(redis_url: str, run_name: str, state: str, interactions: int) -> None:
    unlimited = Admission(mode=AdmissionMode.UNLIMITED, max_concurrent=1000)
    async with await Store.connect(redis_url, run=run_name) as store:
        for number, (title, step) in enumerate(STEPS.items()):
            name, memory = f"s{number}", MemorySessions()
            memory.open(session_id=name, key_hash=f"key-{name}")
            await store.sessions.place(
                session_id=name, task_id="direct", group_id=name, group_size=1, key_hash=f"key-{name}", owner_id="direct",
                admission=unlimited,
            )  # fmt: skip
            outcomes = []
            for sessions in (memory, store.sessions):
                for index in range(interactions):
                    await sessions.record(name, 1, record(f"i{index}", index))  # type: ignore[attr-defined]
                for before in STATES[state]:
                    await STEPS[before](sessions, name)
                outcomes.append((await outcome(step(sessions, name)), await outcome(sessions.load(name))))  # type: ignore[attr-defined]
            assert outcomes[0] == outcomes[1], title


# The page


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", range(len(blocks())))
async def test_each_block_of_the_page_runs(number: int, gateway: FakeGateway, worker_port: int, model: Path, tmp_path: Path) -> None:
    (tmp_path / ".rlrun").mkdir()
    (tmp_path / ".rlrun" / "admin.key").write_text(ADMIN_KEY)
    shutil.copytree(model, tmp_path / "model")
    block = blocks()[number].replace("http://127.0.0.1:8080", gateway.url).replace("127.0.0.1:7072", f"127.0.0.1:{worker_port}")
    (tmp_path / "page.py").write_text(block)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "page.py", cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, output.decode()
    assert output

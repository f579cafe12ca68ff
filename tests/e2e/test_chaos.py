"""Kill each service under load: nothing that a client was told may be lost, nothing may be trained twice."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from openai import APIError, AsyncOpenAI

from rlrun.local.supervisor import LocalStack, free_port
from rlrun.store import Store

ROUNDS = int(os.environ.get("RLRUN_TEST_CHAOS_ROUNDS", "5"))
BATCH_SIZE = 8
SERVICES = ("gateway", "router", "dataproxy", "worker", "trainer")


@dataclass
class Witness:
    """What clients were told with status 200."""

    answered: dict[str, list[str]] = field(default_factory=dict)
    rewarded: set[str] = field(default_factory=set)
    versions: list[int] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


class Load:
    """Agents that never give up: each call is repeated until it is answered, at the next gateway where there are several."""

    def __init__(self, stack: LocalStack, witness: Witness, http: aiohttp.ClientSession) -> None:
        self._stack, self._witness, self._http = stack, witness, http
        self._gateways = itertools.cycle(stack.gateway_urls)
        self.stopped = False

    async def agent(self, number: int) -> None:
        while not self.stopped:
            started = await self._post("/rl/start_session", self._stack.admin_key, {"task_id": f"chaos{number}"})
            session_id, key = str(started["session_id"]), str(started["api_key"])
            await self._converse(session_id, key)
            await self._post("/rl/set_reward", key, {"reward": random.random()})
            self._witness.rewarded.add(session_id)
            await self._post("/rl/end_session", key, {}, gone_is_fine=True)

    async def _converse(self, session_id: str, key: str) -> None:
        messages: list[dict[str, object]] = [{"role": "user", "content": f"hello from {session_id}"}]
        async with AsyncOpenAI(base_url=f"{next(self._gateways)}/v1", api_key=key, max_retries=0, timeout=60) as client:
            for turn in range(3):
                answer = await self._until_answered(client, messages)
                self._witness.answered.setdefault(session_id, []).append(answer.id)  # type: ignore[attr-defined]
                messages.append(answer.choices[0].message.model_dump(exclude_none=True))  # type: ignore[attr-defined]
                messages.append({"role": "user", "content": f"turn {turn}"})

    async def _until_answered(self, client: AsyncOpenAI, messages: list[dict[str, object]]) -> object:
        attempt = 0
        while True:
            try:
                return await client.chat.completions.create(
                    model="default",
                    messages=messages,  # type: ignore[arg-type]
                    max_tokens=8,
                    extra_headers={"x-stainless-retry-count": str(attempt)},
                )
            except APIError as error:
                self._witness.errors[type(error).__name__] += 1
                attempt += 1
                client.base_url = f"{next(self._gateways)}/v1"
                await asyncio.sleep(0.2)

    async def _post(self, path: str, key: str, body: dict[str, object], *, gone_is_fine: bool = False) -> dict[str, object]:
        while True:
            try:
                async with self._http.post(
                    f"{next(self._gateways)}{path}", json=body, headers={"Authorization": f"Bearer {key}"}
                ) as answer:
                    if answer.status == 200:
                        return dict(await answer.json())
                    # A repeated end of a session whose first answer was lost.
                    if gone_is_fine and answer.status == 410:
                        return {}
                    self._witness.errors[f"{path} {answer.status}"] += 1
                    assert answer.status in (429, 500, 503, 504), await answer.text()
            except aiohttp.ClientError as error:
                self._witness.errors[f"{path} {type(error).__name__}"] += 1
            await asyncio.sleep(0.2)


async def keep_alive(stack: LocalStack) -> None:
    while True:
        for child in stack.children:
            child.restart_if_dead()
        await asyncio.sleep(0.1)


async def watch_versions(store: Store, witness: Witness) -> None:
    while True:
        if (policy := await store.policy.current()) is not None:
            witness.versions.append(policy.version)
        await asyncio.sleep(0.1)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("replicas", [1, 2])
async def test_killed_services_lose_nothing(tmp_path: Path, small_document: Callable[..., Path], replicas: int) -> None:
    document = small_document(batch_size=BATCH_SIZE, replicas=replicas, keep_checkpoints=10_000)
    with LocalStack(document, data_dir=tmp_path / "data", port=free_port(), separate=True) as stack:
        store = await Store.connect(stack.redis_url, run=stack.run.metadata.name)
        witness = Witness()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
            load = Load(stack, witness, http)
            background = [asyncio.create_task(keep_alive(stack)), asyncio.create_task(watch_versions(store, witness))]
            agents = [asyncio.create_task(load.agent(number)) for number in range(6)]
            for _ in range(ROUNDS):
                for service in SERVICES:
                    process = random.choice([child for child in stack.children if child.name == service]).process
                    assert process is not None
                    os.kill(process.pid, signal.SIGKILL)
                    await asyncio.sleep(random.uniform(4, 7))
                    print(f"killed {service}: {sum(map(len, witness.answered.values()))} calls answered so far")
            load.stopped = True
            await asyncio.wait_for(asyncio.gather(*agents), 240)
            await settle(store, witness)
            for task in background:
                task.cancel()
        await check(store, witness, trained_sessions(stack.run.checkpoint_directory(stack.data_dir)))
        await store.close()


def trained_sessions(checkpoints: Path) -> Counter[str]:
    """How often each session went into the weights that training arrived at: by the chain of checkpoints that led to them."""
    trained: Counter[str] = Counter()
    name = max((path.name for path in checkpoints.glob("step-*")), default=None)
    while name is not None:
        state = json.loads((checkpoints / name / "state.json").read_text())
        trained.update(ref.split()[1] for ref in state["trajectory_ids"])
        name = state["parent"]
    return trained


async def settle(store: Store, witness: Witness) -> None:
    """Until fewer rewarded sessions than one batch are left over."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        waiting = [one for one in witness.rewarded if (info := await store.sessions.get(one)) and info.state in ("ACTIVE", "QUEUED")]
        if len(waiting) < BATCH_SIZE:
            return
        await asyncio.sleep(0.5)


async def check(store: Store, witness: Witness, trained: Counter[str]) -> None:
    states: Counter[str] = Counter()
    lost = []
    for session_id, answered in witness.answered.items():
        data = await store.sessions.load(session_id)
        records = {record.id: record for record in data.records}
        lost += [one for one in answered if one not in records or not records[one].output_ids]
        for previous, one in itertools.pairwise(answered):
            assert one not in records or records[one].parent_id == previous, f"{session_id}: a later turn lost its token prefix"
        if session_id in witness.rewarded:
            states[str(data.info.state)] += 1
            assert str(data.info.state) != "DISCARDED" or data.info.reason, session_id
            assert (trained[session_id] == 1) == (data.info.state == "TRAINED"), f"{session_id}: {data.info}"
    num_calls = sum(map(len, witness.answered.values()))
    print(f"\n{num_calls} answered calls, {len(lost)} lost; sessions {dict(states)}; versions up to {max(witness.versions, default=0)}")
    print(f"errors seen by clients: {dict(witness.errors)}")
    assert not lost
    assert set(trained.values()) == {1}, f"trained more than once: {[one for one, times in trained.items() if times > 1]}"
    assert num_calls > 0
    assert states["TRAINED"] > 0
    assert set(states) <= {"TRAINED", "QUEUED", "DISCARDED"}
    assert states["QUEUED"] < BATCH_SIZE
    assert witness.versions == sorted(witness.versions)

"""The digits example against a scripted gateway: the agent's conversation and rewards, the driver's end and its files."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from client_fake_gateway import ADMIN_KEY, FakeGateway, fault

RUN = Path(__file__).resolve().parents[3] / "examples" / "digits" / "run.py"


def scripted(first: dict[str, Any], second: str | None = None) -> Any:
    """Answers `first`, and after a tool result `second` (None: the digit that the result names)."""

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        last = body["messages"][-1]
        if last["role"] != "tool":
            return first
        return {"content": second if second is not None else last["content"][-1]}

    return answer


def call(name: str = "lookup", arguments: str = '{"key": "472"}') -> dict[str, Any]:
    return {"tool_calls": [{"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("first", "second", "reward"),
    [
        (call(), None, 1.0),
        (call(), " 7\n", 1.0),
        (call(), "3", 0.1),
        (call(), "77", 0.05),
        (call(), "seven", 0.05),
        (call(arguments='{"key": "4"}'), "7", 0.05),
        (call(name="search"), "7", 0.0),
        (call(arguments="not json"), "7", 0.0),
        (call(arguments="[]"), "7", 0.0),
        ({"content": "7"}, "7", 0.0),
    ],
)
async def test_only_the_tool_s_digit_earns_the_full_reward(
    gateway: FakeGateway, digits_agent: ModuleType, first: dict[str, Any], second: str | None, reward: float
) -> None:
    gateway.answer = scripted(first, second)
    agent = digits_agent.DigitsAgent()
    assert await agent.run({"key": "472", "digit": "7"}, base_url=f"{gateway.url}/v1", api_key="key") == reward


async def test_the_conversation_is_the_one_that_the_small_model_knows(gateway: FakeGateway, digits_agent: ModuleType) -> None:
    from rlrun_trainer.tiny import task

    gateway.answer = scripted(call())
    agent = digits_agent.DigitsAgent()
    await agent.run({"key": "472", "digit": "7"}, base_url=f"{gateway.url}/v1", api_key="key")
    sent = gateway.chats[-1]
    assert sent["tools"] == [task.LOOKUP_TOOL]
    assert sent["temperature"] == 1.0
    assert sent["messages"][0] == task.question("472")
    assert sent["messages"][1]["tool_calls"][0]["function"] == task.tool_call("472")["tool_calls"][0]["function"]
    assert sent["messages"][2] == task.tool_result("7", "c1")
    assert agent.output_tokens == 6


async def drive(gateway: FakeGateway, folder: Path, *options: str) -> tuple[int, str]:
    key = folder / "admin.key"
    key.write_text(ADMIN_KEY)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(RUN), "--url", gateway.url, "--admin-key-file", str(key), "--output", str(folder / "out"),
        "--groups", "2", "--group-size", "4", "--concurrency", "8", *options,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = await asyncio.wait_for(process.communicate(), 90)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, output.decode()


def asked_key(body: dict[str, Any]) -> str:
    return str(body["messages"][0]["content"].split('"')[1])


async def test_the_driver_ends_well_once_a_changed_policy_earns_the_reward(gateway: FakeGateway, tmp_path: Path) -> None:
    def learns(body: dict[str, Any]) -> dict[str, Any]:
        gateway.policy_version = len(gateway.ended) // 64
        learnt = None if gateway.policy_version else "x"
        return dict(scripted(call(arguments=json.dumps({"key": asked_key(body)})), learnt)(body))

    gateway.answer = learns
    gateway.faults["/rl/start_session"] = [fault(429, "no_capacity", retry_after_ms="20")]
    code, output = await drive(gateway, tmp_path, "--sessions", "2000")
    assert code == 0, output
    assert "goal 0.9 reached" in output
    assert "█" in (tmp_path / "out" / "reward.txt").read_text()
    assert (tmp_path / "out" / "reward.png").read_bytes().startswith(b"\x89PNG")
    points = json.loads((tmp_path / "out" / "reward.json").read_text())
    assert points[0]["reward"] == pytest.approx(0.05)
    assert points[-1]["version"] >= 1
    sizes: dict[str, int] = {}
    for start in gateway.starts:
        assert start["group_size"] == 4
        sizes[start["group_id"]] = sizes.get(start["group_id"], 0) + 1
    assert set(list(sizes.values())[:-3]) == {4}


async def test_a_reward_without_a_new_policy_is_not_the_goal(gateway: FakeGateway, tmp_path: Path) -> None:
    gateway.answer = lambda body: dict(scripted(call(arguments=json.dumps({"key": asked_key(body)})))(body))
    code, output = await drive(gateway, tmp_path, "--sessions", "96")
    assert code == 1, output
    assert "not reached: reward 1.000 after 96 sessions, 0 new versions" in output


async def test_a_refused_key_ends_at_once_with_the_reason(gateway: FakeGateway, tmp_path: Path) -> None:
    gateway.faults["/admin/status"] = [fault(403, "permission_denied")]
    code, output = await drive(gateway, tmp_path)
    assert code == 2
    assert "made permission_denied" in output

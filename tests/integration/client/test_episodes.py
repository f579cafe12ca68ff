from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from client_fake_gateway import ADMIN_KEY, FakeGateway, fault

from rlrun.client import AsyncSessionClient, Mode, run_episode
from rlrun.errors import DeadlineExceeded, Internal, InvalidRequest

AGENTS = """
import os, sys, time

class Named:
    async def run(self, data, **kwargs):
        print("noise on standard output", flush=True)
        assert not kwargs
        names = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")
        assert all(os.environ[name] for name in names)
        assert not [name for name in os.environ if name.startswith("RLRUN_")]
        return {os.environ["OPENAI_BASE_URL"]: data["reward"], os.environ["ANTHROPIC_BASE_URL"]: 1}

class Raises:
    async def run(self, data, **kwargs):
        raise LookupError("no such task")

class Sleeps:
    async def run(self, data, **kwargs):
        open(data["pid_file"], "w").write(str(os.getpid()))
        time.sleep(60)

class Dies:
    async def run(self, data, **kwargs):
        os._exit(0)
"""


class Echo:
    async def run(self, data: dict[str, Any], **kwargs: Any) -> float | dict[str, float]:
        assert kwargs.keys() == {"base_url", "api_key"}
        reward = data["reward"]
        if isinstance(reward, Exception):
            raise reward
        assert isinstance(reward, (float, int, dict))
        return reward


@pytest.fixture
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_agents.py").write_text(AGENTS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def client(gateway: FakeGateway) -> AsyncSessionClient:
    return AsyncSessionClient(gateway.url, admin_key=ADMIN_KEY)


async def test_an_agent_in_this_process(gateway: FakeGateway) -> None:
    async with client(gateway) as rlrun:
        result = await run_episode(Echo(), {"reward": 0.5}, rlrun, task_id="t", group_id="g", group_size=2)
    assert (result.session_id, result.rewards, result.interaction_count) == ("t-1", 0.5, 2)
    (key,) = gateway.ended
    assert gateway.rewards == {key: [(None, 0.5)]}
    assert gateway.starts[0]["group_id"] == "g"


@pytest.mark.parametrize(("reward", "error"), [(ZeroDivisionError("agent"), ZeroDivisionError), (float("nan"), InvalidRequest)])
async def test_an_agent_that_fails_earns_nothing_and_its_session_is_ended(
    gateway: FakeGateway, reward: object, error: type[Exception]
) -> None:
    async with client(gateway) as rlrun:
        with pytest.raises(error):
            await run_episode(Echo(), {"reward": reward}, rlrun)
    assert gateway.rewards == {}
    assert len(gateway.ended) == 1


async def test_rewards_of_which_one_names_no_interaction_are_not_given_at_all(gateway: FakeGateway) -> None:
    gateway.interaction_ids = {"i-1"}
    async with client(gateway) as rlrun:
        with pytest.raises(InvalidRequest, match="i-2, which session"):
            await run_episode(Echo(), {"reward": {"i-1": 1.0, "i-2": 0.5}}, rlrun)
    assert gateway.rewards == {}
    assert len(gateway.ended) == 1


async def test_an_end_that_fails_does_not_hide_what_failed_before(gateway: FakeGateway) -> None:
    gateway.faults["/rl/end_session"] = [fault(404, "not_found")]
    async with client(gateway) as rlrun:
        with pytest.raises(ZeroDivisionError):
            await run_episode(Echo(), {"reward": ZeroDivisionError("agent")}, rlrun)


@pytest.mark.usefixtures("agents")
async def test_an_agents_process_does_not_see_the_surrounding_ones_secrets(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLRUN_REDIS_URL", "redis://:secret@127.0.0.1/0")
    monkeypatch.setenv("RLRUN_SESSION_KEY", "sk-of-another-one")
    gateway.interaction_ids = {f"{gateway.url}/v1", gateway.url}
    async with client(gateway) as rlrun:
        await run_episode("made_agents:Named", {"reward": 1}, rlrun, mode=Mode.SUBPROCESS)


@pytest.mark.usefixtures("agents")
async def test_an_agent_in_a_process_of_its_own_finds_the_session_in_its_environment(gateway: FakeGateway) -> None:
    gateway.interaction_ids = {f"{gateway.url}/v1", gateway.url}
    async with client(gateway) as rlrun:
        result = await run_episode("made_agents:Named", {"reward": 0.5}, rlrun, mode=Mode.SUBPROCESS)
    assert result.rewards == {f"{gateway.url}/v1": 0.5, gateway.url: 1.0}


@pytest.mark.usefixtures("agents")
@pytest.mark.parametrize(("name", "words"), [("Raises", "no such task"), ("Dies", "gave no reward"), ("Missing", "cannot be imported")])
async def test_a_process_that_gives_no_reward_says_why(gateway: FakeGateway, name: str, words: str) -> None:
    async with client(gateway) as rlrun:
        with pytest.raises(Internal, match=words):
            await run_episode(f"made_agents:{name}", {}, rlrun, mode=Mode.SUBPROCESS)
    assert gateway.rewards == {}
    assert len(gateway.ended) == 1


@pytest.mark.usefixtures("agents")
async def test_a_process_over_its_time_is_killed(gateway: FakeGateway, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    async with client(gateway) as rlrun:
        episode = asyncio.create_task(
            run_episode("made_agents:Sleeps", {"pid_file": str(pid_file)}, rlrun, mode=Mode.SUBPROCESS, timeout_seconds=8.0)
        )
        with pytest.raises(DeadlineExceeded, match="killed"):
            await episode
    if pid_file.exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid_file.read_text()), 0)

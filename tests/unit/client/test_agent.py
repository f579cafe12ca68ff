from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from rlrun.client import AsyncSession, AsyncSessionClient, Mode, run_episode
from rlrun.client._agent import checked_rewards, load_agent
from rlrun.client._episode import environment
from rlrun.errors import ConfigError, InvalidRequest


@pytest.mark.parametrize("value", [1, 0.5, -2.0, {"a": 1.0}, {}])
def test_numbers_and_dicts_of_numbers_are_rewards(value: Any) -> None:
    assert checked_rewards(value) == value


@pytest.mark.parametrize("value", [None, "1", True, float("nan"), float("inf"), [1.0], {"a": None}, {1: 1.0}])
def test_anything_else_is_refused_with_what_to_return(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="return a finite number"):
        checked_rewards(value)


def test_a_class_and_an_object_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Agent:
        async def run(self, data: dict[str, Any], **kwargs: Any) -> float:
            return 1.0

    module = types.ModuleType("made_agents")
    module.Agent, module.agent, module.nothing = Agent, Agent(), object()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "made_agents", module)
    assert isinstance(load_agent("made_agents:Agent"), Agent)
    assert load_agent("made_agents:agent") is module.agent
    with pytest.raises(ConfigError, match="no method"):
        load_agent("made_agents:nothing")


@pytest.mark.parametrize("name", ["", "os", "os:", ":x", "no.such.module:X", "os:no_such_name"])
def test_a_wrong_name_says_what_is_wrong(name: str) -> None:
    with pytest.raises(ConfigError, match="agent"):
        load_agent(name)


async def test_a_subprocess_needs_an_import_string_before_anything_is_started() -> None:
    class Agent:
        async def run(self, data: dict[str, Any], **kwargs: Any) -> float:
            return 1.0

    with pytest.raises(ConfigError, match="import string"):
        await run_episode(Agent(), {}, AsyncSessionClient("http://127.0.0.1:1", admin_key="k"), mode=Mode.SUBPROCESS)


@pytest.mark.parametrize("url", ["http://gateway:8080", "http://gateway:8080/", "http://gateway:8080/v1", "http://gateway:8080/v1/"])
def test_the_sdks_get_the_urls_they_expect(url: str) -> None:
    session = AsyncSession(AsyncSessionClient(url, admin_key="admin"), session_id="s", api_key="key")
    assert environment(session) == {
        "OPENAI_BASE_URL": "http://gateway:8080/v1",
        "OPENAI_API_KEY": "key",
        "ANTHROPIC_BASE_URL": "http://gateway:8080",
        "ANTHROPIC_API_KEY": "key",
    }


async def test_what_needs_a_key_says_which() -> None:
    client = AsyncSessionClient("http://gateway:8080", api_key="key")
    with pytest.raises(ConfigError, match="admin_key"):
        await client.start_session("task")
    with pytest.raises(ConfigError, match="admin key"):
        _ = client.session().session_id
    with pytest.raises(ConfigError, match="api_key"):
        AsyncSessionClient("http://gateway:8080", admin_key="admin").session()

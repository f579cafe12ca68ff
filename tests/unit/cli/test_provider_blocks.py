import json
import tomllib

from rlrun.cli.provider_blocks import Client, provider_block


def block(client: Client) -> str:
    return provider_block(client, base_url="http://h:8080/", api_key="sk-1", model="default")


def test_openai_clients_read_two_variables() -> None:
    assert block(Client.OPENAI).splitlines() == ["export OPENAI_BASE_URL=http://h:8080/v1", "export OPENAI_API_KEY=sk-1"]


def test_openclaw_gets_a_provider_with_one_model() -> None:
    provider = json.loads(block(Client.OPENCLAW))["models"]["providers"]["rlrun"]
    assert (provider["baseUrl"], provider["apiKey"], provider["api"]) == ("http://h:8080/v1", "sk-1", "openai-completions")
    assert [model["id"] for model in provider["models"]] == ["default"]


def test_zeroclaw_gets_a_custom_provider_with_native_tools() -> None:
    document = tomllib.loads(block(Client.ZEROCLAW))
    provider = document["providers"]["models"]["custom"]["rlrun"]
    assert provider == {"uri": "http://h:8080/v1", "api_key": "sk-1", "model": "default", "native_tools": True}
    assert document["agents"]["assistant"]["model_provider"] == "custom.rlrun"

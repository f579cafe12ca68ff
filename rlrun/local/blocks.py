"""What `rlrun up` prints once everything runs: the URL, the key, and what to paste into an agent's configuration."""

from __future__ import annotations

import shlex
from pathlib import Path

from rlrun.cli.provider_blocks import Client, provider_block

_PLACEHOLDER = "SESSION_KEY"
_TITLES = {
    Client.OPENAI: "OpenAI SDK (environment)",
    Client.OPENCLAW: "OpenClaw (openclaw.json)",
    Client.ZEROCLAW: "ZeroClaw (config.toml)",
}


def client_blocks(base_url: str, admin_key_file: Path, model: str) -> str:
    head = (
        f"rlrun serves {model} at {base_url}\nadmin key: {admin_key_file}\n"
        f"get a {_PLACEHOLDER}: rlrun start-session my-task --url {base_url} --admin-key-file {shlex.quote(str(admin_key_file))}"
    )
    blocks = [
        f"{title}\n{provider_block(client, base_url=base_url, api_key=_PLACEHOLDER, model=model)}" for client, title in _TITLES.items()
    ]
    return "\n\n".join([head, *blocks])

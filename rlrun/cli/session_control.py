"""`rlrun start-session`, `set-reward`, `end-session`: the life of a session by hand."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

from rlrun.cli import gateway
from rlrun.cli.outcome import JsonOption, print_json
from rlrun.cli.provider_blocks import Client, provider_block


def start_session(
    task_id: Annotated[str, typer.Argument(help="Name of the task; the session's id begins with it.")],
    key: Annotated[str | None, typer.Option("--key", help="Use this session key again: its running session ends first.")] = None,
    client: Annotated[Client, typer.Option("--client", help="Whose configuration to print.")] = Client.OPENAI,
    model: Annotated[str, typer.Option("--model", help="What that client writes into `model`: spec.model.name.")] = "default",
    url: gateway.UrlOption = gateway.DEFAULT_URL,
    admin_key_file: gateway.AdminKeyOption = None,
    timeout: gateway.TimeoutOption = 150.0,
    as_json: JsonOption = False,
) -> None:
    """Starts a session and prints its id, and its key as configuration of a client."""
    body = {"task_id": task_id} | ({"api_key": key} if key else {})
    answer = gateway.call("POST", url, "/rl/start_session", key=gateway.admin_key(admin_key_file), body=body, timeout_seconds=timeout)
    if as_json:
        print_json(answer)
        return
    typer.echo(f"session {answer['session_id']}", err=True)
    typer.echo(provider_block(client, base_url=url, api_key=answer["api_key"], model=model))


def _finite(text: str) -> float:
    """Also told to mistyped options, which `ignore_unknown_options` takes for this argument."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise typer.BadParameter(f"{text!r} is neither a finite number such as 1.0 nor an option of this command")
    return number


def set_reward(
    reward: Annotated[
        float,
        typer.Argument(
            help="The reward, a finite number.",
            parser=_finite,
        ),
    ],
    interaction_id: Annotated[
        str | None, typer.Option("--interaction", help="Id of the interaction (chatcmpl-...); the session's last one when not given.")
    ] = None,
    key: gateway.SessionKeyOption = None,
    key_file: gateway.SessionKeyFileOption = None,
    url: gateway.UrlOption = gateway.DEFAULT_URL,
    timeout: gateway.TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Sets the reward of an interaction."""
    body: dict[str, Any] = {"reward": reward} | ({"interaction_id": interaction_id} if interaction_id is not None else {})
    answer = gateway.call("POST", url, "/rl/set_reward", key=gateway.session_key(key, key_file), body=body, timeout_seconds=timeout)
    if as_json:
        print_json(answer)
    else:
        typer.echo(f"reward {reward:g} set on {answer['interaction_id']}")


def end_session(
    key: gateway.SessionKeyOption = None,
    key_file: gateway.SessionKeyFileOption = None,
    url: gateway.UrlOption = gateway.DEFAULT_URL,
    timeout: gateway.TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Ends the session that a key belongs to."""
    answer = gateway.call("POST", url, "/rl/end_session", key=gateway.session_key(key, key_file), body={}, timeout_seconds=timeout)
    if as_json:
        print_json(answer)
    else:
        typer.echo("session ended")

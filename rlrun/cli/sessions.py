"""`rlrun sessions` and `rlrun session show`: reading sessions."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote, urlencode

import typer

from rlrun.cli import gateway
from rlrun.cli.outcome import JsonOption, console, print_json
from rlrun.cli.render import rows_table, session_tree

SessionArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the session.")]


def sessions(
    state: Annotated[
        str | None, typer.Option("--state", help="Only this state: active, finished, queued, trained, exported or discarded.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most this many, newest first.")] = 50,
    url: gateway.UrlOption = gateway.DEFAULT_URL,
    admin_key_file: gateway.AdminKeyOption = None,
    timeout: gateway.TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Lists sessions."""
    query = {"limit": str(limit)} | ({"state": state.upper()} if state is not None else {})
    path = f"/admin/sessions?{urlencode(query)}"
    answer = gateway.call("GET", url, path, key=gateway.admin_key(admin_key_file), timeout_seconds=timeout)
    if as_json:
        print_json(answer)
        return
    if answer["sessions"]:
        console().print(rows_table(answer["sessions"]))
    else:
        typer.echo("no sessions")


def show(
    session_id: SessionArgument,
    url: gateway.UrlOption = gateway.DEFAULT_URL,
    admin_key_file: gateway.AdminKeyOption = None,
    timeout: gateway.TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Draws a session's conversation tree: tokens, loss mask, policy versions, rewards."""
    path = f"/admin/sessions/{quote(session_id, safe='')}"
    answer = gateway.call("GET", url, path, key=gateway.admin_key(admin_key_file), timeout_seconds=timeout)
    if as_json:
        print_json(answer)
    else:
        console().print(session_tree(answer))

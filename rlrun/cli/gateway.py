"""Calls to a running gateway and the options that say which one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import msgspec
import typer

from rlrun.auth import check_key, read_key_file
from rlrun.cli.outcome import EXIT_MISUSED, CommandFailed
from rlrun.client._http import check_base_url, exchange
from rlrun.errors import (
    ConfigError,
    Conflict,
    DeadlineExceeded,
    Internal,
    NotFound,
    Overloaded,
    PermissionDenied,
    RlrunError,
    SessionGone,
    Unauthenticated,
    Unavailable,
)

DEFAULT_URL = "http://127.0.0.1:8080"
# Where `rlrun up` writes the admin key with the default data directory.
LOCAL_ADMIN_KEY_FILE = Path(".rlrun/admin.key")

UrlOption = Annotated[str, typer.Option("--url", envvar="RLRUN_URL", help="Base URL of the gateway.")]
AdminKeyOption = Annotated[
    Path | None,
    typer.Option(
        "--admin-key-file",
        envvar="RLRUN_ADMIN_KEY_FILE",
        help=f"File with the admin key; {LOCAL_ADMIN_KEY_FILE} is taken where it is present.",
    ),
]
SessionKeyFileOption = Annotated[Path | None, typer.Option("--key-file", help="File with the session's key.")]
SessionKeyOption = Annotated[
    str | None,
    typer.Option(
        "--key", envvar="RLRUN_SESSION_KEY", help="The session's key; other users of this machine see it, prefer the file or the variable."
    ),
]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to wait for the answer.")]


def admin_key(path: Path | None) -> str:
    if path is None and not LOCAL_ADMIN_KEY_FILE.is_file():
        raise CommandFailed("no admin key", next_step="give its file with --admin-key-file or RLRUN_ADMIN_KEY_FILE", exit_code=EXIT_MISUSED)
    return read_key_file(path if path is not None else LOCAL_ADMIN_KEY_FILE, variable="--admin-key-file")


def session_key(key: str | None, path: Path | None) -> str:
    if path is not None:
        return read_key_file(path, variable="--key-file")
    if not key:
        raise CommandFailed(
            "no session key",
            next_step="give it with --key-file, or in RLRUN_SESSION_KEY; start-session prints it",
            exit_code=EXIT_MISUSED,
        )
    return check_key(key, where="--key or RLRUN_SESSION_KEY", param="--key")


def call(
    method: str, url: str, path: str, *, key: str, body: Mapping[str, Any] | None = None, timeout_seconds: float = 30.0
) -> dict[str, Any]:
    """One request; returns the decoded JSON answer.

    Raises:
        CommandFailed: no connection, no answer in time, an error status, or an answer that is not JSON.
    """
    try:
        base = check_base_url(url)
    except ConfigError as error:
        raise CommandFailed(f"--url: {error.message}", next_step=f"write it like {DEFAULT_URL}", exit_code=EXIT_MISUSED) from error

    async def run() -> dict[str, Any]:
        async with aiohttp.ClientSession() as http:
            return await exchange(http, method, base + path, key=key, body=body, timeout_seconds=timeout_seconds)

    try:
        return asyncio.run(run())
    except RlrunError as error:
        raise CommandFailed(error.message, next_step=_next_step(error)) from error


def _next_step(error: RlrunError) -> str:
    match error.__cause__:  # set where there was no answer of a gateway
        case TimeoutError():
            return "try again with a larger --timeout; look at the gateway's log"
        case aiohttp.ClientError():
            return "start the gateway (`rlrun up -f ...`), or give its address with --url"
        case msgspec.DecodeError():
            return "check --url: is it the address of an rlrun gateway?"
    match error:
        case Unauthenticated() | PermissionDenied():
            return "check the key: administrative commands need the admin key, rewards and end-session the session's own"
        case NotFound():
            return "check the id and --url; `rlrun sessions` lists the sessions"
        case Conflict():
            return "look at the session's state with `rlrun session show ID`"
        case SessionGone():
            return "the session has ended; start another with `rlrun start-session`"
        case Overloaded() | Unavailable():
            return f"try again in {error.retry_after_seconds or 1.0:g} s"
        case DeadlineExceeded() | Internal():
            return "look for the request id in the gateway's log"
        case _:
            return "correct the arguments; --help describes them"

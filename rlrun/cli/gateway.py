"""Calls to a running gateway and the options that say which one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import typer

from rlrun.auth import read_key_file
from rlrun.cli.outcome import EXIT_MISUSED, CommandFailed

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
    return key


def call(
    method: str,
    url: str,
    path: str,
    *,
    key: str,
    body: Mapping[str, Any] | None = None,
    query: Mapping[str, str] | None = None,
    timeout_seconds: float = 30.0,
) -> Any:
    """One request; returns the decoded JSON answer.

    Raises:
        CommandFailed: no connection, no answer in time, an error status, or an answer that is not JSON.
    """
    base = url.rstrip("/")
    if not base.startswith(("http://", "https://")):
        raise CommandFailed(f"--url {url}: must begin with http:// or https://", next_step=f"write {DEFAULT_URL}", exit_code=EXIT_MISUSED)
    return asyncio.run(_call(method, base, path, key, body, query, timeout_seconds))


async def _call(
    method: str, base: str, path: str, key: str, body: Mapping[str, Any] | None, query: Mapping[str, str] | None, timeout_seconds: float
) -> Any:
    timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    headers = {"Authorization": f"Bearer {key}"}
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            session.request(method, f"{base}{path}", json=body, params=query, allow_redirects=False) as response,
        ):
            answer = await _decode(response)
            if response.status >= 300:
                raise _refused(response, answer)
            if answer is None:
                raise CommandFailed(
                    f"{base}{path}: the answer is not JSON", next_step="check --url: is it the address of an rlrun gateway?"
                )
            return answer
    except TimeoutError as error:
        raise CommandFailed(
            f"{base}{path}: no answer within {timeout_seconds:g} s",
            next_step="try again with a larger --timeout; look at the gateway's log",
        ) from error
    except aiohttp.InvalidURL as error:
        raise CommandFailed(f"--url {base}: not a URL", next_step=f"write {DEFAULT_URL}", exit_code=EXIT_MISUSED) from error
    except aiohttp.ClientError as error:
        raise CommandFailed(
            f"{base}: {error}", next_step="start the gateway (`rlrun up -f ...`), or give its address with --url"
        ) from error


async def _decode(response: aiohttp.ClientResponse) -> Any:
    try:
        return await response.json(content_type=None)
    except ValueError:
        return None


def _refused(response: aiohttp.ClientResponse, answer: Any) -> CommandFailed:
    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else error if isinstance(error, str) else None
    if message is None and isinstance(answer, dict) and isinstance(answer.get("detail"), str):
        message = answer["detail"]
    request_id = response.headers.get("x-request-id")
    text = f"the gateway answered {response.status}: {message or response.reason}"
    return CommandFailed(text + (f" (request {request_id})" if request_id else ""), next_step=_next_step(response))


def _next_step(response: aiohttp.ClientResponse) -> str:
    match response.status:
        case 401 | 403:
            return "check the key: administrative commands need the admin key, rewards and end-session the session's own"
        case 404:
            return "check the id and --url; `rlrun sessions` lists the sessions"
        case 409:
            return "look at the session's state with `rlrun session show ID`"
        case 410:
            return "the session has ended; start another with `rlrun start-session`"
        case 429 | 503:
            seconds = _retry_after(response.headers.get("Retry-After"))
            return f"try again in {seconds:g} s" if seconds is not None else "try again later"
        case status if status >= 500:
            return "look for the request id in the gateway's log"
        case _:
            return "correct the arguments; --help describes them"


def _retry_after(text: str | None) -> float | None:
    try:
        seconds = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) else None

"""One exchange with the Gateway: JSON in, JSON out, every fault as an error of `rlrun.errors`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from rlrun.errors import (
    BY_CODE,
    ClientError,
    ConfigError,
    Conflict,
    DeadlineExceeded,
    Internal,
    InvalidRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    RequestTooLarge,
    RlrunError,
    SessionGone,
    Unauthenticated,
    Unavailable,
)

_BY_STATUS: dict[int, type[RlrunError]] = {
    400: InvalidRequest,
    401: Unauthenticated,
    403: PermissionDenied,
    404: NotFound,
    408: DeadlineExceeded,
    409: Conflict,
    410: SessionGone,
    413: RequestTooLarge,
    422: InvalidRequest,
    429: Overloaded,
    502: Unavailable,
    503: Unavailable,
    504: DeadlineExceeded,
}


def check_base_url(url: str) -> str:
    """A gateway's URL without a slash at its end.

    Raises:
        ConfigError: no HTTP URL, or one with more than host, port and path.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not url.isprintable() or " " in url:
        raise ConfigError(f"{url!r:.200} is no URL of the form http://HOST:PORT or https://HOST:PORT", param="base_url")
    if "@" in parts.netloc or parts.query or parts.fragment:
        shown = f"{parts.scheme}://...{parts.hostname}"
        raise ConfigError(f"{shown}: a gateway's URL has no user, query or fragment; keys go into headers", param="base_url")
    return url.rstrip("/")


async def exchange(
    http: aiohttp.ClientSession, method: str, url: str, *, key: str, body: Mapping[str, Any] | None, timeout_seconds: float
) -> dict[str, Any]:
    """One request; redirects are not followed, for they would lose the body and may leak the key.

    Raises:
        RlrunError: the one that the answer's code names. Without an answer: `Unavailable` (no connection), `DeadlineExceeded` (it stalls),
            `Internal` (it is no JSON object); their `__cause__` says what happened.
    """
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    try:
        async with http.request(
            method,
            url,
            data=None if body is None else msgspec.json.encode(body),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=timeout_seconds),
            allow_redirects=False,
        ) as answer:
            content = await answer.read()
            if answer.status >= 300:
                raise error_from(answer.status, answer.headers, content, where=f"{method} {url}")
    except TimeoutError as error:
        raise DeadlineExceeded(f"{method} {url}: no answer within {timeout_seconds:g} s") from error
    except aiohttp.ClientError as error:
        raise Unavailable(f"{method} {url}: {error}", retry_after_seconds=0.0) from error
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise Internal(f"{method} {url}: the answer is not JSON: {error}") from error


def error_from(status: int, headers: Mapping[str, str], content: bytes, *, where: str) -> RlrunError:
    """The error of an answer: by its code, else (a proxy's own page) by its status."""
    answer = _object(content)
    error = answer.get("error")
    fault = error if isinstance(error, dict) else {}
    code = fault.get("code")
    # Ours; then the forms of proxies and frameworks; then whatever it says.
    texts = (fault.get("message"), error, answer.get("detail"), content[:200].decode(errors="replace") or "empty answer")
    message = next(text for text in texts if isinstance(text, str))
    kind = BY_CODE.get(code) if isinstance(code, str) else None
    if kind is None or (kind is ClientError):
        kind = _BY_STATUS.get(status, InvalidRequest if status < 500 else Internal)
    request_id = headers.get("x-request-id")
    param = fault.get("param")
    return kind(
        f"{where} answered {status}: {message}" + (f" (request {request_id})" if request_id else ""),
        param=param if isinstance(param, str) else None,
        retry_after_seconds=_retry_after(headers),
    )


def _object(content: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds; milliseconds are more exact where given. A date is not sent by rlrun and counts as no advice."""
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * scale
        except ValueError:
            continue
        if math.isfinite(seconds) and seconds >= 0:
            return seconds
    return None

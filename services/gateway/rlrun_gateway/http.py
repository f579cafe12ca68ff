"""The plain parts of HTTP over ASGI: bodies with limits, answers, request ids, clients that go away."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from types import TracebackType
from typing import Any

from rlrun.errors import RequestTooLarge, RlrunError
from rlrun.ids import new_request_id
from rlrun_gateway.errors import HttpError

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON_TYPE = (b"content-type", b"application/json")
_LINGER_SECONDS = 5.0
_LINGER_BYTES = 64 * 1024 * 1024
_SANE_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class ClientDisconnected(Exception):
    """The client closed its connection before the answer ended."""


def header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    for key, value in headers:
        if key == name:
            return value
    return None


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The client's own id if it is short and printable, else a new one."""
    value = header(headers, b"x-request-id")
    return value.decode("ascii") if value is not None and _SANE_ID.fullmatch(value) else new_request_id()


def check_json_type(headers: Iterable[tuple[bytes, bytes]]) -> None:
    content_type = (header(headers, b"content-type") or b"").split(b";", 1)[0].strip().lower()
    if content_type != b"application/json" and not content_type.endswith(b"+json"):
        shown = content_type.decode("latin-1")[:80] or "none"
        raise HttpError(415, "unsupported_media_type", f"Content-Type is {shown}; send application/json")
    if (encoding := header(headers, b"content-encoding")) not in (None, b"identity"):
        raise HttpError(415, "unsupported_media_type", f"Content-Encoding {encoding!r:.40} is not supported; send the body uncompressed")


class Exchange:
    """One request and its answer: what was sent so far, and the headers that every answer has."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.headers: Headers = scope["headers"]
        self.request_id = request_id(self.headers)
        self.extra_headers: Headers = [(b"x-request-id", self.request_id.encode())]
        self.started = False
        self.body_read = False
        self.finished = False
        self.status = 0
        self._receive = receive
        self._send = send
        self._began = time.perf_counter()

    def elapsed(self) -> float:
        return time.perf_counter() - self._began

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            self.body_read = True
        return message

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        await self.start(status, [*headers, (b"content-length", str(len(body)).encode())])
        await self.write(body, more=False)

    async def refuse(self, status: int, headers: Headers, body: bytes) -> None:
        """Answers a request whose body was not read to its end, and closes the connection.

        What the client still sends is read and dropped for a while first: bytes that meet a closed socket reset the connection, and with it
        the answer is lost to clients that only read after their last byte.
        """
        if self.body_read:
            return await self.answer(status, headers, body)
        await self.start(status, [*headers, (b"content-length", str(len(body)).encode()), (b"connection", b"close")])
        await self.write(body, more=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                await self._drop_rest()
        await self.write(b"", more=False)

    async def _drop_rest(self) -> None:
        dropped = 0
        while dropped < _LINGER_BYTES:
            message = await self.receive()
            if not message.get("more_body"):
                return
            dropped += len(message["body"])

    async def start(self, status: int, headers: Headers) -> None:
        self.started = True
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": headers + self.extra_headers})

    async def write(self, data: bytes, *, more: bool) -> None:
        self.finished = not more
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def forward(self, message: Message) -> None:
        """An ASGI `send` for an inner app."""
        if message["type"] == "http.response.start":
            await self.start(message["status"], list(message.get("headers", ())))
        else:
            self.finished = not message.get("more_body")
            await self._send(message)

    def log_bug(self, error: BaseException) -> None:
        log.error("request %s failed", self.request_id, exc_info=error, extra={"path": self.scope["path"]})

    def log_unserved(self, error: RlrunError | HttpError) -> None:
        """Faults of the service, not of the client: they should be rare enough for a line each."""
        if error.http_status >= 500:
            log.warning("request %s got %d %s: %s", self.request_id, error.http_status, error.code, error.message)


async def read_body(exchange: Exchange, *, max_bytes: int, timeout_seconds: float) -> bytes:
    """Reads a whole body and stops at the first byte too many.

    Raises:
        RequestTooLarge: longer than `max_bytes`, announced or real.
        HttpError: 408 when the body takes longer than `timeout_seconds`.
        ClientDisconnected: the connection ended inside the body.
    """
    announced = header(exchange.headers, b"content-length")
    if announced is not None and announced.isdigit() and (len(announced) > 18 or int(announced) > max_bytes):
        raise _too_large(max_bytes)
    try:
        async with asyncio.timeout(timeout_seconds):
            message = await exchange.receive()
            if message["type"] == "http.request" and not message.get("more_body"):
                body = message.get("body", b"")
                if len(body) > max_bytes:
                    raise _too_large(max_bytes)
            else:
                body = await _read_rest(message, exchange.receive, max_bytes)
    except TimeoutError:
        raise HttpError(408, "request_timeout", f"The request's body did not arrive within {timeout_seconds:g} s") from None
    return bytes(body)


async def _read_rest(message: Message, receive: Receive, max_bytes: int) -> bytes:
    body = bytearray()
    while True:
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
        if not message.get("more_body"):
            return bytes(body)
        message = await receive()


def _too_large(max_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(f"The request's body is larger than {max_bytes} bytes; send less history or fewer tools")


class cancelled_by_disconnect:
    """Cancels what runs inside as soon as the client goes away, and raises ClientDisconnected then.

    Only for use after the whole body was read.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._gone = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._watch = asyncio.get_running_loop().create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._exchange.receive())["type"] != "http.disconnect":
            pass
        if self._exchange.finished:
            # Servers report the end of an answer like the end of the connection.
            return
        self._gone = True
        self._task.cancel()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._watch.cancel()
        if self._gone and isinstance(error, asyncio.CancelledError) and self._task.uncancel() == 0:
            raise ClientDisconnected from error

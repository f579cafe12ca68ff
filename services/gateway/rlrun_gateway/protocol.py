"""uvicorn's HTTP/1 protocol with bounds on the head of a request: its size, its time, and what it may ask the connection to become."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from rlrun.ids import new_request_id
from rlrun_gateway.errors import HttpError, error_body

MAX_HEAD_BYTES = 64 * 1024
HEAD_TIMEOUT_SECONDS = 30.0
_END_OF_HEAD = b"\r\n\r\n"
# A server may decline an upgrade by not mentioning it (RFC 9110, 7.8); the parser would take what follows for the other protocol.
_UPGRADE = re.compile(rb"\r\n[uU][pP][gG][rR][aA][dD][eE]:[^\r\n]*(?=\r\n)")


class BoundedHttpProtocol(HttpToolsProtocol):
    """Refuses heads that are too large (431) or too slow (408), and serves requests that offer another protocol in this one.

    The size is exact where the end of the head arrives in one piece with the bytes before it, and else at most one read above the limit.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = False
        self._in_body = False
        self._refused = False
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Opened and never used ends like used and idle.
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._in_body:
            return super().data_received(data)
        end = data.find(_END_OF_HEAD)
        if self._head_bytes + end > MAX_HEAD_BYTES:
            return self._too_large()
        lines = len(data) if end < 0 else end + 2
        if _UPGRADE.search(data, 0, lines):
            data = _UPGRADE.sub(b"", data[:lines]) + data[lines:]
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._too_large()
            elif self._head_timer is None:
                self._head_timer = self.loop.call_later(HEAD_TIMEOUT_SECONDS, self._too_slow)

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._end_head()
        self._in_body = True
        if self.parser.should_upgrade():
            # CONNECT, or an Upgrade header that came in two pieces.
            return self._refuse(HttpError(400, "invalid_request", "Upgrades and CONNECT are not served here; send plain HTTP/1.1"))
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        if not self._refused:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What the parser could not read."""
        self._refuse(HttpError(400, "invalid_request", f"{msg} Send HTTP/1.1"))

    def _unsupported_upgrade_warning(self) -> None:
        """Refused already, as a fault of the client."""

    def _end_head(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_large(self) -> None:
        self._refuse(HttpError(431, "headers_too_large", f"The request's headers are larger than {MAX_HEAD_BYTES} bytes; send fewer"))

    def _too_slow(self) -> None:
        self._refuse(HttpError(408, "request_timeout", f"The request's headers did not end within {HEAD_TIMEOUT_SECONDS:g} s"))

    def _refuse(self, error: HttpError) -> None:
        """Answers outside the application, since there is no request to hand to it, and ends the connection."""
        if self._refused:
            return
        self._refused = True
        self._end_head()
        cycle = self.cycle
        own = self._in_body and not self.pipeline and cycle is not None and not cycle.response_started
        if own or cycle is None or cycle.response_complete:
            # Else an earlier request waits for its answer, and would take this one for it.
            body = error_body(error)
            lines = (
                b"content-type: application/json",
                b"content-length: %d" % len(body),
                b"x-request-id: " + new_request_id().encode(),
                b"connection: close",
            )
            self.transport.write(STATUS_LINE[error.http_status] + b"\r\n".join(lines) + _END_OF_HEAD + body)
        self.transport.close()

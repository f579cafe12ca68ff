"""The app without a server: one exchange with a caller of the same process, the answer as it comes."""

from __future__ import annotations

import asyncio

from rlrun_gateway.http import AsgiApp, Headers, Message, Scope


class InProcessExchange:
    """One request to an ASGI app, from the client's side: `start()`, then `next_chunk()` until None; `close()` in any case.

    What the app sends is kept until it is read, so an app never waits for its reader. Closed early, the app is told that the client
    went away, and ends by itself.
    """

    def __init__(self, app: AsgiApp, *, method: str, path: str, query: bytes, headers: Headers, body: bytes) -> None:
        self._app = app
        self._scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query,
            "root_path": "",
            "headers": headers,
            "client": None,
            "server": None,
        }
        self._body: bytes | None = body
        self._sent: asyncio.Queue[Message | None] = asyncio.Queue()
        self._closed = asyncio.Event()
        self._ended = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> tuple[int, Headers]:
        """Status and headers of the answer. Raises ConnectionResetError if the app gives none."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"{self._scope['method']} {self._scope['path']}")
        message = await self._next()
        return int(message["status"]), list(message.get("headers", ()))

    async def next_chunk(self) -> bytes | None:
        """Some bytes of the body; None: it is complete. Raises ConnectionResetError if it breaks off."""
        if self._ended:
            return None
        message = await self._next()
        self._ended = not message.get("more_body")
        return bytes(message.get("body", b""))

    def close(self) -> None:
        """The client wants no more; may be repeated."""
        self._closed.set()

    async def wait_ended(self) -> None:
        """Returns when the app is done with the exchange."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            await self._app(self._scope, self._receive, self._send)
        finally:
            self._sent.put_nowait(None)

    async def _next(self) -> Message:
        message = await self._sent.get()
        if message is None:
            self._sent.put_nowait(None)
            assert self._task is not None
            await asyncio.wait({self._task})
            cause = None if self._task.cancelled() else self._task.exception()
            raise ConnectionResetError("The app ended before its answer was complete") from cause
        return message

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._closed.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self._sent.put_nowait(message)

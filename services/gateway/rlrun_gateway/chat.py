"""The hot route: one chat call from its body to the last byte of its answer."""

from __future__ import annotations

import asyncio
import time

from rlrun.errors import DeadlineExceeded, Internal, Overloaded, RlrunError
from rlrun.proto import router_pb2, session_pb2
from rlrun.rpc.interfaces import SessionService
from rlrun_gateway import metrics
from rlrun_gateway.access import Access
from rlrun_gateway.chat_answer import KEEP_ALIVE, ChunkWriter, completion, error_event
from rlrun_gateway.chat_request import ChatCall, header_of_ignored, parse_chat
from rlrun_gateway.errors import HttpError, internal_error
from rlrun_gateway.http import (
    JSON_TYPE,
    Exchange,
    Headers,
    cancelled_by_disconnect,
    check_json_type,
    header,
    read_body,
)
from rlrun_gateway.placements import Placements, SessionName
from rlrun_gateway.settings import GatewaySettings

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_MAX_RETRY_COUNT = 1000
_MAX_IDEMPOTENCY_KEY = 256


class ChatRoute:
    """POST .../chat/completions."""

    def __init__(self, settings: GatewaySettings, access: Access, placements: Placements) -> None:
        self._settings = settings
        self._access = access
        self._placements = placements
        self._in_flight = 0

    async def handle(self, exchange: Exchange, path_session: str) -> None:
        """Answers, or raises what the client is told."""
        if self._in_flight >= self._settings.max_concurrent_requests:
            raise Overloaded(f"{self._in_flight} calls are under way here, the limit of this gateway; try again")
        self._in_flight += 1
        try:
            name, call = await self._read(exchange, path_session)
            async with cancelled_by_disconnect(exchange):
                if call.stream:
                    await self._stream(exchange, name, call)
                else:
                    await self._unary(exchange, name, call)
        finally:
            self._in_flight -= 1

    async def _read(self, exchange: Exchange, path_session: str) -> tuple[SessionName, ChatCall]:
        settings, headers = self._settings, exchange.headers
        name = self._access.session_name(headers, path_session)
        check_json_type(headers)
        # An unknown key is refused before its body is read.
        await self._placements.locate(name)
        body = await read_body(exchange, max_bytes=settings.max_body_bytes, timeout_seconds=settings.body_timeout_seconds)
        call = parse_chat(body, settings)
        call.request.request_id = exchange.request_id
        call.request.retry_count = _retry_count(headers)
        call.request.idempotency_key = _idempotency_key(headers)
        if call.ignored:
            exchange.extra_headers.append((b"x-rlrun-ignored", header_of_ignored(call.ignored)))
            metrics.ignored(call.ignored)
        return name, call

    async def _unary(self, exchange: Exchange, name: SessionName, call: ChatCall) -> None:

        async def run(service: SessionService, placement: router_pb2.Placement, attempt: int) -> session_pb2.GenerateResponse:
            return await service.generate(_addressed(call.request, placement, attempt))

        try:
            async with asyncio.timeout(self._settings.request_timeout_seconds):
                response = await self._placements.call(name, run)
        except TimeoutError:
            raise self._too_slow() from None
        body = completion(response, self._settings.model_name)
        headers: Headers = [JSON_TYPE]
        if response.replayed:
            headers.append((b"x-rlrun-replayed", b"true"))
        await exchange.answer(200, headers, body)

    async def _stream(self, exchange: Exchange, name: SessionName, call: ChatCall) -> None:
        answer = _StreamAnswer(exchange, model=self._settings.model_name, include_usage=call.include_usage)

        async def run(service: SessionService, placement: router_pb2.Placement, attempt: int) -> None:
            events = service.generate_stream(_addressed(call.request, placement, attempt))
            try:
                async for event in events:
                    await answer.event(event)
            finally:
                # Closing the source, not just leaving it, is what cancels the work at the other side.
                if (close := getattr(events, "aclose", None)) is not None:
                    await close()
            if not answer.ended:
                raise Internal("The session's owner closed the stream before its end.")

        keep_alive = asyncio.get_running_loop().create_task(answer.keep_alive(self._settings.keep_alive_seconds))
        try:
            async with asyncio.timeout(self._settings.request_timeout_seconds):
                await self._placements.call(name, run, untouched=lambda: not answer.has_chunks)
        except TimeoutError:
            await self._fail(exchange, answer, self._too_slow())
        except RlrunError as error:
            await self._fail(exchange, answer, error)
        except Exception as error:
            exchange.log_bug(error)
            await self._fail(exchange, answer, internal_error(exchange.request_id))
        finally:
            keep_alive.cancel()

    async def _fail(self, exchange: Exchange, answer: _StreamAnswer, error: RlrunError) -> None:
        """Before the first byte an error is an ordinary answer; after it, the stream's last event."""
        if not exchange.started:
            raise error
        exchange.status = error.http_status
        exchange.log_unserved(error)
        await answer.fail(error)

    def _too_slow(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"No whole answer within {self._settings.request_timeout_seconds:g} s, the limit of this gateway")


class _StreamAnswer:
    """Writes one SSE answer. Comments may come before the first chunk; nothing comes after the end."""

    def __init__(self, exchange: Exchange, *, model: str, include_usage: bool) -> None:
        self._exchange = exchange
        self._model = model
        self._include_usage = include_usage
        self._writer: ChunkWriter | None = None
        self._last_write = time.monotonic()
        self.has_chunks = False
        self.ended = False

    async def event(self, event: session_pb2.GenerateEvent) -> None:
        kind = event.WhichOneof("event")
        if kind == "delta":
            await self._write(self._chunks(None).delta(event.delta), chunk=True)
        elif kind == "start":
            if self._writer is None:
                await self._write(self._chunks(event.start).role(), chunk=True)
                metrics.first_byte(self._exchange.elapsed())
        elif kind == "done" and not self.ended:
            last = self._chunks(None).end(event.done)
            self.ended = True
            await self._write(last, chunk=True, more=False)

    async def fail(self, error: RlrunError | HttpError) -> None:
        self.ended = True
        await self._write(error_event(error), more=False)

    async def keep_alive(self, seconds: float) -> None:
        while not self.ended:
            silent = time.monotonic() - self._last_write
            if silent < seconds:
                await asyncio.sleep(seconds - silent)
            else:
                await self._write(KEEP_ALIVE)

    def _chunks(self, start: session_pb2.GenerateStart | None) -> ChunkWriter:
        if self._writer is None:
            if start is None:
                raise Internal("The session's owner sent a delta before the start of its answer.")
            self._writer = ChunkWriter(start=start, model=self._model, include_usage=self._include_usage)
        return self._writer

    async def _write(self, data: bytes, *, chunk: bool = False, more: bool = True) -> None:
        self._last_write = time.monotonic()
        self.has_chunks = self.has_chunks or chunk
        if not self._exchange.started:
            await self._exchange.start(200, [*_STREAM_HEADERS])
        await self._exchange.write(data, more=more)


def _addressed(request: session_pb2.GenerateRequest, placement: router_pb2.Placement, attempt: int) -> session_pb2.GenerateRequest:
    """The request for this owner. A repeated call says so, which lets the owner find an answer that was already recorded."""
    if attempt > 0:
        # An owner in this process may still hold the first object.
        repeated = session_pb2.GenerateRequest()
        repeated.CopyFrom(request)
        repeated.retry_count += attempt
        request = repeated
    request.session.session_id = placement.session_id
    request.session.fence = placement.fence
    return request


def _retry_count(headers: Headers) -> int:
    value = header(headers, b"x-stainless-retry-count")
    return min(int(value), _MAX_RETRY_COUNT) if value is not None and value.isdigit() and len(value) < 9 else 0


def _idempotency_key(headers: Headers) -> str:
    value = header(headers, b"idempotency-key")
    return value.decode("latin-1")[:_MAX_IDEMPOTENCY_KEY] if value is not None else ""

"""A closed-loop load generator on raw asyncio: each connection sends its next call when the last one was answered."""

from __future__ import annotations

import asyncio
import re
import time
from array import array
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
MAX_STRETCH = 5


class CallFailed(Exception):
    """Not answered with 2xx, or not at all."""


class Client(asyncio.Protocol):
    """One keep-alive connection with one call at a time."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._total = 0
        self._waiter: asyncio.Future[bytes] | None = None

    @classmethod
    async def connect(cls, port: int) -> Client:
        _, client = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._total == 0:
            if (end := self._buffer.find(b"\r\n\r\n")) < 0:
                return
            found = _LENGTH.search(self._buffer, 0, end)
            if found is None:
                self._fail(f"an answer without Content-Length: {bytes(self._buffer[:200])!r}")
                return
            self._total = end + 4 + int(found.group(1))
        if len(self._buffer) >= self._total and self._waiter is not None:
            answer, self._buffer, self._total = bytes(self._buffer), bytearray(), 0
            waiter, self._waiter = self._waiter, None
            if not waiter.done():
                waiter.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"connection lost: {error}")

    def close(self) -> None:
        self._transport.close()

    async def call(self, request: bytes) -> bytes:
        """Returns the body of the answer. Raises CallFailed."""
        if self._transport.is_closing():
            raise CallFailed("connection closed by the server")
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        answer = await self._waiter
        head, _, body = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 2"):
            raise CallFailed(f"{head[:40]!r} {body[:300]!r}")
        return body

    def _fail(self, text: str) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(CallFailed(text))
        self._waiter = None


def http_request(method: str, path: str, body: bytes = b"", headers: Sequence[tuple[str, str]] = ()) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *(f"{name}: {value}" for name, value in headers)]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


@dataclass(kw_only=True)
class Measured:
    """Latencies in seconds of the calls inside the window, and the window itself."""

    seconds: float = 0.0
    latencies: array[float] = field(default_factory=lambda: array("d"))
    num_failed: int = 0
    failure: str = ""

    @property
    def calls_per_second(self) -> float:
        return len(self.latencies) / self.seconds if self.seconds else 0.0

    def percentile(self, percent: float) -> float:
        """Milliseconds; the smallest latency that `percent` of the calls do not exceed."""
        if not self.latencies:
            return float("nan")
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


async def closed_loop(
    port: int,
    sources: Sequence[Iterator[bytes]],
    *,
    warmup_seconds: float,
    seconds: float,
    at_start: Callable[[], None],
    at_end: Callable[[], None],
    ramp_seconds: float = 0.0,
) -> Measured:
    """One connection per source of requests. `at_start` and `at_end` are called at the edges of the measured window.

    The connections begin one after the other over `ramp_seconds`.

    Warm-up and window last longer where calls are slow: until each connection had one call, then until there were four for each, but at
    most MAX_STRETCH times as long.
    """
    clients = [await Client.connect(port) for _ in sources]
    run = _Run()
    window = asyncio.create_task(_window(run, len(sources), warmup_seconds, seconds, at_start, at_end))
    begin = [ramp_seconds * number / len(sources) for number in range(len(sources))]
    await asyncio.gather(*(_drive(*one, run) for one in zip(clients, sources, begin, strict=True)))
    await window
    for client in clients:
        client.close()
    return run.measured


@dataclass(kw_only=True)
class _Run:
    measured: Measured = field(default_factory=Measured)
    num_done: int = 0
    num_stopped: int = 0
    counting: bool = False
    over: bool = False


async def _window(
    run: _Run, num_clients: int, warmup: float, seconds: float, at_start: Callable[[], None], at_end: Callable[[], None]
) -> None:
    await _stretch(run, num_clients, warmup, min_calls=num_clients)
    run.counting, started = True, time.perf_counter()
    at_start()
    await _stretch(run, num_clients, seconds, min_calls=run.num_done + 4 * num_clients)
    at_end()
    run.over, run.measured.seconds = True, time.perf_counter() - started


async def _stretch(run: _Run, num_clients: int, seconds: float, *, min_calls: int) -> None:
    started = time.perf_counter()
    await asyncio.sleep(seconds)
    while run.num_done < min_calls and run.num_stopped < num_clients and time.perf_counter() < started + MAX_STRETCH * seconds:
        await asyncio.sleep(0.02)


async def _drive(client: Client, source: Iterator[bytes], begin: float, run: _Run) -> None:
    await asyncio.sleep(begin)
    for request in source:
        if run.over:
            return
        started = time.perf_counter()
        try:
            await client.call(request)
        except CallFailed as error:
            run.measured.num_failed += 1
            run.measured.failure = run.measured.failure or str(error)
            break
        run.num_done += 1
        if run.counting and not run.over:
            run.measured.latencies.append(time.perf_counter() - started)
    run.num_stopped += 1


async def burst(port: int, requests: Sequence[bytes], *, connect: Callable[[int], Awaitable[Client]] = Client.connect) -> Measured:
    """All requests at once, each on a connection of its own."""
    clients = [await connect(port) for _ in requests]
    measured = Measured()

    async def one(client: Client, request: bytes) -> None:
        started = time.perf_counter()
        try:
            await client.call(request)
        except CallFailed as error:
            measured.num_failed += 1
            measured.failure = measured.failure or str(error)
        else:
            measured.latencies.append(time.perf_counter() - started)

    started = time.perf_counter()
    await asyncio.gather(*(one(client, request) for client, request in zip(clients, requests, strict=True)))
    measured.seconds = time.perf_counter() - started
    for client in clients:
        client.close()
    return measured

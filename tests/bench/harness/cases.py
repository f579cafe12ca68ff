"""The cases: what is asked of a target, and what is read off it."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from harness.load import Client, Measured, burst, closed_loop, http_request
from harness.targets import RlrunTarget, Route, Target
from harness.text import Material

CONNECTIONS = (1, 8, 32, 128)
MIN_SESSIONS = 200
SESSION_TURNS = 50
BY_TURN_SESSIONS = 100
BY_TURN_CONNECTIONS = 8
IDLE_SECONDS = 3.0
SLOW_ENGINE_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Size of a request and length of its answer."""

    name: str
    request_bytes: int
    output_tokens: int


SHORT = Turn(name="short", request_bytes=1024, output_tokens=64)
LONG = Turn(name="long", request_bytes=32 * 1024, output_tokens=256)


@dataclass(kw_only=True)
class Result:
    """One row of the report. Latencies in milliseconds; CPU in milliseconds per call, by process.

    `core_percent`: how much of its core the target used. Well below 100 under load means that something else ran there.
    """

    target: str
    case: str
    connections: int
    calls: int = 0
    failed: int = 0
    failure: str = ""
    calls_per_second: float = 0.0
    p50_ms: float = 0.0
    p95_ms: float = 0.0
    p99_ms: float = 0.0
    cpu_ms_per_call: dict[str, float] = field(default_factory=dict)
    core_percent: float = 0.0
    notes: dict[str, float] = field(default_factory=dict)

    @property
    def cpu_ms(self) -> float:
        return sum(self.cpu_ms_per_call.values())

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "cpu_ms": self.cpu_ms}


@dataclass(kw_only=True)
class Plan:
    """How long and how much."""

    seconds: float
    warmup_seconds: float
    connections: tuple[int, ...]
    num_concurrent: int
    num_idle_sessions: int


class _Cpu:
    """CPU time of a target between the edges of a window."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._before: dict[str, float] = {}
        self.used: dict[str, float] = {}

    def start(self) -> None:
        self._target.signal_profilers(signal.SIGUSR1)
        self._before = self._target.cpu_seconds()

    def end(self) -> None:
        self.used = {name: now - self._before[name] for name, now in self._target.cpu_seconds().items()}
        self._target.signal_profilers(signal.SIGUSR2)


def body_of(messages: bytes, output_tokens: int) -> bytes:
    return b'{"model":"policy","max_tokens":%d,"messages":[%b]}' % (output_tokens, messages)


_SYSTEM = b'{"role":"system","content":"You are a careful assistant."}'


def turns(routes: Sequence[Route], turn: Turn, material: Material, seed: int) -> Iterator[bytes]:
    """Single-turn conversations, each with a text of its own, over the sessions in turn."""
    rng = random.Random(seed)
    frame = len(body_of(_SYSTEM + b',{"role":"user","content":""}', turn.output_tokens))
    while True:
        for route in routes:
            text = material.piece(turn.request_bytes - frame, rng)
            yield route.request(body_of(b'%b,{"role":"user","content":"%b"}' % (_SYSTEM, text), turn.output_tokens))


def growing(routes: Sequence[Route], material: Material, seed: int, num_turns: int = SESSION_TURNS) -> Iterator[bytes]:
    """Whole sessions: each call repeats the conversation so far, with the mock's answers, and adds a kilobyte."""
    rng = random.Random(seed)
    answer = b',{"role":"assistant","content":"%b"}' % material.replies[SHORT.output_tokens].text.encode()
    for route in routes:
        history = _SYSTEM
        for _ in range(num_turns):
            history += b',{"role":"user","content":"%b"}' % material.piece(SHORT.request_bytes, rng)
            yield route.request(body_of(history, SHORT.output_tokens))
            history += answer


async def run_turns(target: Target, turn: Turn, connections: int, plan: Plan, material: Material) -> Result:
    per_connection = -(-MIN_SESSIONS // connections)
    routes = await target.open_sessions(per_connection * connections)
    sources = [
        turns(routes[number * per_connection : (number + 1) * per_connection], turn, material, seed=number) for number in range(connections)
    ]
    return await _closed(target, turn.name, sources, plan)


async def run_growing(target: Target, connections: int, plan: Plan, material: Material) -> Result:
    """Ends with the window; the connections have more sessions than they can finish."""
    per_connection = max(4, int((plan.seconds + plan.warmup_seconds) * 2500 / SESSION_TURNS / connections))
    routes = await target.open_sessions(per_connection * connections)
    sources = [
        growing(routes[number * per_connection : (number + 1) * per_connection], material, seed=number) for number in range(connections)
    ]
    result = await _closed(target, f"growing to {SESSION_TURNS} turns", sources, plan)
    if isinstance(target, RlrunTarget):
        result.notes["forked turns"] = _num_forks(target, routes)
    return result


async def run_by_turn(target: Target, material: Material) -> Result:
    """The same sessions turn by turn, all of them one turn further each time: does a late turn cost more than an early one?"""
    routes = await target.open_sessions(BY_TURN_SESSIONS)
    sources = [growing([route], material, seed=number) for number, route in enumerate(routes)]
    cpu = _Cpu(target)
    cost: list[float] = []
    for _ in range(SESSION_TURNS):
        requests = [next(source) for source in sources]
        cpu.start()
        await _send_all(target, requests)
        cpu.end()
        cost.append(1000 * sum(cpu.used.values()) / len(requests))
    notes = {
        f"CPU ms, turns {first + 1}-{first + 10}": round(sum(cost[first : first + 10]) / 10, 3) for first in range(0, SESSION_TURNS, 10)
    }
    return Result(
        target=target.name,
        case="turn by turn",
        connections=BY_TURN_CONNECTIONS,
        calls=BY_TURN_SESSIONS * SESSION_TURNS,
        cpu_ms_per_call={"all": sum(cost) / len(cost)},
        notes=notes,
    )


async def _closed(target: Target, case: str, sources: Sequence[Iterator[bytes]], plan: Plan, *, ramp_seconds: float = 0.0) -> Result:
    cpu = _Cpu(target)
    measured = await closed_loop(
        target.port,
        sources,
        warmup_seconds=plan.warmup_seconds,
        seconds=plan.seconds,
        at_start=cpu.start,
        at_end=cpu.end,
        ramp_seconds=ramp_seconds,
    )
    return _result(target, case, len(sources), measured, cpu)


def _result(target: Target, case: str, connections: int, measured: Measured, cpu: _Cpu) -> Result:
    calls = len(measured.latencies)
    return Result(
        target=target.name,
        case=case,
        connections=connections,
        calls=calls,
        failed=measured.num_failed,
        failure=measured.failure,
        calls_per_second=measured.calls_per_second,
        p50_ms=measured.percentile(50),
        p95_ms=measured.percentile(95),
        p99_ms=measured.percentile(99),
        cpu_ms_per_call={name: 1000 * seconds / max(1, calls) for name, seconds in cpu.used.items()},
        core_percent=100 * sum(cpu.used.values()) / measured.seconds if measured.seconds else 0.0,
    )


async def set_delay(mock: Target, seconds: float) -> None:
    client = await Client.connect(mock.port)
    await client.call(http_request("GET", f"/control?delay_ms={round(seconds * 1000)}"))
    client.close()


async def peak_calls(mock: Target) -> int:
    client = await Client.connect(mock.port)
    answer = json.loads(await client.call(http_request("GET", "/stats")))
    client.close()
    return int(answer["peak"])


async def run_concurrent(target: Target, mock: Target, plan: Plan, material: Material) -> tuple[Result, Result]:
    """Sessions that call an engine which takes three seconds whatever its load, so that is what each call should take.

    First all of them at once, each with the first call of its session; then call after call, begun one after the other.
    """
    routes = await target.open_sessions(plan.num_concurrent)
    sources = [turns([route], SHORT, material, seed=number) for number, route in enumerate(routes)]
    await set_delay(mock, SLOW_ENGINE_SECONDS)
    cpu = _Cpu(target)
    cpu.start()
    measured = await burst(target.port, [next(source) for source in sources])
    cpu.end()
    at_once = _result(target, f"{SLOW_ENGINE_SECONDS:g} s engine, all at once", len(sources), measured, cpu)
    at_once.notes["peak at the engine"] = await peak_calls(mock)
    slow = replace(plan, warmup_seconds=SLOW_ENGINE_SECONDS, seconds=2 * SLOW_ENGINE_SECONDS)
    steady = await _closed(target, f"{SLOW_ENGINE_SECONDS:g} s engine, steady", sources, slow, ramp_seconds=SLOW_ENGINE_SECONDS)
    steady.notes["peak at the engine"] = await peak_calls(mock)
    await set_delay(mock, 0.0)
    return at_once, steady


async def run_memory(target: Target, plan: Plan, material: Material) -> Result:
    """Memory of open sessions: without a turn, with one, with ten (a growing conversation); bytes in Redis of each turn."""
    warm = await target.open_sessions(200)
    warm_sources = [growing([route], material, seed=-1 - number, num_turns=10) for number, route in enumerate(warm)]
    for _ in range(10):
        await _send_all(target, [next(source) for source in warm_sources])
    idle = _Cpu(target)
    idle.start()
    await asyncio.sleep(IDLE_SECONDS)
    idle.end()
    count = plan.num_idle_sessions
    rss, redis_bytes = [sum(target.rss_bytes().values())], [_redis_bytes(target)]
    routes = await target.open_sessions(count)
    rss.append(sum(target.rss_bytes().values()))
    sources = [growing([route], material, seed=number, num_turns=10) for number, route in enumerate(routes)]
    for num_turns in (1, 9):
        for _ in range(num_turns):
            await _send_all(target, [next(source) for source in sources])
        rss.append(sum(target.rss_bytes().values()))
        redis_bytes.append(_redis_bytes(target))
    notes = {"CPU ms/s without calls": 1000 * sum(idle.used.values()) / IDLE_SECONDS, "RSS MiB at start": rss[0] / 2**20}
    for num_turns, value in zip((0, 1, 10), rss[1:], strict=True):
        notes[f"RSS MiB per 1000 sessions of {num_turns} turns"] = 1000 / count * (value - rss[0]) / 2**20
    notes["RSS bytes per turn"] = (rss[3] - rss[2]) / (9 * count)
    if target.redis_url is not None:
        notes["Redis bytes, first turn"] = (redis_bytes[1] - redis_bytes[0]) / count
        notes["Redis bytes, later turns"] = (redis_bytes[2] - redis_bytes[1]) / (9 * count)
    return Result(target=target.name, case="memory", connections=count, calls=10 * count, notes=notes)


async def _send_all(target: Target, requests: Sequence[bytes], num_clients: int = BY_TURN_CONNECTIONS) -> None:
    """Once each, over a few connections. Raises CallFailed."""
    waiting = iter(requests)

    async def drive() -> None:
        client = await Client.connect(target.port)
        for request in waiting:
            await client.call(request)
        client.close()

    await asyncio.gather(*(drive() for _ in range(num_clients)))


def _redis_bytes(target: Target) -> int:
    """Memory of all keys that hold interactions; 0 without a Redis."""
    if not isinstance(target, RlrunTarget):
        return 0
    store = target.store()
    pipeline = store.pipeline(transaction=False)
    for key in store.scan_iter("rlrun:*:interactions", count=1000):
        pipeline.memory_usage(key, samples=0)
    return sum(size or 0 for size in pipeline.execute())


def _num_forks(target: RlrunTarget, routes: Sequence[Route]) -> int:
    """Turns after the first that were not recognised as a continuation; 0 where the text is the same."""
    from rlrun.proto import session_pb2

    store = target.store()
    forks = 0
    keys = {_session_key(store, route) for route in routes}
    for key in keys:
        records = [session_pb2.InteractionRecord.FromString(value) for value in store.hvals(key)]
        forks += max(0, sum(not record.parent_id for record in records) - 1)
    return forks


def _session_key(store: Any, route: Route) -> str:
    from rlrun.auth import key_hash

    secret = dict(route.headers)["Authorization"].removeprefix("Bearer ")
    session_id = store.get(f"rlrun:{{bench}}:key:{key_hash(secret)}").decode()
    return f"rlrun:{{bench}}:session:{session_id}:interactions"

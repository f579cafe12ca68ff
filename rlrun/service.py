"""The one life cycle of every service: start -> ready -> drain -> stop, and the ops HTTP port.

`python -m rlrun.service router=7070 dataproxy=7071 gateway=8080` hosts several services in one process; they then call
each other without sockets. Each service package offers `rlrun_<name>.app:build(context) -> Component`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import ipaddress
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import msgspec
import prometheus_client
import uvloop
from aiohttp import web

from rlrun import auth, spec
from rlrun.errors import ConfigError, RlrunError
from rlrun.ids import new_member_id
from rlrun.proto import router_pb2
from rlrun.rpc.interfaces import RouterService
from rlrun.rpc.peers import Peers
from rlrun.rpc.tls import Security
from rlrun.spec.process_env import ProcessEnv
from rlrun.store import Store
from rlrun.telemetry.logs import configure_logging

# Run as `python -m rlrun.service`, the module is called __main__.
log = logging.getLogger("rlrun.service")

DEFAULT_PORTS = {"gateway": 8080, "router": 7070, "dataproxy": 7071, "worker": 7072, "trainer": 7073}
DEFAULT_OPS_PORTS = {"gateway": 9080, "router": 9070, "dataproxy": 9071, "worker": 9072, "trainer": 9073}
MAX_LOOP_LAG_SECONDS = 10.0
DRAIN_GRACE_SECONDS = 25.0
STOP_SECONDS = 10.0
# A client hears of a Redis that does not answer within a second.
STORE_TIMEOUT_SECONDS = 0.9
GC_THRESHOLDS = (20_000, 20, 50)


class Component(Protocol):
    """One service inside a process."""

    async def start(self) -> None:
        """Returns when the service can do its work."""

    async def drain(self) -> None:
        """Stops taking new work and finishes what is under way; bounded by the caller."""

    async def stop(self) -> None:
        """Gives everything back. Called once, also after a failed start."""

    def status(self) -> Mapping[str, Any]:
        """What `/status` shows."""


@dataclass(kw_only=True)
class ServiceContext:
    """What a service is given: its document, its environment, the store and the way to its peers."""

    run: spec.RLRun
    env: ProcessEnv
    store: Store
    peers: Peers
    security: Security
    bind: str
    port: int
    advertise: str
    member_id: str
    router_address: str
    vital: list[asyncio.Task[Any]] = field(default_factory=list)

    def router(self) -> RouterService:
        return self.peers.router(self.router_address)

    def spawn(self, loop: Awaitable[Any], *, name: str) -> asyncio.Task[Any]:
        """Starts a loop that the service cannot live without: if it ends with an error, the process drains and ends with it."""
        task = asyncio.ensure_future(cast("asyncio.Future[Any]", loop))
        assert isinstance(task, asyncio.Task)
        task.set_name(name)
        self.vital.append(task)
        return task


class Membership:
    """Holds a member's lease: registers, renews at a fifth of the lease, gives it back."""

    def __init__(self, context: ServiceContext, role: router_pb2.Role.ValueType, observe: Callable[[router_pb2.Member], None]) -> None:
        self._context = context
        self._member = router_pb2.Member(role=role, id=context.member_id, address=context.advertise)
        self._observe = observe
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns once a router knows this member; waits for a router as long as it takes."""
        self._observe(self._member)
        while True:
            try:
                lease = await self._context.router().register(self._member)
                break
            except RlrunError as error:
                log.info("waiting for a router: %s", error)
                await asyncio.sleep(0.3)
        self._task = cast("asyncio.Task[None]", self._context.spawn(self._renew(lease.ttl_seconds), name=f"lease {self._member.id}"))

    async def drain(self) -> None:
        self._member.draining = True
        await self.report()

    async def report(self) -> None:
        """Sends the present load and version now, instead of at the next renewal."""
        self._observe(self._member)
        try:
            async with asyncio.timeout(2):
                await self._context.router().heartbeat(self._member)
        except (RlrunError, TimeoutError) as error:
            log.warning("heartbeat failed: %s", error)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        with contextlib.suppress(RlrunError, TimeoutError):
            async with asyncio.timeout(2):
                await self._context.router().deregister(self._member)

    async def _renew(self, ttl_seconds: float) -> None:
        while True:
            await asyncio.sleep(ttl_seconds / 5)
            await self.report()


class Process:
    """Components of one process, their signals and their ops port."""

    def __init__(self, components: Mapping[str, Component], contexts: Sequence[ServiceContext], *, bind: str, ops_port: int) -> None:
        self._components = components
        self._contexts = contexts
        self._bind = bind
        self._ops_port = ops_port
        self._ready = False
        self._last_beat = time.monotonic()
        self._stop = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        runner = await self._start_ops()
        beat = asyncio.create_task(self._beat())
        try:
            if await self._started():
                _settle_garbage_collector()
                self._ready = True
                log.info("ready")
                await self._wait()
        finally:
            self._ready = False
            await self._end()
            beat.cancel()
            await runner.cleanup()

    async def _started(self) -> bool:
        """False if a signal came first: a start may wait for others for as long as it takes."""
        start, stop = asyncio.create_task(self._start()), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({start, stop}, return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                start.result()
            return start.done()
        finally:
            start.cancel()
            stop.cancel()
            await asyncio.wait({start})

    async def _start(self) -> None:
        for name, component in self._components.items():
            await component.start()
            log.info("%s started", name)

    async def _wait(self) -> None:
        """Until a signal, or until a vital loop dies."""
        stop = asyncio.create_task(self._stop.wait())
        while not self._stop.is_set():
            vital = [task for context in self._contexts for task in context.vital if not task.cancelled()]
            done, _ = await asyncio.wait({stop, *vital}, return_when=asyncio.FIRST_COMPLETED, timeout=5)
            for task in done - {stop}:
                if not task.cancelled() and (error := task.exception()) is not None:
                    stop.cancel()
                    raise error
                for context in self._contexts:
                    if task in context.vital:
                        context.vital.remove(task)
        stop.cancel()

    async def _end(self) -> None:
        """Drains all, then stops all; what fails on the way holds nobody else back."""
        deadline = asyncio.get_running_loop().time() + DRAIN_GRACE_SECONDS
        reverse = list(self._components.items())[::-1]
        for name, component in reverse:
            await self._attempt(component.drain(), f"{name}: drain", deadline)
        for name, component in reverse:
            await self._attempt(component.stop(), f"{name}: stop", asyncio.get_running_loop().time() + STOP_SECONDS)

    async def _attempt(self, work: Awaitable[None], what: str, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await work
        except TimeoutError:
            log.warning("%s did not end in time", what)
        except Exception:
            log.exception("%s failed", what)

    async def _beat(self) -> None:
        while True:
            self._last_beat = time.monotonic()
            await asyncio.sleep(0.5)

    def _healthy(self) -> bool:
        return time.monotonic() - self._last_beat < MAX_LOOP_LAG_SECONDS

    async def _start_ops(self) -> web.AppRunner:
        async def healthz(_: web.Request) -> web.Response:
            return web.Response(text="ok\n" if self._healthy() else "event loop lags\n", status=200 if self._healthy() else 503)

        async def readyz(_: web.Request) -> web.Response:
            return web.Response(text="ready\n" if self._ready else "not ready\n", status=200 if self._ready else 503)

        async def metrics(_: web.Request) -> web.Response:
            return web.Response(body=prometheus_client.generate_latest(), headers={"Content-Type": prometheus_client.CONTENT_TYPE_LATEST})

        async def status(_: web.Request) -> web.Response:
            body = {name: component.status() for name, component in self._components.items()}
            return web.Response(body=msgspec.json.encode({"ready": self._ready, **body}, enc_hook=str), content_type="application/json")

        app = web.Application()
        app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics), web.get("/status", status)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._bind, self._ops_port).start()
        except OSError as error:
            raise ConfigError(f"cannot listen on {self._bind}:{self._ops_port}: {error.strerror}", param="RLRUN_OPS_PORT") from error
        return runner


def _settle_garbage_collector() -> None:
    """What lives as long as the process is never looked at again, and what is new is looked at less often.

    The collector's work grows with the sessions in memory; with its defaults it takes a seventh of a busy Gateway's time and stops it
    for a tenth of a second now and then. rlrun's own objects have few cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


async def _host(ports: Mapping[str, int], env: ProcessEnv) -> None:
    if env.config is None:
        raise ConfigError("RLRUN_CONFIG is not set; give the path of the RLRun document", param="RLRUN_CONFIG")
    run = spec.load(env.config)
    bind = env.bind
    security = Security(
        token=auth.read_key_file(env.service_token_file, variable="RLRUN_SERVICE_TOKEN_FILE") if env.service_token_file else None,
        tls_dir=env.tls_dir,
    )
    redis_url = env.redis_url or run.spec.redis.url
    if redis_url is None:
        raise ConfigError("RLRUN_REDIS_URL is not set; give the URL of the run's Redis, or use `rlrun up`", param="RLRUN_REDIS_URL")
    store = await Store.connect(redis_url, run=run.metadata.name, timeout_seconds=STORE_TIMEOUT_SECONDS)
    peers = Peers(security=security)
    router_address = _router_target(env.router) if env.router else f"{bind}:{ports.get('router', DEFAULT_PORTS['router'])}"
    contexts = {
        name: ServiceContext(
            run=run,
            env=env,
            store=store,
            peers=peers,
            security=security,
            bind=bind,
            port=port,
            advertise=_advertised(env, bind, port),
            member_id=new_member_id(name),
            router_address=router_address,
        )
        for name, port in ports.items()
    }
    components = {name: importlib.import_module(f"rlrun_{name}.app").build(context) for name, context in contexts.items()}
    ops_port = env.ops_port or DEFAULT_OPS_PORTS[next(iter(ports))]
    try:
        await Process(components, list(contexts.values()), bind=bind, ops_port=ops_port).run()
    finally:
        await peers.close()
        await store.close()


def _router_target(addresses: Sequence[str]) -> str:
    """One gRPC target for all routers: a list where they are IP addresses, else the first name (DNS may hold several addresses)."""
    with contextlib.suppress(ValueError):
        for address in addresses:
            ipaddress.IPv4Address(address.rpartition(":")[0])
        return addresses[0] if len(addresses) == 1 else "ipv4:" + ",".join(addresses)
    return addresses[0]


def _advertised(env: ProcessEnv, bind: str, port: int) -> str:
    if env.advertise is None:
        return f"{bind}:{port}"
    return env.advertise if ":" in env.advertise else f"{env.advertise}:{port}"


def parse_services(words: Sequence[str], env: ProcessEnv) -> dict[str, int]:
    """`gateway=8080` words to ports; a service without a port takes RLRUN_PORT, else its standard one."""
    ports: dict[str, int] = {}
    for word in words:
        name, _, port = word.partition("=")
        if name not in DEFAULT_PORTS or (port and not (port.isdigit() and 0 < int(port) <= 65_535)):
            raise ConfigError(f"{word!r} is not a service; write NAME or NAME=PORT, with NAME one of {', '.join(DEFAULT_PORTS)}")
        ports[name] = int(port) if port else (env.port or DEFAULT_PORTS[name])
    # The router first: the others register with it.
    return dict(sorted(ports.items(), key=lambda item: item[0] != "router"))


def main(services: Sequence[str] | None = None) -> int:
    """Entry of every service process. Exit codes: 0 drained, 1 failed, 2 wrong configuration."""
    words = list(services if services is not None else sys.argv[1:])
    if not words or words[0] in ("-h", "--help"):
        print(__doc__)  # noqa: T201
        return 0 if words else 2
    try:
        env = ProcessEnv.read(os.environ)
        configure_logging(service="+".join(word.partition("=")[0] for word in words), style=env.log_format.value, level=env.log_level.value)
        uvloop.run(_host(parse_services(words, env), env))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except RlrunError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

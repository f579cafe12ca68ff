"""uvicorn under the service's own life cycle: it neither takes signals nor ends the process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from rlrun.errors import ConfigError
from rlrun_gateway.protocol import BoundedHttpProtocol


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves one ASGI app on one port; port 0 takes a free one."""

    def __init__(self, app: Any, *, bind: str, port: int) -> None:
        self._address = f"{bind}:{port}"
        self._server = _Server(
            uvicorn.Config(
                app,
                host=bind,
                port=port,
                http=BoundedHttpProtocol,
                ws="none",
                loop="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                timeout_keep_alive=300,
                timeout_graceful_shutdown=20,
                backlog=4096,
                server_header=False,
                proxy_headers=False,
                date_header=False,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self, spawn: Callable[..., asyncio.Task[None]]) -> None:
        """Returns when it listens. `spawn` starts a task that the process cannot live without.

        Raises:
            ConfigError: the port is taken.
        """
        self._task = spawn(self._serve(), name="http server")
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise ConfigError(f"cannot listen on {self._address}; is another process using the port?", param="RLRUN_PORT")
            await asyncio.sleep(0.01)

    @property
    def port(self) -> int:
        """Where it listens, once it does."""
        return int(self._server.servers[0].sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Finishes the requests under way, closes the rest after 20 s."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task

    async def _serve(self) -> None:
        with contextlib.suppress(SystemExit):
            await self._server.serve()

"""Sessions for programs without asyncio: the asynchronous client on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from rlrun.client._async import AsyncSession, AsyncSessionClient
from rlrun.client._export import Export, ExportStyle
from rlrun.retry import RetryPolicy

T = TypeVar("T")


class Session:
    """One episode; see `AsyncSession`."""

    def __init__(self, client: SessionClient, inner: AsyncSession) -> None:
        self._client = client
        self._inner = inner
        self.api_key = inner.api_key
        self.base_url = inner.base_url
        self.root_url = inner.root_url

    @property
    def session_id(self) -> str:
        return self._inner.session_id

    def set_reward(self, reward: float, interaction_id: str | None = None) -> None:
        self._client.wait(self._inner.set_reward(reward, interaction_id))

    def end(self) -> int:
        return self._client.wait(self._inner.end())

    def export(self, discount: float = 1.0, style: ExportStyle = "individual") -> Export:
        return self._client.wait(self._inner.export(discount, style))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()


class SessionClient:
    """See `AsyncSessionClient`. Safe to share between threads; `close()` or a `with` block stops its thread."""

    def __init__(
        self,
        base_url: str,
        *,
        admin_key: str | None = None,
        api_key: str | None = None,
        retry: RetryPolicy | None = None,
        start_retry: RetryPolicy | None = None,
        timeout_seconds: float = 10.0,
        start_timeout_seconds: float = 150.0,
    ) -> None:
        self._client = AsyncSessionClient(
            base_url,
            admin_key=admin_key,
            api_key=api_key,
            retry=retry,
            start_retry=start_retry,
            timeout_seconds=timeout_seconds,
            start_timeout_seconds=start_timeout_seconds,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rlrun-client", daemon=True)
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the client's thread; an interrupted wait cancels it."""
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("this client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self.wait(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def start_session(
        self, task_id: str, *, group_id: str | None = None, group_size: int | None = None, api_key: str | None = None
    ) -> Session:
        started = self._client.start_session(task_id, group_id=group_id, group_size=group_size, api_key=api_key)
        return Session(self, self.wait(started))

    def session(self) -> Session:
        return Session(self, self._client.session())

    def export(self, session_id: str, *, discount: float = 1.0, style: ExportStyle = "individual") -> Export:
        return self.wait(self._client.export(session_id, discount=discount, style=style))

    def status(self) -> dict[str, Any]:
        return self.wait(self._client.status())

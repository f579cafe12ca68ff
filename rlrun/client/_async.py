"""Sessions for asyncio programs."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import aiohttp

from rlrun.auth import check_key
from rlrun.client._export import Export, ExportStyle, export_from_json
from rlrun.client._http import check_base_url, exchange
from rlrun.errors import ConfigError
from rlrun.retry import RetryPolicy, retried


class AsyncSession:
    """One episode. `base_url` and `api_key` are what an OpenAI client takes.

    As a context manager it ends the session on the way out, also when the block raises; a session without a reward is not trained.
    """

    def __init__(self, client: AsyncSessionClient, *, session_id: str | None, api_key: str) -> None:
        self._client = client
        self._session_id = session_id
        self.api_key = api_key
        self.base_url = f"{client.root_url}/v1"
        self.root_url = client.root_url
        """Without `/v1`: what an Anthropic client takes."""

    @property
    def session_id(self) -> str:
        """Raises ConfigError for a session that was opened by its key alone."""
        if self._session_id is None:
            raise ConfigError(
                "this session was opened by its api_key and its id is not known here; start it with an admin key to export it"
            )
        return self._session_id

    async def set_reward(self, reward: float, interaction_id: str | None = None) -> None:
        """Sets the reward of an interaction, by default of the last one; a later value replaces an earlier one."""
        await self._client.request("POST", "/rl/set_reward", {"reward": float(reward), "interaction_id": interaction_id}, key=self.api_key)

    async def end(self) -> int:
        """Ends the session and returns its number of interactions; may be repeated."""
        answer = await self._client.request("POST", "/rl/end_session", {}, key=self.api_key)
        return int(answer["interaction_count"])

    async def export(self, discount: float = 1.0, style: ExportStyle = "individual") -> Export:
        """Takes the ended session's trajectory out of the run; needs the client's admin key."""
        return await self._client.export(self.session_id, discount=discount, style=style)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.end()


class AsyncSessionClient:
    """Starts, rewards, ends and exports sessions at one Gateway.

    Args:
        base_url: the Gateway's URL; a trailing `/v1` is accepted.
        admin_key: starts and exports sessions.
        api_key: the key of a session that somebody else started; `session()` opens it.
        retry: for every call but the start of a session.
        start_retry: for the start of a session, which waits for admission; the default waits for an hour.
        timeout_seconds: of one try. A start may take longer by the Gateway's own wait for a refresh.

    Raises (all calls): errors of `rlrun.errors`.
    """

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
        self.root_url = check_base_url(base_url).removesuffix("/v1")
        for param, key in (("admin_key", admin_key), ("api_key", api_key)):
            if key is not None:
                check_key(key, where=param, param=param)
        self._admin_key = admin_key
        self._api_key = api_key
        self._retry = retry or RetryPolicy()
        self._start_retry = start_retry or RetryPolicy(budget_seconds=3600.0)
        self._timeout_seconds = timeout_seconds
        self._start_timeout_seconds = start_timeout_seconds
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def start_session(
        self, task_id: str, *, group_id: str | None = None, group_size: int | None = None, api_key: str | None = None
    ) -> AsyncSession:
        """Starts a session and waits while the run admits no more.

        Args:
            group_id: sessions of one group are compared with each other; `group_size` is their number.
            api_key: a key that the session shall have. If it opens an active session, that one is ended first.
        """
        # The key is made here so that a repeated request replaces the session of a lost answer and does not leave it behind.
        key = api_key or secrets.token_urlsafe(32)
        body: dict[str, Any] = {"task_id": task_id, "api_key": key}
        if group_id is not None:
            body |= {"group_id": group_id, "group_size": group_size}
        answer = await self.request("POST", "/rl/start_session", body, retry=self._start_retry, timeout_seconds=self._start_timeout_seconds)
        return AsyncSession(self, session_id=str(answer["session_id"]), api_key=str(answer["api_key"]))

    def session(self) -> AsyncSession:
        """The session that the constructor's `api_key` opens."""
        if self._api_key is None:
            raise ConfigError("session() needs the client's api_key; start_session() makes a new session", param="api_key")
        return AsyncSession(self, session_id=None, api_key=self._api_key)

    async def export(self, session_id: str, *, discount: float = 1.0, style: ExportStyle = "individual") -> Export:
        body = {"session_id": session_id, "discount": discount, "style": style}
        return export_from_json(session_id, await self.request("POST", "/export_trajectories", body, timeout_seconds=120.0))

    async def interaction_ids(self, session_id: str) -> set[str]:
        """Of the calls that a session has recorded so far."""
        answer = await self.request("GET", f"/admin/sessions/{quote(session_id, safe='')}", None)
        return {str(interaction["id"]) for interaction in answer["interactions"]}

    async def status(self) -> dict[str, Any]:
        """The run's state as the console shows it."""
        return await self.request("GET", "/admin/status", None)

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        *,
        key: str | None = None,
        retry: RetryPolicy | None = None,
        timeout_seconds: float | None = None,
    ) -> dict[str, Any]:
        """One control call with the client's retries; the admin key unless another is given."""
        secret = key or self._admin_key
        if secret is None:
            raise ConfigError(f"{path} needs the client's admin_key", param="admin_key")
        if self._http is None:
            self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        http, timeout = self._http, timeout_seconds or self._timeout_seconds
        return await retried(
            lambda: exchange(http, method, self.root_url + path, key=secret, body=body, timeout_seconds=timeout), retry or self._retry
        )

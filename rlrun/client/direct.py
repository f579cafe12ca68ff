"""The OpenAI client without a Gateway: chat completions straight from an engine, in this process.

What a call passes through is the same as behind the Gateway (its HTTP app, the DataProxy, the engine), but without sockets and
without Redis: the session is kept in memory and ends with the client.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Mapping
from os import PathLike
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from rlrun.client._export import ExportStyle
from rlrun.errors import ConfigError, InvalidRequest
from rlrun.ids import new_session_key
from rlrun.rpc.interfaces import InferenceService
from rlrun.trajectory import ExportStyle as RowStyle
from rlrun.trajectory import InteractionTree, RewardStyle, TrajectoryRow, export_rows, reward_discount

log = logging.getLogger(__name__)

T = TypeVar("T")


def _needed(module: str) -> ModuleType:
    """Raises ConfigError that names what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"DirectOpenAI runs the services in this process and needs their packages ({error}); "
            "install them: pip install 'rlrun[openai,gateway,dataproxy]'"
        ) from error


if TYPE_CHECKING:
    import httpx2 as httpx
    import openai
else:
    openai = _needed("openai")
    # The HTTP library that the installed SDK takes clients of: httpx before openai 3, httpx2 since.
    httpx = importlib.import_module(openai.DefaultAsyncHttpxClient.__bases__[0].__module__.partition(".")[0])

_BASE_URL = "http://direct.rlrun.invalid/v1"
_STYLES = {"individual": RowStyle.INDIVIDUAL, "concat": RowStyle.CONCAT}


class DirectOpenAI(openai.AsyncOpenAI):
    """An `openai.AsyncOpenAI` whose calls are answered by `engine` and recorded as one session, ready to be rewarded and exported.

    Everything of the SDK that the Gateway serves works: `chat.completions` with tools, streams, retries and time-outs, `models`,
    `with_options`. Rewards and exports are plain methods, since nothing of them leaves the process. Closing the client ends its session
    and stops its calls; rewards may still be set and rows exported then.

    Args:
        engine: any InferenceService: a worker's, `Peers(...).inference("127.0.0.1:7072")`, or an object of your own.
        model: directory with the model's tokenizer.json, tokenizer_config.json and chat template.
        max_total_tokens: prompt plus output of one call; None leaves it to the engine.
        reward_style: how `apply_reward_discount` spreads rewards.
        parse_tool_calls: `<tool_call>` markup becomes tool calls, where the request has tools.
        parse_reasoning: `<think>` markup becomes `reasoning_content`.
        options: of AsyncOpenAI: `timeout`, `max_retries`, `default_headers`, ...

    Raises:
        ConfigError: a package or a file of the model is missing; says which.
    """

    def __init__(
        self,
        engine: InferenceService,
        model: str | PathLike[str],
        *,
        max_total_tokens: int | None = None,
        reward_style: RewardStyle = RewardStyle.TREE,
        parse_tool_calls: bool = True,
        parse_reasoning: bool = True,
        _session: _Session | None = None,
        **options: Any,
    ) -> None:
        self._engine = engine
        self._model = model
        if _session is None:
            host = _Host(
                engine,
                model,
                max_total_tokens=max_total_tokens,
                reward_style=reward_style,
                parse_tool_calls=parse_tool_calls,
                parse_reasoning=parse_reasoning,
            )
            _session = _Session(host)
            options |= _session.options
        self._session = _session
        super().__init__(**options)

    def copy(self, *, _extra_kwargs: Mapping[str, Any] = {}, **options: Any) -> Self:
        """The same session with other options of the SDK; closing either closes both."""
        own = {"engine": self._engine, "model": self._model, "_session": self._session}
        return super().copy(_extra_kwargs={**own, **_extra_kwargs}, **options)

    with_options = copy

    def new_session(self) -> Self:
        """Another client with the same engine, tokenizer and options, and a session of its own: cheap, unlike a first client."""
        session = _Session(self._session.host)
        return self.copy(_extra_kwargs={"_session": session}, **session.options)

    @property
    def http_client(self) -> httpx.AsyncClient:
        """For an agent that makes its own OpenAI client: together with `base_url` and `api_key` it reaches this session."""
        return self._client

    async def close(self) -> None:
        await self._session.end()
        await super().close()

    def set_reward(self, interaction_id: str, reward: float) -> None:
        """Sets the reward of the interaction whose completion has this id; a later value replaces an earlier one.

        Raises:
            InvalidRequest: the session has no such interaction, or the reward is not a finite number.
        """
        if not interaction_id:
            raise InvalidRequest("interaction_id is empty; give a completion's id", param="interaction_id")
        self._session.set_reward(interaction_id, reward)

    def set_last_reward(self, reward: float) -> None:
        """Sets the reward of the interaction that was completed last. Raises InvalidRequest if there is none."""
        self._session.set_reward("", reward)

    def apply_reward_discount(self, turn_discount: float = 1.0) -> dict[str, float]:
        """Lets rewards flow back over the turns; the result replaces them and is returned by interaction id.

        A reward that was not set counts as 0. Rewards accumulate: with discount 1 each turn ends with its own and all later ones.

        Raises:
            RuntimeError: it was applied before.
            InvalidRequest: the discount is not in [0, 1].
        """
        return self._session.apply_reward_discount(turn_discount)

    def export_interactions(self, style: ExportStyle = "individual") -> dict[str, TrajectoryRow]:
        """Rows by interaction id, in order of insertion; may be repeated.

        Args:
            style: "individual" gives one row for each interaction; "concat" one for each leaf of the conversation tree, in which the
                outputs of its ancestors are trained too.
        """
        return self._session.export(style)


class _Host:
    """What the sessions of one engine share: the Gateway's app, the DataProxy, the tokenizer."""

    def __init__(self, engine: InferenceService, model: str | PathLike[str], *, reward_style: RewardStyle, **options: Any) -> None:
        self.reward_style = reward_style
        self.direct: Any = _needed("rlrun_dataproxy.direct").DirectProxy(engine, model, reward_style=reward_style, **options)
        settings = _needed("rlrun_gateway.settings").GatewaySettings(
            admin_key=secrets.token_urlsafe(32),  # nobody has it
            max_concurrent_requests=2**31,  # the engine bounds its own queue
            move_timeout_seconds=0.0,  # there is no other owner to wait for
        )
        self.app: Any = _needed("rlrun_gateway.asgi").create_app(settings, self.direct.router, lambda address: self.direct.proxy)


class _Session:
    """One session of a host: what a client and its copies have in common."""

    def __init__(self, host: _Host) -> None:
        self.host = host
        key = new_session_key()
        self._state: Any = host.direct.open(key)
        self._transport = _Transport(host.app)
        self._is_discounted = False
        self._is_ended = False
        self.options: dict[str, Any] = {
            "api_key": key,
            "base_url": _BASE_URL,
            "http_client": openai.DefaultAsyncHttpxClient(transport=self._transport),
        }
        """What makes an SDK client speak to this session."""

    async def end(self) -> None:
        """May be repeated. Returns when every call has its answer: that the session is gone."""
        if not self._is_ended:
            self._is_ended = True
            await self.host.direct.end(self._state)
            await self._transport.wait_answered()
            self.host.direct.sessions.forget(self._state.id)

    def set_reward(self, interaction_id: str, reward: float) -> None:
        self._state.set_reward(self._state.fence, interaction_id, reward, queue=False)

    def apply_reward_discount(self, turn_discount: float) -> dict[str, float]:
        if self._is_discounted:
            raise RuntimeError("apply_reward_discount should only be called once.")
        if not 0.0 <= turn_discount <= 1.0:
            raise InvalidRequest(f"turn_discount is {turn_discount}; must be between 0 and 1", param="turn_discount")
        data = self._state.data()
        if data.records and data.records[-1].id not in data.rewards:
            log.warning("the last interaction, %s, has no reward; it counts as 0", data.records[-1].id)
        parents = InteractionTree.from_records(data.records).parents()
        discounted = reward_discount(parents, data.rewards, style=self.host.reward_style, turn_discount=turn_discount)
        for interaction_id, reward in discounted.items():
            self.set_reward(interaction_id, reward)
        self._is_discounted = True
        return discounted

    def export(self, style: ExportStyle) -> dict[str, TrajectoryRow]:
        if style not in _STYLES:
            raise InvalidRequest(f"style is {style!r}; must be individual or concat", param="style")
        data = self._state.data()
        rows = export_rows(InteractionTree.from_records(data.records), data.rewards, style=_STYLES[style])
        return {row.interaction_id: row for row in rows}


class _Transport(httpx.AsyncBaseTransport):
    """Sends the SDK's requests to an ASGI app; unlike the one of the HTTP library it hands the answer on as it comes."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._exchange = _needed("rlrun_gateway.in_process").InProcessExchange
        self._open: set[Any] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        exchange = self._exchange(
            self._app,
            method=request.method,
            path=request.url.path,
            query=request.url.query,
            headers=[(name.lower(), value) for name, value in request.headers.raw],
            body=await request.aread(),
        )
        self._open.add(exchange)
        body = _Body(self, exchange, request)
        try:
            status, headers = await _in_time(request, exchange.start())
        except BaseException:
            await body.aclose()
            raise
        return httpx.Response(status, headers=headers, stream=body, request=request)

    async def wait_answered(self) -> None:
        for exchange in list(self._open):
            await exchange.wait_ended()

    async def aclose(self) -> None:
        for exchange in list(self._open):
            await self.close(exchange)

    async def close(self, exchange: Any) -> None:
        exchange.close()
        self._open.discard(exchange)
        await exchange.wait_ended()


class _Body(httpx.AsyncByteStream):
    def __init__(self, transport: _Transport, exchange: Any, request: httpx.Request) -> None:
        self._transport = transport
        self._exchange = exchange
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (chunk := await _in_time(self._request, self._exchange.next_chunk())) is not None:
            yield chunk

    async def aclose(self) -> None:
        await self._transport.close(self._exchange)


async def _in_time(request: httpx.Request, step: Awaitable[T]) -> T:
    """Raises what the HTTP library raises when an answer stalls or breaks off."""
    seconds = request.extensions.get("timeout", {}).get("read")
    try:
        async with asyncio.timeout(seconds):
            return await step
    except TimeoutError as error:
        raise httpx.ReadTimeout(f"no answer within {seconds:g} s", request=request) from error
    except ConnectionResetError as error:
        raise httpx.RemoteProtocolError(str(error), request=request) from error

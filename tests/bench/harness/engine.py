"""The engine adapter of the benchmark: drives the mock over HTTP the way an adapter drives an engine's own server."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from pathlib import Path

import aiohttp
import msgspec
import numpy as np
import orjson
from rlrun_worker.engine import Chunk, EngineStatus, FinishReason, Ids, Sampling, Scores, VersionSpan

from rlrun.errors import InvalidRequest, Unavailable


class _Meta(msgspec.Struct):
    output_token_logprobs: list[tuple[float, int, None]]
    finish_reason: dict[str, object]
    cached_tokens: int
    weight_version: str


class _Answer(msgspec.Struct):
    output_ids: list[int]
    meta_info: _Meta


_decoder = msgspec.json.Decoder(_Answer)
_HEADERS = {"Content-Type": "application/json"}


class MockServerEngine:
    """An EngineAdapter over `POST url/generate`."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/generate"
        self._running = 0
        self._num_output_tokens = 0

    async def start(self) -> None:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120))

    async def close(self) -> None:
        await self._session.close()

    async def generate(
        self,
        prompt_ids: Ids,
        sampling: Sampling,
        *,
        max_new_tokens: int,
        top_logprobs: int = 0,
        request_id: str = "",
        stream: bool = True,
    ) -> AsyncGenerator[Chunk, None]:
        body = {
            "rid": request_id,
            "input_ids": prompt_ids,
            "sampling_params": {
                "max_new_tokens": max_new_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k or -1,
                "stop": sampling.stop,
                "stop_token_ids": sampling.stop_token_ids,
            },
            "return_logprob": True,
        }
        self._running += 1
        try:
            async with self._session.post(
                self._url, data=orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY), headers=_HEADERS
            ) as response:
                answer = _decoder.decode(await response.read())
        except aiohttp.ClientError as error:
            raise Unavailable(f"the engine's server failed: {error}") from error
        finally:
            self._running -= 1
        ids = np.array(answer.output_ids, np.int32)
        meta = answer.meta_info
        self._num_output_tokens += len(ids)
        yield Chunk(
            ids=ids,
            logprobs=np.array([pair[0] for pair in meta.output_token_logprobs], np.float32),
            versions=(VersionSpan(len(ids), int(meta.weight_version)),),
            finish_reason=FinishReason.STOP if meta.finish_reason["type"] == "stop" else FinishReason.LENGTH,
            cached_tokens=meta.cached_tokens,
        )

    async def score(self, ids: Ids, *, temperature: float = 1.0, top_logprobs: int = 0) -> Scores:
        raise InvalidRequest("the mock engine scores nothing")

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def load_weights(self, version: int, path: Path) -> None:
        raise InvalidRequest("the mock engine has no weights")

    async def abort(self, request_id: str) -> None: ...

    async def status(self) -> EngineStatus:
        return EngineStatus(
            engine="mock",
            model="policy",
            policy_version=0,
            fingerprint="",
            running=self._running,
            waiting=0,
            paused=False,
            max_total_tokens=2**31 - 1,
            tokens_per_second=math.nan,
            total_output_tokens=self._num_output_tokens,
        )

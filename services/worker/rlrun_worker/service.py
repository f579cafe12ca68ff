"""InferenceService over an engine adapter: protobuf in and out, arrays packed as little-endian bytes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path

import numpy as np

from rlrun.errors import ConfigError, Internal, InvalidRequest
from rlrun.proto import common_pb2, inference_pb2
from rlrun_worker.engine import Chunk, EngineAdapter, FinishReason, Floats, Ids, Sampling

_FINISH_REASONS = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: common_pb2.FINISH_REASON_ABORT,
}


class InferenceWorker:
    """Implements `rlrun.rpc.interfaces.InferenceService`. The owner starts and closes the engine."""

    def __init__(self, engine: EngineAdapter) -> None:
        self._engine = engine

    async def infer(self, request: inference_pb2.InferRequest, /) -> inference_pb2.InferResponse:
        async with aclosing(self._generate(request, stream=False)) as chunks:
            async for chunk in chunks:
                # The contract: without streaming there is exactly one chunk.
                return pack_chunk(chunk)
        raise Internal("the engine ended without an answer")

    async def infer_stream(self, request: inference_pb2.InferRequest, /) -> AsyncIterator[inference_pb2.InferResponse]:
        async with aclosing(self._generate(request, stream=True)) as chunks:
            async for chunk in chunks:
                yield pack_chunk(chunk)

    async def score(self, request: inference_pb2.ScoreRequest, /) -> inference_pb2.ScoreResponse:
        scores = await self._engine.score(
            unpack_ids(request.ids, "ids"), temperature=request.temperature or 1.0, top_logprobs=request.top_logprobs
        )
        return inference_pb2.ScoreResponse(
            logprobs=pack_floats(scores.logprobs),
            top_logprobs=_pack_top(scores.top_ids, scores.top_logprobs),
            version=scores.version,
        )

    async def pause(self, request: common_pb2.Empty, /) -> common_pb2.Empty:
        await self._engine.pause()
        return common_pb2.Empty()

    async def continue_(self, request: common_pb2.Empty, /) -> common_pb2.Empty:
        await self._engine.resume()
        return common_pb2.Empty()

    async def load_weights(self, request: inference_pb2.LoadWeightsRequest, /) -> inference_pb2.WorkerStatus:
        if not request.path:
            raise InvalidRequest("path is empty; name the directory of the version", param="path")
        await self._engine.load_weights(request.version, Path(request.path))
        return await self.get_status(common_pb2.Empty())

    async def abort(self, request: inference_pb2.AbortRequest, /) -> common_pb2.Empty:
        await self._engine.abort(request.request_id)
        return common_pb2.Empty()

    async def get_status(self, request: common_pb2.Empty, /) -> inference_pb2.WorkerStatus:
        status = await self._engine.status()
        return inference_pb2.WorkerStatus(
            engine=status.engine,
            model=status.model,
            policy_version=status.policy_version,
            fingerprint=status.fingerprint,
            running=status.running,
            waiting=status.waiting,
            paused=status.paused,
            max_total_tokens=status.max_total_tokens,
            tokens_per_second=status.tokens_per_second,
            total_output_tokens=status.total_output_tokens,
        )

    def _generate(self, request: inference_pb2.InferRequest, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        return self._engine.generate(
            unpack_ids(request.prompt_ids, "prompt_ids"),
            unpack_sampling(request.sampling),
            max_new_tokens=request.max_new_tokens,
            top_logprobs=request.top_logprobs,
            request_id=request.request_id,
            stream=stream,
        )


def build_engine(name: str, **options: object) -> EngineAdapter:
    """The engine adapter called `name`, not yet started. `options` are the fields of its options class.

    Raises: ConfigError for an unknown name or option.
    """
    if name != "torch":
        raise ConfigError(f"engine {name!r} is not available in this worker; built in: torch", param="worker.engine.name")
    # Imported here: a worker that drives another engine needs no torch.
    from rlrun_worker.torch_engine import TorchEngine, TorchEngineOptions

    try:
        return TorchEngine(TorchEngineOptions(**options))  # type: ignore[arg-type]
    except TypeError as error:
        raise ConfigError(f"engine torch: {error}", param="worker.engine") from error


def unpack_ids(data: bytes, param: str) -> Ids:
    """int32 [T], read-only. Raises: InvalidRequest when the length is no multiple of 4."""
    if len(data) % 4:
        raise InvalidRequest(f"{param} has {len(data)} bytes; int32 ids take 4 bytes each", param=param)
    return np.frombuffer(data, "<i4").astype(np.int32, copy=False)


def pack_ids(ids: Ids) -> bytes:
    return ids.astype("<i4", copy=False).tobytes()


def pack_floats(values: Floats) -> bytes:
    return values.astype("<f4", copy=False).tobytes()


def unpack_sampling(params: common_pb2.SamplingParams) -> Sampling:
    """Absent fields take the defaults of `Sampling`. Raises: InvalidRequest naming a field out of range."""
    return Sampling(
        temperature=params.temperature if params.HasField("temperature") else 1.0,
        top_p=params.top_p if params.HasField("top_p") else 1.0,
        top_k=params.top_k,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty or 1.0,
        seed=params.seed if params.HasField("seed") else None,
        stop=tuple(params.stop),
        stop_token_ids=tuple(params.stop_token_ids),
        ignore_eos=params.ignore_eos,
    )


def pack_chunk(chunk: Chunk) -> inference_pb2.InferResponse:
    return inference_pb2.InferResponse(
        output_ids=pack_ids(chunk.ids),
        logprobs=pack_floats(chunk.logprobs),
        versions=[common_pb2.VersionSpan(num_tokens=span.num_tokens, version=span.version) for span in chunk.versions],
        finish_reason=_FINISH_REASONS[chunk.finish_reason] if chunk.finish_reason else common_pb2.FINISH_REASON_UNSPECIFIED,
        top_logprobs=_pack_top(chunk.top_ids, chunk.top_logprobs),
        cached_tokens=chunk.cached_tokens,
        matched_stop=chunk.matched_stop,
    )


def _pack_top(ids: Ids | None, logprobs: Floats | None) -> common_pb2.TopLogprobs | None:
    if ids is None or logprobs is None:
        return None
    return common_pb2.TopLogprobs(k=ids.shape[1], ids=pack_ids(ids), logprobs=pack_floats(logprobs))

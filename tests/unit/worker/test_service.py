"""Packing between protobuf and an engine adapter; the engine is a fake that records what it is asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rlrun_worker.engine import Chunk, EngineAdapter, EngineStatus, FinishReason, Ids, Sampling, Scores, VersionSpan
from rlrun_worker.service import InferenceWorker, build_engine

from rlrun.errors import ConfigError, InvalidRequest
from rlrun.proto import common_pb2, inference_pb2
from rlrun.rpc.interfaces import InferenceService


class FakeEngine:
    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.closed_early = False

    async def start(self) -> None: ...
    async def close(self) -> None: ...

    async def generate(self, prompt_ids: Ids, sampling: Sampling, **options: Any) -> AsyncGenerator[Chunk, None]:
        self.calls.append(("generate", (prompt_ids.tolist(), sampling, options)))
        whole = Chunk(
            ids=np.array([7, 8, 9], np.int32),
            logprobs=np.array([-1, -2, -3], np.float32),
            versions=(VersionSpan(2, 1), VersionSpan(1, 2)),
            finish_reason=FinishReason.STOP,
            top_ids=np.array([[7, 1], [8, 1], [9, 1]], np.int32),
            top_logprobs=np.full((3, 2), -0.5, np.float32),
            cached_tokens=4,
            matched_stop="end",
        )
        try:
            if options["stream"]:
                yield Chunk(ids=whole.ids[:1], logprobs=whole.logprobs[:1], versions=(VersionSpan(1, 1),))
            yield whole
        except GeneratorExit:
            self.closed_early = True
            raise

    async def score(self, ids: Ids, *, temperature: float = 1.0, top_logprobs: int = 0) -> Scores:
        self.calls.append(("score", (ids.tolist(), temperature, top_logprobs)))
        return Scores(logprobs=np.array([0, -1], np.float32), version=3)

    async def pause(self) -> None:
        self.calls.append(("pause", None))

    async def resume(self) -> None:
        self.calls.append(("resume", None))

    async def load_weights(self, version: int, path: Path) -> None:
        self.calls.append(("load", (version, path)))

    async def abort(self, request_id: str) -> None:
        self.calls.append(("abort", request_id))

    async def status(self) -> EngineStatus:
        return EngineStatus(
            engine="fake", model="m", policy_version=5, fingerprint="f", running=1, waiting=2, paused=True,
            max_total_tokens=10, tokens_per_second=2.5, total_output_tokens=77,
        )  # fmt: skip


REQUEST = inference_pb2.InferRequest(
    request_id="r",
    prompt_ids=np.array([1, 2], "<i4").tobytes(),
    max_new_tokens=5,
    top_logprobs=2,
    sampling=common_pb2.SamplingParams(temperature=0.0, top_p=0.5, top_k=3, seed=-1, stop=["end"], stop_token_ids=[4], ignore_eos=True),
)


async def test_infer_packs_the_whole_answer() -> None:
    engine = FakeEngine()
    response = await InferenceWorker(engine).infer(REQUEST)
    sampling = Sampling(temperature=0.0, top_p=0.5, top_k=3, seed=-1, stop=("end",), stop_token_ids=(4,), ignore_eos=True)
    options = {"max_new_tokens": 5, "top_logprobs": 2, "request_id": "r", "stream": False}
    assert engine.calls == [("generate", ([1, 2], sampling, options))]
    assert np.frombuffer(response.output_ids, "<i4").tolist() == [7, 8, 9]
    assert np.frombuffer(response.logprobs, "<f4").tolist() == [-1, -2, -3]
    assert [(span.num_tokens, span.version) for span in response.versions] == [(2, 1), (1, 2)]
    assert response.finish_reason == common_pb2.FINISH_REASON_STOP
    assert (response.top_logprobs.k, len(response.top_logprobs.ids)) == (2, 24)
    assert (response.cached_tokens, response.matched_stop) == (4, "end")


async def test_absent_sampling_fields_take_their_documented_defaults() -> None:
    engine = FakeEngine()
    await InferenceWorker(engine).infer(inference_pb2.InferRequest(prompt_ids=b"\1\0\0\0"))
    assert engine.calls[0][1][1] == Sampling(temperature=1.0, top_p=1.0, top_k=0, repetition_penalty=1.0, seed=None)


@pytest.mark.parametrize("bound", [{"temperature": 1e-4}, {"temperature": 2.0}, {"repetition_penalty": 0.01}, {"repetition_penalty": 10.0}])
async def test_the_bounds_that_clients_are_told_are_served_although_the_wire_rounds_them(bound: dict[str, float]) -> None:
    engine = FakeEngine()
    await InferenceWorker(engine).infer(inference_pb2.InferRequest(prompt_ids=b"\1\0\0\0", sampling=common_pb2.SamplingParams(**bound)))
    ((field, value),) = bound.items()
    assert getattr(engine.calls[0][1][1], field) == pytest.approx(value)


async def test_stream_marks_only_the_last_piece_finished_and_leaving_it_closes_the_engine_side() -> None:
    engine = FakeEngine()
    pieces = [piece async for piece in InferenceWorker(engine).infer_stream(REQUEST)]
    assert [piece.finish_reason for piece in pieces] == [common_pb2.FINISH_REASON_UNSPECIFIED, common_pb2.FINISH_REASON_STOP]
    stream = InferenceWorker(engine).infer_stream(REQUEST)
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    assert engine.closed_early


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": 1e-7}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"presence_penalty": 3.0}, "presence_penalty"),
        ({"frequency_penalty": -3.0}, "frequency_penalty"),
        ({"repetition_penalty": -1.0}, "repetition_penalty"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
    ],
)
async def test_values_out_of_range_name_their_field(sampling: dict[str, Any], param: str) -> None:
    request = inference_pb2.InferRequest(prompt_ids=b"\1\0\0\0", sampling=common_pb2.SamplingParams(**sampling))
    with pytest.raises(InvalidRequest) as caught:
        await InferenceWorker(FakeEngine()).infer(request)
    assert caught.value.param == param


async def test_ids_of_a_broken_length_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="5 bytes"):
        await InferenceWorker(FakeEngine()).infer(inference_pb2.InferRequest(prompt_ids=b"12345"))


async def test_the_other_calls_pass_through() -> None:
    engine, empty = FakeEngine(), common_pb2.Empty()
    adapter: EngineAdapter = engine
    worker: InferenceService = InferenceWorker(adapter)
    scores = await worker.score(inference_pb2.ScoreRequest(ids=np.array([1, 2], "<i4").tobytes(), top_logprobs=1))
    await worker.pause(empty)
    await worker.continue_(empty)
    status = await worker.load_weights(inference_pb2.LoadWeightsRequest(version=6, path="/weights/6"))
    await worker.abort(inference_pb2.AbortRequest(request_id="r"))
    assert engine.calls == [
        ("score", ([1, 2], 1.0, 1)), ("pause", None), ("resume", None), ("load", (6, Path("/weights/6"))), ("abort", "r"),
    ]  # fmt: skip
    assert (scores.version, np.frombuffer(scores.logprobs, "<f4").tolist()) == (3, [0, -1])
    assert (status.policy_version, status.running, status.waiting, status.paused, status.total_output_tokens) == (5, 1, 2, True, 77)
    with pytest.raises(InvalidRequest):
        await worker.load_weights(inference_pb2.LoadWeightsRequest(version=6))


def test_unknown_engines_and_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="sglang"):
        build_engine("sglang")
    with pytest.raises(ConfigError, match="no_such"):
        build_engine("torch", model_path=Path(), no_such=1)
    with pytest.raises(ConfigError, match="num_slots"):
        build_engine("torch", model_path=Path(), num_slots=0)

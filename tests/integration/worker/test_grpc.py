"""The torch engine behind a real gRPC socket: answers, errors, cancellation, weight loads."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import torch
from rlrun_worker.service import InferenceWorker, build_engine
from rlrun_worker.weights import weight_fingerprint
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM

from rlrun.errors import ContextLengthExceeded, InvalidRequest, Overloaded
from rlrun.proto import common_pb2, inference_pb2
from rlrun.rpc import peers as rpc_peers
from rlrun.rpc.interfaces import InferenceService
from rlrun.rpc.peers import Peers
from rlrun.rpc.server import RpcServer
from rlrun.rpc.tls import Security

PROMPT = np.arange(1, 9, dtype="<i4").tobytes()
ENDLESS = common_pb2.SamplingParams(ignore_eos=True)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("model")
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    Tokenizer(models.BPE({chr(33 + index): index for index in range(64)}, [])).save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture
async def worker(model_path: Path) -> AsyncIterator[InferenceService]:
    engine = build_engine("torch", model_path=model_path, num_slots=2, max_len_tokens=4096, max_waiting=1, num_threads=1)
    await engine.start()
    client, server = Peers(security=Security(token="secret")), RpcServer(bind="127.0.0.1", port=0, security=Security(token="secret"))
    server.add(rpc_peers.INFERENCE, InferenceWorker(engine))
    await server.start()
    yield client.inference(f"127.0.0.1:{server.port}")
    await client.close()
    await server.stop(grace_seconds=0)
    await engine.close()


def request(max_new_tokens: int, request_id: str = "") -> inference_pb2.InferRequest:
    return inference_pb2.InferRequest(prompt_ids=PROMPT, sampling=ENDLESS, max_new_tokens=max_new_tokens, request_id=request_id)


async def wait_until_idle(worker: InferenceService) -> inference_pb2.WorkerStatus:
    while True:
        status = await worker.get_status(common_pb2.Empty())
        if not status.running and not status.waiting:
            return status


async def test_unary_and_stream_answer_over_the_socket(worker: InferenceService) -> None:
    answer = await worker.infer(request(20))
    assert len(answer.output_ids) == len(answer.logprobs) == 80
    assert answer.finish_reason == common_pb2.FINISH_REASON_LENGTH
    pieces = [piece async for piece in worker.infer_stream(request(20))]
    assert sum(len(piece.output_ids) for piece in pieces) == 80
    assert pieces[-1].finish_reason == common_pb2.FINISH_REASON_LENGTH
    assert pieces[-1].cached_tokens == 7


async def test_errors_keep_their_class(worker: InferenceService) -> None:
    with pytest.raises(InvalidRequest):
        await worker.infer(inference_pb2.InferRequest(prompt_ids=b"123"))
    with pytest.raises(ContextLengthExceeded):
        await worker.infer(inference_pb2.InferRequest(prompt_ids=bytes(4 * 5000)))
    await worker.pause(common_pb2.Empty())
    calls = [asyncio.ensure_future(worker.infer(request(3))) for _ in range(4)]
    done, pending = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    assert isinstance(done.pop().exception(), Overloaded)
    await worker.continue_(common_pb2.Empty())
    assert [len(answer.output_ids) for answer in await asyncio.gather(*pending)] == [12, 12, 12]


async def test_leaving_a_call_ends_its_sequence(worker: InferenceService) -> None:
    call = asyncio.ensure_future(worker.infer(request(4000)))
    stream = worker.infer_stream(request(4000))
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    call.cancel()
    status = await asyncio.wait_for(wait_until_idle(worker), 10)
    assert status.total_output_tokens < 4000


async def test_abort_returns_the_tokens_so_far(worker: InferenceService) -> None:
    call = asyncio.ensure_future(worker.infer(request(4000, "r")))
    while not (await worker.get_status(common_pb2.Empty())).total_output_tokens:
        pass
    await worker.abort(inference_pb2.AbortRequest(request_id="r"))
    answer = await call
    assert answer.finish_reason == common_pb2.FINISH_REASON_ABORT
    assert 0 < len(answer.output_ids) < 16000


async def test_a_load_in_mid_answer_shows_in_its_versions(worker: InferenceService, model_path: Path, tmp_path: Path) -> None:
    state = {name: tensor + 0.01 for name, tensor in load_file(model_path / "model.safetensors").items()}
    save_file(state, tmp_path / "model.safetensors")
    digest = hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
    manifest = {"version": 1, "parent": 0, "step": 1, "fingerprint": weight_fingerprint(state), "files": {"model.safetensors": digest}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    stream = worker.infer_stream(request(3000))
    spans = list((await anext(stream)).versions)
    status = await worker.load_weights(inference_pb2.LoadWeightsRequest(version=1, path=str(tmp_path)))
    assert (status.policy_version, status.fingerprint) == (1, manifest["fingerprint"])
    async for piece in stream:
        spans += piece.versions
        if spans[-1].version == 1:
            break
    await stream.aclose()  # type: ignore[attr-defined]
    assert [spans[0].version, spans[-1].version] == [0, 1]

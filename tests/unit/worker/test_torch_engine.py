"""The torch engine against transformers' own generate and forward."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rlrun_worker.engine import Chunk, FinishReason, Ids, Sampling, VersionSpan
from rlrun_worker.torch_engine import TorchEngine, TorchEngineOptions
from tokenizers import Tokenizer

from rlrun.errors import ConfigError, Conflict, ContextLengthExceeded, Internal, InvalidRequest, Overloaded, Unavailable

VOCAB_SIZE = 384
GREEDY = Sampling(temperature=0.0, ignore_eos=True)
Paths = Callable[..., Path]
Models = Callable[..., Any]
Writer = Callable[..., None]


@asynccontextmanager
async def running(path: Path, **options: Any) -> AsyncIterator[TorchEngine]:
    defaults: dict[str, Any] = {"num_slots": 4, "max_len_tokens": 128, "num_threads": 1}
    engine = TorchEngine(TorchEngineOptions(model_path=path, **(defaults | options)))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def make_prompt(seed: int, size: int) -> Ids:
    return np.random.default_rng(seed).integers(1, VOCAB_SIZE, size).astype(np.int32)


async def collect(engine: TorchEngine, prompt: Ids, sampling: Sampling, max_new_tokens: int = 16, **options: Any) -> Chunk:
    """All chunks of a request as one."""
    chunks = [chunk async for chunk in engine.generate(prompt, sampling, max_new_tokens=max_new_tokens, **options)]
    assert all(chunk.finish_reason is None for chunk in chunks[:-1])
    tops = [chunk.top_ids for chunk in chunks]
    return Chunk(
        ids=np.concatenate([chunk.ids for chunk in chunks]),
        logprobs=np.concatenate([chunk.logprobs for chunk in chunks]),
        versions=tuple(span for chunk in chunks for span in chunk.versions),
        finish_reason=chunks[-1].finish_reason,
        top_ids=None if tops[0] is None else np.concatenate(tops),
        top_logprobs=None if tops[0] is None else np.concatenate([chunk.top_logprobs for chunk in chunks]),
        cached_tokens=chunks[-1].cached_tokens,
        matched_stop=chunks[-1].matched_stop,
    )


def generate_reference(model: Any, prompt: Ids, num_tokens: int) -> list[int]:
    ids = torch.from_numpy(prompt.astype(np.int64))[None]
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=num_tokens, min_new_tokens=num_tokens, pad_token_id=0,
        suppress_tokens=None, eos_token_id=[],
    )  # fmt: skip
    return list(out[0, prompt.size :].tolist())


def forward_reference(model: Any, prompt: Ids, output: Ids, temperature: float = 1.0) -> torch.Tensor:
    """Logprobs [T, V] of the output positions."""
    ids = torch.from_numpy(np.concatenate([prompt, output]).astype(np.int64))[None]
    with torch.inference_mode():
        logits = model(ids).logits[0, prompt.size - 1 : -1]
    return torch.log_softmax(logits / temperature, -1)


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen3-window", "qwen3-tied"])
async def test_greedy_batch_of_different_lengths_equals_generate(family: str, model_path: Paths, reference: Models) -> None:
    prompts = [make_prompt(seed, size) for seed, size in enumerate((1, 7, 40, 23, 3, 60))]
    async with running(model_path(family), prefill_tokens=32) as engine:
        answers = await asyncio.gather(*(collect(engine, prompt, GREEDY, 12) for prompt in prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.ids.tolist() == generate_reference(reference(family), prompt, 12)
        assert answer.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(("family", "temperature"), [("qwen3", 1.0), ("qwen3", 0.7), ("llama", 1.3), ("llama", 0.0)])
async def test_logprobs_equal_those_of_a_plain_forward(family: str, temperature: float, model_path: Paths, reference: Models) -> None:
    sampling = Sampling(temperature=temperature, top_p=0.9, top_k=20, presence_penalty=0.5, ignore_eos=True, seed=1)
    prompts = [make_prompt(seed, 20 + seed) for seed in range(4)]
    async with running(model_path(family)) as engine:
        answers = await asyncio.gather(*(collect(engine, prompt, sampling, top_logprobs=3) for prompt in prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        expected = forward_reference(reference(family), prompt, answer.ids, temperature or 1.0)
        chosen = expected.gather(1, torch.from_numpy(answer.ids.astype(np.int64))[:, None])[:, 0]
        np.testing.assert_allclose(answer.logprobs, chosen, atol=1e-4)
        assert answer.top_logprobs is not None
        np.testing.assert_allclose(answer.top_logprobs, expected.topk(3).values, atol=1e-4)


async def test_score_equals_a_plain_forward(model_path: Paths, reference: Models) -> None:
    ids = make_prompt(3, 30)
    async with running(model_path()) as engine:
        scores = await engine.score(ids, temperature=0.8, top_logprobs=2)
    expected = forward_reference(reference(), ids[:1], ids[1:], 0.8)
    assert scores.logprobs[0] == 0.0
    np.testing.assert_allclose(
        scores.logprobs[1:], expected.gather(1, torch.from_numpy(ids[1:].astype(np.int64))[:, None])[:, 0], atol=1e-4
    )
    assert scores.top_ids is not None
    assert scores.top_ids[1:].tolist() == expected.topk(2).indices.tolist()


async def test_samples_of_one_prompt_prefill_it_once(model_path: Paths) -> None:
    prompt = make_prompt(5, 50)
    async with running(model_path(), num_slots=16) as engine:
        answers = await asyncio.gather(*(collect(engine, prompt, Sampling(seed=seed, ignore_eos=True), 8) for seed in range(16)))
        assert engine._core.num_prefill_tokens == 50
    assert sorted(answer.cached_tokens for answer in answers) == [0] + [49] * 15
    assert len({tuple(answer.ids.tolist()) for answer in answers}) > 8


async def test_next_turn_reuses_the_last_one_and_gives_the_same_ids(model_path: Paths, reference: Models) -> None:
    prompt = make_prompt(6, 20)
    async with running(model_path(), num_slots=2) as engine:
        first = await collect(engine, prompt, GREEDY, 10)
        # Another sequence takes a slot in between.
        await collect(engine, make_prompt(7, 30), GREEDY, 4)
        longer = np.concatenate([prompt, first.ids, make_prompt(8, 5)])
        second = await collect(engine, longer, GREEDY, 10)
        branch = await collect(engine, np.concatenate([prompt, make_prompt(9, 4)]), GREEDY, 10)
    # The last drawn token was never fed back, so its KV is not there.
    assert second.cached_tokens == 29
    assert second.ids.tolist() == generate_reference(reference(), longer, 10)
    assert branch.cached_tokens == 20
    assert branch.ids.tolist() == generate_reference(reference(), np.concatenate([prompt, make_prompt(9, 4)]), 10)


async def test_padding_touches_neither_idle_slots_nor_cached_prefixes(model_path: Paths, reference: Models) -> None:
    prompts = [make_prompt(seed, 20) for seed in range(3)]
    async with running(model_path(), num_slots=3) as engine:
        firsts = [await collect(engine, prompt, GREEDY, 4) for prompt in prompts]
        suffixes = [make_prompt(9, size) for size in (5, 3, 8)]
        turns = [np.concatenate([prompt, first.ids, suffix]) for prompt, first, suffix in zip(prompts, firsts, suffixes, strict=True)]
        # Slots 0 and 2 go on with suffixes of different lengths while slot 1 lies between them, cached and idle.
        outer = await asyncio.gather(collect(engine, turns[0], GREEDY), collect(engine, turns[2], GREEDY))
        middle = await collect(engine, turns[1], GREEDY)
    for turn, answer in zip((turns[0], turns[2], turns[1]), (*outer, middle), strict=True):
        assert answer.cached_tokens == 23
        expected = forward_reference(reference(), turn, answer.ids)
        np.testing.assert_allclose(answer.logprobs, expected.max(-1).values, atol=1e-4)


async def test_seed_gives_the_same_tokens_alone_and_in_a_batch(model_path: Paths) -> None:
    prompt, sampling = make_prompt(1, 12), Sampling(temperature=1.2, seed=-7, ignore_eos=True)
    truncated = Sampling(temperature=1.2, seed=5, top_p=0.8, ignore_eos=True)
    async with running(model_path()) as engine:
        alone = await collect(engine, prompt, sampling)
        alone_truncated = await collect(engine, prompt, truncated)
    async with running(model_path()) as engine:
        noise = [Sampling(seed=seed, top_k=3, frequency_penalty=1.0, ignore_eos=True) for seed in range(5)]
        batch = await asyncio.gather(
            *(collect(engine, make_prompt(seed, 30), other) for seed, other in enumerate(noise)),
            collect(engine, prompt, sampling),
            collect(engine, prompt, truncated),
            collect(engine, prompt, Sampling(seed=8, ignore_eos=True)),
        )
    assert batch[5].ids.tolist() == alone.ids.tolist()
    assert batch[6].ids.tolist() == alone_truncated.ids.tolist()
    assert batch[7].ids.tolist() != alone.ids.tolist()


async def test_stop_string_across_token_borders_ends_the_output_with_its_tokens(model_path: Paths) -> None:
    tokenizer = Tokenizer.from_file(str(model_path() / "tokenizer.json"))
    prompt = make_prompt(1, 10)
    async with running(model_path()) as engine:
        full = await collect(engine, prompt, GREEDY, 40)
        texts = [tokenizer.decode(full.ids[:end].tolist(), skip_special_tokens=False) for end in range(41)]
        # A readable border between two tokens, not seen earlier in the text.
        cut, stop = next(
            (end, stop)
            for end in range(2, 41)
            if len(stop := texts[end][len(texts[end - 1]) - 1 :]) >= 2
            and "\ufffd" not in stop
            and texts[end].find(stop) == len(texts[end - 1]) - 1
        )
        answer = await collect(engine, prompt, Sampling(temperature=0.0, ignore_eos=True, stop=("never there", stop)), 40)
    assert answer.ids.tolist() == full.ids[:cut].tolist()
    assert answer.finish_reason is FinishReason.STOP
    assert answer.matched_stop == stop


async def test_stop_token_and_eos_end_the_output(model_path: Paths, tmp_path: Path) -> None:
    prompt = make_prompt(2, 10)
    async with running(model_path()) as engine:
        full = await collect(engine, prompt, GREEDY, 20)
        stop_id = int(full.ids[6])
        cut = full.ids.tolist().index(stop_id) + 1
        stopped = await collect(engine, prompt, Sampling(temperature=0.0, ignore_eos=True, stop_token_ids=(stop_id,)), 20)
        engine._core._is_eos[stop_id] = True
        at_eos = await collect(engine, prompt, Sampling(temperature=0.0), 20)
        ignored = await collect(engine, prompt, GREEDY, 20)
    assert stopped.ids.tolist() == at_eos.ids.tolist() == full.ids[:cut].tolist()
    assert stopped.finish_reason is at_eos.finish_reason is FinishReason.STOP
    assert ignored.ids.tolist() == full.ids.tolist()


async def test_closing_the_iterator_frees_the_slot(model_path: Paths) -> None:
    async with running(model_path(), num_slots=1, max_waiting=1) as engine:
        stream = engine.generate(make_prompt(1, 5), GREEDY, max_new_tokens=100)
        async with aclosing(stream):
            await anext(stream)
        after = await asyncio.wait_for(collect(engine, make_prompt(2, 5), GREEDY, 3), 10)
        assert after.ids.size == 3
        status = await engine.status()
        assert (status.running, status.waiting) == (0, 0)
        assert status.total_output_tokens < 60


async def test_abort_by_id_ends_running_and_waiting_requests_with_what_they_have(model_path: Paths) -> None:
    async with running(model_path(), num_slots=1) as engine:
        first = engine.generate(make_prompt(1, 5), GREEDY, max_new_tokens=120, request_id="a")
        got = await anext(first)
        await engine.pause()
        waiting = asyncio.ensure_future(collect(engine, make_prompt(2, 5), GREEDY, request_id="b"))
        await engine.status()
        await asyncio.sleep(0)
        with pytest.raises(Conflict):
            await collect(engine, make_prompt(2, 5), GREEDY, request_id="b")
        await engine.abort("b")
        await engine.abort("a")
        await engine.abort("unknown")
        assert (await waiting).finish_reason is FinishReason.ABORT
        rest = [chunk async for chunk in first]
        assert rest[-1].finish_reason is FinishReason.ABORT
        assert got.ids.size == 1
        assert (await engine.status()).running == 0


async def test_queue_is_bounded(model_path: Paths) -> None:
    async with running(model_path(), num_slots=1, max_waiting=1) as engine:
        await engine.pause()
        accepted = [asyncio.ensure_future(collect(engine, make_prompt(seed, 5), GREEDY, 3)) for seed in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded) as caught:
            await collect(engine, make_prompt(3, 5), GREEDY)
        assert caught.value.retry_after_seconds
        await engine.resume()
        assert [answer.ids.size for answer in await asyncio.gather(*accepted)] == [3, 3]


async def test_pause_stops_and_resume_goes_on_with_the_same_tokens(model_path: Paths, reference: Models) -> None:
    prompt = make_prompt(4, 10)
    async with running(model_path(), flush_seconds=0.0) as engine:
        stream = engine.generate(prompt, GREEDY, max_new_tokens=60)
        ids = [(await anext(stream)).ids]
        await engine.pause()
        stopped_at = (await engine.status()).total_output_tokens
        await engine.score(prompt)
        status = await engine.status()
        assert status.paused
        assert status.total_output_tokens == stopped_at
        await engine.resume()
        ids += [chunk.ids async for chunk in stream]
    assert np.concatenate(ids).tolist() == generate_reference(reference(), prompt, 60)


async def test_load_in_mid_sequence_goes_on_with_the_new_weights(
    model_path: Paths, reference: Models, tmp_path: Path, write_version: Writer
) -> None:
    write_version(tmp_path, model_path("qwen3", 1), 4)
    prompt, cached = make_prompt(4, 10), make_prompt(5, 10)
    async with running(model_path(), flush_seconds=0.0) as engine:
        await collect(engine, cached, GREEDY, 5)
        stream = engine.generate(prompt, GREEDY, max_new_tokens=40)
        chunks = [await anext(stream)]
        await engine.pause()
        await engine.load_weights(4, tmp_path)
        await engine.resume()
        chunks += [chunk async for chunk in stream]
        fresh = await collect(engine, cached, GREEDY, 5)
        status = await engine.status()
    ids = np.concatenate([chunk.ids for chunk in chunks])
    versions = [span for chunk in chunks for span in chunk.versions]
    old = sum(span.num_tokens for span in versions if span.version == 0)
    assert {span.version for span in versions} == {0, 4}
    assert 0 < old < 40
    assert ids[:old].tolist() == generate_reference(reference(), prompt, old)
    assert ids[old:].tolist() == generate_reference(reference("qwen3", 1), np.concatenate([prompt, ids[:old]]), 40 - old)
    assert fresh.cached_tokens == 0
    assert fresh.ids.tolist() == generate_reference(reference("qwen3", 1), cached, 5)
    assert status.policy_version == 4


async def test_one_chunk_tells_its_versions_apart(model_path: Paths, tmp_path: Path, write_version: Writer) -> None:
    write_version(tmp_path, model_path("qwen3", 1), 2)
    async with running(model_path()) as engine:
        answer = asyncio.ensure_future(collect(engine, make_prompt(1, 5), GREEDY, 100, stream=False))
        while (await engine.status()).total_output_tokens < 5:
            await asyncio.sleep(0)
        await engine.load_weights(2, tmp_path)
        spans = (await answer).versions
    assert [span.version for span in spans] == [0, 2]
    assert sum(span.num_tokens for span in spans) == 100


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"fingerprint": "0" * 64}, "fingerprint"),
        ({"files": {"model.safetensors": "0" * 64}}, "sha256"),
        ({"files": {"../model.safetensors": "0" * 64}}, "plain names"),
        ({"files": {}}, "no files"),
        ({"version": 9}, "version 9"),
        ({"step": "one"}, "not a weight manifest"),
    ],
)
async def test_a_wrong_manifest_keeps_the_old_weights(
    overrides: dict[str, Any], message: str, model_path: Paths, reference: Models, tmp_path: Path, write_version: Writer
) -> None:
    write_version(tmp_path, model_path("qwen3", 1), 4, **overrides)
    prompt = make_prompt(4, 10)
    async with running(model_path()) as engine:
        before = await engine.status()
        with pytest.raises(InvalidRequest, match=message):
            await engine.load_weights(4, tmp_path)
        after = await engine.status()
        assert (after.policy_version, after.fingerprint) == (0, before.fingerprint)
        assert (await collect(engine, prompt, GREEDY, 8)).ids.tolist() == generate_reference(reference(), prompt, 8)


async def test_weights_of_another_shape_are_refused(model_path: Paths, tmp_path: Path, write_version: Writer) -> None:
    write_version(tmp_path, model_path("llama"), 4)
    async with running(model_path("qwen3")) as engine:
        with pytest.raises(InvalidRequest, match="lack"):
            await engine.load_weights(4, tmp_path)


async def test_same_version_again_is_accepted_only_with_the_same_weights(model_path: Paths, tmp_path: Path, write_version: Writer) -> None:
    write_version(tmp_path / "a", model_path("qwen3", 1), 4)
    write_version(tmp_path / "b", model_path("qwen3", 2), 4)
    async with running(model_path()) as engine:
        await engine.load_weights(4, tmp_path / "a")
        await engine.load_weights(4, tmp_path / "a")
        with pytest.raises(Conflict):
            await engine.load_weights(4, tmp_path / "b")


async def test_bad_prompts_are_refused_and_long_outputs_cut(model_path: Paths) -> None:
    async with running(model_path(), max_len_tokens=32) as engine:
        with pytest.raises(ContextLengthExceeded):
            await collect(engine, make_prompt(1, 32), GREEDY)
        for bad in (np.zeros(0, np.int32), np.array([VOCAB_SIZE], np.int32), np.array([-1], np.int32)):
            with pytest.raises(InvalidRequest):
                await collect(engine, bad, GREEDY)
        answer = await collect(engine, make_prompt(1, 30), GREEDY, 50)
        assert (answer.ids.size, answer.finish_reason) == (2, FinishReason.LENGTH)
        assert (await collect(engine, make_prompt(1, 30), GREEDY, 0)).ids.size == 2


async def test_stream_sends_the_first_token_at_once_and_then_holds_back(model_path: Paths) -> None:
    async with running(model_path(), flush_seconds=3600.0) as engine:
        sizes = [chunk.ids.size async for chunk in engine.generate(make_prompt(1, 5), GREEDY, max_new_tokens=30)]
        whole = await collect(engine, make_prompt(1, 5), GREEDY, 30, stream=False)
    assert sizes == [1, 29]
    assert whole.versions == (VersionSpan(30, 0),)


async def test_a_failing_step_answers_with_an_error_and_the_engine_goes_on(model_path: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(model_path()) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(engine._model, "forward", lambda *_, **__: 1 / 0)
            with pytest.raises(Exception, match="engine failed"):
                await collect(engine, make_prompt(1, 5), GREEDY)
        assert (await collect(engine, make_prompt(1, 5), GREEDY, 3)).ids.size == 3


async def test_a_failing_command_answers_with_an_error_and_the_engine_goes_on(model_path: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(model_path()) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(engine._core, "submit", lambda _: 1 / 0)
            with pytest.raises(Internal, match="engine failed"):
                await collect(engine, make_prompt(1, 5), GREEDY)
        assert (await collect(engine, make_prompt(1, 5), GREEDY, 3)).ids.size == 3


async def test_tied_weights_load_without_the_tied_copy(model_path: Paths, reference: Models, tmp_path: Path, write_version: Writer) -> None:
    write_version(tmp_path, model_path("qwen3-tied", 1), 1)
    prompt = make_prompt(1, 8)
    async with running(model_path("qwen3-tied")) as engine:
        await engine.load_weights(1, tmp_path)
        answer = await collect(engine, prompt, GREEDY, 8)
    assert answer.ids.tolist() == generate_reference(reference("qwen3-tied", 1), prompt, 8)


async def test_a_version_whose_file_is_no_longer_readable_is_refused(model_path: Paths, tmp_path: Path, write_version: Writer) -> None:
    write_version(tmp_path, model_path("qwen3-tied", 1), 1)
    for file in tmp_path.glob("*.safetensors"):
        file.write_bytes(b"not tensors")
        manifest = json.loads((tmp_path / "manifest.json").read_text())
        manifest["files"][file.name] = hashlib.sha256(b"not tensors").hexdigest()
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    async with running(model_path("qwen3-tied")) as engine:
        with pytest.raises(InvalidRequest, match=r"cannot read .*safetensors"):
            await engine.load_weights(1, tmp_path)
        assert (await collect(engine, make_prompt(1, 5), GREEDY, 3)).ids.size == 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_diverged_weights_give_an_error_and_no_token(temperature: float, model_path: Paths) -> None:
    async with running(model_path()) as engine:
        engine._model.model.lm_head.weight.data[3, 3] = float("nan")
        with pytest.raises(Internal):
            await collect(engine, make_prompt(1, 5), Sampling(temperature=temperature))


async def test_a_missing_model_is_named_and_leaves_no_thread(tmp_path: Path) -> None:
    engine = TorchEngine(TorchEngineOptions(model_path=tmp_path))
    with pytest.raises(ConfigError, match="no usable model"):
        await engine.start()
    assert engine._thread is not None
    assert not engine._thread.is_alive()
    with pytest.raises(Unavailable):
        await engine.pause()

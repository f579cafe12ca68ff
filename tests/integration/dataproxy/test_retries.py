from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from rlrun_dataproxy.dataproxy import MIN_BYTES_FOR_THREAD

from rlrun.proto import common_pb2


@pytest.mark.parametrize("hint", [{"idempotency_key": "k"}, {"retry_count": 1}, {"idempotency_key": "k", "retry_count": 2}])
async def test_a_retry_of_an_answered_call_gets_the_recorded_answer(world: Any, hint: dict[str, Any]) -> None:
    ref = await world.session()
    world.answers("<think>hm</think>rain", "sun")
    first = await world.proxy.generate(world.chat(ref, "weather?", idempotency_key=hint.get("idempotency_key", ""), logprobs=True))
    for proxy in (world.proxy, world.make_proxy("dp1")):  # from memory, and read from Redis
        again = await proxy.generate(world.chat(ref, "weather?", logprobs=True, **hint))
        assert again.replayed
        again.replayed = False
        assert again == first
    assert len(world.engine.requests) == 1


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"idempotency_key": "other"},
        {"idempotency_key": "k", "max_new_tokens": 9},
        {"idempotency_key": "k", "sampling": common_pb2.SamplingParams(temperature=0.5)},
    ],
)
async def test_without_the_same_hint_and_parameters_it_is_a_new_sample(world: Any, other: dict[str, Any]) -> None:
    ref = await world.session()
    first = await world.proxy.generate(world.chat(ref, "weather?", idempotency_key="k"))
    again = await world.proxy.generate(world.chat(ref, "weather?", **other))
    assert again.interaction_id != first.interaction_id
    assert not again.replayed
    assert len(await world.records(ref)) == 2


async def test_a_retry_joins_the_running_call_and_survives_the_first_client(world: Any) -> None:
    ref = await world.session()
    world.answers("rain")
    world.engine.gate.clear()
    first = asyncio.create_task(world.proxy.generate(world.chat(ref, "weather?", idempotency_key="k")))
    await world.engine.arrived.wait()
    second = asyncio.create_task(world.proxy.generate(world.chat(ref, "weather?", idempotency_key="k", retry_count=1)))
    third = asyncio.create_task(collect(world.proxy.generate_stream(world.chat(ref, "weather?", idempotency_key="k"))))
    await asyncio.sleep(0.02)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    world.engine.gate.set()
    answer, events = await second, await third
    assert answer.content == "rain"
    assert events[0].start.interaction_id == events[-1].done.interaction_id == answer.interaction_id
    assert "".join(event.delta.content for event in events) == "rain"
    assert len(world.engine.requests) == len(await world.records(ref)) == 1


async def test_a_retry_after_the_client_was_lost_is_a_new_call(world: Any) -> None:
    ref = await world.session()
    world.engine.gate.clear()
    first = asyncio.create_task(world.proxy.generate(world.chat(ref, "weather?", idempotency_key="k")))
    await world.engine.arrived.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    world.engine.gate.set()
    again = await world.proxy.generate(world.chat(ref, "weather?", idempotency_key="k", retry_count=1))
    assert not again.replayed
    assert world.engine.num_cancelled == 1
    assert [record.id for record in await world.records(ref)] == [again.interaction_id]


async def test_a_retry_that_streams_gets_the_recorded_answer(world: Any) -> None:
    ref = await world.session()
    world.answers("rain")
    first = await world.proxy.generate(world.chat(ref, "weather?", idempotency_key="k"))
    start, delta, done = await collect(world.proxy.generate_stream(world.chat(ref, "weather?", idempotency_key="k")))
    assert start.start.interaction_id == done.done.interaction_id == first.interaction_id
    assert delta.delta.content == "rain"
    assert done.done.replayed


async def test_while_a_long_prompt_is_tokenised_others_go_on_and_a_retry_joins(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ref, other = await world.session(), await world.session()
    plan, release = world.proxy._planner.plan, threading.Event()

    def slow(located: Any, request: Any) -> Any:
        if len(request.messages[-1]) > MIN_BYTES_FOR_THREAD:
            assert release.wait(10), "the loop stood still"
        return plan(located, request)

    monkeypatch.setattr(world.proxy._planner, "plan", slow)
    long = world.chat(ref, "word " * (MIN_BYTES_FOR_THREAD // 5), idempotency_key="k")
    first = asyncio.create_task(world.proxy.generate(long))
    retry = asyncio.create_task(collect(world.proxy.generate_stream(long)))
    assert (await world.proxy.generate(world.chat(other, "short"))).content == "ok"
    assert not first.done()
    release.set()
    assert (await first).interaction_id == (await retry)[-1].done.interaction_id
    assert len(world.engine.requests) == 2


async def collect(stream: Any) -> list[Any]:
    return [event async for event in stream]

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from rlrun.errors import DeadlineExceeded, NoMember, Overloaded, SessionGone, SessionMoved, StoreUnavailable, Unavailable
from rlrun.proto import common_pb2, router_pb2, session_pb2

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


async def test_stream_and_unary_give_the_same(world: Any) -> None:
    ref = await world.session()
    world.answers(f"<think>\nGrüße 😀\n</think>\n\nLet me see 東京\n{CALL}")
    whole = await world.proxy.generate(world.chat(ref, "weather?", tools=TOOLS, logprobs=True, top_logprobs=1))
    events = [event async for event in world.proxy.generate_stream(world.chat(ref, "weather?", tools=TOOLS, logprobs=True, top_logprobs=1))]
    assert [event.WhichOneof("event") for event in events] == ["start", *["delta"] * (len(events) - 2), "done"]
    deltas = [event.delta for event in events[1:-1]]
    assert len(deltas) > 3
    assert "".join(delta.content for delta in deltas) == whole.content
    assert "".join(delta.reasoning_content for delta in deltas) == whole.reasoning_content
    calls = [call for delta in deltas for call in delta.tool_calls]
    assert [(call.index, call.name, call.arguments) for call in calls] == [
        (call.index, call.name, call.arguments) for call in whole.tool_calls
    ]
    assert [token for delta in deltas for token in delta.logprobs.tokens] == list(whole.logprobs.tokens)
    assert b"".join(delta.logprobs.top_logprobs for delta in deltas) == whole.logprobs.top_logprobs
    done = events[-1].done
    assert (done.content, list(done.tool_calls)) == ("", [])
    assert done.usage == whole.usage
    assert done.finish_reason == whole.finish_reason == common_pb2.FINISH_REASON_TOOL_CALLS
    one, two = await world.records(ref)
    assert one.output_ids == two.output_ids
    assert one.versions == two.versions
    assert (one.content, one.reasoning_content) == (two.content, two.reasoning_content)


async def test_done_is_told_only_after_the_record_is_in_redis(world: Any) -> None:
    ref = await world.session()
    world.answers("It rains")
    async for event in world.proxy.generate_stream(world.chat(ref, "weather?")):
        if event.WhichOneof("event") == "done":
            assert [record.id for record in await world.records(ref)] == [event.done.interaction_id]


async def test_a_call_that_cannot_be_recorded_is_not_answered(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = await world.session()

    async def down(*args: Any, **kwargs: Any) -> None:
        raise StoreUnavailable("down")

    with monkeypatch.context() as patch:
        patch.setattr(world.store.sessions, "record", down)
        with pytest.raises(StoreUnavailable):
            await world.proxy.generate(world.chat(ref, "weather?"))
        seen: list[str] = []
        with pytest.raises(StoreUnavailable):
            await fill(seen, world.proxy.generate_stream(world.chat(ref, "weather?")))
        assert "done" not in seen
    assert (await world.proxy.generate(world.chat(ref, "weather?"))).content == "ok"


async def test_a_record_whose_confirmation_was_lost_answers_the_retry(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = await world.session()
    write = world.store.sessions.record

    async def lost(*args: Any, **kwargs: Any) -> None:
        await write(*args, **kwargs)
        raise StoreUnavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(world.store.sessions, "record", lost)
        with pytest.raises(StoreUnavailable):
            await world.proxy.generate(world.chat(ref, "weather?", idempotency_key="k"))
    again = await world.proxy.generate(world.chat(ref, "weather?", idempotency_key="k", retry_count=1))
    assert again.replayed
    assert [record.id for record in await world.records(ref)] == [again.interaction_id]


async def test_a_write_that_the_deadline_cut_short_is_read_back(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = await world.session()
    write = world.store.sessions.record

    async def slow(*args: Any, **kwargs: Any) -> None:
        await write(*args, **kwargs)
        await asyncio.Event().wait()

    proxy = world.make_proxy("dp1", call_timeout_seconds=0.5)
    with monkeypatch.context() as patch:
        patch.setattr(world.store.sessions, "record", slow)
        with pytest.raises(DeadlineExceeded):
            await proxy.generate(world.chat(ref, "weather?"))
    (record,) = await world.records(ref)
    await proxy.generate(world.chat(ref, "weather?", {"role": "assistant", "content": "ok"}, "more"))
    assert [(one.index, one.parent_id) for one in await world.records(ref)] == [(0, ""), (1, record.id)]


async def test_an_engine_that_is_full_says_so_to_the_client(world: Any) -> None:
    ref = await world.session()

    async def full(request: Any) -> None:
        raise Overloaded("the queue is full")

    world.engine.infer = full
    with pytest.raises(Overloaded):
        await world.proxy.generate(world.chat(ref, "weather?"))
    assert world.engines["w2"].requests == []


async def test_without_a_worker_no_stream_begins(world: Any) -> None:
    ref = await world.session()
    world.router.workers = []
    with pytest.raises(NoMember):
        await anext(world.proxy.generate_stream(world.chat(ref, "weather?")))


@pytest.mark.parametrize("num_events", [1, 2])
async def test_a_client_that_leaves_a_stream_stops_the_engine(world: Any, num_events: int) -> None:
    ref = await world.session()
    world.answers("It rains and rains and rains and rains")
    if num_events == 1:
        world.engine.gate.clear()
    async with aclosing(world.proxy.generate_stream(world.chat(ref, "weather?"))) as events:
        for _ in range(num_events):
            await anext(events)
    while world.proxy.num_running_calls:
        await asyncio.sleep(0)
    assert await world.records(ref) == []
    world.engine.gate.set()
    second = await world.proxy.generate(world.chat(ref, "weather?"))
    assert [record.id for record in await world.records(ref)] == [second.interaction_id]


async def test_a_client_that_leaves_a_unary_call_stops_the_engine(world: Any) -> None:
    ref = await world.session()
    world.engine.gate.clear()
    call = asyncio.create_task(world.proxy.generate(world.chat(ref, "weather?")))
    await world.engine.arrived.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    while world.proxy.num_running_calls:
        await asyncio.sleep(0)
    assert world.engine.num_cancelled == 1
    assert await world.records(ref) == []


@pytest.mark.parametrize("lose_after", [0, 3])
async def test_a_lost_worker_is_replaced_after_the_last_token(world: Any, lose_after: int) -> None:
    ref = await world.session()
    ids = world.text("It rains and rains")
    world.answers("It rains and rains", lose_after=lose_after, version=3)
    world.answers("x", engine="w2", version=4)
    world.engines["w2"].answers[0].ids = ids[lose_after:]
    events = [event async for event in world.proxy.generate_stream(world.chat(ref, "weather?", max_new_tokens=50))]
    assert "".join(event.delta.content for event in events) == "It rains and rains"
    (first,), (second,) = world.engines["w1"].requests, world.engines["w2"].requests
    assert second.prompt_ids == first.prompt_ids + world.packed(ids[:lose_after])
    assert second.max_new_tokens == 50 - lose_after
    (record,) = await world.records(ref)
    assert world.unpacked(record.output_ids) == ids
    spans = [(span.num_tokens, span.version) for span in record.versions]
    assert spans == [(n, v) for n, v in ((lose_after, 3), (len(ids) - lose_after, 4)) if n]
    assert events[-1].done.policy_version == 4


async def test_a_lost_worker_of_a_unary_call_is_replaced(world: Any) -> None:
    ref = await world.session()
    world.answers("gone", lose_after=0)
    world.answers("It rains", engine="w2")
    assert (await world.proxy.generate(world.chat(ref, "weather?"))).content == "It rains"
    await world.proxy.generate(world.chat(ref, "again"))
    assert [len(engine.requests) for engine in world.engines.values()] == [1, 2]
    assert world.router.num_assigned == 2


async def test_an_output_that_an_engine_hands_back_is_continued(world: Any) -> None:
    ref = await world.session()
    world.answers("It rains", " and rains")
    world.engine.answers[0].ids = world.text("It rains", end=False)
    world.engine.answers[0].finish = "abort"
    world.engine.answers[1].version = 2
    answer = await world.proxy.generate(world.chat(ref, "weather?"))
    assert answer.content == "It rains and rains"
    (record,) = await world.records(ref)
    assert [span.version for span in record.versions] == [1, 2]


async def test_when_every_worker_is_lost_the_call_fails(world: Any) -> None:
    ref = await world.session()
    for name in world.engines:
        world.answers("x", engine=name, lose_after=0)
    with pytest.raises(Unavailable):
        await world.proxy.generate(world.chat(ref, "weather?"))
    assert await world.records(ref) == []


async def test_a_call_has_a_deadline(world: Any) -> None:
    ref = await world.session()
    world.engine.gate.clear()
    proxy = world.make_proxy("dp1", call_timeout_seconds=0.02)
    with pytest.raises(DeadlineExceeded):
        await proxy.generate(world.chat(ref, "weather?"))
    assert world.engine.num_cancelled == 1


async def test_a_session_that_moved_is_refused_by_its_old_owner_and_served_by_the_new_one(world: Any) -> None:
    ref = await world.session()
    world.answers("rain")
    first = await world.proxy.generate(world.chat(ref, "weather?"))
    await world.store.members.remove(router_pb2.ROLE_DATAPROXY, "dp1")
    info = await world.store.sessions.claim(ref.session_id, "dp2")
    moved = session_pb2.SessionRef(session_id=ref.session_id, fence=info.fence)
    assert info.fence > ref.fence
    with pytest.raises(SessionMoved):
        await world.proxy.generate(world.chat(ref, "weather?"))
    assert world.proxy.num_cached_sessions == 0
    with pytest.raises(SessionMoved):
        await world.proxy.generate(world.chat(moved, "weather?"))
    new = world.make_proxy("dp2")
    second = await new.generate(world.chat(moved, "weather?", world.said(first), "more"))
    records = await world.records(ref)
    assert [(record.id, record.index) for record in records] == [(first.interaction_id, 0), (second.interaction_id, 1)]
    assert records[1].parent_id == first.interaction_id
    with pytest.raises(SessionMoved):
        await new.generate(world.chat(ref, "weather?"))


async def test_the_end_of_a_session_ends_its_running_calls(world: Any) -> None:
    ref = await world.session()
    world.engine.gate.clear()
    call = asyncio.create_task(world.proxy.generate(world.chat(ref, "weather?")))
    await world.engine.arrived.wait()
    await world.proxy.end_session(session_pb2.EndSessionRequest(session=ref))
    with pytest.raises(SessionGone):
        await call
    with pytest.raises(SessionGone):
        await world.proxy.generate(world.chat(ref, "weather?"))


async def test_the_cache_is_bounded_and_only_a_cache(world: Any) -> None:
    proxy = world.make_proxy("dp1", max_cached_sessions=2)
    refs = [await world.session() for _ in range(4)]
    world.answers("rain")
    firsts = [await proxy.generate(world.chat(ref, "weather?")) for ref in refs]
    assert proxy.num_cached_sessions == 2
    for ref, first in zip(refs, firsts, strict=True):
        await proxy.generate(world.chat(ref, "weather?", world.said(first), "more"))
        assert (await world.records(ref))[1].parent_id == first.interaction_id


async def fill(seen: list[str], stream: Any) -> None:
    async for event in stream:
        seen += [event.WhichOneof("event")]

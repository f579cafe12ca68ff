from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from rlrun_dataproxy import metrics

from rlrun.errors import ContextLengthExceeded, InvalidRequest
from rlrun.proto import common_pb2, session_pb2

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


async def test_each_prompt_extends_the_recorded_ids(world: Any) -> None:
    ref = await world.session()
    outputs = world.answers("It rains", "Still rain", "Sun")
    history: list[Any] = []
    for question in ("weather?", "and now?", "and then?"):
        history.append({"role": "user", "content": question})
        history.append(world.said(await world.proxy.generate(world.chat(ref, *history))))
    prompts = [world.unpacked(request.prompt_ids) for request in world.engine.requests]
    assert prompts[1][: len(prompts[0]) + len(outputs[0])] == prompts[0] + outputs[0]
    assert prompts[2][: len(prompts[1]) + len(outputs[1])] == prompts[1] + outputs[1]
    shown = world.tokenizer.render(history[:5], tools=None, add_generation_prompt=True, template_kwargs={})
    assert prompts[2] == world.tokenizer.encode(shown)
    records = await world.records(ref)
    assert [record.parent_id for record in records] == ["", records[0].id, records[1].id]
    assert [len(record.new_messages) for record in records] == [1, 1, 1]
    assert [record.num_parent_messages for record in records] == [0, 2, 4]


async def test_an_output_cut_by_length_is_closed_in_the_next_prompt(world: Any) -> None:
    ref = await world.session()
    world.answers("It rai", finish="length")
    first = await world.proxy.generate(world.chat(ref, "weather?", max_new_tokens=3))
    assert first.finish_reason == common_pb2.FINISH_REASON_LENGTH
    await world.proxy.generate(world.chat(ref, "weather?", world.said(first), "go on"))
    record = (await world.records(ref))[1]
    assert world.tokenizer.decode(world.unpacked(record.new_prompt_ids)).startswith("<|im_end|>\n<|im_start|>user\ngo on")


async def test_a_stop_string_is_not_shown_and_its_tokens_are_recorded(world: Any) -> None:
    ref = await world.session()
    (ids,) = world.answers("rain STOP", matched_stop="STOP")
    sampling = common_pb2.SamplingParams(stop=["STOP"])
    first = await world.proxy.generate(world.chat(ref, "weather?", sampling=sampling))
    assert first.content == "rain "
    assert first.finish_reason == common_pb2.FINISH_REASON_STOP
    second = await world.proxy.generate(world.chat(ref, "weather?", world.said(first), "more"))
    records = await world.records(ref)
    assert world.unpacked(records[0].output_ids) == ids
    assert records[1].parent_id == records[0].id
    assert second.interaction_id == records[1].id


async def test_tool_calls_come_out_and_their_results_go_in(world: Any) -> None:
    ref = await world.session()
    world.answers(f"<think>\nhm\n</think>\n\nLet me see.\n{CALL}\n{CALL}", "Rain.")
    first = await world.proxy.generate(world.chat(ref, "weather?", tools=TOOLS))
    assert first.finish_reason == common_pb2.FINISH_REASON_TOOL_CALLS
    assert (first.content, first.reasoning_content) == ("Let me see.", "hm")
    assert [(call.index, call.name, call.arguments) for call in first.tool_calls] == [
        (0, "weather", '{"city": "Oslo"}'),
        (1, "weather", '{"city": "Oslo"}'),
    ]
    assert 0 < first.usage.reasoning_tokens < first.usage.completion_tokens
    echoed = world.said(first)
    echoed["tool_calls"][0]["function"]["arguments"] = '{"city":"Oslo"}'
    results = [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in first.tool_calls]
    second = await world.proxy.generate(world.chat(ref, "weather?", echoed, *results, tools=TOOLS))
    assert second.content == "Rain."
    records = await world.records(ref)
    assert records[1].parent_id == records[0].id
    assert world.tokenizer.decode(world.unpacked(records[1].new_prompt_ids)).count("<tool_response>") == 2


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS, "tool_choice": session_pb2.TOOL_CHOICE_NONE}])
async def test_without_tools_the_markup_is_text(world: Any, fields: dict[str, Any]) -> None:
    ref = await world.session()
    world.answers(CALL)
    answer = await world.proxy.generate(world.chat(ref, "weather?", **fields))
    assert (answer.content, list(answer.tool_calls)) == (CALL, [])
    assert answer.finish_reason == common_pb2.FINISH_REASON_STOP


async def test_an_edited_answer_or_other_tools_begin_a_new_root(world: Any) -> None:
    ref = await world.session()
    world.answers("rain")
    first = await world.proxy.generate(world.chat(ref, "weather?"))
    await world.proxy.generate(world.chat(ref, "weather?", {"role": "assistant", "content": "sun"}, "more"))
    await world.proxy.generate(world.chat(ref, "weather?", world.said(first), "more", tools=TOOLS))
    await world.proxy.generate(world.chat(ref, "weather?", world.said(first), "more", chat_template_kwargs=b'{"enable_thinking": true}'))
    assert [record.parent_id for record in await world.records(ref)] == [""] * 4


async def test_two_continuations_of_one_answer_are_siblings(world: Any) -> None:
    ref = await world.session()
    world.answers("rain")
    first = await world.proxy.generate(world.chat(ref, "weather?"))
    for question in ("a", "b", "b"):
        await world.proxy.generate(world.chat(ref, "weather?", world.said(first), question))
    assert [record.parent_id for record in await world.records(ref)] == ["", *[first.interaction_id] * 3]


async def test_calls_at_the_same_time_are_all_recorded_once(world: Any) -> None:
    ref = await world.session()
    world.answers("rain")
    world.engine.gate.clear()
    calls = [asyncio.create_task(world.proxy.generate(world.chat(ref, "same" if i % 2 else f"q{i}"))) for i in range(20)]
    while len(world.engine.requests) < 20:
        await asyncio.sleep(0)
    world.engine.gate.set()
    answers = await asyncio.gather(*calls)
    records = await world.records(ref)
    assert {record.id for record in records} == {answer.interaction_id for answer in answers}
    assert [record.index for record in records] == list(range(20))
    assert all(record.parent_id == "" for record in records)


async def test_an_unstored_call_is_answered_only(world: Any) -> None:
    ref = await world.session()
    world.answers("rain")
    first = await world.proxy.generate(world.chat(ref, "weather?", store=False))
    assert first.content == "rain"
    await world.proxy.generate(world.chat(ref, "weather?", world.said(first), "more"))
    records = await world.records(ref)
    assert [record.parent_id for record in records] == [""]
    assert len(records[0].new_messages) == 3


async def test_a_long_session_costs_the_same_at_each_turn(world: Any) -> None:
    ref = await world.session()
    world.answers("rain and rain and rain")
    history: list[Any] = []
    costs: list[float] = []
    for turn in range(50):
        before = metrics.TOKENISED_CHARACTERS._value.get()
        history.append({"role": "user", "content": f"question {turn:02}"})
        history.append(world.said(await world.proxy.generate(world.chat(ref, *history))))
        costs.append(metrics.TOKENISED_CHARACTERS._value.get() - before)
    assert len(set(costs[1:])) == 1
    sizes = [record.ByteSize() for record in await world.records(ref)]
    assert max(sizes[1:]) < 1.2 * min(sizes[1:])


async def test_logprobs_are_shown_without_the_end_token(world: Any) -> None:
    ref = await world.session()
    (ids,) = world.answers("It rains")
    answer = await world.proxy.generate(world.chat(ref, "weather?", logprobs=True, top_logprobs=2))
    assert b"".join(answer.logprobs.tokens) == b"It rains"
    assert len(answer.logprobs.logprobs) == 4 * (len(ids) - 1)
    assert answer.logprobs.k == 2
    assert len(answer.logprobs.top_tokens) == len(answer.logprobs.top_logprobs) // 4 == 2 * (len(ids) - 1)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 512),
        ({"max_new_tokens": 7}, 7),
        ({"max_new_tokens": 100_000}, None),
        ({"max_total_tokens": 100}, 100),
        ({"max_total_tokens": 100, "max_new_tokens": 5}, 5),
    ],
)
async def test_the_engine_is_given_the_smallest_bound(world: Any, fields: dict[str, Any], expected: int | None) -> None:
    ref = await world.session()
    proxy = world.make_proxy("dp1", max_total_tokens=1000)
    await proxy.generate(world.chat(ref, "weather?", **fields))
    (request,) = world.engine.requests
    num_prompt = len(request.prompt_ids) // 4
    wanted = {None: 1000 - num_prompt, 100: 100 - num_prompt}.get(expected, expected)
    assert request.max_new_tokens == wanted


@pytest.mark.parametrize("fields", [{"max_total_tokens": 5}, {}])
async def test_a_prompt_without_room_is_the_clients_mistake(world: Any, fields: dict[str, Any]) -> None:
    ref = await world.session()
    proxy = world.make_proxy("dp1", max_total_tokens=50)
    refused = metrics.CALLS.labels(ContextLengthExceeded.code)._value
    num_refused = refused.get()
    with pytest.raises(ContextLengthExceeded, match=r"len of prompt tokens \d+ exceeds max_total_tokens"):
        await proxy.generate(world.chat(ref, "weather? " * 50, **fields))
    with pytest.raises(ContextLengthExceeded):
        await anext(proxy.generate_stream(world.chat(ref, "weather? " * 50, **fields)))
    assert world.engine.requests == []
    assert refused.get() == num_refused + 2
    assert proxy.num_running_calls == 0


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "robot", "content": "x"}, "messages[1].role"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[1].content"),
        ({"role": "user", "content": 5}, "messages[1].content"),
        ([], "messages[1]"),
    ],
)
async def test_a_wrong_message_is_named(world: Any, message: Any, param: str) -> None:
    ref = await world.session()
    with pytest.raises(InvalidRequest) as caught:
        await world.proxy.generate(world.chat(ref, "fine", message))
    assert caught.value.param == param


async def test_an_ephemeral_last_message_does_not_part_the_conversation(world: Any) -> None:
    ref = await world.session()
    pattern = re.compile("^<reminder>")
    world.answers("rain")
    proxy, reader = (world.make_proxy("dp1", ephemeral_tail=pattern) for _ in range(2))
    first = await proxy.generate(world.chat(ref, "weather?", "<reminder>be nice"))
    left_out = [{"role": "user", "content": "weather?"}, world.said(first)]
    repeated = [{"role": "user", "content": "weather?"}, {"role": "user", "content": "<reminder>be nice"}, world.said(first)]
    for one in (proxy, reader):  # the second reads the tree from Redis
        for history in (left_out, repeated):
            await one.generate(world.chat(ref, *history, "more"))
    assert [record.parent_id for record in await world.records(ref)] == ["", *[first.interaction_id] * 4]
    plain = await world.make_proxy("dp1").generate(world.chat(ref, *left_out, "more"))
    assert {one.id: one.parent_id for one in await world.records(ref)}[plain.interaction_id] == ""

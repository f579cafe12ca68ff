from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from rlrun.errors import ContextLengthExceeded, NoMember, SessionGone, SessionMoved, StoreUnavailable, Unavailable
from rlrun.proto import common_pb2, session_pb2
from tests.unit.gateway.scripted import ADMIN_KEY, SESSION_KEY, answer, delta_event, done_event, floats, hello_events, start_event

HELLO: dict[str, Any] = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}


def events_of(text: str) -> list[Any]:
    return [json.loads(line[6:]) if line != "data: [DONE]" else "[DONE]" for line in text.split("\n") if line.startswith("data: ")]


@pytest.mark.parametrize(
    "path",
    [
        "/chat/completions",
        "/v1/chat/completions",
        "/v1/chat/completions/",
        "/v1//chat/completions",
        "/sessions/task-0/v1/chat/completions",
        "/v1/sessions/task-0/chat/completions",
        "/sessions/task-0/chat/completions",
    ],
)
async def test_a_chat_call_is_answered_under_every_spelling_of_its_path(client, sessions, path):
    answered = await client.post(path, json=HELLO)
    assert answered.status_code == 200
    assert answered.json() == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "policy",
        "system_fingerprint": "policy-4",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello there", "refusal": None},
                "finish_reason": "stop",
                "logprobs": None,
            }
        ],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 3,
            "total_tokens": 10,
            "prompt_tokens_details": {"cached_tokens": 5},
            "completion_tokens_details": {"reasoning_tokens": 1},
        },
    }
    assert sessions.requests[0].session == session_pb2.SessionRef(session_id="task-0", fence=1)
    assert sessions.requests[0].messages == [b'{"role":"user","content":"hi"}']


async def test_tool_calls_leave_the_content_null(client, sessions):
    call = session_pb2.ToolCall(id="call_1", name="search", arguments='{"q":1}')
    sessions.script = [answer("", tool_calls=[call], finish_reason=common_pb2.FINISH_REASON_TOOL_CALLS, reasoning_content="hm")]
    choice = (await client.post("/chat/completions", json=HELLO)).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "reasoning_content": "hm",
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "search", "arguments": '{"q":1}'}}],
    }


async def test_logprobs_carry_bytes_and_stay_finite(client, sessions):
    given = session_pb2.TokenLogprobs(
        tokens=[b"a", b"\xff"],
        logprobs=floats(-0.5, float("-inf")),
        k=1,
        top_tokens=[b"a", b"b"],
        top_logprobs=floats(-0.5, -1),
    )
    sessions.script = [answer(logprobs=given)]
    answered = await client.post("/chat/completions", json=HELLO | {"logprobs": True, "top_logprobs": 1})
    content = answered.json()["choices"][0]["logprobs"]["content"]
    assert content[0] == {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [{"token": "a", "logprob": -0.5, "bytes": [97]}]}
    assert content[1]["logprob"] == -9999.0
    assert content[1]["bytes"] == [255]


async def test_a_stream_has_role_deltas_finish_usage_and_done(client):
    answered = await client.post("/chat/completions", json=HELLO | {"stream": True, "stream_options": {"include_usage": True}})
    assert answered.headers["content-type"].startswith("text/event-stream")
    chunks = events_of(answered.text)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["delta"] for chunk in chunks[1:3]] == [{"content": "Hello"}, {"content": " there"}]
    assert chunks[3]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert chunks[4]["choices"] == []
    assert chunks[4]["usage"]["total_tokens"] == 10
    assert chunks[0]["usage"] is None
    assert chunks[5] == "[DONE]"


async def test_a_stream_without_include_usage_has_no_usage_anywhere(client):
    answered = await client.post("/chat/completions", json=HELLO | {"stream": True})
    assert "usage" not in answered.text


async def test_tool_call_deltas_have_an_index_and_a_name_once(client, sessions):
    sessions.events = [
        start_event(),
        delta_event(tool_calls=[session_pb2.ToolCall(index=0, id="call_1", name="f", arguments="")]),
        delta_event(tool_calls=[session_pb2.ToolCall(index=0, arguments="{}")]),
        done_event(finish_reason=common_pb2.FINISH_REASON_TOOL_CALLS),
    ]
    chunks = events_of((await client.post("/chat/completions", json=HELLO | {"stream": True})).text)
    assert chunks[1]["choices"][0]["delta"]["tool_calls"] == [
        {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}
    ]
    assert chunks[2]["choices"][0]["delta"]["tool_calls"] == [{"index": 0, "function": {"arguments": "{}"}}]
    assert chunks[3]["choices"][0]["finish_reason"] == "tool_calls"


async def test_an_error_before_the_first_event_is_an_ordinary_answer(client, sessions):
    sessions.events = [ContextLengthExceeded("too long", param="messages")]
    answered = await client.post("/chat/completions", json=HELLO | {"stream": True})
    assert answered.status_code == 400
    assert answered.json()["error"] == {
        "message": "too long",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }


async def test_an_error_after_the_first_event_ends_the_stream_with_it(client, sessions):
    sessions.events = [start_event(), delta_event("a"), Unavailable("worker lost")]
    chunks = events_of((await client.post("/chat/completions", json=HELLO | {"stream": True})).text)
    assert chunks[-1]["error"]["code"] == "unavailable"
    assert len(sessions.requests) == 1


async def test_a_move_inside_an_answer_is_not_shown_as_one(client, sessions):
    sessions.events = [start_event(), SessionMoved("fence 3")]
    chunks = events_of((await client.post("/chat/completions", json=HELLO | {"stream": True})).text)
    assert chunks[-1]["error"]["code"] == "unavailable"
    assert len(sessions.requests) == 1


async def test_a_stream_that_ends_early_is_an_error(client, sessions):
    sessions.events = [start_event(), delta_event("half")]
    chunks = events_of((await client.post("/chat/completions", json=HELLO | {"stream": True})).text)
    assert chunks[-1]["error"]["code"] == "internal"


async def test_an_aborted_answer_is_never_taken_for_a_whole_one(client, sessions):
    sessions.script = [answer("half", finish_reason=common_pb2.FINISH_REASON_ABORT)]
    answered = await client.post("/chat/completions", json=HELLO)
    assert answered.status_code == 503
    assert answered.headers["retry-after"] == "1"
    sessions.events = [start_event(), delta_event("half"), done_event(finish_reason=common_pb2.FINISH_REASON_ABORT)]
    chunks = events_of((await client.post("/chat/completions", json=HELLO | {"stream": True})).text)
    assert chunks[-1]["error"]["code"] == "unavailable"


async def test_keep_alive_comments_fill_the_wait_and_leave_room_for_a_retry(make_client, sessions):
    gate = asyncio.Event()
    sessions.events = [gate, start_event(), delta_event("a"), done_event()]
    client = make_client(keep_alive_seconds=0.02)
    asyncio.get_running_loop().call_later(0.2, gate.set)
    text = (await client.post("/chat/completions", json=HELLO | {"stream": True})).text
    assert text.startswith(": keep-alive\n\n")
    assert text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("error", [SessionMoved("fence"), Unavailable("gone"), NoMember("none")])
async def test_a_moved_owner_is_found_again(client, sessions, router, error, stream):
    await client.post("/chat/completions", json=HELLO)
    sessions.script = [error]
    router.bind(SESSION_KEY, "task-0", owner="dataproxy:2", fence=2)
    answered = await client.post("/chat/completions", json=HELLO | {"stream": stream}, headers={"x-stainless-retry-count": "2"})
    assert answered.status_code == 200
    assert sessions.addresses[-1] == "dataproxy:2"
    assert sessions.requests[-1].session.fence == 2
    assert sessions.requests[-1].retry_count == 3


async def test_a_store_that_is_down_is_reported_at_once(client, sessions):
    sessions.script = [StoreUnavailable("redis")]
    answered = await client.post("/chat/completions", json=HELLO)
    assert (answered.status_code, answered.json()["error"]["code"]) == (503, "store_unavailable")
    assert len(sessions.requests) == 1


async def test_an_owner_that_stays_away_is_a_503_in_the_end(make_client, sessions):
    sessions.script = [SessionMoved("fence")] * 50
    answered = await make_client(move_timeout_seconds=0.2).post("/chat/completions", json=HELLO)
    assert answered.status_code == 503
    assert "session's owner" in answered.json()["error"]["message"]


async def test_a_key_that_opens_a_newer_session_is_followed(client, sessions, router):
    await client.post("/chat/completions", json=HELLO)
    sessions.script = [SessionGone("ended")]
    router.bind(SESSION_KEY, "task-9")
    assert (await client.post("/chat/completions", json=HELLO)).status_code == 200
    assert sessions.requests[-1].session.session_id == "task-9"


async def test_a_session_that_is_gone_for_good_is_410(client, sessions):
    sessions.script = [SessionGone("ended"), SessionGone("ended")]
    answered = await client.post("/chat/completions", json=HELLO)
    assert (answered.status_code, answered.json()["error"]["code"]) == (410, "session_gone")


async def test_placements_are_asked_for_once(client, router):
    for _ in range(3):
        await client.post("/chat/completions", json=HELLO)
    assert router.num_resolves == 1


@pytest.mark.parametrize(
    ("headers", "path", "status"),
    [
        ({"Authorization": ""}, "/chat/completions", 401),
        ({"Authorization": "Basic abc"}, "/chat/completions", 401),
        ({"Authorization": "Bearer wrong"}, "/chat/completions", 401),
        ({"Authorization": "", "x-api-key": "sk-sess-one"}, "/chat/completions", 200),
        ({"Authorization": f"Bearer {ADMIN_KEY}"}, "/chat/completions", 400),
        ({"Authorization": f"Bearer {ADMIN_KEY}", "X-Session-Id": "task-0"}, "/chat/completions", 200),
        ({"Authorization": f"Bearer {ADMIN_KEY}"}, "/sessions/task-0/v1/chat/completions", 200),
        ({"Authorization": f"Bearer {ADMIN_KEY}"}, "/sessions/none/v1/chat/completions", 404),
        ({"Authorization": "Bearer sk-other"}, "/sessions/task-0/v1/chat/completions", 403),
        ({"Authorization": "Bearer wrong"}, "/sessions/none/v1/chat/completions", 401),
    ],
)
async def test_keys_open_their_own_session_only(client, router, headers, path, status):
    router.bind("sk-other", "task-5")
    answered = await client.post(path, json=HELLO, headers=headers)
    assert answered.status_code == status
    if status == 401:
        assert answered.headers["www-authenticate"] == "Bearer"


async def test_ignored_options_are_named_in_a_header(client):
    answered = await client.post("/chat/completions", json=HELLO | {"user": "u", "parallel_tool_calls": True, "bad\nname": 1})
    assert answered.headers["x-rlrun-ignored"] == "user, parallel_tool_calls, ?"
    streamed = await client.post("/chat/completions", json=HELLO | {"user": "u", "stream": True})
    assert streamed.headers["x-rlrun-ignored"] == "user"


async def test_request_ids_are_kept_if_sane_and_made_otherwise(client):
    kept = await client.post("/chat/completions", json=HELLO, headers={"x-request-id": "abc-1"})
    made = await client.post("/chat/completions", json=HELLO, headers={"x-request-id": "no good id"})
    failed = await client.post("/chat/completions", json={}, headers={"x-request-id": "abc-2"})
    assert kept.headers["x-request-id"] == "abc-1"
    assert made.headers["x-request-id"].startswith("req-")
    assert (failed.status_code, failed.headers["x-request-id"]) == (400, "abc-2")


async def test_a_bug_is_a_500_that_names_the_request_and_nothing_else(client, sessions, caplog):
    sessions.script = [ValueError("a secret")]
    answered = await client.post("/chat/completions", json=HELLO, headers={"x-request-id": "abc"})
    assert answered.status_code == 500
    assert "abc" in answered.json()["error"]["message"]
    assert "a secret" not in answered.text
    assert "request abc failed" in caplog.text


async def test_hints_of_the_clients_library_reach_the_owner(client, sessions):
    await client.post("/chat/completions", json=HELLO, headers={"x-stainless-retry-count": "1", "Idempotency-Key": "k"})
    assert (sessions.requests[0].retry_count, sessions.requests[0].idempotency_key) == (1, "k")


async def test_one_call_too_many_is_told_to_wait(make_client, sessions):
    client = make_client(max_concurrent_requests=1)
    sessions.gate = asyncio.Event()
    first = asyncio.create_task(client.post("/chat/completions", json=HELLO))
    await sessions.started.wait()
    refused = await client.post("/chat/completions", json=HELLO)
    sessions.gate.set()
    assert (await first).status_code == 200
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert (await client.post("/chat/completions", json=HELLO)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_takes_too_long_is_a_504(make_client, sessions, stream):
    gate = asyncio.Event()
    sessions.gate = gate
    sessions.events = [gate]
    answered = await make_client(request_timeout_seconds=0.05).post("/chat/completions", json=HELLO | {"stream": stream})
    assert (answered.status_code, answered.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert sessions.cancelled.is_set()


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"{}", {"content-type": "text/plain"}, 415),
        (b"{}", {"content-type": "application/json", "content-encoding": "gzip"}, 415),
        (b'{"messages": [', {"content-type": "application/json"}, 400),
        (b"x" * 2000, {"content-type": "application/json"}, 413),
    ],
)
async def test_bodies_that_cannot_be_read_are_refused(make_client, content, headers, status):
    answered = await make_client(max_body_bytes=1000).post("/chat/completions", content=content, headers=headers)
    assert answered.status_code == status
    assert answered.json()["error"]["message"]


async def test_a_body_without_a_length_is_cut_off_while_reading(make_client):
    async def endless():
        while True:
            yield b"x" * 100

    answered = await make_client(max_body_bytes=1000).post(
        "/chat/completions", content=endless(), headers={"content-type": "application/json"}
    )
    assert answered.status_code == 413


async def test_only_post_is_a_chat_call(client):
    answered = await client.get("/v1/chat/completions")
    assert (answered.status_code, answered.headers["allow"]) == (405, "POST")


async def test_an_owner_that_dawdles_after_the_end_does_not_hold_up_the_loop(make_client, sessions):
    pause = asyncio.Event()
    sessions.events = [*hello_events(), pause]
    call = asyncio.create_task(make_client(keep_alive_seconds=0.02).post("/chat/completions", json=HELLO | {"stream": True}))
    await sessions.started.wait()
    asyncio.get_running_loop().call_later(0.2, pause.set)
    answered = await call
    assert answered.text.endswith("data: [DONE]\n\n")

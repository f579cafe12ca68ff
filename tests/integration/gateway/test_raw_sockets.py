"""Clients that do not behave: bytes on a socket, not a library."""

from __future__ import annotations

import asyncio
import json
import socket
import time

import pytest
from rlrun_gateway import protocol

from tests.unit.gateway.scripted import ADMIN_KEY, SESSION_KEY, delta_event, hello_events, start_event

BODY = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
STREAM_BODY = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": True}).encode()


def head(*lines: str, path: str = "/v1/chat/completions", key: str = SESSION_KEY) -> bytes:
    fixed = [f"POST {path} HTTP/1.1", "host: gateway", f"authorization: Bearer {key}", "content-type: application/json"]
    return "\r\n".join([*fixed, *lines, "", ""]).encode()


async def talk(port: int, *pieces: bytes, pause: float = 0.0) -> tuple[int, bytes]:
    """Sends the pieces and reads to the end of the connection, or to the end of an answer with a length."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
        async with asyncio.timeout(5):
            raw_head = await reader.readuntil(b"\r\n\r\n")
            length = next((int(line[15:]) for line in raw_head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
            return int(raw_head.split()[1]), await reader.readexactly(length)
    finally:
        writer.close()


async def test_an_announced_huge_body_is_refused_before_it_is_sent(port):
    status, body = await talk(port, head("content-length: 99999999999"))
    assert (status, json.loads(body)["error"]["code"]) == (413, "request_too_large")


async def test_a_chunked_body_is_cut_off_at_the_limit(port):
    chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n"
    status, _ = await talk(port, head("transfer-encoding: chunked"), *[chunk] * 30)
    assert status == 413


async def test_a_slow_body_is_given_up(port, sessions):
    status, body = await talk(port, head("content-length: 50"), b'{"messages"')
    assert (status, json.loads(body)["error"]["code"]) == (408, "request_timeout")
    assert sessions.requests == []


async def test_a_body_in_pieces_is_put_together(port, sessions):
    pieces = [bytes([byte]) for byte in BODY]
    status, _ = await talk(port, head(f"content-length: {len(BODY)}"), *pieces)
    assert status == 200
    assert sessions.requests[0].messages == [b'{"role": "user", "content": "hi"}']


async def test_a_stranger_is_refused_before_the_body(port):
    status, _ = await talk(port, head("content-length: 50000", key="wrong"))
    assert status == 401


@pytest.mark.parametrize("body", [b"", b"{", b"\x00", b"\xff\xfe", b"[" * 50_000, b'{"messages": [{"role": "user"}}', b"nul"])
async def test_bad_json_is_a_400(port, body):
    status, answered = await talk(port, head(f"content-length: {len(body)}"), body)
    assert (status, json.loads(answered)["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("path", ["/rl/start_session", "/rl/set_reward", "/export_trajectories"])
@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 50_000, b"5", b'"x"'])
async def test_bad_json_on_a_control_route_is_refused_in_both_forms(port, path, body):
    status, answered = await talk(port, head(f"content-length: {len(body)}", "x-session-id: task-0", path=path, key=ADMIN_KEY), body)
    assert status in (400, 422)
    assert json.loads(answered)["error"]["message"]
    assert json.loads(answered)["detail"]


async def test_a_connection_serves_many_calls(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(3):
        writer.write(head(f"content-length: {len(BODY)}") + BODY)
        raw_head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in raw_head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        assert json.loads(await reader.readexactly(length))["object"] == "chat.completion"
    writer.close()


async def test_a_client_that_leaves_cancels_its_call_within_a_second(port, sessions):
    sessions.gate = asyncio.Event()
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head(f"content-length: {len(BODY)}") + BODY)
    await sessions.started.wait()
    writer.close()
    async with asyncio.timeout(1):
        await sessions.cancelled.wait()


async def test_a_client_that_leaves_a_stream_cancels_it_within_a_second(port, sessions):
    sessions.events = [start_event(), delta_event("a"), asyncio.Event()]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head(f"content-length: {len(STREAM_BODY)}") + STREAM_BODY)
    await reader.readuntil(b'"content":"a"')
    writer.close()
    async with asyncio.timeout(1):
        await sessions.cancelled.wait()


async def test_the_end_of_an_answer_is_not_taken_for_a_client_that_left(port, sessions):
    pause = asyncio.Event()
    sessions.events = [*hello_events(), pause]
    asyncio.get_running_loop().call_later(0.1, pause.set)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head(f"content-length: {len(STREAM_BODY)}") + STREAM_BODY)
    await reader.readuntil(b"[DONE]")
    await pause.wait()
    assert not sessions.cancelled.is_set()
    writer.close()


async def test_a_client_that_leaves_inside_its_body_calls_nothing(port, sessions):
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head("content-length: 500") + b'{"messages"')
    await writer.drain()
    writer.close()
    # The next call is served, and it is the only one that reached the owner.
    status, _ = await talk(port, head(f"content-length: {len(BODY)}"), BODY)
    assert status == 200
    assert len(sessions.requests) == 1


async def test_a_client_that_stops_waiting_for_capacity_leaves_the_queue(port, router):
    router.place_gate = asyncio.Event()
    body = b'{"task_id": "a", "api_key": "k"}'
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head(f"content-length: {len(body)}", path="/rl/start_session", key=ADMIN_KEY) + body)
    await router.place_started.wait()
    writer.close()
    async with asyncio.timeout(1):
        while not router.place_cancelled:
            await asyncio.sleep(0.01)


UPGRADES = ["Upgrade: h2c", "upgrade:h2c", "UPGRADE: websocket"]


@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize("apart", [True, False])
async def test_an_offer_to_upgrade_is_declined_and_the_body_is_read(port, sessions, upgrade, apart):
    """`curl --http2` and Java's HttpClient send it with every first request."""
    sent = head(upgrade, "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMAAABkAAQ", f"content-length: {len(BODY)}")
    status, _ = await talk(port, *((sent, BODY) if apart else (sent + BODY,)), pause=0.05)
    assert status == 200
    assert sessions.requests[0].messages == [b'{"role": "user", "content": "hi"}']


async def test_an_upgrade_as_the_last_header_is_declined_too(port):
    status, _ = await talk(port, head(f"content-length: {len(BODY)}", "connection: upgrade", "upgrade: h2c"), BODY)
    assert status == 200


async def test_an_upgrade_cut_by_the_network_is_refused_not_misread(port, sessions):
    sent = head(f"content-length: {len(BODY)}", "connection: upgrade", "upgrade: h2c")
    at = sent.index(b"grade: h2c")
    status, body = await talk(port, sent[:at], sent[at:] + BODY, pause=0.05)
    assert (status, "pgrade" in json.loads(body)["error"]["message"]) == (400, True)
    assert sessions.requests == []


@pytest.mark.parametrize("sent", [b"x" * 100, b"\x16\x03\x01\x02\x00\x01", b"CONNECT gateway:443 HTTP/1.1\r\n\r\n"])
async def test_what_is_no_request_is_a_400(port, sent):
    status, body = await talk(port, sent)
    assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_request")


async def test_a_broken_chunk_is_a_400(port):
    status, body = await talk(port, head("transfer-encoding: chunked"), b"zz\r\n")
    assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_request")


@pytest.mark.parametrize("lines", [["x-long: " + "x" * 1_000_000], [f"x-{number}: 1" for number in range(20_000)]])
async def test_headers_without_an_end_in_sight_are_cut_off(port, lines):
    status, body = await talk(port, head(*lines))
    assert (status, json.loads(body)["error"]["code"]) == (431, "headers_too_large")


async def test_headers_within_the_limit_are_served(port):
    status, _ = await talk(port, head("x-long: " + "x" * 60_000, f"content-length: {len(BODY)}"), BODY)
    assert status == 200


async def test_headers_that_stall_are_given_up_and_trickling_does_not_prolong_them(port, monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_SECONDS", 0.5)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def trickle():
        while True:
            writer.write(b"x")
            await asyncio.sleep(0.1)

    writer.write(b"GET /v1/models HTTP/1.1\r\nx-slow: ")
    trickling = asyncio.create_task(trickle())
    async with asyncio.timeout(5):
        assert b" 408 " in await reader.readline()
    trickling.cancel()
    writer.close()


async def test_a_slow_request_after_a_served_one_has_its_own_time(port, monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_SECONDS", 0.3)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for pause in (0.2, 0.2, 0.2):
        sent = head(f"content-length: {len(BODY)}") + BODY
        writer.write(sent[:10])
        await asyncio.sleep(pause)
        writer.write(sent[10:])
        raw_head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in raw_head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(length)
    writer.close()


@pytest.mark.parametrize("key", [SESSION_KEY, "wrong"])
async def test_a_client_that_reads_only_after_its_whole_body_still_learns_why(port, key):
    """`requests`, and most blocking clients: a reset before they read would be all they saw."""

    def blocking() -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(head("content-length: 5000000", key=key))
            for _ in range(50):
                connection.sendall(b" " * 100_000)
            time.sleep(0.2)
            return connection.recv(65536)

    answered = await asyncio.to_thread(blocking)
    assert answered.startswith(b"HTTP/1.1 413" if key == SESSION_KEY else b"HTTP/1.1 401")


async def test_utf16_is_no_json_on_a_control_route_either(port):
    body = '{"reward": 1}'.encode("utf-16-le")
    status, answered = await talk(port, head(f"content-length: {len(body)}", path="/rl/set_reward"), body)
    assert (status, json.loads(answered)["error"]["code"]) == (400, "invalid_request")
    assert "UTF-8" in json.loads(answered)["detail"]

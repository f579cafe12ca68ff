"""The client commands against a real HTTP server that answers as the gateway does."""

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from typer.testing import CliRunner

from rlrun.cli.app import build_app

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
SESSION = {"session": {"session_id": "a/b-0", "state": "ACTIVE"}, "interactions": []}


class FakeGateway:
    """Answers every path from `answers` and keeps what it was asked."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.answers: dict[str, tuple[int, Any, dict[str, str]]] = {}
        self.delay_seconds = 0.0
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(self.delay_seconds)
        text = await request.text()
        self.requests.append(
            {
                "path": f"{request.method} {request.rel_url.raw_path}",
                "query": dict(request.query),
                "key": request.headers.get("Authorization"),
                "body": json.loads(text) if text else None,
            }
        )
        status, body, headers = self.answers.get(request.path, (404, {"error": {"message": "nothing here"}}, {}))
        if isinstance(body, str):
            return web.Response(status=status, text=body, headers=headers)
        return web.json_response(body, status=status, headers=headers)


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeGateway]:
    fake = FakeGateway()
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(app := web.Application())
    app.router.add_route("*", "/{path:.*}", fake.handle)

    async def start() -> None:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        fake.url = site.name if not site.name.endswith(":0") else f"http://127.0.0.1:{runner.addresses[0][1]}"

    loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    key_file = tmp_path / "admin.key"
    key_file.write_text("admin-secret\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLRUN_URL", fake.url)
    monkeypatch.setenv("RLRUN_ADMIN_KEY_FILE", str(key_file))
    monkeypatch.delenv("RLRUN_SESSION_KEY", raising=False)
    yield fake
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def invoke(*words: str) -> Any:
    return CliRunner().invoke(build_app(), list(words))


CALLS = [
    # (words, the request they make, the gateway's answer, what is printed)
    (["status"], ("GET /admin/status", {}, None), {"policy": {"current": 3}}, "current: 3"),
    (["weights"], ("GET /admin/weights", {}, None), {"versions": [{"version": 3}]}, "version"),
    (["sessions"], ("GET /admin/sessions", {"limit": "50"}, None), {"sessions": [{"session_id": "t-0"}]}, "t-0"),
    (
        ["sessions", "--state", "active", "--limit", "5"],
        ("GET /admin/sessions", {"limit": "5", "state": "ACTIVE"}, None),
        {"sessions": []},
        "no sessions",
    ),
    (["session", "show", "a/b-0"], ("GET /admin/sessions/a%2Fb-0", {}, None), SESSION, "a/b-0  state ACTIVE"),
    (
        ["start-session", "task"],
        ("POST /rl/start_session", {}, {"task_id": "task"}),
        {"session_id": "task-0", "api_key": "sk-1"},
        "export OPENAI_API_KEY=sk-1",
    ),
    (
        ["start-session", "task", "--key", "sk-1"],
        ("POST /rl/start_session", {}, {"task_id": "task", "api_key": "sk-1"}),
        {"session_id": "task-1", "api_key": "sk-1"},
        "export OPENAI_API_KEY=sk-1",
    ),
    (
        ["export", "t-0", "--style", "concat", "--discount", "0.9"],
        ("POST /export_trajectories", {}, {"session_id": "t-0", "discount": 0.9, "style": "concat"}),
        {"trajectories": [1]},
        '"trajectories"',
    ),
]


@pytest.mark.parametrize(("words", "request_", "answer", "printed"), CALLS, ids=[" ".join(words) for words, *_ in CALLS])
def test_an_administrative_command_calls_its_path_with_the_admin_key(
    gateway: FakeGateway, words: list[str], request_: tuple[str, dict[str, str], Any], answer: Any, printed: str
) -> None:
    path, query, body = request_
    gateway.answers[path.partition(" ")[2].replace("%2F", "/")] = (200, answer, {})
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    assert gateway.requests == [{"path": path, "query": query, "key": "Bearer admin-secret", "body": body}]
    assert printed in result.stdout
    assert json.loads(invoke(*words, "--json").stdout) == answer


@pytest.mark.parametrize(
    ("words", "path", "body"),
    [
        (["set-reward", "0.5"], "/rl/set_reward", {"reward": 0.5}),
        (["set-reward", "-1.0"], "/rl/set_reward", {"reward": -1.0}),
        (["set-reward", "--interaction", "chatcmpl-1", "--", "-1"], "/rl/set_reward", {"reward": -1.0, "interaction_id": "chatcmpl-1"}),
        (["end-session"], "/rl/end_session", {}),
    ],
    ids=["last", "negative", "negative after --", "end"],
)
def test_rewards_and_the_end_use_the_sessions_key(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch, words: list[str], path: str, body: dict[str, Any]
) -> None:
    gateway.answers[path] = (200, {"message": "success", "interaction_id": "chatcmpl-1"}, {})
    monkeypatch.setenv("RLRUN_SESSION_KEY", "sk-session")
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    assert gateway.requests == [{"path": f"POST {path}", "query": {}, "key": "Bearer sk-session", "body": body}]


def test_export_writes_a_file(gateway: FakeGateway, tmp_path: Path) -> None:
    gateway.answers["/export_trajectories"] = (200, {"trajectories": []}, {})
    assert invoke("export", "t-0", "-o", str(tmp_path / "t.json")).exit_code == 0
    assert json.loads((tmp_path / "t.json").read_text()) == {"trajectories": []}


REFUSALS: list[tuple[int, Any, dict[str, str], str, str]] = [
    (401, {"error": {"message": "wrong key"}}, {"x-request-id": "req-1"}, "answered 401: wrong key (request req-1)", "check the key"),
    (404, {"detail": "Not Found"}, {}, "answered 404: Not Found", "check the id and --url"),
    (409, {"error": {"message": "still active"}}, {}, "still active", "rlrun session show"),
    (410, {"error": "ended"}, {}, "answered 410: ended", "rlrun start-session"),
    (422, {"error": {"message": "bad"}}, {}, "answered 422: bad", "--help"),
    (429, {"error": {"message": "no capacity"}}, {"Retry-After": "3"}, "no capacity", "try again in 3 s"),
    (503, {}, {"Retry-After": "soon"}, "answered 503", "try again in 1 s"),
    (500, "oops", {}, "answered 500: oops", "request id"),
    (302, {}, {"Location": "http://elsewhere"}, "answered 302", "--help"),
    (200, "<html>", {}, "the answer is not JSON", "is it the address of an rlrun gateway?"),
]


@pytest.mark.parametrize(("status", "body", "headers", "message", "next_step"), REFUSALS, ids=[str(row[0]) for row in REFUSALS])
def test_a_refusal_ends_with_1_a_message_and_a_next_step(
    gateway: FakeGateway, status: int, body: Any, headers: dict[str, str], message: str, next_step: str
) -> None:
    gateway.answers["/admin/status"] = (status, body, headers)
    result = invoke("status")
    assert result.exit_code == 1
    assert message in result.stderr
    assert next_step in result.stderr.partition("next: ")[2]


@pytest.mark.parametrize(
    ("words", "exit_code", "message"),
    [
        (["status", "--url", "http://user:pass@127.0.0.1"], 2, "http://...127.0.0.1: a gateway's URL has no user"),
        (["status", "--url", "http://127.0.0.1:99999"], 2, "no URL of the form"),
        (["status", "--url", "127.0.0.1:8080"], 2, "no URL of the form"),
        (["end-session", "--key", "sk-1\nX-Other: 1"], 2, "no key; a key is one line"),
        (["end-session", "--key-file", "two-lines"], 2, "no key; a key is one line"),
        (["set-reward", "--nonsense"], 2, "--nonsense"),
        (["set-reward", "nan"], 2, "finite number"),
        (["set-reward", "-1.0", "-2.0"], 2, "unexpected extra argument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_words_end_with_a_message_and_no_request(
    gateway: FakeGateway, tmp_path: Path, words: list[str], exit_code: int, message: str
) -> None:
    (tmp_path / "two-lines").write_text("sk-1\nsk-2\n")
    result = invoke(*words)
    assert (result.exit_code, gateway.requests) == (exit_code, [])
    assert message in result.stderr
    assert "pass@" not in result.stderr
    assert "sk-1" not in result.stderr


def test_a_slow_gateway_is_given_up(gateway: FakeGateway) -> None:
    gateway.delay_seconds = 0.5
    result = invoke("status", "--timeout", "0.1")
    assert result.exit_code == 1
    assert "no answer within 0.1 s" in result.stderr


def test_an_absent_gateway_is_named(gateway: FakeGateway) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        result = invoke("status", "--url", url)
    assert result.exit_code == 1
    assert url in result.stderr
    assert "rlrun up" in result.stderr

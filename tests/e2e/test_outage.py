"""Redis stops for ten seconds: clients are told so at once, and all goes on afterwards without a restart."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from openai import OpenAI

from rlrun.local.supervisor import LocalStack, free_port

OUTAGE_SECONDS = 10.0
# The promise is one second; a loaded machine gets one more.
ANSWER_SECONDS = 2.0


def post(stack: LocalStack, path: str, key: str, body: dict[str, object]) -> tuple[int, dict[str, str], dict[str, object]]:
    request = urllib.request.Request(
        f"{stack.base_url}{path}",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, dict(answer.headers), dict(json.load(answer))
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), dict(json.load(error))


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("separate", [False, True], ids=["one-process", "separate-processes"])
def test_a_stopped_redis_is_503_at_once_and_everything_recovers(
    tmp_path: Path, small_document: Callable[..., Path], separate: bool
) -> None:
    with LocalStack(small_document(batch_size=4), data_dir=tmp_path / "data", port=free_port(), separate=separate) as stack:
        _, _, session = post(stack, "/rl/start_session", stack.admin_key, {"task_id": "outage"})
        key = str(session["api_key"])
        chat = {"model": "default", "messages": [{"role": "user", "content": "before"}], "max_tokens": 4}
        assert post(stack, "/v1/chat/completions", key, chat)[0] == 200
        pids = [child.process.pid for child in stack.children if child.process is not None]
        os.kill(stack.redis_pid, signal.SIGSTOP)
        try:
            end = time.monotonic() + OUTAGE_SECONDS
            while time.monotonic() < end:
                calls: list[tuple[str, str, dict[str, object]]] = [
                    ("/rl/set_reward", key, {"reward": 1}),
                    ("/v1/chat/completions", key, {**chat, "messages": [{"role": "user", "content": "during"}]}),
                    ("/rl/start_session", stack.admin_key, {"task_id": "outage"}),
                ]
                for path, bearer, body in calls:
                    started = time.monotonic()
                    status, headers, error = post(stack, path, bearer, body)
                    seconds = time.monotonic() - started
                    assert (status, "retry-after" in {name.lower() for name in headers}) == (503, True), (path, status, error)
                    assert seconds < ANSWER_SECONDS, f"{path} took {seconds:.2f} s"
        finally:
            os.kill(stack.redis_pid, signal.SIGCONT)
        deadline = time.monotonic() + 20
        while post(stack, "/rl/set_reward", key, {"reward": 1})[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        client = OpenAI(base_url=f"{stack.base_url}/v1", api_key=key)
        client.chat.completions.create(model="default", messages=[{"role": "user", "content": "after"}], max_tokens=4)
        assert post(stack, "/rl/end_session", key, {})[0] == 200
        assert [child.process.pid for child in stack.children if child.process is not None] == pids
        assert all(child.process is not None and child.process.poll() is None for child in stack.children)

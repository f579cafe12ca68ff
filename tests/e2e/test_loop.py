"""The whole loop with real processes: an unmodified OpenAI client, rewards over HTTP, a new policy version, clean end."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from rlrun.local.supervisor import LocalStack, free_port


@pytest.fixture(params=[False, True], ids=["one-process", "separate-processes"])
def stack(request: pytest.FixtureRequest, tmp_path: Path, small_document: Callable[..., Path]) -> Iterator[LocalStack]:
    with LocalStack(small_document(batch_size=4), data_dir=tmp_path / "data", port=free_port(), separate=request.param) as running:
        yield running


def post(stack: LocalStack, path: str, key: str, body: dict[str, object]) -> dict[str, object]:
    request = urllib.request.Request(
        f"{stack.base_url}{path}",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return dict(json.load(answer))


def get(stack: LocalStack, path: str) -> dict[str, object]:
    request = urllib.request.Request(f"{stack.base_url}{path}", headers={"Authorization": f"Bearer {stack.admin_key}"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return dict(json.load(answer))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_rewarded_sessions_become_a_new_policy_version(stack: LocalStack) -> None:
    for number in range(4):
        session = post(stack, "/rl/start_session", stack.admin_key, {"task_id": "loop"})
        client = OpenAI(base_url=f"{stack.base_url}/v1", api_key=str(session["api_key"]), max_retries=0)
        first = client.chat.completions.create(model="default", messages=[{"role": "user", "content": f"hello {number}"}], max_tokens=8)
        assert first.usage is not None
        assert 1 <= first.usage.completion_tokens <= 8
        history = [
            {"role": "user", "content": f"hello {number}"},
            first.choices[0].message.model_dump(exclude_none=True),
            {"role": "user", "content": "and again"},
        ]
        chunks = list(client.chat.completions.create(model="default", messages=history, max_tokens=8, stream=True))  # type: ignore[call-overload]
        assert chunks[-1].choices[0].finish_reason in ("stop", "length")
        post(stack, "/rl/set_reward", str(session["api_key"]), {"reward": float(number % 2)})
        post(stack, "/rl/end_session", str(session["api_key"]), {})
        shown = get(stack, f"/admin/sessions/{session['session_id']}")
        interactions = shown["interactions"]
        assert isinstance(interactions, list)
        assert [one["parent_id"] for one in interactions] == [None, interactions[0]["id"]]

    deadline = time.monotonic() + 120
    while get(stack, "/admin/weights")["version"] == 0:
        assert time.monotonic() < deadline, stack.child("trainer").log_tail()
        time.sleep(0.2)
    while True:
        members = get(stack, "/admin/status")["members"]
        assert isinstance(members, list)
        if all(member["policy_version"] >= 1 for member in members if member["role"] == "worker"):
            break
        assert time.monotonic() < deadline, stack.child("worker").log_tail()
        time.sleep(0.2)

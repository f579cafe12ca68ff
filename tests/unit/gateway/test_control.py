from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rlrun.auth import key_hash
from rlrun.errors import NoCapacity, NotFound, RefreshTimeout, SessionGone, Unavailable
from rlrun.proto import session_pb2
from tests.unit.gateway.scripted import ADMIN_KEY, SESSION_KEY


class ScriptedQueries:
    async def status(self) -> dict[str, Any]:
        return {"policy_version": 4}

    async def sessions(self, state: str | None, limit: int) -> list[dict[str, Any]]:
        return [{"state": state, "limit": limit}]

    async def session(self, session_id: str) -> dict[str, Any]:
        if session_id != "task-0":
            raise NotFound(f"Session {session_id} not found")
        return {"session": {"session_id": session_id}}

    async def weights(self) -> dict[str, Any]:
        return {"version": 4}


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_a_started_session_has_an_id_and_a_key_that_opens_it(admin, router, prefix):
    answered = await admin.post(f"{prefix}/rl/start_session", json={"task_id": "math", "group_id": "g", "group_size": 4})
    assert answered.status_code == 200
    body = answered.json()
    assert body["session_id"].startswith("math-")
    assert router.placed[0].key_hash == key_hash(body["api_key"])
    assert (router.placed[0].group_id, router.placed[0].group_size) == ("g", 4)
    models = await admin.get(f"{prefix}/models", headers={"Authorization": f"Bearer {body['api_key']}"})
    assert models.status_code == 200


async def test_a_client_may_choose_its_key(admin, router):
    answered = await admin.post("/rl/start_session/", json={"task_id": "math", "api_key": "mine"})
    assert answered.json()["api_key"] == "mine"
    assert router.placed[0].key_hash == key_hash("mine")


async def test_the_admin_key_is_no_session_key(admin):
    answered = await admin.post("/rl/start_session", json={"task_id": "math", "api_key": ADMIN_KEY})
    assert answered.status_code == 400
    assert answered.json()["detail"] == "Cannot use the admin API key as a session key."
    assert answered.json()["error"]["param"] == "api_key"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"task_id": 5},
        {"task_id": ""},
        {"task_id": "a/b"},
        {"task_id": "a b"},
        {"task_id": "x" * 300},
        {"task_id": "a", "api_key": ""},
        {"task_id": "a", "api_key": "with space"},
        {"task_id": "a", "group_size": 0},
        {"task_id": "a", "group_size": True},
        [],
        None,
    ],
)
async def test_a_wrong_start_is_422_with_both_forms_of_error(admin, body):
    answered = await admin.post("/rl/start_session", json=body)
    assert answered.status_code == 422
    assert answered.json()["detail"][0]["loc"]
    assert answered.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/rl/start_session", "/grant_capacity", "/export_trajectories"])
@pytest.mark.parametrize("key", ["", "Bearer", "Bearer wrong", f"Bearer {SESSION_KEY}"])
async def test_administrative_routes_need_the_admin_key(client, path, key):
    answered = await client.post(path, json={"task_id": "a", "session_id": "task-0"}, headers={"Authorization": key})
    assert answered.status_code == 401
    assert answered.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ["/admin/status", "/admin/sessions", "/admin/sessions/task-0", "/admin/weights"])
async def test_administrative_pages_need_the_admin_key(client, path):
    assert (await client.get(path)).status_code == 401


@pytest.mark.parametrize("error", [NoCapacity("No available capacity to start a new session"), RefreshTimeout("Refresh timed out")])
async def test_a_start_without_capacity_is_429_with_a_time_to_wait(admin, router, error):
    router.place_error = error
    answered = await admin.post("/rl/start_session", json={"task_id": "a"})
    assert answered.status_code == 429
    assert int(answered.headers["retry-after"]) >= 1
    assert answered.json()["detail"] == error.message


async def test_the_second_of_two_refreshes_of_one_key_is_refused(admin, router):
    router.place_gate = asyncio.Event()
    first = asyncio.create_task(admin.post("/rl/start_session", json={"task_id": "a", "api_key": "k"}))
    await router.place_started.wait()
    second = await admin.post("/rl/start_session", json={"task_id": "a", "api_key": "k"})
    assert second.status_code == 429
    assert second.json()["detail"] == "A refresh is already in progress for this key."
    router.place_gate.set()
    assert (await first).status_code == 200
    assert (await admin.post("/rl/start_session", json={"task_id": "a", "api_key": "k"})).status_code == 200


async def test_after_a_refresh_calls_go_to_the_new_session(make_client, sessions):
    client = make_client()
    hello = {"messages": [{"role": "user", "content": "hi"}]}
    await client.post("/chat/completions", json=hello)
    started = await client.post(
        "/rl/start_session", json={"task_id": "next", "api_key": SESSION_KEY}, headers={"Authorization": f"Bearer {ADMIN_KEY}"}
    )
    await client.post("/chat/completions", json=hello)
    assert sessions.requests[-1].session.session_id == started.json()["session_id"]


@pytest.mark.parametrize("reward", [1, 0.5, -2, 0])
async def test_a_reward_is_a_number(client, sessions, reward):
    answered = await client.post("/rl/set_reward", json={"reward": reward})
    assert answered.json()["message"] == "success"
    assert sessions.requests[0] == session_pb2.SetRewardRequest(session=session_pb2.SessionRef(session_id="task-0", fence=1), reward=reward)


@pytest.mark.parametrize("reward", ["true", '"1"', "null", "NaN", "Infinity", "1e999", "[]", "{}", "1" + "0" * 400])
async def test_what_is_no_finite_number_is_no_reward(client, sessions, reward):
    answered = await client.post(
        "/rl/set_reward", content=b'{"reward": ' + reward.encode() + b"}", headers={"content-type": "application/json"}
    )
    assert answered.status_code == 422
    assert answered.json()["error"]["param"] == "reward"
    assert sessions.requests == []


async def test_a_reward_may_name_its_interaction(client, sessions):
    answered = await client.post("/rl/set_reward", json={"reward": 1.0, "interaction_id": "chatcmpl-7"})
    assert answered.json()["interaction_id"] == "chatcmpl-7"
    assert (await client.post("/rl/set_reward", json={"reward": 1.0, "interaction_id": None})).status_code == 200


@pytest.mark.parametrize("interaction_id", ["", 5, "x" * 201])
async def test_a_reward_is_not_given_to_another_interaction_than_the_one_named(client, sessions, interaction_id):
    answered = await client.post("/rl/set_reward", json={"reward": 1.0, "interaction_id": interaction_id})
    assert (answered.status_code, answered.json()["error"]["param"]) == (422, "interaction_id")
    assert sessions.requests == []


@pytest.mark.parametrize("headers", [{}, {"content-type": "application/x-www-form-urlencoded"}, {"content-type": "text/plain"}])
@pytest.mark.parametrize("path", ["/rl/set_reward", "/grant_capacity"])
async def test_a_body_that_is_not_declared_as_json_is_415_and_the_message_names_the_header(admin, path, headers):
    answered = await admin.post(path, content=b'{"reward": 1}', headers=headers)
    assert answered.status_code == 415
    assert "application/json" in answered.json()["detail"]


async def test_the_end_of_a_session_counts_its_interactions(client):
    answered = await client.post("/rl/end_session")
    assert answered.json() == {"message": "success", "interaction_count": 3}


@pytest.mark.parametrize(("path", "body"), [("/rl/end_session", None), ("/rl/set_reward", {"reward": 1})])
async def test_a_session_that_is_gone_is_410_and_no_other_session_is_touched(client, sessions, router, path, body):
    def rebind() -> None:
        router.bind(SESSION_KEY, "task-9")

    sessions.script = [SessionGone("Session already ended or expired")]
    router.script = [lambda: None, rebind]
    answered = await client.post(path, json=body)
    assert answered.status_code == 410
    assert answered.json()["detail"] == "Session already ended or expired"
    assert len(sessions.requests) == 1


@pytest.mark.parametrize("path", ["/rl/end_session", "/rl/set_reward"])
async def test_the_admin_key_may_act_for_a_session(admin, sessions, path):
    answered = await admin.post(path, json={"reward": 1}, headers={"X-Session-Id": "task-0"})
    assert answered.status_code == 200
    assert sessions.requests[0].session.session_id == "task-0"
    assert (await admin.post(path, json={"reward": 1})).status_code == 400


async def test_a_path_may_name_the_session_of_any_call_about_it(admin, client, sessions):
    assert (await admin.post("/sessions/task-0/rl/set_reward", json={"reward": 1})).status_code == 200
    assert (await client.post("/sessions/task-0/v1/rl/end_session")).status_code == 200
    assert (await client.get("/sessions/task-0/v1/models")).status_code == 200
    assert (await client.get("/v1/sessions/task-0/models")).status_code == 200
    assert (await client.post("/sessions/none/rl/end_session")).status_code == 404
    assert [request.session.session_id for request in sessions.requests] == ["task-0", "task-0"]


async def test_capacity_is_granted_one_by_one(admin):
    assert (await admin.post("/grant_capacity")).json() == {"capacity": 1}
    assert (await admin.post("/v1/grant_capacity", json={"amount": 3})).json() == {"capacity": 4}


async def test_an_export_holds_tensors(admin, sessions):
    answered = await admin.post("/export_trajectories", json={"session_id": "task-0", "discount": 0.9, "style": "concat"})
    interaction = answered.json()["interactions"]["chatcmpl-1"]
    assert interaction["reward"] == 0.5
    assert interaction["temperature"] == pytest.approx(0.7)
    assert interaction["tensor_dict"]["input_ids"] == {"dtype": "int32", "shape": [1, 3], "data": [[5, 6, 7]]}
    assert interaction["tensor_dict"]["logprobs"]["data"] == [[0.0, -0.5, -0.25]]
    assert sessions.requests[0].style == session_pb2.EXPORT_STYLE_CONCAT
    assert sessions.requests[0].discount == 0.9


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"session_id": "none"}, 404),
        ({}, 422),
        ({"session_id": "task-0", "style": "tree"}, 422),
        ({"session_id": "task-0", "discount": 2}, 422),
        ({"session_id": "task-0", "discount": True}, 422),
    ],
)
async def test_a_wrong_export_is_refused(admin, body, status):
    assert (await admin.post("/export_trajectories", json=body)).status_code == status


async def test_models_are_listed_for_any_valid_key(client, admin, make_client):
    listed = await client.get("/v1/models")
    assert [model["id"] for model in listed.json()["data"]] == ["policy"]
    assert (await admin.get("/models")).status_code == 200
    assert (await client.get("/v1/models/policy")).json()["object"] == "model"
    assert (await client.get("/v1/models/other")).status_code == 404
    assert (await make_client(key="wrong").get("/v1/models")).status_code == 401
    assert (await make_client(key=None).get("/v1/models")).status_code == 401


async def test_health_counts_members_and_needs_no_key(make_client, router, monkeypatch):
    client = make_client(key=None)
    answered = await client.get("/health")
    assert answered.json() == {"status": "ok", "members": {"dataproxy": 1, "worker": 1}, "workers": 1}

    async def away(request: Any) -> Any:
        raise Unavailable("no router")

    monkeypatch.setattr(router, "list_members", away)
    assert (await client.get("/health")).status_code == 503


async def test_administrative_pages_show_what_the_queries_say(make_client):
    admin = make_client(key=ADMIN_KEY, admin=ScriptedQueries())
    assert (await admin.get("/admin/status")).json() == {"policy_version": 4}
    assert (await admin.get("/v1/admin/sessions?state=active&limit=5")).json() == {"sessions": [{"state": "ACTIVE", "limit": 5}]}
    assert (await admin.get("/admin/sessions?limit=0")).status_code == 422
    assert (await admin.get("/admin/sessions/task-0")).json() == {"session": {"session_id": "task-0"}}
    assert (await admin.get("/admin/sessions/none")).status_code == 404
    assert (await admin.get("/admin/weights")).json() == {"version": 4}


async def test_without_a_store_the_members_are_still_shown(admin):
    assert [member["role"] for member in (await admin.get("/admin/status")).json()["members"]] == ["dataproxy", "worker"]
    assert (await admin.get("/admin/sessions")).status_code == 501


async def test_unknown_paths_and_methods_have_json_errors(admin):
    unknown = await admin.get("/v1/embeddings")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "unknown_path")
    assert "GET /v1/embeddings" in unknown.json()["error"]["message"]
    wrong = await admin.get("/rl/start_session")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")


async def test_a_control_body_has_a_limit(admin):
    answered = await admin.post("/rl/start_session", json={"task_id": "x" * 2_000_000})
    assert answered.status_code == 413
    assert answered.json()["detail"] == answered.json()["error"]["message"]


async def test_a_bug_in_a_control_route_is_logged_and_hidden(admin, router, caplog):
    router.place_error = ValueError("a secret")
    answered = await admin.post("/rl/start_session", json={"task_id": "a"}, headers={"x-request-id": "abc"})
    assert answered.status_code == 500
    assert "abc" in answered.json()["error"]["message"]
    assert "a secret" not in answered.text
    assert "a secret" in caplog.text

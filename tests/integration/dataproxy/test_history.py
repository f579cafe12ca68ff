from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlrun.errors import Conflict, InvalidRequest, SessionGone
from rlrun.proto import session_pb2


async def conversation(world: Any, ref: Any, num_turns: int) -> list[str]:
    """Ids of the interactions of a conversation without branches."""
    world.answers("rain")
    history: list[Any] = []
    ids: list[str] = []
    for turn in range(num_turns):
        history.append({"role": "user", "content": f"question {turn}"})
        answer = await world.proxy.generate(world.chat(ref, *history))
        history.append(world.said(answer))
        ids.append(answer.interaction_id)
    return ids


def reward(ref: Any, value: float, interaction_id: str = "") -> session_pb2.SetRewardRequest:
    return session_pb2.SetRewardRequest(session=ref, reward=value, interaction_id=interaction_id)


def export(ref: Any, discount: float = 1.0, style: Any = session_pb2.EXPORT_STYLE_INDIVIDUAL) -> session_pb2.ExportTrajectoriesRequest:
    return session_pb2.ExportTrajectoriesRequest(session=ref, discount=discount, style=style)


@pytest.mark.parametrize("cached", [True, False])
async def test_a_reward_without_an_id_is_for_the_last_interaction(world: Any, cached: bool) -> None:
    ref = await world.session()
    ids = await conversation(world, ref, 2)
    proxy = world.proxy if cached else world.make_proxy("dp1")
    assert (await proxy.set_reward(reward(ref, 1.0))).interaction_id == ids[1]
    assert (await proxy.set_reward(reward(ref, 0.5, ids[0]))).interaction_id == ids[0]
    detail = await proxy.get_session(session_pb2.GetSessionRequest(session=ref))
    assert [one.reward for one in detail.interactions] == [0.5, 1.0]
    assert (detail.session.state, detail.session.num_interactions, detail.session.reward) == ("ACTIVE", 2, 1.5)


@pytest.mark.parametrize("cached", [True, False])
async def test_wrong_rewards_are_refused(world: Any, cached: bool) -> None:
    ref = await world.session()
    with pytest.raises(InvalidRequest, match="No interactions in session"):
        await world.proxy.set_reward(reward(ref, 1.0))
    await conversation(world, ref, 1)
    proxy = world.proxy if cached else world.make_proxy("dp1")
    with pytest.raises(InvalidRequest, match="Interaction nope not found"):
        await proxy.set_reward(reward(ref, 1.0, "nope"))
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(InvalidRequest, match="finite"):
            await proxy.set_reward(reward(ref, wrong))


async def test_an_ended_session_with_a_reward_is_queued_and_can_still_be_read(world: Any) -> None:
    ref = await world.session()
    ids = await conversation(world, ref, 3)
    await world.proxy.set_reward(reward(ref, 10.0))
    with pytest.raises(Conflict, match="end_session"):
        await world.proxy.export_trajectories(export(ref))
    ended = await world.proxy.end_session(session_pb2.EndSessionRequest(session=ref))
    assert ended.interaction_count == 3
    assert (await world.store.sessions.get(ref.session_id)).state.value == "QUEUED"
    rows = (await world.proxy.export_trajectories(export(ref, 0.9))).interactions
    assert [row.interaction_id for row in rows] == ids
    assert [row.reward for row in rows] == pytest.approx([8.1, 9.0, 10.0])
    assert (await world.store.sessions.get(ref.session_id)).state.value == "QUEUED"
    with pytest.raises(SessionGone):
        await world.proxy.set_reward(reward(ref, 1.0))


async def test_a_late_reward_queues_the_session(world: Any) -> None:
    ref = await world.session()
    await conversation(world, ref, 1)
    await world.proxy.end_session(session_pb2.EndSessionRequest(session=ref))
    assert (await world.store.sessions.get(ref.session_id)).state.value == "FINISHED"
    await world.proxy.set_reward(reward(ref, 1.0))
    assert (await world.store.sessions.get(ref.session_id)).state.value == "QUEUED"


async def test_export_of_a_finished_session_marks_it(world: Any) -> None:
    ref = await world.session()
    await conversation(world, ref, 2)
    await world.proxy.end_session(session_pb2.EndSessionRequest(session=ref))
    for _ in range(2):
        rows = (await world.proxy.export_trajectories(export(ref, style=session_pb2.EXPORT_STYLE_CONCAT))).interactions
        assert len(rows) == 1
        assert (await world.store.sessions.get(ref.session_id)).state.value == "EXPORTED"


async def test_exported_tokens_are_what_the_engine_saw_and_gave(world: Any) -> None:
    ref = await world.session()
    await conversation(world, ref, 2)
    (output,) = world.answers("rain")
    await world.proxy.end_session(session_pb2.EndSessionRequest(session=ref))
    (row,) = (await world.proxy.export_trajectories(export(ref, style=session_pb2.EXPORT_STYLE_CONCAT))).interactions
    ids, mask = np.frombuffer(row.input_ids, "<i4"), np.frombuffer(row.loss_mask, "<i4")
    assert ids.tolist() == world.unpacked(world.engine.requests[1].prompt_ids) + output
    assert ids[mask == 1].tolist() == output * 2
    assert np.frombuffer(row.versions, "<i4")[mask == 0].max() == -1
    assert np.frombuffer(row.logprobs, "<f4")[mask == 1].tolist() == [-0.5] * 2 * len(output)


@pytest.mark.parametrize("discount", [-0.1, 1.1, float("nan")])
async def test_a_wrong_discount_is_refused(world: Any, discount: float) -> None:
    ref = await world.session()
    await world.proxy.end_session(session_pb2.EndSessionRequest(session=ref))
    with pytest.raises(InvalidRequest, match="discount"):
        await world.proxy.export_trajectories(export(ref, discount))

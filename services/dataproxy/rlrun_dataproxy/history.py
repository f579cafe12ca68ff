"""What is told of a session after the fact: export and detail. Pure."""

from __future__ import annotations

import math

from rlrun.errors import Conflict, InvalidRequest
from rlrun.proto import session_pb2
from rlrun.store import SessionData, SessionState
from rlrun.trajectory import ExportStyle, InteractionTree, RewardStyle, TrajectoryRow, export_rows, reward_discount

_STYLES = {
    session_pb2.EXPORT_STYLE_UNSPECIFIED: ExportStyle.INDIVIDUAL,
    session_pb2.EXPORT_STYLE_INDIVIDUAL: ExportStyle.INDIVIDUAL,
    session_pb2.EXPORT_STYLE_CONCAT: ExportStyle.CONCAT,
}


def export(
    data: SessionData, request: session_pb2.ExportTrajectoriesRequest, *, style: RewardStyle
) -> list[session_pb2.ExportedInteraction]:
    """Rows of an ended session.

    Raises:
        Conflict: the session is still ACTIVE.
        InvalidRequest: discount or style is wrong.
    """
    if data.info.state is SessionState.ACTIVE:
        raise Conflict(f"Session {data.info.session_id} is ACTIVE; call end_session first")
    if not (math.isfinite(request.discount) and 0.0 <= request.discount <= 1.0):
        raise InvalidRequest(f"discount is {request.discount}; must be between 0 and 1", param="discount")
    export_style = _STYLES.get(request.style)
    if export_style is None:
        raise InvalidRequest(f"style is {request.style}; must be individual or concat", param="style")
    tree = InteractionTree.from_records(data.records)
    rewards = reward_discount(tree.parents(), data.rewards, style=style, turn_discount=request.discount)
    return [_exported(row) for row in export_rows(tree, rewards, style=export_style)]


def session_detail(data: SessionData) -> session_pb2.GetSessionResponse:
    info = data.info
    return session_pb2.GetSessionResponse(
        session=session_pb2.SessionSummary(
            session_id=info.session_id,
            task_id=info.task_id,
            group_id=info.group_id,
            state=info.state.value,
            reason=info.reason,
            owner=info.owner_id,
            fence=info.fence,
            num_interactions=info.num_interactions,
            created_unix_seconds=info.created_unix_seconds,
            updated_unix_seconds=info.updated_unix_seconds,
            group_size=info.group_size,
            reward=sum(data.rewards.values()) if data.rewards else None,
        ),
        interactions=[
            session_pb2.InteractionDetail(record=record, reward=data.rewards.get(record.id))
            for record in sorted(data.records, key=lambda one: one.index)
        ],
    )


def _exported(row: TrajectoryRow) -> session_pb2.ExportedInteraction:
    return session_pb2.ExportedInteraction(
        interaction_id=row.interaction_id,
        reward=row.reward,
        input_ids=row.input_ids.astype("<i4").tobytes(),
        loss_mask=row.loss_mask.astype("<i4").tobytes(),
        logprobs=row.logprobs.astype("<f4").tobytes(),
        versions=row.versions.astype("<i4").tobytes(),
        temperature=row.temperature,
    )

"""From the scripts' answers to values and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from rlrun.errors import Conflict, Internal, InvalidRequest, NoCapacity, NotFound, SessionGone, SessionMoved
from rlrun.store.keys import SCHEMA
from rlrun.store.states import SessionState
from rlrun.store.types import SessionInfo


def fields(row: Mapping[bytes, bytes] | Sequence[bytes], *, what: str) -> dict[str, str]:
    """A hash, as a mapping or as the flat list of a script. Raises `Internal` if a newer rlrun wrote it."""
    pairs = row.items() if isinstance(row, Mapping) else zip(row[::2], row[1::2], strict=True)
    found = {name.decode(): value.decode() for name, value in pairs}
    if int(found.get("schema", SCHEMA)) > SCHEMA:
        raise Internal(f"{what} has schema {found['schema']}, this version reads up to {SCHEMA}; update this service")
    return found


def session_info(session_id: str, row: Mapping[bytes, bytes] | Sequence[bytes]) -> SessionInfo:
    found = fields(row, what=f"session {session_id}")
    return SessionInfo(
        session_id=session_id,
        state=SessionState(found["state"]),
        reason=found["reason"],
        task_id=found["task"],
        group_id=found["group"],
        group_size=int(found["group_size"]),
        key_hash=found["key"],
        owner_id=found["owner"],
        fence=int(found["fence"]),
        num_interactions=int(found["n"]),
        has_reward=found["reward_set"] == "1",
        created_unix_seconds=float(found["created"]),
        updated_unix_seconds=float(found["updated"]),
    )


def session_answer(answer: Sequence[Any], *, session_id: str) -> SessionInfo:
    """The session in an answer, or the error that the answer means."""
    if answer[0] == b"OK":
        return session_info(answer[1].decode(), answer[2])
    refuse(answer, session_id=session_id)


def refuse(answer: Sequence[Any], *, session_id: str) -> NoReturn:
    """Raises what a refusal means."""
    code, *words = (part.decode() if isinstance(part, bytes) else str(part) for part in answer)
    match code:
        case "MISSING":
            raise NotFound(f"Session {session_id} not found")
        case "MOVED":
            raise SessionMoved(f"session {session_id} has fence {words[1]} now: another owner holds it")
        case "GONE":
            reason = f" ({words[2]})" if words[2] else ""
            raise SessionGone(f"Session {session_id} already ended or expired: it is {words[1]}{reason}")
        case "NO_INTERACTION":
            message = f"Interaction {words[1]} not found" if words[1] else "No interactions in session"
            raise InvalidRequest(message, param="interaction_id")
        case "CONFLICT":
            raise Conflict(_conflict(words), param="group_size" if words[0] == "group" else words[0])
        case "FULL":
            raise NoCapacity(
                "No available capacity to start a new session: "
                f"{words[1]} running, {words[2]} handed to the trainer, {words[3]} granted, step {words[4]}"
            )
        case _:
            raise Internal(f"unexpected answer {code} of a script")


def _conflict(words: Sequence[str]) -> str:
    match words[0]:
        case "key":
            return f"API key is already bound to active session {words[1]}."
        case "group":
            return f"the group has size {words[1]} already; give the same group_size to all its members"
        case "policy":
            return f"policy version {words[1]} is current and versions only grow; take the next one with next_version"
        case _:
            return f"session {words[1]} exists already"

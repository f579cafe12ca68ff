"""From the scripts' answers to values and errors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn

from rlrun.errors import Conflict, Internal, InvalidRequest, NoCapacity, NotFound, SessionGone, SessionMoved
from rlrun.store.keys import SCHEMA
from rlrun.store.states import SessionState


@dataclass(frozen=True, kw_only=True)
class SessionInfo:
    """One session's head. Times are Redis seconds since 1970; `ended_seconds` is None while it is ACTIVE.

    `last_interaction_id` is the one that a reward without an id goes to; empty: none yet.
    """

    session_id: str
    state: SessionState
    reason: str
    task_id: str
    group_id: str
    group_size: int
    key_hash: str
    owner_id: str
    fence: int
    num_interactions: int
    created_seconds: float
    updated_seconds: float
    ended_seconds: float | None
    has_reward: bool
    last_interaction_id: str

    @property
    def owner(self) -> str:
        return self.owner_id


class Code(StrEnum):
    """First element of a script's answer."""

    OK = "OK"
    MISSING = "MISSING"
    MOVED = "MOVED"
    GONE = "GONE"
    CONFLICT = "CONFLICT"
    FULL = "FULL"
    NO_INTERACTION = "NO_INTERACTION"


def fields(flat: list[bytes], *, what: str) -> dict[str, str]:
    """A hash as Redis returns it. Raises `Internal` if a newer rlrun wrote it."""
    found = {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}
    if int(found.get("schema", SCHEMA)) > SCHEMA:
        raise Internal(f"{what} has schema {found['schema']}, this version reads up to {SCHEMA}; update this service")
    return found


def session_info(session_id: str, flat: list[bytes]) -> SessionInfo:
    row = fields(flat, what=f"session {session_id}")
    return SessionInfo(
        session_id=session_id,
        state=SessionState(row["state"]),
        reason=row["reason"],
        task_id=row["task"],
        group_id=row["group"],
        group_size=int(row["group_size"]),
        key_hash=row["key"],
        owner_id=row["owner"],
        fence=int(row["fence"]),
        num_interactions=int(row["n"]),
        created_seconds=float(row["created"]),
        updated_seconds=float(row["updated"]),
        ended_seconds=float(row["ended"]) if row["ended"] else None,
        has_reward=row["reward_set"] == "1",
        last_interaction_id=row["last"],
    )


def session_answer(answer: list[Any], *, session_id: str) -> SessionInfo:
    """The session in an answer, or the error that the answer means."""
    if answer[0] == b"OK":
        return session_info(answer[1].decode(), answer[2])
    refuse(answer, session_id=session_id)


def refuse(answer: list[Any], *, session_id: str) -> NoReturn:
    """Raises what a refusal means."""
    code, words = Code(answer[0].decode()), [_text(word) for word in answer[1:]]
    match code:
        case Code.MISSING:
            raise NotFound(f"session {session_id} does not exist")
        case Code.MOVED:
            raise SessionMoved(f"session {session_id} has fence {words[1]} now; resolve it again")
        case Code.GONE:
            reason = f" ({words[2]})" if words[2] else ""
            raise SessionGone(f"session {session_id} is {words[1]}{reason}; start a new session")
        case Code.NO_INTERACTION if words[1]:
            raise NotFound(f"session {session_id} has no interaction {words[1]}; give an id that a completion returned")
        case Code.NO_INTERACTION:
            raise InvalidRequest(
                f"session {session_id} has no interaction yet; make a call before setting a reward", param="interaction_id"
            )
        case Code.FULL:
            raise NoCapacity(
                f"no capacity for another session (capacity {words[0]}: running {words[1]}, accepted {words[2]}, granted {words[3]}, "
                f"step {words[4]}); end sessions, grant capacity or wait for the next training step"
            )
        case Code.CONFLICT:
            raise Conflict(_conflict(words))
        case _:
            raise Internal(f"unexpected answer {code} of a script")


def _conflict(words: list[str]) -> str:
    match words[0]:
        case "key":
            return f"the key opens session {words[1]}, which is active; end it first"
        case "group":
            return f"the group was opened with size {words[1]}; give every member the same group_size"
        case "policy":
            return f"version {words[1]} is published already and versions only grow; take the next one with next_version"
        case _:
            return f"session {words[1]} exists already; choose another id"


def _text(word: bytes | int) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)

"""Names of all Redis keys of one run. The run is the hash tag, so one run is one slot of a Redis Cluster."""

from __future__ import annotations

from rlrun.errors import InvalidRequest
from rlrun.proto import router_pb2

# Number written into every stored hash and stream entry. A reader refuses a number above its own.
SCHEMA = 1

TRAINER_GROUP = "trainer"

MAX_ID_CHARS = 512
# `session:<id>` must never be the name of another session's hash.
_RESERVED_SUFFIXES = (":interactions", ":rewards")


def prefix(run: str) -> str:
    """What every key of `run` starts with. Raises `InvalidRequest` for a name that would break the hash tag."""
    if not run or len(run) > MAX_ID_CHARS or "{" in run or "}" in run:
        raise InvalidRequest(f"run name {run[:80]!r} must have 1 to {MAX_ID_CHARS} characters and no braces", param="run")
    return f"rlrun:{{{run}}}:"


def check_id(value: str, *, param: str) -> str:
    """Returns an id that is safe as a part of a key. Raises `InvalidRequest` otherwise."""
    if not value or len(value) > MAX_ID_CHARS:
        raise InvalidRequest(f"{param} has {len(value)} characters, must have 1 to {MAX_ID_CHARS}", param=param)
    if value.endswith(_RESERVED_SUFFIXES):
        raise InvalidRequest(f"{param} {value!r} must not end in {' or '.join(_RESERVED_SUFFIXES)}; choose another id", param=param)
    return value


def role_name(role: router_pb2.Role.ValueType) -> str:
    """`ROLE_DATAPROXY` -> `dataproxy`. Raises `InvalidRequest` for an unspecified or unknown role."""
    if role == router_pb2.ROLE_UNSPECIFIED or role not in router_pb2.Role.values():
        raise InvalidRequest(f"role {role} has no members; give one of {', '.join(router_pb2.Role.keys()[1:])}", param="role")
    return router_pb2.Role.Name(role).removeprefix("ROLE_").lower()


class Keys:
    """Key names of one run."""

    def __init__(self, run: str) -> None:
        self.prefix = prefix(run)
        self.capacity = self.prefix + "capacity"
        self.trajectories = self.prefix + "trajectories"
        self.policy = self.prefix + "policy"

    def session(self, session_id: str) -> str:
        return f"{self.prefix}session:{session_id}"

    def interactions(self, session_id: str) -> str:
        return f"{self.prefix}session:{session_id}:interactions"

    def rewards(self, session_id: str) -> str:
        return f"{self.prefix}session:{session_id}:rewards"

    def sessions(self, state: str) -> str:
        """Sorted set of the sessions in `state`: by last use while active, by the time of entering the state afterwards."""
        return f"{self.prefix}sessions:{state.lower()}"

    def key(self, key_hash: str) -> str:
        return f"{self.prefix}key:{key_hash}"

    def group(self, group_id: str) -> str:
        return f"{self.prefix}group:{group_id}"

    def member(self, role: str, member_id: str) -> str:
        return f"{self.prefix}member:{role}:{member_id}"

    def members(self, role: str) -> str:
        return f"{self.prefix}members:{role}"

    def policy_version(self, version: int) -> str:
        return f"{self.prefix}policy:{version}"

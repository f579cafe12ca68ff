"""Who may do what: the admin key, session keys, and the session that a request means."""

from __future__ import annotations

from rlrun.auth import key_from_headers, key_hash, keys_equal
from rlrun.errors import InvalidRequest, Unauthenticated
from rlrun_gateway.http import Headers, header
from rlrun_gateway.placements import SessionName

_HOW = "send `Authorization: Bearer <key>` or `x-api-key: <key>`"


class Access:
    """Reads keys from headers. Holds the admin key only."""

    def __init__(self, admin_key: str) -> None:
        self._admin_key = admin_key

    def is_admin_key(self, key: str) -> bool:
        return keys_equal(key, self._admin_key)

    def require_admin(self, headers: Headers) -> None:
        """Raises Unauthenticated."""
        if not self.is_admin_key(_key(headers)):
            raise Unauthenticated("Unauthorized")

    def is_admin(self, headers: Headers) -> bool:
        """Whether the request has the admin key; raises Unauthenticated if it has no key at all."""
        return self.is_admin_key(_key(headers))

    def session_name(self, headers: Headers, path_session: str = "") -> SessionName:
        """The session: from the path, from the key, or, for the admin key, from `X-Session-Id`."""
        key = _key(headers)
        if not self.is_admin_key(key):
            return SessionName(key_hash=key_hash(key), session_id=path_session)
        session_id = path_session or (header(headers, b"x-session-id") or b"").decode("latin-1").strip()
        if not session_id:
            raise InvalidRequest(
                "The admin key opens no session by itself; name one with /sessions/{id}/ in the path or an X-Session-Id header",
                param="session",
            )
        return SessionName(session_id=session_id)


def _key(headers: Headers) -> str:
    key = key_from_headers(headers)
    if key is None:
        raise Unauthenticated(f"Missing or malformed Authorization header; {_HOW}")
    return key

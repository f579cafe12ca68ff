"""Errors as clients see them: OpenAI-shaped bodies, `Retry-After`, and the few HTTP faults that no other service knows."""

from __future__ import annotations

import math

import msgspec

from rlrun.errors import Internal, RlrunError


class HttpError(Exception):
    """A fault of the HTTP exchange itself."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        openai_type: str = "invalid_request_error",
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message)
        self.http_status = status
        self.code = code
        self.message = message
        self.openai_type = openai_type
        self.headers = headers
        self.param: str | None = None
        self.retry_after_seconds: float | None = None


def error_object(error: RlrunError | HttpError) -> dict[str, object]:
    return {"message": error.message, "type": error.openai_type, "param": error.param, "code": error.code}


def error_body(error: RlrunError | HttpError, *, detail: object = None) -> bytes:
    """The JSON body; `detail` is what older clients of the control routes read."""
    body: dict[str, object] = {"error": error_object(error)}
    if detail is not None:
        body["detail"] = detail
    return msgspec.json.encode(body)


def error_headers(error: RlrunError | HttpError) -> list[tuple[bytes, bytes]]:
    headers: list[tuple[bytes, bytes]] = []
    if error.retry_after_seconds is not None and error.http_status in (429, 503):
        # The header takes whole seconds; the SDKs' own header takes milliseconds.
        headers.append((b"retry-after", str(max(1, math.ceil(error.retry_after_seconds))).encode()))
        headers.append((b"retry-after-ms", str(round(error.retry_after_seconds * 1000)).encode()))
    if error.http_status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, HttpError):
        headers.extend(error.headers)
    return headers


def internal_error(request_id: str) -> Internal:
    """What a client learns of a bug: the id under which the log has the rest."""
    return Internal(f"Internal error. The gateway's log has the cause under request id {request_id}.")

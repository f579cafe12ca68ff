"""The one tree of errors. Each class has a stable `code`, an HTTP status, a gRPC status and an OpenAI error type.

RlrunError
├── ClientError                 the caller must change something
│   ├── InvalidRequest          400  invalid_request
│   │   ├── ContextLengthExceeded 400 context_length_exceeded
│   │   └── ConfigError         400  invalid_config
│   ├── Unauthenticated         401  invalid_api_key
│   ├── PermissionDenied        403  permission_denied
│   ├── NotFound                404  not_found
│   ├── Conflict                409  conflict
│   ├── SessionGone             410  session_gone
│   └── RequestTooLarge         413  request_too_large
├── Overloaded                  the caller may try again later (Retry-After)
│   ├── NoCapacity              429  no_capacity
│   └── RefreshTimeout          429  refresh_timeout
├── Unavailable                 503  unavailable
│   ├── StoreUnavailable        503  store_unavailable
│   └── NoMember                503  no_member
├── SessionMoved                an owner lost its lease; callers resolve again (never seen by clients)
├── DeadlineExceeded            504  deadline_exceeded
└── Internal                    500  internal
"""

from __future__ import annotations

from typing import ClassVar

import grpc


class RlrunError(Exception):
    """Base of all errors that cross a boundary.

    `message` says what, where, the limit and the remedy. `param` names the offending field of the request.
    `retry_after_seconds` is set where trying again later can help.
    """

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL
    openai_type: ClassVar[str] = "server_error"
    default_retry_after_seconds: ClassVar[float | None] = None

    def __init__(self, message: str, *, param: str | None = None, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_seconds = retry_after_seconds if retry_after_seconds is not None else self.default_retry_after_seconds


class ClientError(RlrunError):
    code = "invalid_request"
    http_status = 400
    grpc_status = grpc.StatusCode.INVALID_ARGUMENT
    openai_type = "invalid_request_error"


class InvalidRequest(ClientError):
    """Wrong shape, type or value of a field."""


class ContextLengthExceeded(InvalidRequest):
    """The prompt does not fit the model or the request's own bound."""

    code = "context_length_exceeded"


class ConfigError(InvalidRequest):
    """The RLRun document or a process variable is wrong."""

    code = "invalid_config"


class Unauthenticated(ClientError):
    code = "invalid_api_key"
    http_status = 401
    grpc_status = grpc.StatusCode.UNAUTHENTICATED


class PermissionDenied(ClientError):
    code = "permission_denied"
    http_status = 403
    grpc_status = grpc.StatusCode.PERMISSION_DENIED


class NotFound(ClientError):
    code = "not_found"
    http_status = 404
    grpc_status = grpc.StatusCode.NOT_FOUND


class Conflict(ClientError):
    code = "conflict"
    http_status = 409
    grpc_status = grpc.StatusCode.ALREADY_EXISTS


class SessionGone(ClientError):
    """The session ended or expired."""

    code = "session_gone"
    http_status = 410
    grpc_status = grpc.StatusCode.FAILED_PRECONDITION


class RequestTooLarge(ClientError):
    code = "request_too_large"
    http_status = 413
    grpc_status = grpc.StatusCode.OUT_OF_RANGE


class Overloaded(RlrunError):
    code = "overloaded"
    http_status = 429
    grpc_status = grpc.StatusCode.RESOURCE_EXHAUSTED
    openai_type = "rate_limit_error"
    default_retry_after_seconds = 1.0


class NoCapacity(Overloaded):
    """Admission refused a new session: staleness budget, concurrency or granted capacity is used up."""

    code = "no_capacity"


class RefreshTimeout(Overloaded):
    """The old session ended, the new one was not admitted in time; the key stays valid."""

    code = "refresh_timeout"


class Unavailable(RlrunError):
    code = "unavailable"
    http_status = 503
    grpc_status = grpc.StatusCode.UNAVAILABLE
    default_retry_after_seconds = 1.0


class StoreUnavailable(Unavailable):
    """Redis did not answer in time."""

    code = "store_unavailable"


class NoMember(Unavailable):
    """No live member of the needed role."""

    code = "no_member"


class SessionMoved(RlrunError):
    """The fencing number is not the session's current one, or the lease is lost: resolve again."""

    code = "session_moved"
    http_status = 503
    grpc_status = grpc.StatusCode.ABORTED
    default_retry_after_seconds = 0.1


class DeadlineExceeded(RlrunError):
    code = "deadline_exceeded"
    http_status = 504
    grpc_status = grpc.StatusCode.DEADLINE_EXCEEDED


class Internal(RlrunError):
    pass


def _tree(root: type[RlrunError]) -> list[type[RlrunError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _tree(child))]


# Subclasses that share a code (InvalidRequest, ClientError) resolve to the most specific one.
BY_CODE: dict[str, type[RlrunError]] = {cls.code: cls for cls in _tree(RlrunError)}

"""Descriptors to method tables: the one place that knows how interface names and errors map to gRPC."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from rlrun.errors import BY_CODE, DeadlineExceeded, Internal, RlrunError, Unavailable
from rlrun.proto import common_pb2

ERROR_TRAILER = "rlrun-error-bin"
TOKEN_HEADER = "authorization"
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.so_reuseport", 0),
]


@dataclass(frozen=True)
class Method:
    """One RPC: its path on the wire, its name in the Python interface, its message classes."""

    path: str
    attribute: str
    request_class: Any
    response_class: Any
    streams: bool


def methods(service: ServiceDescriptor) -> Iterator[Method]:
    for method in service.methods:
        attribute = re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower()
        yield Method(
            path=f"/{service.full_name}/{method.name}",
            attribute="continue_" if attribute == "continue" else attribute,
            request_class=GetMessageClass(method.input_type),
            response_class=GetMessageClass(method.output_type),
            streams=method.server_streaming,
        )


def error_to_trailer(error: RlrunError) -> tuple[tuple[str, bytes], ...]:
    detail = common_pb2.ErrorDetail(
        code=error.code, message=error.message, param=error.param or "", retry_after_seconds=error.retry_after_seconds or 0.0
    )
    return ((ERROR_TRAILER, detail.SerializeToString()),)


def error_from_rpc(error: grpc.aio.AioRpcError, *, peer: str) -> RlrunError:
    """The error that the other side raised, or what its absence means."""
    for name, value in error.trailing_metadata() or ():
        if name == ERROR_TRAILER:
            detail = common_pb2.ErrorDetail.FromString(value if isinstance(value, bytes) else value.encode("latin-1"))
            return BY_CODE.get(detail.code, Internal)(
                detail.message, param=detail.param or None, retry_after_seconds=detail.retry_after_seconds or None
            )
    status, details = error.code(), error.details()
    if status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return Unavailable(f"{peer} cannot be reached: {details}")
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(f"{peer} did not answer in time: {details}")
    return Internal(f"{peer} answered {status.name}: {details}")

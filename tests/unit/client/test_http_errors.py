from __future__ import annotations

import json

import pytest

from rlrun.client import AsyncSessionClient
from rlrun.client._http import error_from
from rlrun.errors import (
    ConfigError,
    Conflict,
    ContextLengthExceeded,
    DeadlineExceeded,
    Internal,
    InvalidRequest,
    NoCapacity,
    Overloaded,
    RlrunError,
    SessionGone,
    Unavailable,
)


def body(code: str, message: str = "why") -> bytes:
    return json.dumps({"error": {"message": message, "type": "t", "param": "field", "code": code}}).encode()


@pytest.mark.parametrize(
    ("status", "content", "kind"),
    [
        (429, body("no_capacity"), NoCapacity),
        (409, body("conflict"), Conflict),
        (410, body("session_gone"), SessionGone),
        (400, body("context_length_exceeded"), ContextLengthExceeded),
        (422, body("invalid_request"), InvalidRequest),
        (404, body("unknown_path"), RlrunError),
        (502, b"<html>bad gateway</html>", Unavailable),
        (408, b"", DeadlineExceeded),
        (429, b"slow down", Overloaded),
        (503, b'{"error": "text"}', Unavailable),
        (500, b"[1, 2]", Internal),
        (418, b"{}", InvalidRequest),
    ],
)
def test_an_answer_becomes_the_error_of_its_code_or_else_of_its_status(status: int, content: bytes, kind: type[RlrunError]) -> None:
    assert isinstance(error_from(status, {}, content, where="POST /x"), kind)


def test_message_says_where_and_why() -> None:
    error = error_from(409, {}, body("conflict", "the key is bound"), where="POST /rl/start_session")
    assert str(error) == "POST /rl/start_session answered 409: the key is bound"
    assert error.param == "field"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "1", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, 1.0),
        ({"retry-after": "-5"}, 1.0),
        ({"retry-after": "inf"}, 1.0),
        ({}, 1.0),
    ],
)
def test_retry_after_is_read_in_seconds_and_nonsense_falls_back_to_the_error_s_own(headers: dict[str, str], seconds: float) -> None:
    assert error_from(429, headers, body("no_capacity"), where="").retry_after_seconds == seconds


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8080", "ftp://host", "http://", "http://host:port", "http://host:99999", "http://a b", "http://host/\n", "http://[::1"],
)
def test_a_client_refuses_what_is_no_url(url: str) -> None:
    with pytest.raises(ConfigError, match="no URL of the form"):
        AsyncSessionClient(url)


@pytest.mark.parametrize("url", ["http://user:secret@host", "http://host?api_key=secret", "http://host#secret"])
def test_a_client_refuses_a_url_with_more_than_an_address_and_does_not_repeat_it(url: str) -> None:
    with pytest.raises(ConfigError, match="keys go into headers") as refused:
        AsyncSessionClient(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", ["http://host:8080", "https://host/", "http://host/v1", "http://[::1]:8080/v1/"])
def test_a_clients_url_may_end_with_v1_or_a_slash(url: str) -> None:
    assert AsyncSessionClient(url).root_url == url.rstrip("/").removesuffix("/v1")


@pytest.mark.parametrize("keys", [{"admin_key": "two\nlines"}, {"api_key": ""}])
def test_a_client_refuses_what_cannot_be_a_key(keys: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="no key") as refused:
        AsyncSessionClient("http://host", **keys)
    assert refused.value.param in keys

import pytest

from rlrun.auth import key_from_headers, read_key_file
from rlrun.errors import ConfigError


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ([(b"authorization", b"Bearer abc")], "abc"),
        ([(b"authorization", b"bearer abc ")], "abc"),
        ([(b"x-api-key", b"abc")], "abc"),
        ([(b"x-api-key", b"second"), (b"authorization", b"Bearer first")], "first"),
        ([(b"authorization", b"Basic abc")], None),
        ([(b"authorization", b"Bearer ")], None),
        ([], None),
    ],
)
def test_key_comes_from_either_header(headers: list[tuple[bytes, bytes]], key: str | None) -> None:
    assert key_from_headers(headers) == key


def test_missing_key_file_names_the_variable(tmp_path) -> None:
    with pytest.raises(ConfigError, match="RLRUN_ADMIN_KEY_FILE"):
        read_key_file(tmp_path / "absent", variable="RLRUN_ADMIN_KEY_FILE")

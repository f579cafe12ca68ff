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


@pytest.mark.parametrize("content", [b"", b" \n", b"one\ntwo\n", b"a b", b"a\x00", b"\xff\xfe", "schlüssel".encode(), b"k" * 513])
def test_a_key_file_without_one_usable_key_is_refused_and_not_repeated(tmp_path, content: bytes) -> None:
    (file := tmp_path / "admin.key").write_bytes(content)
    with pytest.raises(ConfigError, match=r"RLRUN_ADMIN_KEY_FILE=.*admin\.key: (the file is empty|no key)") as refused:
        read_key_file(file, variable="RLRUN_ADMIN_KEY_FILE")
    assert content.decode("latin-1").strip() not in refused.value.message or not content.strip()


def test_a_key_file_may_end_with_a_line_break(tmp_path) -> None:
    (file := tmp_path / "admin.key").write_bytes(b"sk-1\r\n")
    assert read_key_file(file, variable="RLRUN_ADMIN_KEY_FILE") == "sk-1"

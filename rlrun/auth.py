"""Keys: hashing, constant-time comparison, reading them from files and headers."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from pathlib import Path

from rlrun.errors import ConfigError

# What a header can carry, no longer than the gateway takes for a session.
_KEY = re.compile(r"[\x21-\x7e]{1,512}")


def key_hash(key: str) -> str:
    """SHA-256 in hex: what Redis keeps of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


def keys_equal(left: str, right: str) -> bool:
    return hmac.compare_digest(left.encode(), right.encode())


def read_key_file(path: str | Path, *, variable: str) -> str:
    """Reads a secret from a file.

    Raises:
        ConfigError: the file is missing or empty, or holds no key; names the variable that pointed to it.
    """
    where = f"{variable}={path}"
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{where}: {error.strerror}; write the key into that file", param=variable) from error
    key = content.decode("latin-1").strip()
    if not key:
        raise ConfigError(f"{where}: the file is empty; write the key into it", param=variable)
    return check_key(key, where=where, param=variable)


def check_key(key: str, *, where: str, param: str) -> str:
    """The key itself.

    Raises:
        ConfigError: what is there cannot be a key. The message does not repeat it.
    """
    if not _KEY.fullmatch(key):
        raise ConfigError(f"{where}: no key; a key is one line of at most 512 printable ASCII characters without spaces", param=param)
    return key


def key_from_headers(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The key of `Authorization: Bearer ...`, else of `x-api-key`; names are lower-case, as ASGI gives them."""
    api_key: str | None = None
    for name, value in headers:
        if name == b"authorization":
            scheme, _, token = value.decode("latin-1").partition(" ")
            if scheme.lower() == "bearer" and token.strip():
                return token.strip()
        elif name == b"x-api-key" and value.strip():
            api_key = value.decode("latin-1").strip()
    return api_key

"""Keys: hashing, constant-time comparison, reading them from files and headers."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from rlrun.errors import ConfigError


def key_hash(key: str) -> str:
    """SHA-256 in hex: what Redis keeps of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


def keys_equal(left: str, right: str) -> bool:
    return hmac.compare_digest(left.encode(), right.encode())


def read_key_file(path: str | Path, *, variable: str) -> str:
    """Reads a secret from a file.

    Raises:
        ConfigError: the file is missing or empty; names the variable that pointed to it.
    """
    try:
        key = Path(path).read_text().strip()
    except OSError as error:
        raise ConfigError(f"{variable}={path}: {error.strerror}; write the key into that file", param=variable) from error
    if not key:
        raise ConfigError(f"{variable}={path}: the file is empty; write the key into it", param=variable)
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

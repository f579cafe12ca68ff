"""Weight directories: what the trainer publishes and workers load, a manifest beside safetensors files. Needs no torch.

The fingerprint names the exact weights: two processes serve the same policy if and only if their fingerprints are equal.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rlrun.errors import InvalidRequest

MANIFEST_NAME = "manifest.json"
MAX_MANIFEST_BYTES = 16 * 1024 * 1024


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a version directory says about itself. `files` maps each other file's name to the SHA-256 (hex) of its bytes."""

    version: int
    parent: int | None = None
    step: int
    lineage: str = ""
    fingerprint: str
    files: dict[str, str]
    trajectory_ids: list[str] = []


class Fingerprint:
    """SHA-256 over tensors, to be added in the order of their names, as stored: a cast changes the fingerprint, a tied weight counts once.

    Per tensor: UTF-8 of ``name NUL dtype NUL shape NUL`` (dtype as in ``float32``, shape as in ``128,64``), then the row-major
    little-endian bytes.
    """

    def __init__(self) -> None:
        assert sys.byteorder == "little", "fingerprints hash little-endian bytes"
        self._digest = hashlib.sha256()

    def add(self, name: str, dtype: str, shape: Sequence[int], data: bytes | memoryview) -> None:
        self._digest.update(f"{name}\0{dtype}\0{','.join(map(str, shape))}\0".encode())
        self._digest.update(data)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def read_manifest(directory: Path) -> Manifest:
    """Raises: InvalidRequest when the manifest is missing, too large or malformed."""
    path = directory / MANIFEST_NAME
    try:
        size = path.stat().st_size
        if size > MAX_MANIFEST_BYTES:
            raise InvalidRequest(f"{path} has {size} bytes; at most {MAX_MANIFEST_BYTES} are allowed", param="path")
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror}", param="path") from error
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"{path} is not a weight manifest: {error}", param="path") from error


def write_manifest(directory: Path, manifest: Manifest) -> None:
    (directory / MANIFEST_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of the file's bytes. Raises: InvalidRequest for a file that cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror}", param="path") from error

"""Weight directories: `manifest.json` + safetensors files. Nothing here unpickles.

The fingerprint names the exact weights: two processes serve the same policy if and only if their fingerprints are equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rlrun.errors import InvalidRequest

MANIFEST_NAME = "manifest.json"
MAX_MANIFEST_BYTES = 16 * 1024 * 1024


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What the trainer says about a version. `files`: safetensors file name -> sha256 (hex) of its bytes."""

    version: int
    parent: int | None = None
    step: int
    fingerprint: str
    files: dict[str, str]


def weight_fingerprint(state: Mapping[str, Tensor]) -> str:
    """Hex sha256 over the tensors in the order of their names.

    Per tensor: UTF-8 of ``name NUL dtype NUL shape NUL`` (dtype as in ``float32``, shape as in ``128,64``), then the
    row-major little-endian bytes. The dtype is the stored one, so a cast changes the fingerprint.
    """
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().to("cpu").contiguous()
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape = ",".join(str(size) for size in tensor.shape)
        digest.update(f"{name}\0{dtype}\0{shape}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


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


def read_verified(directory: Path) -> tuple[Manifest, dict[str, Tensor]]:
    """Read a weight directory into CPU memory and check every checksum.

    Raises: InvalidRequest naming the file or the fingerprint that does not match.
    """
    manifest = read_manifest(directory)
    if not manifest.files:
        raise InvalidRequest(f"{directory / MANIFEST_NAME} lists no files", param="path")
    state: dict[str, Tensor] = {}
    for name, wanted in sorted(manifest.files.items()):
        # A name with a directory part could read outside the weight store.
        if Path(name).name != name:
            raise InvalidRequest(f"manifest names file {name!r}; only plain names are allowed", param="path")
        actual = _file_sha256(directory / name)
        if actual != wanted:
            raise InvalidRequest(f"{directory / name} has sha256 {actual}, the manifest says {wanted}", param="path")
        if name.endswith(".safetensors"):
            state.update(_read_safetensors(directory / name))
    fingerprint = weight_fingerprint(state)
    if fingerprint != manifest.fingerprint:
        raise InvalidRequest(
            f"weights in {directory} have fingerprint {fingerprint}, the manifest says {manifest.fingerprint}", param="path"
        )
    return manifest, state


def read_safetensors_directory(directory: Path) -> dict[str, Tensor]:
    """All tensors of a model directory without a manifest (a downloaded model). Raises: InvalidRequest when there are none."""
    paths = sorted(directory.glob("*.safetensors"))
    if not paths:
        raise InvalidRequest(f"{directory} holds no .safetensors file; other weight formats are not read", param="path")
    return {name: tensor for path in paths for name, tensor in _read_safetensors(path).items()}


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - safe_open is no mapping
    except (OSError, SafetensorError) as error:
        raise InvalidRequest(f"cannot read {path}: {error}", param="path") from error


def _file_sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror}", param="path") from error

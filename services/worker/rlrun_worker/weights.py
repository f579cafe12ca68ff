"""Reads weight directories and checks what they say about themselves. Nothing here unpickles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rlrun.errors import InvalidRequest
from rlrun.weights import MANIFEST_NAME, Fingerprint, Manifest, file_sha256, read_manifest


def weight_fingerprint(state: Mapping[str, Tensor]) -> str:
    """The fingerprint of tensors in memory."""
    fingerprint = Fingerprint()
    for name in sorted(state):
        tensor = state[name].detach().to("cpu").contiguous()
        fingerprint.add(name, str(tensor.dtype).removeprefix("torch."), tensor.shape, tensor.reshape(-1).view(torch.uint8).numpy().data)
    return fingerprint.hexdigest()


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
        actual = file_sha256(directory / name)
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

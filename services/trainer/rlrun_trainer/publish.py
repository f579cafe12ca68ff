"""Policy versions for the workers: `policy/<version>/`, a Hugging Face directory with a manifest, renamed into place.

Fingerprint of weights (trainer and workers compute it alike): SHA-256, fed per tensor in the order of the names with

    name, NUL, dtype such as "float32", NUL, shape such as "128,64" (a scalar: nothing), NUL, bytes

where text is UTF-8 and bytes are the row-major CPU tensor viewed as uint8, little-endian. The tensors are those of the saved files with
their stored dtype: a tied weight counts once, under the name it is saved by.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from rlrun.errors import InvalidRequest
from rlrun_trainer.files import atomic_directory, file_sha256

MANIFEST_NAME = "manifest.json"
WEIGHTS_NAME = "model.safetensors"
# Weights of the source directory in any format; everything else (configuration, tokenizer, template) is copied as it is.
_WEIGHT_SUFFIXES = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf", ".h5", ".msgpack")


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a version directory says about itself. `files` maps each other file's name to the SHA-256 of its bytes."""

    version: int
    parent: int | None
    step: int
    lineage: str
    fingerprint: str
    files: dict[str, str]
    trajectory_ids: list[str]


def weight_fingerprint(state: Mapping[str, Tensor]) -> str:
    """Hex SHA-256 that two processes share if and only if they hold the same weights; order in the module's docstring."""
    assert sys.byteorder == "little", "fingerprints hash little-endian bytes"
    digest = hashlib.sha256()
    for name in sorted(state):
        _add_tensor(digest, name, state[name])
    return digest.hexdigest()


def file_fingerprint(path: Path) -> str:
    """`weight_fingerprint` of a safetensors file, with one tensor in memory at a time."""
    digest = hashlib.sha256()
    with safe_open(path, framework="pt", device="cpu") as file:
        for name in sorted(file.keys()):
            _add_tensor(digest, name, file.get_tensor(name))
    return digest.hexdigest()


def publish(
    root: Path,
    model: nn.Module,
    source: Path,
    *,
    version: int,
    parent: int | None,
    step: int,
    lineage: str,
    trajectory_ids: Sequence[str],
) -> tuple[Path, Manifest]:
    """Writes `root/<version>/` and returns it with its manifest.

    `source` is the directory of the initial model: its configuration and tokenizer go with every version, and weights keep the dtype
    it names. Raises InvalidRequest if the version is there already: a number is never used for other weights.
    """
    target = root / str(version)
    if target.exists():
        raise InvalidRequest(f"policy version {version} exists in {root}; a version is never written twice, take the next number")
    with atomic_directory(target) as scratch:
        for path in sorted(source.iterdir()):
            if path.is_file() and path.name != MANIFEST_NAME and not path.name.endswith(_WEIGHT_SUFFIXES):
                shutil.copyfile(path, scratch / path.name)
        _save_weights(model, scratch / WEIGHTS_NAME, _source_dtype(source))
        manifest = Manifest(
            version=version,
            parent=parent,
            step=step,
            lineage=lineage,
            fingerprint=file_fingerprint(scratch / WEIGHTS_NAME),
            files={path.name: file_sha256(path) for path in sorted(scratch.iterdir())},
            trajectory_ids=list(trajectory_ids),
        )
        (scratch / MANIFEST_NAME).write_text(json.dumps(asdict(manifest), indent=1))
    return target, manifest


def read_manifest(directory: Path) -> Manifest:
    return Manifest(**json.loads((directory / MANIFEST_NAME).read_text()))


def prune_versions(root: Path, keep: int) -> None:
    """Deletes all but the `keep` newest versions."""
    versions = sorted((int(path.name) for path in root.iterdir() if path.name.isdigit()), reverse=True)
    for version in versions[keep:]:
        shutil.rmtree(root / str(version))


def _add_tensor(digest: Any, name: str, tensor: Tensor) -> None:
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape = ",".join(str(size) for size in tensor.shape)
    digest.update(f"{name}\0{dtype}\0{shape}\0".encode())
    digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _source_dtype(source: Path) -> torch.dtype:
    config = json.loads((source / "config.json").read_text())
    name = config.get("dtype") or config.get("torch_dtype") or "float32"
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _save_weights(model: Any, path: Path, dtype: torch.dtype) -> None:
    """In the names and layout of the hub's files, which `save_pretrained` knows; its configuration is dropped for the source's own."""
    state = {name: tensor.detach().to("cpu", dtype) for name, tensor in model.state_dict(keep_vars=True).items()}
    scratch = path.parent / "saved"
    model.save_pretrained(scratch, state_dict=state, max_shard_size="1000GB")
    (scratch / WEIGHTS_NAME).rename(path)
    shutil.rmtree(scratch)

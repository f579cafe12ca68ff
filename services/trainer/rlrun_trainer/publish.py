"""Policy versions for the workers: `policy/<version>/`, a Hugging Face directory with a manifest, renamed into place."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from rlrun.errors import InvalidRequest
from rlrun.weights import MANIFEST_NAME, Fingerprint, Manifest, file_sha256, write_manifest
from rlrun_trainer.files import atomic_directory

WEIGHTS_NAME = "model.safetensors"
# Weights of the source directory in any format; everything else (configuration, tokenizer, template) is copied as it is.
_WEIGHT_SUFFIXES = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf", ".h5", ".msgpack")


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
            fingerprint=_file_fingerprint(scratch / WEIGHTS_NAME),
            files={path.name: file_sha256(path) for path in sorted(scratch.iterdir())},
            trajectory_ids=list(trajectory_ids),
        )
        write_manifest(scratch, manifest)
    return target, manifest


def prune_versions(root: Path, keep: int) -> None:
    """Deletes all but the `keep` newest versions."""
    versions = sorted((int(path.name) for path in root.iterdir() if path.name.isdigit()), reverse=True)
    for version in versions[keep:]:
        shutil.rmtree(root / str(version))


def _file_fingerprint(path: Path) -> str:
    """Of a safetensors file, with one tensor in memory at a time."""
    fingerprint = Fingerprint()
    with safe_open(path, framework="pt", device="cpu") as file:
        for name in sorted(file.keys()):
            tensor = file.get_tensor(name).contiguous()
            fingerprint.add(name, str(tensor.dtype).removeprefix("torch."), tensor.shape, tensor.reshape(-1).view(torch.uint8).numpy().data)
    return fingerprint.hexdigest()


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

"""From a model URI to a directory with config.json, tokenizer files and safetensors."""

from __future__ import annotations

import importlib
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rlrun.errors import ConfigError

FIELD = "spec.model.uri"


def model_directory(uri: str) -> Path:
    """Returns the local directory of a model; downloads `hf://` models into the hub's cache.

    Raises:
        ConfigError: the scheme cannot be read by this process, or nothing is there.
    """
    parts = urlsplit(uri)
    if parts.scheme == "file":
        directory = Path(unquote(parts.netloc + parts.path))
    elif parts.scheme == "hf":
        hub = importlib.import_module("huggingface_hub")
        directory = Path(hub.snapshot_download(parts.netloc + parts.path))
    elif parts.scheme == "tiny":
        raise ConfigError(
            f"{FIELD}: {uri} is made by `rlrun up`; a service started by hand takes the made directory as file://", param=FIELD
        )
    else:
        raise ConfigError(f"{FIELD}: {uri}: {parts.scheme}:// cannot be read yet; mount the files and write file://", param=FIELD)
    if not (directory / "config.json").is_file():
        raise ConfigError(f"{FIELD}: {uri}: {directory} holds no config.json; point to a Hugging Face model directory", param=FIELD)
    return directory

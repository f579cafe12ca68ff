"""Makes a small model's directory: whole or not at all, and only once."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

NAMES = ("digits",)


def make_tiny_model(directory: str | os.PathLike[str], name: str = "digits", seed: int = 0) -> Path:
    """Returns `directory`, holding weights, configuration and tokenizer as `from_pretrained` reads them.

    A directory that already holds a model is left as it is. The work happens beside it and is renamed into place, so a reader or a second
    maker never sees half a model. Raises ValueError for an unknown name, FileExistsError where something else is in the way.
    """
    if name not in NAMES:
        raise ValueError(f"unknown small model {name!r}: known are {', '.join(NAMES)}")
    target = Path(directory).absolute()
    if _is_model(target):
        return target
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target} exists and holds no model: name another directory or remove it")
    # Imported here: a directory that is there already costs no torch.
    from rlrun_trainer.tiny.model import build_model
    from rlrun_trainer.tiny.tokenizer import build_tokenizer

    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        tokenizer = build_tokenizer()
        build_model(tokenizer, seed).save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        scratch.chmod(0o755)
        try:
            os.rename(scratch, target)
        except OSError:
            if not _is_model(target):  # not another maker that was faster
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _is_model(path: Path) -> bool:
    return (path / "config.json").is_file() and (path / "model.safetensors").is_file() and (path / "tokenizer.json").is_file()

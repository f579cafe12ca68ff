"""Directories that are whole or absent: written under another name, flushed to disk, renamed into place."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SCRATCH_PREFIX = "."


@contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """Yields a scratch directory beside `target`; on leaving without error it becomes `target`, durable against power loss.

    A `target` that exists is replaced. A process that dies leaves a scratch directory, which `remove_scratch` clears.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.parent / f"{SCRATCH_PREFIX}{target.name}.{uuid.uuid4().hex}"
    scratch.mkdir()
    try:
        yield scratch
        for path in sorted(scratch.rglob("*")):
            fsync(path)
        fsync(scratch)
        if target.exists():
            shutil.rmtree(target)
        os.rename(scratch, target)
        fsync(target.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def remove_scratch(parent: Path) -> None:
    """Deletes what an interrupted `atomic_directory` left. Call it where no other process writes."""
    for path in parent.glob(f"{SCRATCH_PREFIX}*"):
        if path.is_dir():
            shutil.rmtree(path)


def fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

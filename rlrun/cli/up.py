"""`rlrun up`: the whole loop on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlrun.cli.outcome import EXIT_MISUSED, CommandFailed
from rlrun.cli.validate import FileOption
from rlrun.spec import load


def up(
    file: FileOption,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="Data directory; wins over spec.local.directory.")] = None,
    port: Annotated[int | None, typer.Option("--port", min=0, max=65_535, help="Port of the gateway; 8080 when not given.")] = None,
) -> None:
    """Runs a document on this machine until Ctrl-C."""
    run = load(file)  # a wrong document is reported before anything heavy is imported or started
    engine = run.spec.worker.engine.name
    if engine != "torch":
        raise CommandFailed(
            f"{file}: spec.worker.engine.name: the adapter for {engine} is not available yet",
            next_step="set spec.worker.engine.name to torch",
            exit_code=EXIT_MISUSED,
        )
    from rlrun.local.supervisor import run_up

    raise typer.Exit(run_up(file, data_dir=data_dir, port=port))

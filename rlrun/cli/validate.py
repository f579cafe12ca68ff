"""`rlrun validate`: checks a document without starting anything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlrun.cli.outcome import JsonOption, print_json
from rlrun.spec import load

FileOption = Annotated[Path, typer.Option("-f", "--file", help="The RLRun document.")]


def validate(file: FileOption, as_json: JsonOption = False) -> None:
    """Checks an RLRun document and lists every fault."""
    run = load(file)
    if as_json:
        # With the defaults filled in: what the services will see.
        print_json(run.to_document())
        return
    trainer = run.spec.trainer
    training = f"{trainer.algorithm.name}, {trainer.total_steps} steps of {trainer.batch_size} sessions" if trainer else "records only"
    typer.echo(f"{file}: valid; run {run.metadata.name}, model {run.spec.model.uri}, engine {run.spec.worker.engine.name}, {training}")

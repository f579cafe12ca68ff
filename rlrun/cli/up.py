"""`rlrun up`: the whole loop on one machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from rlrun.cli.outcome import EXIT_MISUSED, CommandFailed
from rlrun.cli.validate import FileOption
from rlrun.spec import RunSpec, load


class _Fault(NamedTuple):
    field: str
    reason: str
    remedy: str


def up(
    file: FileOption,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="Data directory; wins over spec.local.directory.")] = None,
    port: Annotated[int | None, typer.Option("--port", min=1, max=65_535, help="Port of the gateway; 8080 when not given.")] = None,
    separate: Annotated[
        bool, typer.Option("--separate", help="A process per service and replica; else gateway, router and dataproxy share one.")
    ] = False,
) -> None:
    """Runs a document on this machine until Ctrl-C."""
    run = load(file)  # a wrong document is reported before anything heavy is imported or started
    for fault in _faults(run.spec, separate=separate):
        raise CommandFailed(f"{file}: spec.{fault.field}: {fault.reason}", next_step=fault.remedy, exit_code=EXIT_MISUSED)
    from rlrun.local.supervisor import run_up

    raise typer.Exit(run_up(file, data_dir=data_dir, port=port, separate=separate))


def _faults(spec: RunSpec, *, separate: bool) -> Iterator[_Fault]:
    """What is valid in a document, but not what `up` would run."""
    engine = spec.worker.engine.name
    if engine != "torch":
        yield _Fault("worker.engine.name", f"the adapter for {engine} is not available yet", "set spec.worker.engine.name to torch")
    for name, replicas in (("gateway", spec.gateway.replicas), ("router", spec.router.replicas), ("dataproxy", spec.dataproxy.replicas)):
        if replicas < 1 or (replicas > 1 and not separate):
            remedy = f"set spec.{name}.replicas to 1" + (", or add --separate" if replicas > 1 else "")
            yield _Fault(f"{name}.replicas", f"got {replicas}; `rlrun up` runs one {name}", remedy)
    if spec.agents:
        yield _Fault("agents", "agent workers are not available yet", "remove spec.agents and rollout.tasks; run the agent yourself")
    if spec.redis.embedded is None:
        field = "redis.url" if spec.redis.url is not None else "redis.secretRef"
        remedy = "write `redis: {embedded: {}}`, or start the services yourself with RLRUN_REDIS_URL"
        yield _Fault(field, "`rlrun up` always starts a Redis of its own", remedy)

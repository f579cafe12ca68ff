"""`rlrun export`: a finished session's trajectories as JSON."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rlrun.cli import gateway
from rlrun.cli.outcome import CommandFailed, JsonOption, print_json
from rlrun.cli.sessions import SessionArgument


class Style(StrEnum):
    INDIVIDUAL = "individual"
    CONCAT = "concat"


def export(
    session_id: SessionArgument,
    style: Annotated[Style, typer.Option("--style", help="individual: a row per interaction; concat: a row per leaf.")] = Style.INDIVIDUAL,
    discount: Annotated[float, typer.Option("--discount", min=0.0, max=1.0, help="Factor per interaction for earlier rewards.")] = 1.0,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File to write; standard output when not given.")] = None,
    url: gateway.UrlOption = gateway.DEFAULT_URL,
    admin_key_file: gateway.AdminKeyOption = None,
    timeout: gateway.TimeoutOption = 600.0,
    as_json: JsonOption = True,
) -> None:
    """Exports a finished session's trajectories (always JSON); waits for the session's end."""
    answer = gateway.call(
        "POST",
        url,
        "/export_trajectories",
        key=gateway.admin_key(admin_key_file),
        body={"session_id": session_id, "discount": discount, "style": style.value},
        timeout_seconds=timeout,
    )
    if output is None:
        print_json(answer)
        return
    try:
        output.write_text(json.dumps(answer, ensure_ascii=False), encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f"{output}: {error.strerror}", next_step="give a file that can be written with -o") from error
    typer.echo(f"wrote {output}", err=True)

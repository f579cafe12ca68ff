"""The commands and their order in `rlrun --help`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Annotated

import typer

import rlrun
from rlrun.cli import doctor, export, schema, session_control, sessions, status, up, validate, weights
from rlrun.cli.outcome import guarded


def build_app() -> typer.Typer:
    app = typer.Typer(
        name="rlrun",
        help="Trains a language-model agent while people use it.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich",
        pretty_exceptions_show_locals=False,
    )
    app.callback()(_root)
    # The supervisor comes with the extra `local`; a command without its code would only disappoint.
    if importlib.util.find_spec("rlrun.local.supervisor") is not None:
        _add(app, "up", up.up, "rlrun up -f examples/tiny-cpu.yaml")
    _add(app, "validate", validate.validate, "rlrun validate -f rlrun.yaml")
    _add(app, "schema", schema.schema, "rlrun schema > rlrun.schema.json")
    _add(app, "doctor", doctor.doctor, "rlrun doctor")
    _add(app, "status", status.status, "rlrun status --url http://127.0.0.1:8080")
    _add(app, "sessions", sessions.sessions, "rlrun sessions --state active --limit 20")
    session = typer.Typer(help="One session in detail.", no_args_is_help=True, rich_markup_mode="rich")
    _add(session, "show", sessions.show, "rlrun session show my-task-0")
    app.add_typer(session, name="session")
    _add(app, "start-session", session_control.start_session, "rlrun start-session my-task")
    _add(app, "set-reward", session_control.set_reward, "rlrun set-reward 1.0 --key-file session.key", negative_numbers=True)
    _add(app, "end-session", session_control.end_session, "rlrun end-session --key-file session.key")
    _add(app, "export", export.export, "rlrun export my-task-0 --style concat -o my-task-0.json")
    _add(app, "weights", weights.weights, "rlrun weights")
    return app


def _add(app: typer.Typer, name: str, function: Callable[..., None], example: str, *, negative_numbers: bool = False) -> None:
    # `-1.0` looks like an option; as an unknown one it is taken for the argument that it is.
    settings = {"ignore_unknown_options": negative_numbers}
    app.command(name, epilog=f"Example: [bold]{example}[/]", context_settings=settings)(guarded(function))


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(rlrun.__version__)
        raise typer.Exit


def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")] = False,
) -> None:
    """Trains a language-model agent while people use it."""

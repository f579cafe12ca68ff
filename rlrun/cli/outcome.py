"""How a command ends: 0 done, 1 failed, 2 the caller's mistake; errors say what happened and what to do next."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console

from rlrun.errors import ConfigError, RlrunError

EXIT_FAILED = 1
EXIT_MISUSED = 2

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]


class CommandFailed(Exception):
    """Ends a command with a message and a next step."""

    def __init__(self, message: str, *, next_step: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        self.exit_code = exit_code


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Turns the errors a command may raise into a message on stderr and an exit code."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except CommandFailed as error:
            _fail(error.message, error.next_step, error.exit_code)
        except ConfigError as error:
            _fail(error.message, "correct it; docs/configuration.md describes every field", EXIT_MISUSED)
        except RlrunError as error:
            _fail(error.message, "see the logs of the services", EXIT_FAILED)

    return run


def _fail(message: str, next_step: str, exit_code: int) -> None:
    typer.echo(f"error: {message}\n  next: {next_step}", err=True)
    raise typer.Exit(exit_code)


def print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def console() -> Console:
    return Console(highlight=False)

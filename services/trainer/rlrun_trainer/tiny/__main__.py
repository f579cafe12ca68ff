"""`python -m rlrun_trainer.tiny DIRECTORY`: makes the small model there, unless it is there already."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rlrun_trainer.tiny.make import make_tiny_model


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rlrun_trainer.tiny", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--name", default="digits", help="which model (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights (default: %(default)s)")
    arguments = parser.parse_args(argv)
    try:
        path = make_tiny_model(arguments.directory, name=arguments.name, seed=arguments.seed)
    except (ValueError, FileExistsError) as error:
        parser.error(str(error))
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The `rlrun` command: registers one function per file of this folder."""

from __future__ import annotations

import importlib.util
import sys


def main() -> None:
    missing = [name for name in ("typer", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        sys.stderr.write(f"error: the command line needs {' and '.join(missing)}\n  next: pip install 'rlrun[cli]'\n")
        raise SystemExit(1)
    try:
        from rlrun.cli.app import build_app

        build_app()()
    except KeyboardInterrupt:  # while modules are imported; the commands themselves end as they see fit
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()

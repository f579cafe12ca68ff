"""`make demo`: starts the whole loop on this machine and trains the tiny model with a real agent until it has learnt the task."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from rlrun.errors import RlrunError
from rlrun.local.supervisor import LocalStack, free_port

ROOT = Path(__file__).resolve().parent.parent


def seeded(document: Path, seed: int, directory: Path) -> Path:
    """A copy of the document with another seed of the training; the initial weights stay."""
    content = yaml.safe_load(document.read_text())
    content["spec"]["trainer"]["seed"] = seed
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "rlrun.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--document", type=Path, default=ROOT / "examples/tiny-cpu.yaml", help="RLRun document")
    parser.add_argument("--data-dir", type=Path, default=ROOT / ".rlrun/demo", help="emptied first (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the training and the tasks")
    parser.add_argument("--separate", action="store_true", help="each service in a process of its own")
    arguments, rest = parser.parse_known_args()
    shutil.rmtree(arguments.data_dir, ignore_errors=True)
    try:
        print(f"starting the services; logs: {arguments.data_dir / 'logs'}", flush=True)
        document = seeded(arguments.document, arguments.seed, arguments.data_dir)
        with LocalStack(document, data_dir=arguments.data_dir, port=free_port(), separate=arguments.separate) as stack:
            command = [sys.executable, str(ROOT / "examples/digits/run.py"), "--url", stack.base_url]
            command += ["--admin-key-file", str(stack.admin_key_file), "--seed", str(arguments.seed)]
            code = subprocess.run([*command, "--output", str(arguments.data_dir), *rest], check=False).returncode
            dead = [child for child in stack.children if child.process is not None and child.process.poll() is not None]
            for child in dead:
                print(f"{child.name} ended early:\n{child.log_tail()}", file=sys.stderr)
            return code
    except RlrunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

"""Generates rlrun/proto/ from proto/rlrun/v1/ (`make proto`); `--check` fails if the committed code differs."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "proto"
TARGET = ROOT / "rlrun" / "proto"


def generate(out_dir: Path) -> dict[str, str]:
    """Returns file name -> text of the generated modules and stubs."""
    sources = sorted(str(path) for path in (SOURCE / "rlrun/v1").glob("*.proto"))
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{SOURCE}", f"--python_out={out_dir}", f"--mypy_out=quiet:{out_dir}", *sources],
        check=True,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"},
    )
    generated: dict[str, str] = {}
    for path in sorted((out_dir / "rlrun/v1").iterdir()):
        # The wire package is rlrun.v1, the Python package rlrun.proto.
        text = re.sub(r"\bfrom rlrun\.v1 import", "from rlrun.proto import", path.read_text())
        generated[path.name] = re.sub(r"\brlrun\.v1\.(\w+_pb2)\b", r"rlrun.proto.\1", text)
    return generated


def main() -> int:
    with tempfile.TemporaryDirectory() as temporary:
        generated = generate(Path(temporary))
    if "--check" in sys.argv[1:]:
        committed = {path.name: path.read_text() for path in TARGET.glob("*_pb2.py*")}
        stale = sorted(name for name in generated.keys() | committed.keys() if generated.get(name) != committed.get(name))
        if stale:
            print(f"rlrun/proto is stale: {', '.join(stale)}; run `make proto` and commit the result", file=sys.stderr)
            return 1
        return 0
    for name, text in generated.items():
        (TARGET / name).write_text(text)
    print(f"wrote {len(generated)} files to {TARGET.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

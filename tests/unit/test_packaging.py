"""What a built distribution holds: an editable installation does not show what is missing from it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the files in a wheel of this tree."""
    directory = tmp_path_factory.mktemp("wheel")
    tracked = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in tracked.splitlines():
        if name.startswith(("rlrun/", "services/", "pyproject.toml", "README.md", "LICENSE")) and (ROOT / name).is_file():
            target = directory / "source" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(directory), str(directory / "source")]
    built = subprocess.run(command, check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = directory.glob("*.whl")
    return set(zipfile.ZipFile(path).namelist())


def test_every_source_file_is_in_the_wheel(wheel: set[str]) -> None:
    expected = {path.relative_to(ROOT) for path in (ROOT / "rlrun").rglob("*") if path.suffix in (".py", ".lua", ".pyi", ".typed")}
    services = {path.relative_to(ROOT / "services") for path in (ROOT / "services").rglob("*.py")}
    expected |= {Path(*path.parts[1:]) for path in services}
    assert sorted(set(map(str, expected)) - wheel) == []

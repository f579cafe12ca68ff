import re
from pathlib import Path

import pytest

from rlrun.spec import load, loads

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_validates(path: Path) -> None:
    assert load(path).metadata.name


def test_there_are_examples() -> None:
    assert {"tiny-cpu.yaml", "qwen3-0.6b-sglang.yaml"} <= {path.name for path in EXAMPLES}


def test_the_yaml_of_the_configuration_page_validates() -> None:
    page = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    assert blocks
    for block in blocks:
        loads(block)

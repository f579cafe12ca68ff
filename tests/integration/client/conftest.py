from __future__ import annotations

import importlib.util
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
DIGITS = HERE.parents[2] / "examples" / "digits"


def load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


fake_gateway = load(HERE / "gateway.py", "client_fake_gateway")


@pytest.fixture
async def gateway() -> AsyncIterator[Any]:
    async with fake_gateway.serve() as served:
        yield served


@pytest.fixture(scope="session")
def digits_agent() -> ModuleType:
    return load(DIGITS / "agent.py", "digits_agent")

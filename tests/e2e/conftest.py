"""Documents small enough that one training step needs few sessions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from rlrun.local.supervisor import make_model

EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny-cpu.yaml"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """URI of a tiny model, made once for all tests."""
    return make_model("tiny://digits", tmp_path_factory.mktemp("model"))


@pytest.fixture
def small_document(tmp_path: Path, tiny_model: str) -> Callable[..., Path]:
    def make(*, batch_size: int, replicas: int = 1, keep_checkpoints: int | None = None) -> Path:
        document = yaml.safe_load(EXAMPLE.read_text())
        document["spec"]["model"]["uri"] = tiny_model
        document["spec"]["trainer"] |= {"batchSize": batch_size, "totalSteps": 100_000}
        document["spec"]["rollout"]["admission"] = "Unlimited"
        for service in ("gateway", "router", "dataproxy", "worker"):
            document["spec"].setdefault(service, {})["replicas"] = replicas
        if keep_checkpoints is not None:
            document["spec"]["trainer"]["checkpoint"] = {"keep": keep_checkpoints}
        path = tmp_path / "rlrun.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    return make

"""From the document to the engine: what fits, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rlrun_worker.app import engine_of
from rlrun_worker.torch_engine import TorchEngine

from rlrun import spec
from rlrun.errors import ConfigError


def run_spec(path: Path, **worker: Any) -> spec.RunSpec:
    document = {
        "apiVersion": "rlrun.dev/v1alpha1",
        "kind": "RLRun",
        "metadata": {"name": "r"},
        "spec": {"model": {"uri": f"file://{path}", "maxTotalTokens": 1000}, "worker": worker},
    }
    return spec.parse(document).spec


@pytest.mark.parametrize(("pool", "num_slots"), [(None, 8), (2500, 2), (100_000, 8)])
def test_the_pool_bounds_the_sequences_and_the_model_bounds_each(tmp_path: Path, pool: int | None, num_slots: int) -> None:
    (tmp_path / "config.json").write_text("{}")
    engine = engine_of(run_spec(tmp_path, engine={"maxRunning": 8, "maxTotalTokens": pool}))
    assert isinstance(engine, TorchEngine)
    assert (engine._options.num_slots, engine._options.max_len_tokens) == (num_slots, 1000)


@pytest.mark.parametrize(
    ("worker", "field"),
    [({"engine": {"name": "sglang"}}, "spec.worker.engine.name"), ({"updatePolicy": {"mode": "Drain"}}, "spec.worker.updatePolicy.mode")],
)
def test_what_has_no_effect_yet_is_refused(tmp_path: Path, worker: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=r"not available|no adapter") as caught:
        engine_of(run_spec(tmp_path, **worker))
    assert caught.value.param == field

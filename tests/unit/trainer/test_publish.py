"""A published version is a model directory that says exactly what it holds."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rlrun_trainer.model import load_model
from rlrun_trainer.publish import prune_versions, publish
from rlrun_trainer.rows import Row
from rlrun_trainer.step import Learner, train_step
from safetensors.torch import load_file

from rlrun.errors import InvalidRequest
from rlrun.weights import Manifest, file_sha256, read_manifest

Maker = Callable[..., Learner]
Rows = Callable[..., list[Row]]


def publish_version(root: Path, learner: Learner, source: Path, version: int = 1) -> tuple[Path, Manifest]:
    return publish(root, learner.model, source, version=version, parent=version - 1, step=3, lineage="l1", trajectory_ids=["t1", "t2"])


def test_published_directory(make_learner: Maker, make_rows: Rows, tiny_dir: Path, tmp_path: Path) -> None:
    learner = make_learner()
    train_step(learner, make_rows([7, 5]), step=0, policy_version=0)
    path, manifest = publish_version(tmp_path / "policy", learner, tiny_dir)
    assert path == tmp_path / "policy" / "1"
    assert read_manifest(path) == manifest
    assert (manifest.version, manifest.parent, manifest.step, manifest.lineage) == (1, 0, 3, "l1")
    assert manifest.trajectory_ids == ["t1", "t2"]
    assert manifest.files == {file.name: file_sha256(file) for file in path.iterdir() if file.name != "manifest.json"}
    assert manifest.files.keys() >= {"config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"}
    for name in ("config.json", "tokenizer.json", "chat_template.jinja"):
        assert (path / name).read_bytes() == (tiny_dir / name).read_bytes()
    loaded = load_model(path, torch.device("cpu"))
    for name, parameter in learner.model.named_parameters():
        assert torch.equal(parameter, loaded.get_parameter(name)), name


def test_tied_weights_are_saved_once(make_learner: Maker, tiny_dir: Path, tmp_path: Path) -> None:
    path, _ = publish_version(tmp_path / "policy", make_learner(), tiny_dir)
    assert load_file(path / "model.safetensors").keys() == load_file(tiny_dir / "model.safetensors").keys()


def test_weights_keep_the_dtype_of_the_initial_model(make_learner: Maker, tiny_dir: Path, tmp_path: Path) -> None:
    config: dict[str, Any] = json.loads((tiny_dir / "config.json").read_text())
    (tiny_dir / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    learner = make_learner()
    path, _ = publish_version(tmp_path / "policy", learner, tiny_dir)
    assert {tensor.dtype for tensor in load_file(path / "model.safetensors").values()} == {torch.bfloat16}
    assert next(learner.model.parameters()).dtype == torch.float32


def test_version_is_never_written_twice(make_learner: Maker, tiny_dir: Path, tmp_path: Path) -> None:
    publish_version(tmp_path / "policy", make_learner(), tiny_dir)
    with pytest.raises(InvalidRequest, match="never written twice"):
        publish_version(tmp_path / "policy", make_learner(), tiny_dir)


def test_failure_leaves_no_directory(make_learner: Maker, tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*args: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(shutil, "copyfile", crash)
    with pytest.raises(OSError, match="disk full"):
        publish_version(tmp_path / "policy", make_learner(), tiny_dir)
    assert list((tmp_path / "policy").iterdir()) == []


def test_newest_versions_are_kept(tmp_path: Path) -> None:
    for name in ("1", "2", "10", "other"):
        (tmp_path / name).mkdir()
    prune_versions(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["10", "2", "other"]

"""A resumed run makes the same next step, bit by bit; half a checkpoint does not exist."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rlrun_trainer.algorithms import algorithm_of
from rlrun_trainer.checkpoint import OPTIMIZER_NAME, STATE_NAME, CheckpointStore, TrainState
from rlrun_trainer.rows import Row
from rlrun_trainer.step import Learner, train_step

from rlrun.errors import ConfigError
from rlrun.spec.algorithm import PpoSpec

Maker = Callable[..., Learner]
Rows = Callable[..., list[Row]]


def state_at(step: int, parent: str | None = None) -> TrainState:
    return TrainState(step=step, policy_version=step, lineage="l1", parent=parent, trajectory_ids=[f"t{step}"], num_skipped_steps=2)


def test_resume_gives_bitwise_the_same_next_step(make_learner: Maker, make_rows: Rows, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "ckpt", keep=2)
    # Several minibatches are shuffled, so the random state matters.
    algorithm = algorithm_of(PpoSpec(minibatches=3, use_decoupled_loss=True))
    learner = make_learner(algorithm)
    torch.manual_seed(7)
    train_step(learner, make_rows([7, 5, 9, 6], seed=1), step=0, policy_version=0)
    store.save(state_at(1), learner.model, learner.optimizer)
    resumed = make_learner(algorithm)
    expected = train_step(learner, make_rows([8, 5, 6, 7], seed=2), step=1, policy_version=1)

    torch.manual_seed(99)
    path = store.latest()
    assert path is not None
    assert store.restore(path, resumed.model, resumed.optimizer) == state_at(1)
    metrics = train_step(resumed, make_rows([8, 5, 6, 7], seed=2), step=1, policy_version=1)
    assert metrics == expected | {"steps_skipped_total": 2.0}
    for name, parameter in learner.model.named_parameters():
        assert torch.equal(parameter, resumed.model.get_parameter(name)), name
    for key, tensor in learner.optimizer.state_tensors().items():
        assert torch.equal(tensor, resumed.optimizer.state_tensors()[key]), key


def test_checkpoint_before_the_first_step(make_learner: Maker, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "ckpt", keep=1)
    learner = make_learner()
    path = store.save(state_at(0), learner.model, learner.optimizer)
    assert store.restore(path, learner.model, learner.optimizer).step == 0


def test_newest_are_kept(make_learner: Maker, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "ckpt", keep=2)
    assert store.latest() is None
    learner = make_learner()
    for step in (1, 2, 10):
        store.save(state_at(step), learner.model, learner.optimizer)
    assert sorted(path.name for path in (tmp_path / "ckpt").iterdir()) == ["step-00000002", "step-00000010"]


@pytest.mark.parametrize("damage", ["missing file", "short file", "no state", "broken state"])
def test_half_written_directory_is_ignored(make_learner: Maker, tmp_path: Path, damage: str) -> None:
    store = CheckpointStore(tmp_path / "ckpt", keep=5)
    learner = make_learner()
    good = store.save(state_at(1), learner.model, learner.optimizer)
    bad = store.save(state_at(2), learner.model, learner.optimizer)
    if damage == "missing file":
        (bad / OPTIMIZER_NAME).unlink()
    elif damage == "short file":
        (bad / OPTIMIZER_NAME).write_bytes(b"x")
    elif damage == "no state":
        (bad / STATE_NAME).unlink()
    else:
        (bad / STATE_NAME).write_text('{"sizes_bytes": ')
    assert store.latest() == good


def test_crash_while_writing_leaves_nothing_visible(make_learner: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path / "ckpt", keep=5)
    learner = make_learner()
    good = store.save(state_at(1), learner.model, learner.optimizer)

    def crash(*args: object, **kwargs: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(json, "dumps", crash)
        with pytest.raises(OSError, match="disk full"):
            store.save(state_at(2), learner.model, learner.optimizer)
    assert store.latest() == good
    assert [path.name for path in (tmp_path / "ckpt").iterdir()] == [good.name]


def test_scratch_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    (tmp_path / "ckpt" / ".step-00000003.abc").mkdir(parents=True)
    store = CheckpointStore(tmp_path / "ckpt", keep=1)
    assert store.latest() is None
    store.remove_scratch()
    assert list((tmp_path / "ckpt").iterdir()) == []


def test_checkpoint_of_another_model_is_refused(make_learner: Maker, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "ckpt", keep=1)
    learner = make_learner()
    path = store.save(state_at(1), learner.model, learner.optimizer)
    other = torch.nn.Linear(2, 2)
    with pytest.raises(ConfigError, match="another model"):
        store.restore(path, other, learner.optimizer)


def test_nothing_is_pickled(make_learner: Maker, make_rows: Rows, tmp_path: Path) -> None:
    learner = make_learner()
    train_step(learner, make_rows([7, 5]), step=0, policy_version=0)
    path = CheckpointStore(tmp_path / "ckpt", keep=1).save(state_at(1), learner.model, learner.optimizer)
    assert {file.suffix for file in path.iterdir()} == {".safetensors", ".json"}

"""Checkpoints: one directory per step from which training goes on bit by bit; renamed into place, no pickle.

step-<step>/model.safetensors      weights in float32, a tied weight once
            optimizer.safetensors  moments and step counts, "<kind>:<parameter>"
            rng.safetensors        states of the random generators
            state.json             everything else, and the sizes of the files
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlrun.errors import ConfigError
from rlrun_trainer.files import atomic_directory, remove_scratch
from rlrun_trainer.optimizer import Optimizer

SCHEMA = 1
MODEL_NAME, OPTIMIZER_NAME, RNG_NAME, STATE_NAME = "model.safetensors", "optimizer.safetensors", "rng.safetensors", "state.json"
_DIRECTORY = re.compile(r"step-(\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainState:
    """Where training stands. `trajectory_ids` are those consumed since the parent checkpoint: they are acknowledged with this one."""

    step: int  # train steps done
    policy_version: int
    lineage: str
    parent: str | None  # name of the checkpoint this one continues
    trajectory_ids: list[str] = field(default_factory=list)
    num_skipped_steps: int = 0


class CheckpointStore:
    """Checkpoints of one run in one directory; one process writes."""

    def __init__(self, root: Path, *, keep: int) -> None:
        assert keep >= 1
        self._root = root
        self._keep = keep

    def save(self, state: TrainState, model: nn.Module, optimizer: Optimizer) -> Path:
        """Writes `step-<step>` and deletes all but the newest `keep`."""
        target = self._root / f"step-{state.step:08d}"
        with atomic_directory(target) as scratch:
            save_file(_weights(model), scratch / MODEL_NAME)
            save_file({key: tensor.cpu().contiguous() for key, tensor in optimizer.state_tensors().items()}, scratch / OPTIMIZER_NAME)
            save_file(_rng_state(), scratch / RNG_NAME)
            sizes = {path.name: path.stat().st_size for path in sorted(scratch.iterdir())}
            document = {"schema": SCHEMA, "sizes_bytes": sizes, **asdict(state)}
            (scratch / STATE_NAME).write_text(json.dumps(document, indent=1))
        for path in self._complete()[: -self._keep]:
            shutil.rmtree(path)
        return target

    def latest(self) -> Path | None:
        """The newest complete checkpoint, or None. A directory without all its files in full is passed over."""
        complete = self._complete()
        return complete[-1] if complete else None

    def restore(self, path: Path, model: nn.Module, optimizer: Optimizer) -> TrainState:
        """Puts a checkpoint's weights, moments and random states in place; training goes on as if it had not stopped.

        Raises ConfigError for a checkpoint of another model or of a later schema.
        """
        document = json.loads((path / STATE_NAME).read_text())
        if document.pop("schema") != SCHEMA:
            raise ConfigError(f"checkpoint {path} has another schema than {SCHEMA}; resume with the release that wrote it")
        document.pop("sizes_bytes")
        _load_weights(model, load_file(path / MODEL_NAME), path)
        optimizer.load_state_tensors(load_file(path / OPTIMIZER_NAME))
        state = TrainState(**document)
        optimizer.num_skipped = state.num_skipped_steps
        _set_rng_state(load_file(path / RNG_NAME))
        return state

    def remove_scratch(self) -> None:
        """Clears what a crash left half-written."""
        if self._root.is_dir():
            remove_scratch(self._root)

    def _complete(self) -> list[Path]:
        if not self._root.is_dir():
            return []
        found = [(int(match[1]), path) for path in self._root.iterdir() if (match := _DIRECTORY.fullmatch(path.name))]
        return [path for _, path in sorted(found) if _is_complete(path)]


def _is_complete(path: Path) -> bool:
    try:
        sizes = json.loads((path / STATE_NAME).read_text())["sizes_bytes"]
        return all((path / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError):
        return False


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters, where tied ones appear once. Buffers (rotary tables) follow from the configuration."""
    return {name: parameter.detach().cpu().contiguous() for name, parameter in model.named_parameters()}


@torch.no_grad()
def _load_weights(model: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    parameters = dict(model.named_parameters())
    wrong = sorted(parameters.keys() ^ tensors.keys()) or sorted(
        name for name, tensor in tensors.items() if tensor.shape != parameters[name].shape
    )
    if wrong:
        raise ConfigError(
            f"checkpoint {path} belongs to another model (parameter {wrong[0]} differs); "
            "name another trainer.checkpoint.directory or go back to the model it was made from",
            param="trainer.checkpoint.directory",
        )
    for name, tensor in tensors.items():
        parameters[name].copy_(tensor)


def _rng_state() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"cuda:{index}": state for index, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def _set_rng_state(states: dict[str, Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    for key, state in states.items():
        if key.startswith("cuda:") and torch.cuda.is_available() and int(key[5:]) < torch.cuda.device_count():
            torch.cuda.set_rng_state(state, int(key[5:]))

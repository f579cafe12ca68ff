"""From the document to a learner on this rank's device."""

from __future__ import annotations

from pathlib import Path

import torch

from rlrun.spec import Device, TrainerSpec
from rlrun_trainer.algorithms import algorithm_of
from rlrun_trainer.model import load_model
from rlrun_trainer.optimizer import Optimizer
from rlrun_trainer.ranks import join_ranks, local_device
from rlrun_trainer.step import Learner


def make_learner(spec: TrainerSpec, model_directory: Path) -> Learner:
    """Loads the initial weights; under torchrun, joins the other ranks."""
    torch.manual_seed(spec.seed)
    if spec.num_threads is not None:
        torch.set_num_threads(spec.num_threads)
    cuda = spec.device is Device.CUDA or (spec.device is Device.AUTO and torch.cuda.is_available())
    device = local_device(torch.device("cuda" if cuda else "cpu"))
    model = load_model(model_directory, device)
    return Learner(
        model=model,
        optimizer=Optimizer(model.named_parameters(), spec.optimizer, total_steps=spec.total_steps),
        algorithm=algorithm_of(spec.algorithm),
        packing=spec.packing,
        reference=load_model(model_directory, device) if spec.algorithm.kl_ctl > 0 else None,
        ranks=join_ranks(device),
    )

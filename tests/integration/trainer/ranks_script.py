"""Three train steps of a tiny model with a restart after the first, on as many ranks as torchrun starts. Run by test_ranks.py.

Rank 0 leads and writes weights and metrics; the others follow.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from rlrun_trainer.algorithms import algorithm_of
from rlrun_trainer.checkpoint import CheckpointStore, TrainState
from rlrun_trainer.model import load_model
from rlrun_trainer.optimizer import Optimizer
from rlrun_trainer.parallel import follow, lead_restore, lead_step, lead_stop
from rlrun_trainer.ranks import join_ranks
from rlrun_trainer.rows import Row
from rlrun_trainer.step import Learner
from safetensors.torch import save_file

from rlrun.spec.algorithm import GrpoSpec, NormSpec, RejectionSamplingSpec
from rlrun.spec.trainer import OptimizerSpec, PackingSpec

LENGTHS = (9, 17, 5, 12, 7, 8, 21)


def rows(seed: int) -> list[Row]:
    rng = np.random.default_rng(seed)
    made = []
    for number, length in enumerate(LENGTHS):
        mask = np.array([0, 0, *rng.integers(0, 2, length - 3), 1], dtype=np.int32)
        made.append(
            Row(
                input_ids=rng.integers(0, 23, length, dtype=np.int32),
                loss_mask=mask,
                logprobs=(-3.0 * rng.random(length) * mask).astype(np.float32),
                versions=np.where(mask == 1, 0, -1).astype(np.int32),
                reward=float(rng.random()),
                group_id=str(number % 3),
                session_id=str(number),
            )
        )
    return made


def main(model_dir: Path, out: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ranks = join_ranks(torch.device("cpu"))
    model = load_model(model_dir, torch.device("cpu"))
    spec = GrpoSpec(adv_norm=NormSpec(), use_decoupled_loss=True, rejection_sampling=RejectionSamplingSpec(lower=0.05), minibatches=2)
    learner = Learner(
        model=model,
        optimizer=Optimizer(model.named_parameters(), OptimizerSpec(lr=1e-3, eps=1e-4), total_steps=2),
        algorithm=algorithm_of(spec),
        packing=PackingSpec(max_tokens_per_row=32, max_tokens_per_microbatch=48),
        ranks=ranks,
    )
    store = CheckpointStore(out / "checkpoints", keep=1)
    if ranks.rank == 0:
        metrics = [lead_step(learner, rows(0), step=0, policy_version=0)]
        path = store.save(TrainState(step=1, policy_version=1, lineage="l", parent=None), model, learner.optimizer)
        lead_step(learner, rows(5), step=1, policy_version=1)  # lost: the next line goes back to before it
        lead_restore(learner, store, path)
        metrics.append(lead_step(learner, rows(1), step=1, policy_version=1))
        lead_stop(ranks)
        save_file({name: parameter.detach() for name, parameter in model.named_parameters()}, out / "weights.safetensors")
        (out / "metrics.json").write_text(json.dumps({"world_size": ranks.world_size, "steps": metrics}))
    else:
        follow(learner, store)
    if ranks.world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

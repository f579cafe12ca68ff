"""The trainer: batches, optimizer, packing, checkpoints, published versions."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from pydantic import Field

from rlrun.spec.algorithm import AlgorithmSpec, GrpoSpec
from rlrun.spec.base import Device, Directory, Fault, SpecModel, Threads, Tokens


class Schedule(StrEnum):
    CONSTANT = "Constant"
    LINEAR = "Linear"
    COSINE = "Cosine"


class OptimizerSpec(SpecModel):
    """AdamW. A step whose gradient norm is not finite is skipped and counted."""

    lr: float = Field(default=1e-5, gt=0, le=1, description="Learning rate after the warm-up.")
    weight_decay: float = Field(default=0.01, ge=0, le=1, description="Decoupled weight decay.")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="Decay of the first moment.")
    beta2: float = Field(default=0.999, ge=0, lt=1, description="Decay of the second moment.")
    eps: float = Field(default=1e-8, gt=0, le=1, description="Added to the root of the second moment.")
    gradient_clipping: float = Field(default=1.0, gt=0, description="Largest gradient norm; larger gradients are scaled down.")
    schedule: Schedule = Field(default=Schedule.CONSTANT, description="Course of the learning rate from warm-up to totalSteps.")
    warmup_steps: int = Field(default=0, ge=0, le=10_000_000, description="Steps over which the learning rate rises from 0.")


class PackingSpec(SpecModel):
    """How sequences share rows and microbatches."""

    max_tokens_per_row: Tokens = Field(default=32_768, description="Longest row; a longer sequence is discarded and counted.")
    max_tokens_per_microbatch: Tokens = Field(default=32_768, description="Tokens in one forward and backward pass; bounds memory.")

    def rules(self) -> Iterator[Fault]:
        if self.max_tokens_per_row > self.max_tokens_per_microbatch:
            yield Fault(
                "maxTokensPerRow",
                self.max_tokens_per_row,
                f"must be <= maxTokensPerMicrobatch ({self.max_tokens_per_microbatch}); lower it or raise maxTokensPerMicrobatch",
            )


class CheckpointSpec(SpecModel):
    """Weights, optimizer and position, from which training resumes after a crash."""

    every_steps: int = Field(default=1, ge=1, le=1_000_000, description="Steps between checkpoints; a crash repeats those in between.")
    keep: int = Field(default=3, ge=1, le=10_000, description="Checkpoints kept; older ones are deleted.")
    directory: Directory | None = Field(default=None, description="Where they lie; null: `checkpoints` in the data directory.")


class PublishSpec(SpecModel):
    """Policy versions for the workers."""

    every_steps: int = Field(default=1, ge=1, le=1_000_000, description="Steps between published versions.")
    keep: int = Field(default=8, ge=1, le=10_000, description="Published versions kept; older ones are deleted.")


class TrainerSpec(SpecModel):
    """Trajectories in, policy versions out."""

    algorithm: AlgorithmSpec = Field(default=GrpoSpec(), description="Reward to advantage, advantage to loss; fields depend on name.")
    batch_size: int = Field(default=4, ge=1, le=1_000_000, description="Trajectories (sessions) per step; groups count as their members.")
    total_steps: int = Field(default=100, ge=1, le=100_000_000, description="The run is complete after this many steps.")
    optimizer: OptimizerSpec = Field(default=OptimizerSpec(), description="AdamW and its learning rate.")
    packing: PackingSpec = Field(default=PackingSpec(), description="How sequences share rows and microbatches.")
    checkpoint: CheckpointSpec = Field(default=CheckpointSpec(), description="What a crash resumes from.")
    publish: PublishSpec = Field(default=PublishSpec(), description="Policy versions for the workers.")
    num_threads: Threads | None = Field(default=None, description="CPU threads of the trainer; null takes all cores.")
    device: Device = Field(default=Device.AUTO, description="Device of the trainer.")
    seed: int = Field(default=1, ge=0, le=2**31 - 1, description="Seed of everything random in training.")

    def rules(self) -> Iterator[Fault]:
        if self.algorithm.minibatches > self.batch_size:
            yield Fault(
                "algorithm.minibatches",
                self.algorithm.minibatches,
                f"must be <= batchSize ({self.batch_size}), so that no minibatch is empty; lower it or raise batchSize",
            )
        if self.optimizer.warmup_steps > self.total_steps:
            yield Fault(
                "optimizer.warmupSteps",
                self.optimizer.warmup_steps,
                f"must be <= totalSteps ({self.total_steps}); lower it or raise totalSteps",
            )

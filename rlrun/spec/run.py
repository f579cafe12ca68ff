"""The RLRun document as a whole, and the rules between its parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rlrun.spec.base import NAME_PATTERN, Fault, SpecModel
from rlrun.spec.rollout import RolloutSpec
from rlrun.spec.serving import AgentSpec, DataProxySpec, GatewaySpec, ModelSpec, RouterSpec, WorkerSpec
from rlrun.spec.storage import EmbeddedRedis, LocalSpec, RedisSpec, WeightsSpec
from rlrun.spec.trainer import TrainerSpec

API_VERSION = "rlrun.dev/v1alpha1"
KIND = "RLRun"
# Kubernetes object names end at 63 characters; the longest child is <run>-trainer-<attempt>-<index>-<random>.
MAX_NAME_LENGTH = 63 - len("-trainer-0000-000-00000")


class Metadata(SpecModel):
    """Of Kubernetes' metadata only what has a meaning on every platform."""

    name: str = Field(
        min_length=1,
        max_length=MAX_NAME_LENGTH,
        pattern=NAME_PATTERN,
        description="Name of the run, in Redis keys and Kubernetes objects: lower-case letters, digits, hyphens; a letter first.",
    )
    namespace: str | None = Field(default=None, max_length=63, description="Kubernetes namespace; without meaning elsewhere.")
    labels: dict[str, str] = Field(default={}, max_length=64, description="Kubernetes labels; without meaning elsewhere.")
    annotations: dict[str, str] = Field(default={}, max_length=64, description="Kubernetes annotations; without meaning elsewhere.")


class RunSpec(SpecModel):
    """One training effort: a model, its rollout settings, its trainer."""

    model: ModelSpec = Field(description="The policy that is trained.")
    gateway: GatewaySpec = Field(default=GatewaySpec(), description="The public edge.")
    router: RouterSpec = Field(default=RouterSpec(), description="Placement and admission.")
    dataproxy: DataProxySpec = Field(default=DataProxySpec(), description="Owners of sessions.")
    worker: WorkerSpec = Field(default=WorkerSpec(), description="Inference workers.")
    agents: tuple[AgentSpec, ...] = Field(default=(), max_length=64, description="Agent workers.")
    rollout: RolloutSpec = Field(default=RolloutSpec(), description="Sessions from start to export.")
    trainer: TrainerSpec | None = Field(default=TrainerSpec(), description="Training; null only records.")
    weights: WeightsSpec = Field(default=WeightsSpec(), description="The store of published policy versions.")
    redis: RedisSpec = Field(default=RedisSpec(embedded=EmbeddedRedis()), description="Where all state lives.")
    local: LocalSpec = Field(default=LocalSpec(), description="What only `rlrun up` uses.")

    def rules(self) -> Iterator[Fault]:
        yield from self._token_rules()
        yield from self._agent_rules()
        yield from self._group_rules()

    def _token_rules(self) -> Iterator[Fault]:
        context = self.model.max_total_tokens
        pool = self.worker.engine.max_total_tokens
        if pool is not None and pool < context:
            yield Fault(
                "worker.engine.maxTotalTokens",
                pool,
                f"must be >= model.maxTotalTokens ({context}), or the longest call never fits; raise it or lower model.maxTotalTokens",
            )
        if self.trainer is not None and self.trainer.packing.max_tokens_per_row < context:
            yield Fault(
                "trainer.packing.maxTokensPerRow",
                self.trainer.packing.max_tokens_per_row,
                f"must be >= model.maxTotalTokens ({context}), or long sequences are never trained; raise it or lower model.maxTotalTokens",
            )

    def _agent_rules(self) -> Iterator[Fault]:
        counts = Counter(agent.name for agent in self.agents)
        for index, agent in enumerate(self.agents):
            if counts[agent.name] > 1:
                yield Fault(f"agents[{index}].name", agent.name, "must be unique in spec.agents; rename one")
        tasks = self.rollout.tasks
        if tasks is None:
            return
        if not self.agents:
            yield Fault("rollout.tasks", "an object", "needs an agent that runs the tasks; add one to spec.agents")
        elif tasks.agent is None and len(self.agents) > 1:
            yield Fault("rollout.tasks.agent", None, f"must name one of {', '.join(counts)}, since spec.agents holds several; set it")
        elif tasks.agent is not None and tasks.agent not in counts:
            yield Fault("rollout.tasks.agent", tasks.agent, f"must name one of spec.agents ({', '.join(counts)}); correct it")

    def _group_rules(self) -> Iterator[Fault]:
        tasks = self.rollout.tasks
        if tasks is None or self.trainer is None:
            return
        if self.trainer.batch_size % tasks.group_size:
            yield Fault(
                "trainer.batchSize",
                self.trainer.batch_size,
                f"must be a multiple of rollout.tasks.groupSize ({tasks.group_size}), so that a step holds whole groups; change one",
            )
        if self.trainer.algorithm.uses_group() and tasks.group_size < 2:
            yield Fault(
                "rollout.tasks.groupSize",
                tasks.group_size,
                f"must be >= 2 with algorithm {self.trainer.algorithm.name}, which compares the members of a group; raise it",
            )


class RLRun(SpecModel):
    """The one configuration: the same document serves one machine, docker compose and Kubernetes."""

    api_version: Literal["rlrun.dev/v1alpha1"] = Field(description=f"Always {API_VERSION}.")
    kind: Literal["RLRun"] = Field(description=f"Always {KIND}.")
    metadata: Metadata = Field(description="Name of the run.")
    spec: RunSpec = Field(description="What to run.")

    def to_document(self) -> dict[str, Any]:
        """The resolved document as plain values: `parse(run.to_document()) == run`.

        Nulls are kept: they differ from absent fields where the default is not null (`trainer: null` records only).
        """
        return self.model_dump(mode="json", by_alias=True)

    def data_directory(self, override: Path | None = None) -> Path:
        return override if override is not None else Path(self.spec.local.directory)

    def weights_directory(self, data_directory: Path) -> Path:
        directory = self.spec.weights.directory
        return Path(directory) if directory is not None else data_directory / "weights"

    def checkpoint_directory(self, data_directory: Path) -> Path:
        directory = self.spec.trainer.checkpoint.directory if self.spec.trainer is not None else None
        return Path(directory) if directory is not None else data_directory / "checkpoints"

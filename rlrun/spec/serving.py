"""The parts that serve calls: model, gateway, router, dataproxy, worker, agents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from rlrun.spec.base import Device, Fault, ObjectName, Replicas, Seconds, SecretRef, SpecModel, Threads, Tokens

MIB = 1024 * 1024


class ToolCallParser(StrEnum):
    HERMES = "Hermes"


class ReasoningParser(StrEnum):
    QWEN3 = "Qwen3"


class ModelSpec(SpecModel):
    """The policy that is trained."""

    uri: str = Field(
        max_length=1024,
        pattern=r"^(tiny|file|hf|pvc|s3)://[^\s]+$",
        description="Initial weights: tiny://NAME?seed=N (a made small model), file://PATH, hf://ORG/REPOSITORY, pvc://CLAIM/PATH or s3://BUCKET/PATH.",
    )
    name: str = Field(default="default", min_length=1, max_length=256, description="What agents write into `model`.")
    max_total_tokens: Tokens = Field(
        default=32_768, description="Context bound: prompt and answer of one call together; a longer call is refused."
    )
    tool_call_parser: ToolCallParser | None = Field(
        default=ToolCallParser.HERMES, description="How tool calls are written in the model's text; null leaves them in the text."
    )
    reasoning_parser: ReasoningParser | None = Field(
        default=ReasoningParser.QWEN3, description="How reasoning is marked in the model's text; null leaves it in the text."
    )

    def rules(self) -> Iterator[Fault]:
        if ".." in re.split(r"[/\\]", self.uri):
            yield Fault("uri", self.uri, "must not contain a '..' segment; write the path without it")


class AuthMode(StrEnum):
    API_KEY = "ApiKey"


class AuthSpec(SpecModel):
    """Who may call the gateway. Session keys are always needed; this is about the admin key."""

    mode: AuthMode = Field(default=AuthMode.API_KEY, description="ApiKey: one admin key opens the administrative paths.")
    secret_ref: SecretRef | None = Field(
        default=None, description="Secret with the admin key (key `admin-key`); outside Kubernetes RLRUN_ADMIN_KEY_FILE names its file."
    )


class IngressSpec(SpecModel):
    """An Ingress in front of the gateway; Kubernetes only."""

    host: str = Field(min_length=1, max_length=253, description="Host name under which agents reach the gateway.")
    class_name: str | None = Field(default=None, max_length=253, description="Ingress class; null takes the cluster's default.")
    tls_secret_name: str | None = Field(default=None, max_length=253, description="Secret with the certificate; null serves plain HTTP.")
    annotations: dict[str, str] = Field(default={}, max_length=64, description="Annotations copied to the Ingress.")


class GatewayLimits(SpecModel):
    """What the edge accepts."""

    max_body_bytes: int = Field(default=8 * MIB, ge=1024, le=1024 * MIB, description="Largest request body; larger ones get 413.")
    max_concurrent_requests: int = Field(
        default=1024, ge=1, le=100_000, description="Calls in flight per replica; further ones get 429 with Retry-After."
    )
    max_messages: int = Field(default=4096, ge=1, le=1_000_000, description="Messages in one conversation; longer ones get 400.")
    request_timeout_seconds: Seconds = Field(default=600.0, description="Deadline of one call through all services; then 504.")
    keep_alive_seconds: Seconds = Field(default=15.0, description="Pause after which a waiting stream gets an SSE comment.")
    default_max_new_tokens: Tokens = Field(
        default=512, description="Longest answer where the client states no bound; less where the context leaves less."
    )

    def rules(self) -> Iterator[Fault]:
        if self.keep_alive_seconds >= self.request_timeout_seconds:
            yield Fault(
                "keepAliveSeconds",
                self.keep_alive_seconds,
                f"must be < requestTimeoutSeconds ({self.request_timeout_seconds:g}); lower it or raise the timeout",
            )


class GatewaySpec(SpecModel):
    """The public HTTP and WebSocket edge."""

    replicas: Replicas = Field(default=1, description="Gateway processes.")
    auth: AuthSpec = Field(default=AuthSpec(), description="Admin key.")
    ingress: IngressSpec | None = Field(default=None, description="Ingress in front of the gateway; null makes none.")
    limits: GatewayLimits = Field(default=GatewayLimits(), description="What the edge accepts.")


class RouterPolicy(StrEnum):
    SESSION_AFFINITY = "SessionAffinity"


class RouterSpec(SpecModel):
    """Who serves what: members, placement, admission."""

    replicas: Replicas = Field(default=1, description="Router processes.")
    policy: RouterPolicy = Field(
        default=RouterPolicy.SESSION_AFFINITY, description="SessionAffinity: a session stays with its worker while that one lives."
    )
    lease_seconds: float = Field(
        default=5.0, ge=0.5, le=300, description="A member that sends no heartbeat for this long is gone; its sessions move."
    )


class EphemeralTailSpec(SpecModel):
    """Clients such as OpenClaw append a last user message that they leave out of later requests."""

    enabled: bool = Field(
        default=False, description="Detect such a message, so that the next call, which lacks it, still extends the recorded ids."
    )
    pattern: str | None = Field(
        default=None, min_length=1, max_length=1024, description="Regular expression that the message's text matches; needed when enabled."
    )

    def rules(self) -> Iterator[Fault]:
        if self.enabled and self.pattern is None:
            yield Fault("pattern", self.pattern, "must be set when enabled is true; give the regular expression of the tail's text")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                yield Fault("pattern", self.pattern, f"must be a regular expression ({error}); correct it")


class DataProxySpec(SpecModel):
    """The owners of sessions: conversation tree, tokens, rewards, export."""

    replicas: Replicas = Field(default=1, description="DataProxy processes.")
    ephemeral_tail: EphemeralTailSpec = Field(default=EphemeralTailSpec(), description="Last messages that clients do not repeat.")
    max_cached_sessions: int = Field(
        default=4096, ge=1, le=1_000_000, description="Sessions held in memory per replica; others are read from Redis when called."
    )


class UpdateMode(StrEnum):
    CONTINUE = "Continue"
    DRAIN = "Drain"
    ABORT = "Abort"


class UpdatePolicySpec(SpecModel):
    """How a new policy version enters a worker."""

    mode: UpdateMode = Field(
        default=UpdateMode.CONTINUE,
        description="Continue: running answers go on under the new weights. Drain: they end first. Abort: they are cut.",
    )


class EngineSpec(SpecModel):
    """The inference engine of one worker."""

    name: Literal["torch", "sglang", "vllm"] = Field(default="torch", description="torch is built in; sglang and vllm are adapters.")
    tensor_parallel: int = Field(default=1, ge=1, le=64, description="GPUs that share one copy of the model.")
    args: tuple[Annotated[str, Field(max_length=1024)], ...] = Field(
        default=(), max_length=64, description="Further command-line arguments of the engine, one word each."
    )
    device: Device = Field(default=Device.AUTO, description="Device of the torch engine.")
    max_running: int = Field(default=256, ge=1, le=65_536, description="Sequences decoded together.")
    max_waiting: int = Field(default=1024, ge=0, le=1_000_000, description="Calls that wait for a place; further ones get 429.")
    max_total_tokens: Tokens | None = Field(
        default=None, description="Tokens of all running sequences together (size of the KV cache); null lets the engine decide."
    )
    num_threads: Threads | None = Field(default=None, description="CPU threads of the torch engine; null takes all cores.")

    def rules(self) -> Iterator[Fault]:
        if self.name == "torch" and self.tensor_parallel != 1:
            yield Fault("tensorParallel", self.tensor_parallel, "must be 1 with the torch engine; use sglang or vllm for more")
        if self.name == "torch" and self.args:
            yield Fault("args", list(self.args), "must be empty with the torch engine, it has no command line; use its fields instead")
        for index, argument in enumerate(self.args):
            if argument.split("=", 1)[0] in OWN_ENGINE_ARGUMENTS:
                yield Fault(f"args[{index}]", argument, "is set by rlrun itself; remove it")


# rlrun starts the engine on loopback, with its own port and key; an override would open it to others.
OWN_ENGINE_ARGUMENTS = frozenset({"--host", "--port", "--api-key", "--admin-api-key", "--model", "--model-path", "--served-model-name"})


class WorkerSpec(SpecModel):
    """Inference workers."""

    replicas: Replicas = Field(default=1, description="Worker processes, each with one engine.")
    engine: EngineSpec = Field(default=EngineSpec(), description="The inference engine.")
    update_policy: UpdatePolicySpec = Field(default=UpdatePolicySpec(), description="How a new policy version enters a worker.")


class AgentMode(StrEnum):
    INLINE = "Inline"
    SUBPROCESS = "Subprocess"


class AgentSpec(SpecModel):
    """Workers that run an agent, which calls the gateway like any other client."""

    name: ObjectName = Field(description="Name of the agent; unique in the document.")
    runnable: str = Field(
        max_length=512,
        pattern=r"^[A-Za-z_][\w]*(\.[A-Za-z_][\w]*)*:[A-Za-z_][\w]*$",
        description='Class that implements rlrun.client.AgentRunnable, as "package.module:Class".',
    )
    mode: AgentMode = Field(default=AgentMode.INLINE, description="Inline: in the worker's process. Subprocess: one process per episode.")
    replicas: Replicas = Field(default=1, description="Agent worker processes.")

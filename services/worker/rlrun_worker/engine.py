"""What an inference engine owes the worker. Arrays and frozen values only: no protobuf, no torch.

Shape legend: T tokens of one chunk or sequence, K top alternatives per token.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rlrun.errors import InvalidRequest

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]

MAX_STOP_STRINGS = 16
MAX_TOP_LOGPROBS = 64
# Bounds in the precision in which requests carry them.
# Below this, logits / temperature leaves the range of float32; 0 is greedy.
MIN_TEMPERATURE = float(np.float32(1e-4))
_MIN_REPETITION_PENALTY = float(np.float32(0.01))


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn; valid by construction.

    temperature: 0 is greedy. top_p: probability mass in (0, 1]. top_k: number of tokens, 0 is no limit.
    presence_penalty, frequency_penalty: subtracted from the logits of tokens in the output (OpenAI API).
    repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or output (Keskar et al. 2019).
    seed: the same request with the same seed and weights gives the same tokens, whatever else runs in the batch.
    stop: strings that end the output; the ids include the tokens that complete the match.

    Raises: InvalidRequest naming the field.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _in_range("temperature", self.temperature, 0.0, 100.0)
        if 0.0 < self.temperature < MIN_TEMPERATURE:
            raise InvalidRequest(
                f"temperature is {self.temperature:g}; use 0 for greedy, or at least {MIN_TEMPERATURE:g}", param="temperature"
            )
        _in_range("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise InvalidRequest("top_p is 0; it must be above 0 (use temperature 0 for greedy)", param="top_p")
        _in_range("top_k", self.top_k, 0, 2**31 - 1)
        _in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _in_range("repetition_penalty", self.repetition_penalty, _MIN_REPETITION_PENALTY, 100.0)
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequest(f"stop has {len(self.stop)} strings; at most {MAX_STOP_STRINGS} are allowed", param="stop")
        if any(not text for text in self.stop):
            raise InvalidRequest("stop holds an empty string; remove it", param="stop")


def _in_range(name: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise InvalidRequest(f"{name} is {value:g}; it must be between {low:g} and {high:g}", param=name)


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """`num_tokens` consecutive tokens drawn from policy `version`."""

    num_tokens: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """New tokens of one sequence.

    ids: int32 [T]. logprobs: float32 [T], log-softmax of logits / temperature (temperature 0 counts as 1) before penalties
    and before top-p / top-k truncation: what a trainer recomputes from the weights alone.
    versions: spans that add up to T. finish_reason: None on every chunk but the last.
    top_ids, top_logprobs: [T, K], likeliest first, or None when not asked for.
    cached_tokens: prompt tokens whose KV was reused; the same on every chunk.
    """

    ids: Ids
    logprobs: Floats
    versions: tuple[VersionSpan, ...]
    finish_reason: FinishReason | None = None
    top_ids: Ids | None = None
    top_logprobs: Floats | None = None
    cached_tokens: int = 0
    matched_stop: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """logprobs: float32 [T], position 0 is 0.0. top_ids, top_logprobs: [T, K] or None; row 0 is zero. All from `version`."""

    logprobs: Floats
    version: int
    top_ids: Ids | None = None
    top_logprobs: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """A moment of the engine. `max_total_tokens`: tokens the KV pool holds. `tokens_per_second`: output, over the last seconds."""

    engine: str
    model: str
    policy_version: int
    fingerprint: str
    running: int
    waiting: int
    paused: bool
    max_total_tokens: int
    tokens_per_second: float
    total_output_tokens: int


class EngineAdapter(Protocol):
    """One policy behind token ids. Built in: `torch_engine.TorchEngine`; SGLang and vLLM fit by driving their servers.

    An adapter promises:
    - every token comes with the logprob and the policy version of the step that drew it;
    - closing the iterator of `generate` (or cancelling its reader) ends the sequence within one token;
    - `pause` returns at a token boundary; sequences stay in place until `resume`;
    - `load_weights` either serves exactly the manifest's weights or keeps the old ones and raises;
    - a full queue raises `rlrun.errors.Overloaded`; nothing waits without bound.
    """

    async def start(self) -> None:
        """Load the model and accept calls. Called once, on the event loop that makes all later calls."""
        ...

    async def close(self) -> None:
        """Abort what runs and release threads and memory. Idempotent."""
        ...

    def generate(
        self,
        prompt_ids: Ids,
        sampling: Sampling,
        *,
        max_new_tokens: int,
        top_logprobs: int = 0,
        request_id: str = "",
        stream: bool = True,
    ) -> AsyncGenerator[Chunk, None]:
        """Continue `prompt_ids` (int32 [T]); the last chunk has a finish reason.

        max_new_tokens: 0 means what fits; a larger value than fits is cut to what fits (finish reason LENGTH).
        stream: False yields a single chunk. True yields the first token at once, then at most about fifty chunks a second.
        Raises: InvalidRequest, ContextLengthExceeded, Conflict (request_id runs already), Overloaded, Unavailable, Internal.
        """
        ...

    async def score(self, ids: Ids, *, temperature: float = 1.0, top_logprobs: int = 0) -> Scores:
        """Logprob of each id given those before it. Raises: InvalidRequest, ContextLengthExceeded."""
        ...

    async def pause(self) -> None:
        """Stop at the next token boundary. Requests may still queue. Idempotent."""
        ...

    async def resume(self) -> None:
        """Undo `pause`. Idempotent."""
        ...

    async def load_weights(self, version: int, path: Path) -> None:
        """Serve the weights in directory `path` as `version`; in-flight sequences go on with them.

        Raises: InvalidRequest when the directory is incomplete, does not fit the model or fails its checksums;
        Conflict when `version` is in service with other weights. The old weights stay in service in both cases.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request with finish reason ABORT and the tokens so far. Unknown ids are ignored: it may just have ended."""
        ...

    async def status(self) -> EngineStatus: ...

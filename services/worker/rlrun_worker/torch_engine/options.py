"""Settings of the torch engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlrun.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchEngineOptions:
    """model_path: directory with config.json, tokenizer.json and safetensors files.

    name: what `EngineStatus.model` shows; the directory's name when empty.
    device: "cpu" or a CUDA device ("cuda", "cuda:1"). CUDA uses bfloat16; it is untested.
    dtype: "float32", "bfloat16", "float16"; empty picks by device.
    num_slots: sequences that run at once; also the number of cached prefixes.
    max_len_tokens: prompt plus output of one sequence. The KV pool holds num_slots * max_len_tokens tokens.
    max_waiting: requests that queue beyond the running ones; more are refused with Overloaded.
    prefill_tokens: prompt tokens computed in one forward, padding included; bounds how long decoding stalls.
    flush_seconds: least time between two chunks of a stream (the first and the last are not held back).
    num_threads: threads of torch; 0 leaves torch's choice.
    """

    model_path: Path
    name: str = ""
    device: str = "cpu"
    dtype: str = ""
    num_slots: int = 64
    max_len_tokens: int = 4096
    max_waiting: int = 256
    prefill_tokens: int = 4096
    flush_seconds: float = 0.02
    num_threads: int = 0

    def __post_init__(self) -> None:
        for name, low in (("num_slots", 1), ("max_len_tokens", 2), ("max_waiting", 0), ("prefill_tokens", 16), ("num_threads", 0)):
            if getattr(self, name) < low:
                raise ConfigError(f"engine option {name} is {getattr(self, name)}; it must be at least {low}", param=name)
        if self.dtype not in ("", "float32", "bfloat16", "float16"):
            raise ConfigError(f"engine option dtype is {self.dtype!r}; choose float32, bfloat16 or float16", param="dtype")

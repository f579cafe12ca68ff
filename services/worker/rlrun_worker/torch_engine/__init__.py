"""The built-in engine: Hugging Face causal language models with continuous batching and prefix reuse, on CPU or CUDA."""

from rlrun_worker.torch_engine.engine import TorchEngine
from rlrun_worker.torch_engine.options import TorchEngineOptions

__all__ = ["TorchEngine", "TorchEngineOptions"]

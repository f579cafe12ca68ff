"""The made small model `tiny://digits`: a real tokenizer, chat template and policy of under a million parameters, built in seconds."""

from rlrun_trainer.tiny.make import make_tiny_model

__all__ = ["make_tiny_model"]

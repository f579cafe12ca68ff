"""Runs an inference engine behind the InferenceService contract; the torch engine is built in."""

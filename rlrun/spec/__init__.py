"""The RLRun document: pydantic models, defaults, validation."""

"""The `rlrun` command."""

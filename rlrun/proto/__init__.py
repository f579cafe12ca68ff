"""Generated from proto/rlrun/v1 by `make proto`; do not edit."""

"""One machine: embedded Redis and the supervisor of the services."""

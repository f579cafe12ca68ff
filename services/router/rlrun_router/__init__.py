"""Who serves what: members with leases, placement, admission, policy versions; all state in Redis."""

"""What users import: session clients, agents, typed results."""

"""Owner of sessions: conversation tree, token-in-token-out prompts, parsing, rewards, export."""

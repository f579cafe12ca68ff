"""What a DataProxy counts."""

from __future__ import annotations

from prometheus_client import Counter

CALLS = Counter("rlrun_dataproxy_calls_total", "Model calls by outcome.", ["outcome"])
FORKS = Counter("rlrun_dataproxy_forks_total", "Calls that became a root because the template could not extend the recorded ids.")
REPLAYS = Counter("rlrun_dataproxy_replays_total", "Retries that were answered without a new model call.", ["source"])
TOKENISED_CHARACTERS = Counter("rlrun_dataproxy_tokenised_characters_total", "Characters of prompts that were tokenised.")
OUTPUT_TOKENS = Counter("rlrun_dataproxy_output_tokens_total", "Tokens of recorded outputs.")

"""Stop strings over a byte-level tokenizer with one token per byte."""

from __future__ import annotations

import pytest
from rlrun_worker.torch_engine.stop import StopMatcher
from tokenizers import Tokenizer, decoders, models, pre_tokenizers


@pytest.fixture
def tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE({char: index for index, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


@pytest.mark.parametrize(
    ("text", "stops", "num_fed", "matched"),
    [
        ("hello world", ("lo w",), 7, "lo w"),
        ("hello world", ("x", "world", "wor"), 9, "wor"),
        ("abab", ("abc",), 4, None),
        ("ababc", ("abc",), 5, "abc"),
        ("aé漢b", ("漢",), 6, "漢"),
        ("aé漢b", ("é漢",), 6, "é漢"),
        ("\n\nUser:", ("\nUser:",), 7, "\nUser:"),
    ],
)
def test_match_ends_at_the_token_that_completes_it(
    tokenizer: Tokenizer, text: str, stops: tuple[str, ...], num_fed: int, matched: str
) -> None:
    matcher = StopMatcher(tokenizer, stops)
    results = [matcher.feed(token) for token in tokenizer.encode(text).ids]
    first = next((index + 1 for index, result in enumerate(results) if result), len(results))
    assert (first, results[first - 1]) == (num_fed, matched)

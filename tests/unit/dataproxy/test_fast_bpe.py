from __future__ import annotations

import argparse
import json
import logging
from array import array
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlrun_dataproxy import byte_level, fast_bpe
from rlrun_dataproxy.fast_bpe import FastBpe, Unconvertible, convert
from rlrun_dataproxy.tokenizer import ChatTokenizer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>")


def split_by(regex: str, behavior: str = "isolated", *, invert: bool = False) -> Any:
    split = pre_tokenizers.Split(Regex(regex), behavior, invert)
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
STYLES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "gpt2, as the benchmark": lambda: (None, GPT2),
    "digits, as the small model": lambda: (None, pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2])),
    "qwen": lambda: (normalizers.NFC(), split_by(QWEN)),
    "llama": lambda: (None, split_by(LLAMA)),
    "pieces instead of gaps": lambda: (None, split_by(LLAMA, "removed", invert=True)),
}


def train(normalizer: Any, pre_tokenizer: Any) -> Tokenizer:
    fast = Tokenizer(models.BPE())
    fast.pre_tokenizer, fast.decoder = pre_tokenizer, decoders.ByteLevel()
    if normalizer is not None:
        fast.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=3000, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False)
    corpus = Path(argparse.__file__).read_text() + "Grüße aus Zürich, naïve café, it's 東京 1234 😀\r\n\r\n" * 50
    fast.train_from_iterator([corpus[start : start + 500] for start in range(0, len(corpus), 500)], trainer)
    fast.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKUP])
    return fast


@cache
def trained(style: str) -> Tokenizer:
    return train(*STYLES[style]())


def describe(fast: Tokenizer) -> dict[str, Any]:
    described: dict[str, Any] = json.loads(fast.to_str())
    return described


def converted(fast: Tokenizer) -> FastBpe:
    described = describe(fast)
    vocabulary = [b""] * fast.get_vocab_size()
    for text, index in described["model"]["vocab"].items():
        vocabulary[index] = byte_level.token_bytes(text)
    return convert(fast, described, vocabulary)


@cache
def converted_style(style: str) -> FastBpe:
    return converted(trained(style))


def right(fast: Tokenizer, text: str) -> bytes:
    return array("i", fast.encode(text, add_special_tokens=False).ids).tobytes()


PIECES = (*fast_bpe._PIECES, *SPECIAL, *MARKUP, "<|im_end", "tool_call>", "<think", "argparse", "    def __init__(self, *args):\n")
TEXTS = st.one_of(
    st.text(max_size=60),
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=40).map("".join),
    st.text(alphabet=" \n\r\t\xa0\u2003a1'.", max_size=40),
)


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=100, deadline=None)
@given(text=TEXTS)
def test_ids_are_those_of_the_library(style: str, text: str) -> None:
    ids = converted_style(style).encode(text)
    assert ids is None or ids == right(trained(style), text)


@pytest.mark.parametrize("style", STYLES)
def test_ids_of_a_long_text_are_those_of_the_library(style: str) -> None:
    text = "<|im_start|>user\n" + Path(json.__file__).read_text() + Path(argparse.__file__).read_text() + "<|im_end|>"
    assert converted_style(style).encode(text) == right(trained(style), text)


@st.composite
def merge_tables(draw: st.DrawFn) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Any merges over three letters, sensible or not, and tokens without one."""
    vocab = {char: index for index, char in enumerate(sorted(byte_level.ALPHABET))}
    tokens, merges = ["a", "b", "c"], list[tuple[str, str]]()
    for _ in range(draw(st.integers(1, 8))):
        pair = (draw(st.sampled_from(tokens)), draw(st.sampled_from(tokens)))
        if pair not in merges:
            merges.append(pair)
            vocab.setdefault("".join(pair), len(vocab))
            tokens.append("".join(pair))
    for text in draw(st.lists(st.text("abc", min_size=2, max_size=5), max_size=2)):
        vocab.setdefault(text, len(vocab))
    return vocab, merges


@settings(max_examples=200, deadline=None)
@given(table=merge_tables(), ignore_merges=st.booleans(), texts=st.lists(st.text("abc ", max_size=30), min_size=10, max_size=10))
def test_merges_are_taken_over_exactly_or_not_at_all(table: Any, ignore_merges: bool, texts: list[str]) -> None:
    vocab, merges = table
    fast = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=ignore_merges))
    fast.pre_tokenizer = GPT2
    vocabulary = [byte_level.token_bytes(text) for text in vocab]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast_bpe, "_compare", lambda *_: None)  # the tables alone must decide
        try:
            bpe = convert(fast, describe(fast), vocabulary)
        except Unconvertible:
            return
    for text in texts:
        assert bpe.encode(text) == right(fast, text)


def test_a_token_whose_own_letters_do_not_merge_to_it_is_left_out() -> None:
    vocab = {char: index for index, char in enumerate(sorted(byte_level.ALPHABET))} | {"bc": 256, "ab": 257, "abc": 258}
    fast = Tokenizer(models.BPE(vocab=vocab, merges=[("b", "c"), ("a", "b"), ("ab", "c")]))
    fast.pre_tokenizer = GPT2
    ids = converted(fast).encode("abc")
    assert ids == right(fast, "abc") == array("i", [vocab["a"], vocab["bc"]]).tobytes()


def split_described(regex: str) -> dict[str, Any]:
    described: dict[str, Any] = describe(trained("llama"))["pre_tokenizer"]
    described["pretokenizers"][0]["pattern"]["Regex"] = regex
    return described


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d["model"].update(dropout=0.1), "dropout"),
        (lambda d: d["model"].update(end_of_word_suffix="</w>"), "end_of_word_suffix"),
        (lambda d: d["model"].update(type="Unigram"), "model Unigram"),
        (lambda d: d["model"]["merges"].reverse(), "order of the merges"),
        (lambda d: d["model"]["vocab"].pop("ÿ"), "each byte"),
        (lambda d: d.update(normalizer={"type": "NFKC"}), "normalizer NFKC"),
        (lambda d: d.update(truncation={"max_length": 3}), "truncation"),
        (lambda d: d.update(pre_tokenizer=None), "pre-tokenizer"),
        (lambda d: d["pre_tokenizer"].update(add_prefix_space=True), "pre-tokenizer"),
        (lambda d: d["added_tokens"][0].update(lstrip=True), "surroundings"),
        (lambda d: d["added_tokens"].append({**d["added_tokens"][0], "content": "<|im_end|>x"}), "overlap"),
        (lambda d: d["added_tokens"].append({**d["added_tokens"][0], "content": "x<|im"}), "overlap"),
        (lambda d: d["added_tokens"].append({**d["added_tokens"][0], "content": "e\u0301"}), "added token"),
        (lambda d: d["added_tokens"].append({**d["added_tokens"][0], "content": "self", "id": d["model"]["vocab"]["self"]}), "merge"),
        (lambda d: d.update(pre_tokenizer=split_described("(?<")), "."),
    ],
)
def test_what_tiktoken_cannot_do_is_refused(change: Callable[[dict[str, Any]], Any], reason: str) -> None:
    fast = trained("gpt2, as the benchmark")
    described = describe(fast)
    change(described)
    with pytest.raises(Unconvertible, match=reason):
        convert(fast, described, ChatTokenizer(fast, "x", special_tokens={}, eos_ids=[2]).vocabulary)


@pytest.mark.parametrize(
    "pattern",
    [
        fast_bpe._GPT2,
        fast_bpe._GPT2_BETWEEN_DIGITS,
        QWEN,
        LLAMA.replace("(?i:", "(?:"),
        LLAMA.replace(r"\s+(?!\S)|", ""),
        LLAMA.replace(r"[\r\n]*", ""),
        LLAMA.replace("'ll|", ""),
        LLAMA.replace(r"\p{L}+", "[a-zA-Z]+"),
        LLAMA.removesuffix(r"|\s+"),
        r"\w+|\s+",
    ],
)
def test_the_sample_at_load_finds_another_regular_expression(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_bpe, "_pattern", lambda _: pattern)
    with pytest.raises(Unconvertible, match="other ids for"):
        converted(trained("llama"))


def chat(fast: Tokenizer) -> ChatTokenizer:
    return ChatTokenizer(fast, "x", special_tokens={}, eos_ids=[2])


@pytest.mark.parametrize(
    "text",
    ["e\u0301", "<think>\u0338", "\u1100\u1161", " " * 1_100_000 + "x"],
    ids=["not normalised", "a mark on an added token", "letters to compose", "more white space than there is stack"],
)
def test_a_text_that_only_the_library_can_encode_gets_its_ids(text: str) -> None:
    fast = trained("qwen")
    assert converted_style("qwen").encode(text) is None
    assert chat(fast).encode_packed(text) == right(fast, text)


def test_the_reason_for_the_slow_way_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    fast = train(normalizers.NFKC(), GPT2)
    tokenizer = chat(fast)
    for text in ("a ﬁ b", "c"):
        assert tokenizer.encode_packed(text) == right(fast, text)
    assert [record.getMessage() for record in caplog.records if "normalizer NFKC" in record.getMessage()] == [caplog.messages[0]]


def test_a_convertible_tokenizer_takes_the_fast_way(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert chat(trained("qwen"))._fast_bpe is not None
    assert not caplog.messages

"""tiktoken in the place of `tokenizers` for byte-level BPE: the same ids for a fifth of the CPU time, without the interpreter's lock.

tiktoken knows a rank for each token instead of a list of merges, and merges any two neighbours whose bytes together are a token.
The ids are the same because of how BPE works: two neighbours x and y that make up a token T can only arise if no merge crossed T's
borders, so what led to them is what BPE does with T's text alone. Hence T's own encoding decides (`_ranks`):

* [T]: its last merge is the only pair for T that ever arises, and T's place in the order is that merge's.
* three tokens or more: no pair for T ever arises. `tokenizers` gives T only where a whole piece is looked up first (`ignore_merges`).
* two tokens: tiktoken would merge what `tokenizers` leaves apart. T cannot stay in the table.

Regular expressions and added tokens have no such proof. Those that are known to mean something else are refused, and for the rest a
sample is encoded both ways at load.
"""

from __future__ import annotations

import random
import string
import unicodedata
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any

import tiktoken
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models

from rlrun_dataproxy.byte_level import ALPHABET

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# With each number character cut out beforehand: text ends where a number begins, so white space before one keeps its last character.
_GPT2_BETWEEN_DIGITS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"


class Unconvertible(Exception):
    """What a tokenizer has that tiktoken has not."""


class FastBpe:
    """Text -> packed ids."""

    def __init__(self, encoding: tiktoken.Encoding, *, normalizes: bool) -> None:
        self._encoding = encoding
        self._normalizes = normalizes

    def encode(self, text: str) -> bytes | None:
        """int32 ids, added tokens recognised. None: only `tokenizers` can encode this text."""
        if self._normalizes and not text.isascii() and not unicodedata.is_normalized("NFC", text):
            return None
        try:
            return self._encoding.encode_to_numpy(text, allowed_special="all", disallowed_special=()).tobytes()
        except ValueError:  # a run of white space (about a megabyte) for which its regular expressions have no stack
            return None


def convert(fast: FastTokenizer, described: Mapping[str, Any], vocabulary: Sequence[bytes]) -> FastBpe:
    """The same tokenizer in tiktoken.

    Args:
        described: what tokenizer.json says.
        vocabulary: bytes of each token, by id.
    Raises:
        Unconvertible: it is of another kind, or a sample text gets other ids.
    """
    for name in ("truncation", "padding"):
        if described.get(name):
            raise Unconvertible(name)
    added = _added_tokens(described["added_tokens"])
    try:
        encoding = tiktoken.Encoding(
            "rlrun",
            pat_str=_pattern(described["pre_tokenizer"]),
            mergeable_ranks=_ranks(described["model"], vocabulary, set(added.values())),
            special_tokens=added,
        )
    except ValueError as error:
        raise Unconvertible(str(error)) from error
    bpe = FastBpe(encoding, normalizes=_normalizes(described["normalizer"]))
    _compare(bpe, fast, added)
    return bpe


def _pattern(pre_tokenizer: Mapping[str, Any] | None) -> str:
    """One regular expression for all that cuts a text into pieces."""
    kind = (pre_tokenizer or {}).get("type")
    steps = pre_tokenizer["pretokenizers"] if pre_tokenizer and kind == "Sequence" else [pre_tokenizer]
    match steps:
        case [{"type": "ByteLevel", "use_regex": True, "add_prefix_space": False}]:
            return _GPT2
        case [{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel", "use_regex": True, "add_prefix_space": False}]:
            return _GPT2_BETWEEN_DIGITS
        case [
            {"type": "Split", "pattern": {"Regex": str(regex)}, "behavior": behavior, "invert": invert},
            {"type": "ByteLevel", "use_regex": False, "add_prefix_space": False},
        ] if (behavior, invert) in (("Isolated", False), ("Removed", True)):
            return regex
    raise Unconvertible(f"pre-tokenizer {[step and step.get('type') for step in steps]}")


def _normalizes(normalizer: Mapping[str, Any] | None) -> bool:
    if normalizer is not None and normalizer.get("type") != "NFC":
        raise Unconvertible(f"normalizer {normalizer.get('type')}")
    return normalizer is not None


def _added_tokens(described: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Tokens that are cut out of a text before all else. Where two could claim the same characters, the libraries may choose otherwise."""
    tokens: dict[str, int] = {}
    for token in described:
        if token["lstrip"] or token["rstrip"] or token["single_word"]:
            raise Unconvertible(f"added token {token['content']!r} takes its surroundings into account")
        if not token["content"] or not unicodedata.is_normalized("NFC", token["content"]):
            raise Unconvertible(f"added token {token['content']!r}")
        tokens[token["content"]] = token["id"]
    for one, other in combinations(tokens, 2):
        if _overlap(one, other):
            raise Unconvertible(f"added tokens {one!r} and {other!r} overlap")
    return tokens


def _overlap(one: str, other: str) -> bool:
    """Whether `one` holds `other`, or one's end is the other's beginning."""
    return _reaches_into(one, other) or _reaches_into(other, one)


def _reaches_into(one: str, other: str) -> bool:
    at = one.find(other[0])
    while at >= 0:
        if one.startswith(other, at) or other.startswith(one[at:]):
            return True
        at = one.find(other[0], at + 1)
    return False


def _ranks(model: Mapping[str, Any], vocabulary: Sequence[bytes], added: set[int]) -> dict[bytes, int]:
    """Bytes -> id, which is the order of merges too. The head of this file says why these tokens and no others."""
    if model["type"] != "BPE":
        raise Unconvertible(f"model {model['type']}")
    for name in ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(name):
            raise Unconvertible(f"{name} {model[name]!r}")
    ids: dict[str, int] = model["vocab"]
    merged = [ids[first + second] for first, second in model["merges"]]
    if any(before > after for before, after in pairwise(merged)):
        raise Unconvertible("ids do not follow the order of the merges")
    if not added.isdisjoint(merged):
        raise Unconvertible("an added token is also the result of a merge")
    alone = models.BPE(vocab=ids, merges=[tuple(pair) for pair in model["merges"]])
    whole_first = bool(model["ignore_merges"])
    ranks: dict[bytes, int] = {}
    for text, index in ids.items():
        if not text or index in added or not ALPHABET.issuperset(text):
            continue
        num_tokens = len(alone.tokenize(text)) if len(text) > 1 else 1
        if whole_first and num_tokens == 2:
            raise Unconvertible(f"token {text!r} is a pair without a merge")
        if whole_first or num_tokens == 1:
            ranks[vocabulary[index]] = index
    if any(bytes([byte]) not in ranks for byte in range(256)):
        raise Unconvertible("not one token for each byte")
    return ranks


def _compare(bpe: FastBpe, fast: FastTokenizer, added: Iterable[str]) -> None:
    texts = _samples(list(added))
    for text, right in zip(texts, fast.encode_batch_fast(texts, add_special_tokens=False), strict=True):
        if (ids := bpe.encode(text)) is not None and ids != array("i", right.ids).tobytes():
            raise Unconvertible(f"other ids for {text!r:.200}")


def _samples(added: Sequence[str]) -> list[str]:
    """Texts of random pieces: what regular expressions for text tell apart, and each added token."""
    rng = random.Random(0)
    texts = ["".join(rng.choices(_PIECES, k=rng.randrange(1, 40))) for _ in range(1500)]
    with_added = ["".join(rng.choices((*_PIECES, *added, *(token[:-1] for token in added)), k=20)) for _ in range(300)]
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randrange(1, 3000))) for _ in range(10)]
    return [*texts, *with_added, *words, *(token.join("a  \n") + token for token in added)]


_WORDS = """
    's 'S 'ſ 't 're 'VE 'm 'll 'LL 'd 'x n't it's I'M don't O'Reilly's
    the and of Hello WORLD camelCase snake_case HTTPServer 東京都 Привет naïve résumé
    0 1 12 123 1234 12345 3.14 1,000 2024-01-01 0xff 1e9 ٣٤ ²³
    () {} [] => != == ... --- ### ``` </a> <|x|> \\n \\u00e9 :) !!! ?! *** \"' \";
"""
_PIECES = (
    *string.printable,
    *"àÉßſİıŉΣςЖя東京あア한글กำअि٣Ⅷ²½①€№°“”—…«»é\u0301\u0308\u0338\u200b\u200d\ufe0f😀👩🏽",
    *"\x00\x1c\x85\xa0\u1680\u180e\u2003\u2028\u2029\u202f\u205f\u3000\ufeff\ufffd\ue000\U0001d7ce\U000e0001\U0010ffff",
    *_WORDS.split(),
    *(" the", " of", " A", " 1", " 12", " 東", " é", " !", " ...", " 's", "\tx", "\nx", "\r\nx", "\n\nThe"),
    *("  ", "   ", "        ", "\t\t", " \t ", "\n", "\n\n", "\r\n", "\n    ", "    \n", " \n \n ", "\u3000\u3000", "\xa0 "),
    "def f(x):\n    return x + 1\n",
    "if (a[i] != null) {\n\t\tb += '\\n';\n\t}",
    '{"name": "weather", "arguments": {"city": "Oslo"}}',
    "https://example.org/a?b=c&d=%20",
)

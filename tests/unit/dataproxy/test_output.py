from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rlrun_dataproxy.budget import max_new_tokens
from rlrun_dataproxy.detokenize import Detokenizer, StopStrings
from rlrun_dataproxy.output import OutputReader, ReadingRules
from rlrun_dataproxy.tokenizer import ChatTokenizer

from rlrun.errors import ContextLengthExceeded, Internal, InvalidRequest
from rlrun.proto import common_pb2, inference_pb2


def feed_all(detokenizer: Detokenizer, pieces: Sequence[Sequence[int]]) -> str:
    return "".join([*map(detokenizer.feed, pieces), detokenizer.finish()])


@given(st.text(max_size=40), st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_text_comes_back_however_the_ids_are_cut(tokenizer: ChatTokenizer, text: str, data: st.DataObject) -> None:
    ids = tokenizer.encode(text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    pieces = [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    assert feed_all(Detokenizer(tokenizer.vocabulary, end_ids=()), pieces) == text.encode("utf-8", "surrogatepass").decode(
        "utf-8", "replace"
    )


def test_half_a_character_is_held_back(tokenizer: ChatTokenizer) -> None:
    detokenizer = Detokenizer([b"\xf0\x9f", b"\x98\x80", b"a"], end_ids=())
    assert [detokenizer.feed([token]) for token in (0, 1, 0, 2)] == ["", "😀", "", "�a"]
    detokenizer.feed([0])
    assert detokenizer.finish() == "�"


def test_end_tokens_are_text_only_when_more_follows() -> None:
    detokenizer = Detokenizer([b"a", b"<end>"], end_ids={1})
    assert detokenizer.feed([0, 1]) == "a"
    assert detokenizer.feed([0]) == "<end>a"
    assert detokenizer.feed([0, 1, 0, 1, 1]) == "a<end>a"
    assert detokenizer.finish() == ""
    assert detokenizer.num_held == 2


def test_an_id_without_text_is_nothing() -> None:
    assert feed_all(Detokenizer([b"a"], end_ids=()), [[0, 7, 0]]) == "aa"


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("one two", [], "one two"),
        ("one STOP two", ["STOP"], "one "),
        ("one STO", ["STOP"], "one STO"),
        ("aab", ["ab"], "a"),
        ("x</a></b>", ["</b>", "</a>"], "x"),
        ("abc", ["", "c"], "ab"),
    ],
)
def test_text_ends_before_the_first_stop_string(text: str, stops: list[str], expected: str) -> None:
    for pieces in ([text], list(text)):
        filter_ = StopStrings(stops)
        assert "".join([*map(filter_.feed, pieces), filter_.finish()]) == expected


def reader(tokenizer: ChatTokenizer, **rules: object) -> OutputReader:
    values = {"stop": (), "opened_thinking": False, "parse_calls": True, **rules}
    return OutputReader(
        ReadingRules(vocabulary=tokenizer.vocabulary, end_ids=frozenset(tokenizer.eos_ids), **values),  # type: ignore[arg-type]
        streams=True,
    )


def piece(ids: list[int], *, version: int = 0, k: int = 0) -> inference_pb2.InferResponse:
    return inference_pb2.InferResponse(
        output_ids=array("i", ids).tobytes(),
        logprobs=array("f", [float(-i) for i in ids]).tobytes(),
        versions=[common_pb2.VersionSpan(num_tokens=len(ids), version=version)],
        top_logprobs=common_pb2.TopLogprobs(k=k, ids=array("i", ids * k).tobytes(), logprobs=array("f", [0.0] * len(ids) * k).tobytes()),
    )


def test_versions_of_pieces_are_joined(tokenizer: ChatTokenizer) -> None:
    one = reader(tokenizer)
    for version in (3, 3, 4, 4, 3):
        one.feed(piece([5], version=version))
    assert [(span.num_tokens, span.version) for span in one.versions] == [(2, 3), (2, 4), (1, 3)]


@pytest.mark.parametrize(
    ("text", "opened", "num_tokens"),
    [
        ("plain", False, 0),
        ("<think>\nhm\n</think>\n\nso<|im_end|>", False, None),
        ("hm\n</think>so", True, None),
        ("<think>hm<|im_end|>", False, -1),
    ],
)
def test_reasoning_tokens_are_those_up_to_its_end(tokenizer: ChatTokenizer, text: str, opened: bool, num_tokens: int | None) -> None:
    one = reader(tokenizer, opened_thinking=opened)
    ids = tokenizer.encode(text)
    one.feed(piece(ids))
    one.finish()
    end = tokenizer.encode("</think>")[0]
    expected = {None: ids.index(end) + 1 if end in ids else 0, -1: len(ids) - 1}.get(num_tokens, num_tokens)
    assert one.num_reasoning_tokens() == expected


@pytest.mark.parametrize("field", ["logprobs", "versions", "top_logprobs"])
def test_arrays_of_unequal_length_are_the_engines_fault(tokenizer: ChatTokenizer, field: str) -> None:
    wrong = piece([5, 6], k=1)
    if field == "versions":
        wrong.versions[0].num_tokens = 1
    elif field == "logprobs":
        wrong.logprobs = wrong.logprobs[:4]
    else:
        wrong.top_logprobs.ids = b""
    with pytest.raises(Internal):
        reader(tokenizer, with_logprobs=True).feed(wrong)


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({}, 512),
        ({"engine_max_total": 100}, 90),
        ({"max_total": 30}, 20),
        ({"max_total": 3000}, 2990),
        ({"max_total": 3000, "engine_max_total": 1000}, 990),
        ({"max_new": 5}, 5),
        ({"max_new": 5000}, 5000),
        ({"max_new": 5000, "engine_max_total": 100}, 90),
        ({"max_new": 5, "max_total": 12}, 2),
    ],
)
def test_the_smallest_bound_counts(bounds: dict[str, int], expected: int) -> None:
    given_all = {"max_new": None, "max_total": None, "engine_max_total": None, **bounds}
    assert max_new_tokens(10, **given_all) == expected


@pytest.mark.parametrize("bounds", [{"max_total": 10}, {"engine_max_total": 9}, {"max_total": 100, "engine_max_total": 10}])
def test_a_prompt_that_fills_the_bound_is_refused(bounds: dict[str, int]) -> None:
    with pytest.raises(ContextLengthExceeded, match="len of prompt tokens 10 exceeds max_total_tokens"):
        max_new_tokens(10, **{"max_new": None, "max_total": None, "engine_max_total": None, **bounds})


@pytest.mark.parametrize("name", ["max_new", "max_total"])
def test_a_bound_of_zero_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="must be at least 1"):
        max_new_tokens(10, **{"max_new": None, "max_total": None, "engine_max_total": None, name: 0})

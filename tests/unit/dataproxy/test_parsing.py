from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlrun_dataproxy.parsing import OutputParser, Parsed, ParsedCall

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
OSLO = ParsedCall("weather", '{"city": "Oslo"}')


def parse(pieces: list[str], *, opened: bool = False, calls: bool = True) -> Parsed:
    parser = OutputParser(opened_thinking=opened, parse_calls=calls)
    total = Parsed()
    for part in [*(parser.feed(piece) for piece in pieces), parser.finish()]:
        total.content += part.content
        total.reasoning += part.reasoning
        total.calls += part.calls
    return total


@pytest.mark.parametrize(
    ("text", "opened", "calls", "expected"),
    [
        ("plain  text \n", False, True, Parsed("plain  text \n")),
        ("", False, True, Parsed()),
        ("  \n", False, True, Parsed("  \n")),
        ("<think>\nwhy\n</think>\n\nso", False, True, Parsed("so", "why")),
        ("\n<think>why</think>so", False, True, Parsed("so", "why")),
        ("why\n</think>\n\nso", True, True, Parsed("so", "why")),
        ("<think>cut in the mid", False, True, Parsed("", "cut in the mid")),
        ("cut", True, True, Parsed("", "cut")),
        ("no open tag</think>so", False, True, Parsed("no open tag</think>so")),
        ("text <think>later</think>", False, True, Parsed("text <think>later</think>")),
        (CALL, False, True, Parsed("", "", [OSLO])),
        (f"Let me see.\n{CALL}\n{CALL}\n", False, True, Parsed("Let me see.", "", [OSLO, OSLO])),
        (f"<think>\n{CALL}\n</think>\n\nno", False, True, Parsed("no", CALL)),
        (f"<think>x</think>\n\n{CALL}", False, True, Parsed("", "x", [OSLO])),
        (f"{CALL} after", False, True, Parsed("after", "", [OSLO])),
        (CALL, False, False, Parsed(CALL)),
        ("a <tool_call>{oops}</tool_call> b", False, True, Parsed("a <tool_call>{oops}</tool_call> b")),
        ('<tool_call>{"arguments": {}}</tool_call>', False, True, Parsed('<tool_call>{"arguments": {}}</tool_call>')),
        (
            '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
            False,
            True,
            Parsed('<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
        ),
        ('<tool_call>{"name": "f"}</tool_call>', False, True, Parsed("", "", [ParsedCall("f", "{}")])),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', False, True, Parsed("", "", [ParsedCall("f", '{"a": 1}')])),
        ('<tool_call>{"name": "f", "arguments": {}}', False, True, Parsed("", "", [ParsedCall("f", "{}")])),
        ('<tool_call>{"name": "f", "argu', False, True, Parsed('<tool_call>{"name": "f", "argu')),
        ("less < than <tool", False, True, Parsed("less < than <tool")),
    ],
)
def test_output_is_told_apart(text: str, opened: bool, calls: bool, expected: Parsed) -> None:
    assert parse([text], opened=opened, calls=calls) == expected
    assert parse(list(text), opened=opened, calls=calls) == expected


FRAGMENTS = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        CALL,
        '{"name": "f"}',
        "<",
        "</",
        "think>",
        "<tool_",
        "call>",
        " ",
        "\n",
        "word",
        "ü",
    ]
)


@given(st.lists(FRAGMENTS, max_size=12), st.booleans(), st.booleans(), st.data())
def test_any_cut_gives_the_same_result_as_one_piece(fragments: list[str], opened: bool, calls: bool, data: st.DataObject) -> None:
    text = "".join(fragments)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse(pieces, opened=opened, calls=calls) == parse([text], opened=opened, calls=calls)


def test_half_a_tag_is_never_given_out() -> None:
    parser = OutputParser(opened_thinking=False, parse_calls=True)
    assert parser.feed("a<tool").content == "a"
    assert parser.feed("_call").content == ""
    assert parser.feed("s>").content == "<tool_calls>"

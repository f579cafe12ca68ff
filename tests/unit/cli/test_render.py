import io
from typing import Any

from rich.console import Console

from rlrun.cli.render import cell, rows_table, session_tree, value_tree


def draw(renderable: Any) -> str:
    out = io.StringIO()
    Console(file=out, width=120, color_system=None).print(renderable)
    return out.getvalue()


def interaction(index: int, parent: str | None, **fields: Any) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{index}",
        "parent_id": parent,
        "index": index,
        "finish_reason": "stop",
        "content": f"answer {index}",
        "num_new_prompt_tokens": 10 + index,
        "num_output_tokens": 5,
        "versions": [{"num_tokens": 3, "version": 7}, {"num_tokens": 2, "version": 8}],
        "reward": None,
    } | fields


def test_a_session_is_drawn_as_its_tree_with_tokens_mask_and_versions() -> None:
    text = draw(
        session_tree(
            {
                "session": {"session_id": "t-0", "state": "ACTIVE", "reason": ""},
                "interactions": [
                    interaction(0, None),
                    interaction(2, "chatcmpl-1", reward=1.0),
                    interaction(1, "chatcmpl-0"),
                    interaction(3, ""),
                ],
            }
        )
    )
    lines = text.splitlines()
    assert lines[0].startswith("t-0  state ACTIVE")
    indent = {index: next(line.index("#") for line in lines if f"#{index} " in line) for index in range(4)}
    assert indent[0] == indent[3] < indent[1] < indent[2]
    assert "tokens 10 new prompt + 5 output   mask 0 x 10 | 1 x 5   versions v7 x 3, v8 x 2" in text
    assert "#2 chatcmpl-2  stop  reward 1" in text


def test_a_parent_that_is_not_listed_makes_a_root() -> None:
    assert "#4 chatcmpl-4" in draw(session_tree({"session": {"session_id": "s"}, "interactions": [interaction(4, "gone")]}))


def test_a_long_chain_is_drawn() -> None:
    chain = [interaction(index, f"chatcmpl-{index - 1}" if index else None) for index in range(150)]
    assert session_tree({"session": {"session_id": "s"}, "interactions": chain})


def test_a_session_without_interactions_says_so() -> None:
    assert "no interactions yet" in draw(session_tree({"session": {"session_id": "s"}, "interactions": []}))


def test_model_text_cannot_write_markup_or_control_characters() -> None:
    text = draw(session_tree({"session": {"session_id": "s"}, "interactions": [interaction(0, None, content="[red]x[/] \x1b[31m\nnext")]}))
    assert "[red]x[/]" in text
    assert "\x1b" not in text


def test_long_values_are_cut() -> None:
    assert len(cell("x" * 1000)) == 72


def test_numbers_are_aligned_and_large_times_keep_their_digits() -> None:
    assert cell(1790000000.5) == "1790000000.5"
    assert cell(0.25) == "0.25"
    assert draw(rows_table([{"id": "a", "n": 5}, {"id": "b", "n": 500, "x": None}])).splitlines()[1].split() == ["a", "5", "-"]


def test_times_are_written_as_dates() -> None:
    assert "2026-09-21 13:33:20Z" in draw(rows_table([{"created_unix_seconds": 1789997600.0}, {"created_unix_seconds": None}]))


def test_nested_values_become_a_tree() -> None:
    text = draw(value_tree({"policy": {"current": 3}, "members": [{"id": "w", "ok": True}], "tags": ["a", "b"], "none": []}, "status"))
    assert text.splitlines()[0] == "status"
    assert "current: 3" in text
    assert "w   yes" in text
    assert "tags: a, b" in text
    assert "none: -" in text

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from rlrun.errors import InvalidRequest
from rlrun.proto import common_pb2, session_pb2
from rlrun.trajectory import (
    BrokenTree,
    ExportStyle,
    InteractionTree,
    RewardStyle,
    export_rows,
    reward_discount,
    row_from_json,
    row_to_json,
)


def record(name: str, parent: str, index: int, prompt: list[int], output: list[int], *, version: int = 0) -> session_pb2.InteractionRecord:
    return session_pb2.InteractionRecord(
        schema=1,
        id=name,
        parent_id=parent,
        index=index,
        new_prompt_ids=np.array(prompt, "<i4").tobytes(),
        output_ids=np.array(output, "<i4").tobytes(),
        output_logprobs=np.array([-0.5 - index] * len(output), "<f4").tobytes(),
        versions=[common_pb2.VersionSpan(num_tokens=len(output), version=version)],
        temperature=0.7,
    )


def forked_tree() -> InteractionTree:
    return InteractionTree.from_records(
        [
            record("d", "b", 3, [9], [10, 11], version=5),
            record("a", "", 0, [1, 2], [3]),
            record("b", "a", 1, [4], [5, 6], version=4),
            record("c", "a", 2, [7], [8]),
        ]
    )


CHAIN = {"a": None, "b": "a", "c": "b"}


@pytest.mark.parametrize("style", list(RewardStyle))
@pytest.mark.parametrize(
    ("rewards", "discount", "expected"),
    [
        ({"c": 10.0}, 0.9, [8.1, 9.0, 10.0]),
        ({"a": 1.0, "c": 2.0}, 0.5, [1.5, 1.0, 2.0]),
        ({"c": 1.0}, 0.9, [0.81, 0.9, 1.0]),
        ({"a": 1.0, "b": 2.0, "c": 3.0}, 1.0, [6.0, 5.0, 3.0]),
        ({"a": 1.0, "b": 2.0, "c": 3.0}, 0.0, [1.0, 2.0, 3.0]),
        ({}, 0.9, [0.0, 0.0, 0.0]),
    ],
)
def test_rewards_of_a_plain_conversation_accumulate_the_same_in_both_styles(
    style: RewardStyle, rewards: dict[str, float], discount: float, expected: list[float]
) -> None:
    got = reward_discount(CHAIN, rewards, style=style, turn_discount=discount)
    assert list(got.values()) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        # b (1) and c (2) are children of a; d is a child of b; e is a root of its own.
        (RewardStyle.TREE, {"a": 0.5 * (1 + 0.5 * 4) + 0.5 * 2, "b": 1 + 0.5 * 4, "c": 2.0, "d": 4.0, "e": 8.0}),
        (RewardStyle.LINEAR, {"e": 8.0, "d": 8.0, "c": 6.0, "b": 4.0, "a": 2.0}),
    ],
)
def test_branches_share_rewards_only_in_the_linear_style(style: RewardStyle, expected: dict[str, float]) -> None:
    parents = {"a": None, "b": "a", "c": "a", "d": "b", "e": None}
    got = reward_discount(parents, {"b": 1.0, "c": 2.0, "d": 4.0, "e": 8.0}, style=style, turn_discount=0.5)
    assert got == pytest.approx(expected)


def test_the_prompt_is_everything_along_the_path_before_the_output() -> None:
    tree = forked_tree()
    assert tree.prompt_ids("d").tolist() == [1, 2, 3, 4, 5, 6, 9]
    assert tree.prompt_ids("c").tolist() == [1, 2, 3, 7]


def test_individual_rows_train_only_their_own_output() -> None:
    rows = export_rows(forked_tree(), {"d": 2.0}, style=ExportStyle.INDIVIDUAL)
    assert [row.interaction_id for row in rows] == ["a", "b", "c", "d"]
    last = rows[-1]
    assert last.input_ids.tolist() == [1, 2, 3, 4, 5, 6, 9, 10, 11]
    assert last.loss_mask.tolist() == [0] * 7 + [1, 1]
    assert last.versions.tolist() == [-1] * 7 + [5, 5]
    assert last.logprobs.tolist() == [0.0] * 7 + [-3.5, -3.5]
    assert last.reward == 2.0
    assert last.temperature == pytest.approx(0.7)


def test_concat_rows_are_the_leaves_with_their_ancestors_outputs_and_masked_glue() -> None:
    rows = export_rows(forked_tree(), {"d": 2.0, "c": 1.0}, style=ExportStyle.CONCAT)
    assert [(row.interaction_id, row.reward) for row in rows] == [("c", 1.0), ("d", 2.0)]
    last = rows[-1]
    assert last.input_ids.tolist() == [1, 2, 3, 4, 5, 6, 9, 10, 11]
    assert last.loss_mask.tolist() == [0, 0, 1, 0, 1, 1, 0, 1, 1]
    assert last.versions.tolist() == [-1, -1, 0, -1, 4, 4, -1, 5, 5]
    assert last.logprobs.tolist() == [0, 0, -0.5, 0, -1.5, -1.5, 0, -3.5, -3.5]


@pytest.mark.parametrize("style", list(ExportStyle))
def test_rows_have_the_documented_types(style: ExportStyle) -> None:
    for row in export_rows(forked_tree(), {}, style=style):
        assert [row.input_ids.dtype, row.loss_mask.dtype, row.versions.dtype] == [np.int32] * 3
        assert row.logprobs.dtype == np.float32


def test_an_empty_session_has_no_rows() -> None:
    assert export_rows(InteractionTree([]), {}, style=ExportStyle.CONCAT) == []


def test_json_form_has_batch_dimension_one_and_comes_back() -> None:
    row = export_rows(forked_tree(), {"a": 0.25}, style=ExportStyle.INDIVIDUAL)[0]
    value = msgspec.json.decode(msgspec.json.encode(row_to_json(row)))
    assert value["input_ids"] == {"dtype": "int32", "shape": [1, 3], "data": [[1, 2, 3]]}
    assert value["attention_mask"] == {"dtype": "bool", "shape": [1, 3], "data": [[True, True, True]]}
    assert value["rewards"] == {"dtype": "float32", "shape": [1], "data": [0.25]}
    assert set(value) == {"input_ids", "loss_mask", "logprobs", "versions", "attention_mask", "rewards"}
    back = row_from_json(value, interaction_id="a")
    assert back.input_ids.tolist() == row.input_ids.tolist()
    assert back.versions.tolist() == row.versions.tolist()
    assert back.reward == 0.25


@pytest.mark.parametrize("tensor", [None, {"dtype": "int32", "shape": [1, 5], "data": [[1]]}])
def test_a_wrong_tensor_is_named(tensor: object) -> None:
    row = row_to_json(export_rows(forked_tree(), {}, style=ExportStyle.INDIVIDUAL)[0])
    with pytest.raises(InvalidRequest) as caught:
        row_from_json({**row, "versions": tensor}, interaction_id="a")
    assert caught.value.param == "versions"


def test_records_that_are_no_tree_are_refused() -> None:
    with pytest.raises(BrokenTree, match="names a parent x"):
        InteractionTree.from_records([record("a", "x", 0, [1], [2])])
    wrong = record("a", "", 0, [1], [2, 3])
    wrong.versions[0].num_tokens = 1
    with pytest.raises(BrokenTree, match="2 output ids, 2 logprobs and 1 versions"):
        InteractionTree.from_records([wrong])


def test_a_row_holds_turns_of_one_temperature() -> None:
    first, second = record("a", "", 0, [1], [2]), record("b", "a", 1, [3], [4])
    second.temperature = 1.0
    tree = InteractionTree.from_records([first, second])
    with pytest.raises(InvalidRequest, match=r"up to b .* temperatures 0.7, 1"):
        export_rows(tree, {}, style=ExportStyle.CONCAT)
    assert [row.temperature for row in export_rows(tree, {}, style=ExportStyle.INDIVIDUAL)] == pytest.approx([0.7, 1.0])

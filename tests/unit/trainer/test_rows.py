"""Rows check themselves and become padded batches."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rlrun_trainer.rows import Row, pad_rows, select_rows, shift_left

from rlrun.errors import InvalidRequest

Rows = Callable[..., list[Row]]


def made(**changes: Any) -> Row:
    values: dict[str, Any] = {
        "input_ids": np.array([4, 5, 6], dtype=np.int32),
        "loss_mask": np.array([0, 1, 1], dtype=np.int32),
        "logprobs": np.array([0, -1, -2], dtype=np.float32),
        "versions": np.array([-1, 3, 4], dtype=np.int32),
        "reward": 1.0,
        "group_id": "g",
        "session_id": "s9",
    }
    return Row(**values | changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"logprobs": np.zeros(2, dtype=np.float32)}, "one length"),
        ({"logprobs": np.array([0, np.nan, 0], dtype=np.float32)}, "finite"),
        ({"reward": float("inf")}, "finite"),
        ({"temperature": -1.0}, "temperature"),
    ],
)
def test_bad_row_names_its_session(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"session s9.*{said}"):
        made(**changes)


def test_padding() -> None:
    longer = made(
        input_ids=np.arange(5, dtype=np.int32),
        loss_mask=np.array([0, 0, 1, 0, 1], dtype=np.int32),
        logprobs=np.array([0, 0, -3, 0, -4], dtype=np.float32),
        versions=np.array([-1, -1, 7, -1, 8], dtype=np.int32),
        group_id="h",
    )
    batch = pad_rows([made(), longer, made()])
    assert batch.input_ids_BT.tolist()[0] == [4, 5, 6, 0, 0]
    assert batch.versions_BT.tolist()[0] == [-1, 3, 4, -1, -1]
    assert batch.lengths_B.tolist() == [3, 5, 3]
    assert batch.group_index_B.tolist() == [0, 1, 0]


def test_greedy_rows_count_as_temperature_one_as_in_the_engine() -> None:
    assert pad_rows([made(temperature=0.0), made(temperature=0.5)]).temperature_B.tolist() == [1.0, 0.5]


def test_no_rows_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="at least one row"):
        pad_rows([])


def test_selected_rows_are_cut_to_the_longest_and_keep_their_groups(make_rows: Rows) -> None:
    batch = pad_rows(make_rows([6, 9, 4, 5]))
    part = select_rows(batch, [3, 0])
    assert part.shape == (2, 6)
    assert part.group_index_B.tolist() == [1, 0]
    assert part.input_ids_BT[0].tolist() == batch.input_ids_BT[3, :6].tolist()


def test_token_and_version_shift_together() -> None:
    batch = pad_rows([made()])
    assert shift_left(batch.loss_mask_BT, 0).tolist() == [[True, True, False]]
    assert shift_left(batch.versions_BT, -1).tolist() == [[3, 4, -1]]
    assert shift_left(batch.input_ids_BT, 0).tolist() == [[5, 6, 0]]

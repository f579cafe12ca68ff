"""Rows are split over ranks by tokens."""

from rlrun_trainer.ranks import Ranks, balanced_shares


def test_shares_balance_tokens_and_hold_every_row_once() -> None:
    assert balanced_shares([10, 1, 2, 3, 4], 2) == [[0], [1, 2, 3, 4]]
    assert balanced_shares([5], 2) == [[0], []]


def test_one_rank_has_all_rows_in_order() -> None:
    assert Ranks().share([1, 5, 3]) == [0, 1, 2]

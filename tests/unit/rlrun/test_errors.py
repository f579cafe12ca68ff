from rlrun import errors


def test_each_code_names_one_class_that_carries_it() -> None:
    assert {code: cls.code for code, cls in errors.BY_CODE.items()} == {code: code for code in errors.BY_CODE}


def test_overload_always_says_when_to_come_back() -> None:
    for cls in (errors.NoCapacity, errors.RefreshTimeout, errors.Unavailable, errors.StoreUnavailable, errors.NoMember):
        assert cls("busy").retry_after_seconds is not None

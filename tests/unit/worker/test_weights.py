from __future__ import annotations

import hashlib

import torch
from rlrun_worker.weights import weight_fingerprint


def test_fingerprint_is_what_its_docstring_says() -> None:
    state = {"b": torch.tensor([[1.0, 2.0]]), "a": torch.tensor(3, dtype=torch.int64)}
    plain = b"a\0int64\0\0" + (3).to_bytes(8, "little") + b"b\0float32\x001,2\0" + torch.tensor([1.0, 2.0]).numpy().tobytes()
    assert weight_fingerprint(state) == hashlib.sha256(plain).hexdigest()


def test_fingerprint_sees_names_types_shapes_and_bits_but_not_order_or_layout() -> None:
    base = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(2)}
    changed = [
        {"a": base["a"], "c": base["b"]},
        {"a": base["a"].reshape(3, 2), "b": base["b"]},
        {"a": base["a"].bfloat16(), "b": base["b"]},
        {"a": base["a"], "b": torch.tensor([0.0, -0.0])},
        {"a": base["a"]},
    ]
    assert len({weight_fingerprint(state) for state in [base, *changed]}) == len(changed) + 1
    assert weight_fingerprint({"b": base["b"], "a": base["a"].T.contiguous().T}) == weight_fingerprint(base)

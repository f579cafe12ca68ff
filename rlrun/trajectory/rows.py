"""One row of tensors for training, and its JSON form for clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryRow:
    """A sequence of L tokens: prompt and output of one interaction, or of a whole branch.

    input_ids   int32   [L]  prompt and sampled tokens, exactly as the engine saw and gave them
    loss_mask   int32   [L]  1 where the policy sampled the token
    logprobs    float32 [L]  behaviour logprob where sampled, else 0.0
    versions    int32   [L]  policy version that sampled the token, else -1
    reward      float        discounted reward of the row's last interaction
    temperature float        that its trained tokens were sampled at
    """

    interaction_id: str
    input_ids: NDArray[np.int32]
    loss_mask: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    reward: float
    temperature: float


def row_to_json(row: TrajectoryRow) -> dict[str, Any]:
    """Tensors as `{dtype, shape, data}` with batch dimension 1; the keys are those that AReaL's exported interactions have."""
    return {
        "input_ids": _tensor(row.input_ids[None], "int32"),
        "loss_mask": _tensor(row.loss_mask[None], "int32"),
        "logprobs": _tensor(row.logprobs[None], "float32"),
        "versions": _tensor(row.versions[None], "int32"),
        "attention_mask": _tensor(np.ones((1, len(row.input_ids)), dtype=np.bool_), "bool"),
        "rewards": _tensor(np.array([row.reward], dtype=np.float32), "float32"),
    }


def row_from_json(value: Mapping[str, Any], *, interaction_id: str, temperature: float = 1.0) -> TrajectoryRow:
    """The inverse of `row_to_json`, for readers of an export.

    Raises:
        InvalidRequest: a tensor is missing or its data does not have its shape.
    """
    return TrajectoryRow(
        interaction_id=interaction_id,
        input_ids=_array(value, "input_ids", np.int32)[0],
        loss_mask=_array(value, "loss_mask", np.int32)[0],
        logprobs=_array(value, "logprobs", np.float32)[0],
        versions=_array(value, "versions", np.int32)[0],
        reward=float(_array(value, "rewards", np.float32)[0]),
        temperature=temperature,
    )


def _tensor(array: NDArray[Any], dtype: str) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(array.shape), "data": array.tolist()}


def _array(value: Mapping[str, Any], key: str, dtype: Any) -> NDArray[Any]:
    tensor = value.get(key)
    if not isinstance(tensor, Mapping) or "data" not in tensor:
        raise InvalidRequest(f"{key} is missing; expected an object with dtype, shape and data", param=key)
    array = np.asarray(tensor["data"], dtype=dtype)
    if list(array.shape) != list(tensor.get("shape", array.shape)):
        raise InvalidRequest(f"{key} says shape {tensor['shape']} and holds {list(array.shape)}", param=key)
    return array

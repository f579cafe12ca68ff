"""What every object of the RLRun document shares: strict fields, camelCase aliases, rules between fields."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

RULES_ERROR = "rlrun_rules"


class Fault(NamedTuple):
    """One broken rule. `path` is relative to the object that states the rule and uses the document's field names."""

    path: str
    value: object
    reason: str  # the limit; then the remedy


class SpecModel(BaseModel):
    """Base of the document's objects. YAML uses the camelCase aliases, Python the snake_case names."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True, allow_inf_nan=False, validate_default=False
    )

    def rules(self) -> Iterator[Fault]:
        """Yields every broken rule between fields of this object; field limits are checked before."""
        yield from ()

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        faults = list(self.rules())
        if faults:
            summary = "; ".join(f"{fault.path}: {fault.reason}" for fault in faults)
            raise PydanticCustomError(RULES_ERROR, "{summary}", {"summary": summary, "faults": faults})
        return self


class Device(StrEnum):
    """Where tensors live. Auto takes CUDA where it is present."""

    AUTO = "Auto"
    CPU = "Cpu"
    CUDA = "Cuda"


# Names become parts of Kubernetes object names: RFC 1035 labels.
NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
ObjectName = Annotated[str, Field(min_length=1, max_length=63, pattern=NAME_PATTERN)]
Replicas = Annotated[int, Field(ge=0, le=1000)]
Seconds = Annotated[float, Field(gt=0, le=604_800)]
Tokens = Annotated[int, Field(ge=1, le=16_777_216)]
Threads = Annotated[int, Field(ge=1, le=1024)]
Directory = Annotated[str, Field(min_length=1, max_length=1024)]


class SecretRef(SpecModel):
    """A Secret of the run's namespace; locally the process-level variables name files instead."""

    name: str = Field(min_length=1, max_length=253, description="Name of the Secret in the run's namespace.")
    key: str | None = Field(
        default=None, min_length=1, max_length=253, description="Key inside the Secret; null takes the documented key of the place."
    )

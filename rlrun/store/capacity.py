"""How many more sessions may start. The same formula runs in `lua/place.lua`, in the script that admits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rlrun.errors import InvalidRequest
from rlrun.store.connection import Connection


class AdmissionMode(StrEnum):
    STALENESS = "Staleness"
    GRANTED = "Granted"
    UNLIMITED = "Unlimited"


@dataclass(frozen=True, kw_only=True)
class Admission:
    """The run's rule. `max_concurrent`: ACTIVE sessions, in every mode; `max_staleness`: versions; `batch_size`: sessions per step."""

    mode: AdmissionMode
    max_concurrent: int
    max_staleness: int = 0
    batch_size: int = 1

    def __post_init__(self) -> None:
        # The document's enum is another class with the same values.
        object.__setattr__(self, "mode", AdmissionMode(self.mode))


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """`running`: ACTIVE sessions; `accepted`: queued or trained ones; `granted`: starts left; `step`: last committed step."""

    running: int
    accepted: int
    granted: int
    step: int

    def left(self, admission: Admission) -> int:
        """Sessions that may start now; may be negative. The formula is AReaL's, with sessions as its unit."""
        concurrent = max(1, admission.max_concurrent) - self.running
        match admission.mode:
            case AdmissionMode.STALENESS:
                budget = (admission.max_staleness + self.step + 1) * max(1, admission.batch_size)
                return min(concurrent, budget - (self.accepted + self.running))
            case AdmissionMode.GRANTED:
                return min(concurrent, self.granted)
            case AdmissionMode.UNLIMITED:
                return concurrent


class Capacities:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def grant(self, amount: int) -> int:
        """Lets `amount` more sessions start in mode Granted; returns how many are granted now."""
        if amount < 1:
            raise InvalidRequest(f"amount {amount} must be at least 1", param="amount")
        return int(await self._connection.command("HINCRBY", self._connection.keys.capacity, "granted", amount))

    async def get(self) -> Capacity:
        found = await self._connection.command("HMGET", self._connection.keys.capacity, "running", "accepted", "granted", "step")
        running, accepted, granted, step = (int(value or 0) for value in found)
        return Capacity(running=running, accepted=accepted, granted=granted, step=step)

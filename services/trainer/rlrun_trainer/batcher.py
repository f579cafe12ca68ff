"""Which trajectories make the next step: whole groups, in the order in which they arrived. Pure; the clock is an argument."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlrun.store import GroupInfo, TrajectoryRef


@dataclass
class _Group:
    first_seen_seconds: float
    refs: list[TrajectoryRef] = field(default_factory=list)


class Batcher:
    """Buffers references until they fill a step.

    A group is complete when all its members were started, each session started for it has ended and each one that was queued has
    arrived; one that waits longer than `group_timeout_seconds` is taken as it is.
    """

    def __init__(self, *, batch_size: int, group_timeout_seconds: float) -> None:
        self._batch_size = batch_size
        self._group_timeout_seconds = group_timeout_seconds
        self._groups: dict[str, _Group] = {}
        self._complete: list[list[TrajectoryRef]] = []
        self._seen: set[str] = set()

    @property
    def num_buffered(self) -> int:
        return sum(len(group.refs) for group in self._groups.values()) + sum(map(len, self._complete))

    def add(self, ref: TrajectoryRef, *, now_seconds: float) -> None:
        """Takes a reference from the stream; one that was delivered before is ignored."""
        if ref.stream_id in self._seen:
            return
        self._seen.add(ref.stream_id)
        if ref.group_size <= 1:
            self._complete.append([ref])
        else:
            self._groups.setdefault(ref.group_id, _Group(now_seconds)).refs.append(ref)

    def waiting_groups(self) -> list[str]:
        return list(self._groups)

    def close(self, infos: Mapping[str, GroupInfo], *, now_seconds: float) -> None:
        """Moves groups that are complete, or have waited too long, to the batch under way."""
        for group_id, group in list(self._groups.items()):
            info = infos.get(group_id)
            arrived = info is not None and info.closed >= max(info.size, info.placed) and len(group.refs) >= info.queued
            if arrived or now_seconds - group.first_seen_seconds > self._group_timeout_seconds:
                self._complete.append(self._groups.pop(group_id).refs)

    def take(self) -> list[TrajectoryRef] | None:
        """The next batch of at least `batch_size` sessions, or None while there are fewer."""
        num_taken = 0
        for num_groups, group in enumerate(self._complete, start=1):
            num_taken += len(group)
            if num_taken >= self._batch_size:
                batch = [ref for group in self._complete[:num_groups] for ref in group]
                del self._complete[:num_groups]
                return batch
        return None

    def put_back(self, refs: list[TrajectoryRef]) -> None:
        """Undoes a `take`: the same batch is the next one."""
        self._complete.insert(0, refs)

    def forget(self, stream_ids: set[str]) -> None:
        """Called once the references are committed: the stream will not deliver them again."""
        self._seen -= stream_ids

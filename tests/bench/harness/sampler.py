"""Where a process spends its CPU time: stacks at equal distances of CPU time (the kernel's tick, usually 4 ms), counted by function.

C code counts for the Python line that called it. SIGUSR1 throws away what was counted so far, SIGUSR2 writes it to the file.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any

INTERVAL_SECONDS = 0.002


class _Samples:
    def __init__(self) -> None:
        self.num = 0
        self.own: Counter[str] = Counter()
        self.total: Counter[str] = Counter()
        self.room: Counter[str] = Counter()

    def take(self, _: int, frame: FrameType | None) -> None:
        self.num += 1
        if frame is None:
            return
        self.own[f"{_name(frame)}:{frame.f_lineno}"] += 1
        seen: set[str] = set()
        room = ""
        while frame is not None:
            seen.add(_name(frame))
            room = room or _room(frame.f_code.co_filename)
            frame = frame.f_back
        self.total.update(seen)
        self.room[room or "event loop"] += 1

    def write(self, path: str) -> None:
        with open(path, "w") as file:
            json.dump(
                {
                    "num_samples": self.num,
                    "room": self.room.most_common(),
                    "own": self.own.most_common(60),
                    "total": self.total.most_common(150),
                },
                file,
            )


def _name(frame: FrameType) -> str:
    code = frame.f_code
    return f"{_short(code.co_filename)} {code.co_qualname}"


def _short(filename: str) -> str:
    for mark in ("/site-packages/", "/services/", "/lib/python3"):
        _, found, rest = filename.rpartition(mark)
        if found:
            return rest
    _, found, rest = filename.rpartition("/rlrun/")
    return f"rlrun/{rest}" if found else filename.rpartition("/")[2]


def _room(filename: str) -> str:
    """The innermost part of rlrun, or the library on top of it where no rlrun code is."""
    if "/services/" in filename:
        return filename.rpartition("/services/")[2].partition("/")[0]
    if "/tests/bench/" in filename:
        return "engine adapter" if filename.endswith("engine.py") else ""
    for part in ("store", "rpc"):
        if f"/rlrun/{part}/" in filename:
            return part
    return ""


@contextlib.contextmanager
def sampling(path: str) -> Iterator[None]:
    samples = _Samples()

    def forget(*_: Any) -> None:
        samples.__init__()  # type: ignore[misc]

    signal.signal(signal.SIGPROF, samples.take)
    signal.signal(signal.SIGUSR1, forget)
    signal.signal(signal.SIGUSR2, lambda *_: samples.write(path))
    signal.setitimer(signal.ITIMER_PROF, INTERVAL_SECONDS, INTERVAL_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)

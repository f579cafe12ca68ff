"""Where a process spends its CPU time: stacks, counted by function.

The kernel asks for a stack at each tick of CPU time (usually 4 ms). Python answers when the C code under way has returned, so that one
answer may be for several ticks: each stack counts with the CPU time since the last one. C code counts for the Python line that called it.

SIGUSR1 throws away what was counted so far, SIGUSR2 writes it to the file.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any

INTERVAL_SECONDS = 0.002


class _Samples:
    def __init__(self) -> None:
        self._busy = False
        self.forget()

    def forget(self, *_: Any) -> None:
        self.num = 0
        self.seconds = 0.0
        self.own: Counter[str] = Counter()
        self.total: Counter[str] = Counter()
        self.room: Counter[str] = Counter()
        self._last = time.process_time()

    def take(self, _: int, frame: FrameType | None) -> None:
        if self._busy:  # a signal may come while another one is handled
            return
        self._busy = True
        now = time.process_time()
        seconds = now - self._last
        self.num += 1
        self.seconds += seconds
        if frame is not None:
            self._count(frame, seconds)
        self._last = time.process_time()  # leaves out what counting took
        self._busy = False

    def _count(self, frame: FrameType, seconds: float) -> None:
        self.own[f"{_name(frame)}:{frame.f_lineno}"] += seconds  # type: ignore[assignment]
        seen: set[str] = set()
        room = ""
        one: FrameType | None = frame
        while one is not None:
            seen.add(_name(one))
            room = room or _room(one.f_code.co_filename)
            one = one.f_back
        for name in seen:
            self.total[name] += seconds  # type: ignore[assignment]
        self.room[room or "event loop, HTTP server"] += seconds  # type: ignore[assignment]

    def write(self, path: str) -> None:
        self._busy = True
        data = {
            "num_samples": self.num,
            "seconds": self.seconds,
            "room": self.room.most_common(),
            "own": self.own.most_common(60),
            "total": self.total.most_common(150),
        }
        with open(f"{path}.new", "w") as file:
            json.dump(data, file)
        os.replace(f"{path}.new", path)  # a reader sees all of it or nothing
        self._busy = False


def _name(frame: FrameType) -> str:
    code = frame.f_code
    return f"{_short(code.co_filename)} {code.co_qualname}"


def _short(filename: str) -> str:
    for mark in ("/site-packages/", "/services/", "/lib/python3.11/"):
        _, found, rest = filename.rpartition(mark)
        if found:
            return rest
    _, found, rest = filename.rpartition("/rlrun/")
    return f"rlrun/{rest}" if found else filename.rpartition("/")[2]


def _room(filename: str) -> str:
    """The innermost part of rlrun; empty where a frame is not from it."""
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
    signal.signal(signal.SIGPROF, samples.take)
    signal.signal(signal.SIGUSR1, samples.forget)
    signal.signal(signal.SIGUSR2, lambda *_: samples.write(path))
    signal.setitimer(signal.ITIMER_PROF, INTERVAL_SECONDS, INTERVAL_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)

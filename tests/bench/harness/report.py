"""Results as tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from harness.cases import Result

# Every stack has these.
_FRAME = ("<frozen runpy>", "asyncio/runners.py", "host.py", "uvloop/__init__.py", "rlrun/service.py main")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    numeric = [len(lines) > 1 and all(_is_number(line[column]) for line in lines[1:]) for column in range(len(header))]

    def draw(line: Sequence[str]) -> str:
        cells = (cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(line, widths, numeric, strict=True))
        return f"| {' | '.join(cells)} |"

    rule = "|" + "|".join("-" * (width + 1) + (":" if right else "-") for width, right in zip(widths, numeric, strict=True)) + "|"
    return "\n".join([draw(lines[0]), rule, *map(draw, lines[1:])])


def _is_number(cell: str) -> bool:
    return not cell or cell[0].isdigit() or cell[0] in "+-"


def medians(results: Sequence[Result]) -> list[Result]:
    """Of several runs of a case the one in the middle, by calls a second; the others as a range."""
    groups: dict[tuple[str, str, int], list[Result]] = {}
    for result in results:
        groups.setdefault((result.target, result.case, result.connections), []).append(result)
    chosen = []
    for runs in groups.values():
        runs.sort(key=lambda result: result.calls_per_second)
        middle = runs[len(runs) // 2]
        if len(runs) > 1 and middle.calls_per_second:
            middle.notes |= {"slowest run": round(runs[0].calls_per_second), "fastest run": round(runs[-1].calls_per_second)}
        chosen.append(middle)
    return chosen


def calls_table(results: Sequence[Result]) -> str:
    header = (
        "target",
        "case",
        "conns",
        "calls/s",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "CPU ms/call",
        "core %",
        "failed",
        "CPU by process, notes",
    )
    return table(header, [_row(result) for result in results if result.case != "memory"])


def _row(result: Result) -> list[str]:
    parts = [f"{name} {value:.2f}" for name, value in result.cpu_ms_per_call.items()] if len(result.cpu_ms_per_call) > 1 else []
    parts += [f"{name} {value:g}" for name, value in result.notes.items()]
    return [
        result.target,
        result.case,
        str(result.connections),
        f"{result.calls_per_second:.0f}",
        *(f"{value:.2f}" if value < 100 else f"{value:.0f}" for value in (result.p50_ms, result.p95_ms, result.p99_ms)),
        f"{result.cpu_ms:.3f}" if result.cpu_ms_per_call else "",
        f"{result.core_percent:.0f}" if result.cpu_ms_per_call else "",
        str(result.failed),
        ", ".join(parts),
    ]


def memory_table(results: Sequence[Result]) -> str:
    names = list(dict.fromkeys(name for result in results if result.case == "memory" for name in result.notes))
    rows = [
        [result.target, *(f"{result.notes[name]:.1f}" if name in result.notes else "" for name in names)]
        for result in results
        if result.case == "memory"
    ]
    return table(("target", *names), rows) if rows else ""


def ratio_table(results: Sequence[Result], ours: str) -> str:
    """How many times as many calls a second as each other target, and how its latencies compare; only where no call failed."""
    mine = {(result.case, result.connections): result for result in results if result.target == ours}
    rows = []
    for result in results:
        own = mine.get((result.case, result.connections))
        if (
            own is None
            or own.failed
            or result.failed
            or result.target.startswith(("rlrun", "direct"))
            or result.case == "memory"
            or not result.calls_per_second
        ):
            continue
        rows.append(
            [
                result.target,
                result.case,
                str(result.connections),
                f"{own.calls_per_second / result.calls_per_second:.2f}",
                f"{result.p50_ms / own.p50_ms:.2f}",
                f"{result.p99_ms / own.p99_ms:.2f}",
                f"{result.cpu_ms / own.cpu_ms:.2f}" if own.cpu_ms else "",
            ]
        )
    header = ("against", "case", "conns", "calls/s ours : theirs", "p50 theirs : ours", "p99 theirs : ours", "CPU theirs : ours")
    return table(header, rows) if rows else ""


def profile_tables(path: Path, name: str, calls: int, num_rows: int) -> str:
    data: dict[str, Any] = json.loads(path.read_text())
    total = data["seconds"] or 1.0
    parts = [f"profile of {name}: {data['num_samples']} samples, {total:.1f} s of CPU, {calls} calls"]
    for kind, title in (
        ("room", "by part"),
        ("total", "functions, with what they call"),
        ("own", "lines, alone (C code counts for its caller)"),
    ):
        rows = [
            (f"{100 * seconds / total:.1f}", f"{1000 * seconds / max(1, calls):.3f}", place)
            for place, seconds in data[kind]
            if not place.startswith(_FRAME)
        ][:num_rows]
        parts.append(table(("%", "ms/call", title), rows))
    return "\n\n".join(parts)

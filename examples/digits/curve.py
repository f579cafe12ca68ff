"""The reward curve, as text and as a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

BLOCKS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Point:
    sessions: int
    reward: float
    """Mean of the last sessions."""
    version: int
    seconds: float


def text_plot(points: Sequence[Point], *, width: int = 72, height: int = 10) -> str:
    """Columns of blocks, rewards from 0 to 1; below them the sessions and policy versions at both ends."""
    if not points:
        return "no sessions\n"
    columns = [_mean(points, column, min(width, len(points))) for column in range(min(width, len(points)))]
    lines = []
    for row in range(height - 1, -1, -1):
        cells = (max(0, min(8, round((value * height - row) * 8))) for value in columns)
        lines.append(f"{(row + 1) / height:4.1f} ┤{''.join(BLOCKS[cell] for cell in cells)}")
    lines.append("     └" + "─" * len(columns))
    first, last = points[0], points[-1]
    left, right = f"session {first.sessions} (version {first.version})", f"{last.sessions} (version {last.version})"
    lines.append(f"      {left}{right:>{max(len(right) + 1, len(columns) - len(left))}}")
    return "\n".join(lines) + "\n"


def _mean(points: Sequence[Point], column: int, columns: int) -> float:
    some = points[column * len(points) // columns : (column + 1) * len(points) // columns]
    return sum(point.reward for point in some) / len(some)


def write_curve(points: Sequence[Point], directory: Path) -> Path:
    """Writes reward.txt, reward.json and reward.png; returns the picture's path."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "reward.txt").write_text(text_plot(points), encoding="utf-8")
    (directory / "reward.json").write_text(json.dumps([asdict(point) for point in points]), encoding="utf-8")
    picture = directory / "reward.png"
    _draw(points, picture)
    return picture


def _draw(points: Sequence[Point], picture: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, reward_axis = pyplot.subplots(figsize=(8, 4), layout="constrained")
    sessions = [point.sessions for point in points]
    reward_axis.plot(sessions, [point.reward for point in points], color="tab:blue")
    reward_axis.set(xlabel="sessions", ylabel="mean reward of the last sessions", ylim=(0, 1.02))
    reward_axis.grid(alpha=0.3)
    version_axis = reward_axis.twinx()
    version_axis.step(sessions, [point.version for point in points], where="post", color="tab:gray", alpha=0.6)
    version_axis.set_ylabel("policy version", color="tab:gray")
    figure.savefig(picture, dpi=120)
    pyplot.close(figure)

"""Drives the digits agent against a running rlrun until the model has learnt the task.

    python examples/digits/run.py --url http://127.0.0.1:8080 --admin-key-file admin.key

Exit code 0: the goal was reached by a changed policy; 1: it was not; 2: rlrun could not be used.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from agent import DigitsAgent
from curve import Point, text_plot, write_curve
from openai import DefaultAsyncHttpxClient, OpenAIError
from rich.console import Console
from rich.live import Live
from rich.table import Table

from rlrun.client import AsyncSessionClient, run_episode
from rlrun.errors import ClientError, RlrunError

WINDOW = 64
FAULTS_IN_A_ROW = 50


@dataclass
class Progress:
    """What has happened so far."""

    goal: float
    started: float = field(default_factory=time.monotonic)
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    points: list[Point] = field(default_factory=list)
    sessions: int = 0
    faults: int = 0
    faults_in_a_row: int = 0
    last_fault: str = ""
    first_version: int | None = None
    version: int = 0
    version_lag: int = 0
    running: int = 0

    def add(self, reward: float) -> None:
        self.sessions += 1
        self.faults_in_a_row = 0
        self.recent.append(reward)
        if self.sessions % 16 == 0 or self.reached:
            self.points.append(Point(self.sessions, self.mean, self.version, round(self.seconds, 1)))

    def add_fault(self, error: Exception) -> None:
        self.faults += 1
        self.faults_in_a_row += 1
        self.last_fault = f"{type(error).__name__}: {error}"[:300]

    def see(self, status: dict[str, object]) -> None:
        self.version = int(status.get("policy_version", 0))  # type: ignore[call-overload]
        self.first_version = self.version if self.first_version is None else self.first_version
        members = status.get("members") or []
        loaded = [one["policy_version"] for one in members if one.get("role") == "worker"]  # type: ignore[attr-defined]
        self.version_lag = max(0, self.version - min(loaded, default=self.version))
        self.running = (status.get("sessions") or {}).get("running", 0)  # type: ignore[attr-defined]

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def mean(self) -> float:
        return sum(self.recent) / len(self.recent) if self.recent else 0.0

    @property
    def reached(self) -> bool:
        changed = self.first_version is not None and self.version > self.first_version
        return changed and len(self.recent) == WINDOW and self.mean >= self.goal

    def line(self, output_tokens: int) -> dict[str, str]:
        return {
            "sessions": str(self.sessions),
            "running": str(self.running),
            f"reward (last {WINDOW})": f"{self.mean:.3f}",
            "policy version": str(self.version),
            "versions behind": str(self.version_lag),
            "tokens/s": f"{output_tokens / max(self.seconds, 1e-9):.0f}",
            "faults": str(self.faults),
            "seconds": f"{self.seconds:.0f}",
        }


@dataclass(frozen=True)
class Task:
    group_id: str
    data: dict[str, str]


def tasks(rng: random.Random, *, groups: int, group_size: int) -> Iterator[Task]:
    """Without end. A round has `groups` keys with `group_size` sessions each; each session draws its own digit."""
    run = f"{rng.getrandbits(32):08x}{time.time_ns():x}"
    number = 0
    while True:
        for _ in range(groups):
            key = "".join(rng.choices("0123456789", k=3))
            for _ in range(group_size):
                yield Task(f"digits-{run}-{number}", {"key": key, "digit": rng.choice("0123456789")})
            number += 1


class Driver:
    """Keeps `concurrency` episodes going until the goal or a limit is reached."""

    def __init__(self, arguments: argparse.Namespace, client: AsyncSessionClient, progress: Progress, console: Console) -> None:
        self._arguments = arguments
        self._client = client
        self._progress = progress
        self._console = console
        self._agent = DigitsAgent(model=arguments.model)
        self._tasks = tasks(random.Random(arguments.seed), groups=arguments.groups, group_size=arguments.group_size)
        self._left = arguments.sessions
        self._done = asyncio.Event()

    async def run(self) -> None:
        async with DefaultAsyncHttpxClient() as self._http:
            work = [asyncio.create_task(self._episodes()) for _ in range(self._arguments.concurrency)]
            watch = asyncio.create_task(self._watch())
            stop = asyncio.create_task(self._done.wait())
            finished = asyncio.create_task(_all(work))
            try:
                await asyncio.wait({finished, stop, watch}, timeout=self._arguments.seconds, return_when=asyncio.FIRST_COMPLETED)
                for one in (finished, watch):
                    if one.done():
                        one.result()  # raises what it raised
            finally:
                for task in (*work, finished, watch, stop):
                    task.cancel()
                await asyncio.gather(*work, finished, watch, stop, return_exceptions=True)

    async def _episodes(self) -> None:
        while self._left > 0 and not self._done.is_set():
            self._left -= 1
            task = next(self._tasks)
            try:
                result = await run_episode(
                    _WithHttp(self._agent, self._http),
                    dict(task.data),
                    self._client,
                    task_id="digits",
                    group_id=task.group_id,
                    group_size=self._arguments.group_size,
                )
            except (OpenAIError, RlrunError) as error:
                self._progress.add_fault(error)
                if (isinstance(error, ClientError) and self._progress.sessions == 0) or self._progress.faults_in_a_row >= FAULTS_IN_A_ROW:
                    raise
                continue
            assert not isinstance(result.rewards, dict)
            self._progress.add(float(result.rewards))
            if self._progress.reached:
                self._done.set()

    async def _watch(self) -> None:
        """Reads the run's state each second and shows it."""
        printed = 0
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while True:
                try:
                    self._progress.see(await self._client.status())
                except ClientError:
                    raise
                except RlrunError as error:
                    self._progress.add_fault(error)
                line = self._progress.line(self._agent.output_tokens)
                if self._console.is_terminal:
                    live.update(_table(line), refresh=True)
                elif self._progress.sessions // 256 > printed:
                    printed = self._progress.sessions // 256
                    print("  ".join(f"{name} {value}" for name, value in line.items()), flush=True)
                await asyncio.sleep(1.0)


async def _all(work: list[asyncio.Task[None]]) -> None:
    await asyncio.gather(*work)


class _WithHttp:
    """All episodes share one pool of connections."""

    def __init__(self, agent: DigitsAgent, http_client: DefaultAsyncHttpxClient) -> None:
        self._agent = agent
        self._http_client = http_client

    async def run(self, data: dict[str, object], **kwargs: object) -> float:
        return await self._agent.run(data, http_client=self._http_client, **kwargs)


def _table(line: dict[str, str]) -> Table:
    table = Table(*line, title="digits")
    table.add_row(*line.values())
    return table


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="the gateway (default: %(default)s)")
    parser.add_argument("--admin-key-file", type=Path, required=True)
    parser.add_argument("--model", default="default", help="model name to ask for")
    parser.add_argument("--sessions", type=int, default=25_600, help="give up after so many (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1800.0, help="give up after so long (default: %(default)s)")
    parser.add_argument("--until-reward", type=float, default=0.9, help=f"goal: mean reward of the last {WINDOW} (default: %(default)s)")
    parser.add_argument("--groups", type=int, default=16, help="tasks in a round (default: %(default)s)")
    parser.add_argument("--group-size", type=int, default=16, help="sessions per task (default: %(default)s)")
    parser.add_argument("--concurrency", type=int, default=64, help="sessions at a time (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of keys and digits")
    parser.add_argument("--output", type=Path, default=Path(), help="folder for reward.txt, reward.json and reward.png")
    return parser.parse_args()


async def _main(arguments: argparse.Namespace) -> int:
    console = Console()
    progress = Progress(goal=arguments.until_reward)
    key = arguments.admin_key_file.read_text().strip()
    try:
        async with AsyncSessionClient(arguments.url, admin_key=key) as client:
            progress.see(await client.status())
            await Driver(arguments, client, progress, console).run()
    except (RlrunError, OpenAIError) as error:
        console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        return 2
    finally:
        if progress.points:
            picture = write_curve(progress.points, arguments.output)
            print(text_plot(progress.points) + f"\n{picture}")
    verdict = "reached" if progress.reached else "not reached"
    print(
        f"goal {arguments.until_reward:g} {verdict}: reward {progress.mean:.3f} after {progress.sessions} sessions, "
        f"{progress.version - (progress.first_version or 0)} new versions, {progress.seconds:.0f} s, {progress.faults} faults"
    )
    if progress.last_fault and not progress.reached:
        print(f"last fault: {progress.last_fault}")
    return 0 if progress.reached else 1


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(_main(_arguments())))
    except KeyboardInterrupt:
        sys.exit(130)

"""Measures rlrun on this machine: calls/s, latency, CPU and memory, against a mock engine, and beside other gateways on the same mock.

What is measured shares one core: all services, and Redis. Load and mock have the other. Nothing here passes or fails; docs/benchmarks.md
holds numbers and goals.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import sys
from pathlib import Path

import uvloop
from harness import cases, report, targets, text
from harness.cases import CONNECTIONS, LONG, SHORT, Plan, Result
from harness.targets import Cores, Target

ALL_CASES = ("short", "long", "growing", "engine20ms", "concurrent", "memory")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/bench/run.py", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--targets", nargs="+", default=["mock", "one", "separate"], choices=["mock", "one", "separate"], help="what is measured"
    )
    parser.add_argument("--peers", action="store_true", help="also rllm-model-gateway and LiteLLM, installed into a cached environment")
    parser.add_argument("--cases", nargs="+", default=list(ALL_CASES), choices=ALL_CASES, help="what is asked of each target")
    parser.add_argument("--connections", nargs="+", type=int, default=list(CONNECTIONS), help="of short and long turns")
    parser.add_argument("--runs", type=int, default=1, help="rounds; the report shows the median of each case and the range")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measured window")
    parser.add_argument("--warmup", type=float, default=1.5, help="seconds before it that do not count")
    parser.add_argument("--concurrent", type=int, default=2000, help="sessions that call the 3 s engine")
    parser.add_argument("--sessions", type=int, default=1000, help="open sessions of the memory case")
    parser.add_argument(
        "--profile", action="store_true", help="sample the stacks of rlrun's processes and print where the time goes (costs a few per cent)"
    )
    parser.add_argument("--profile-rows", type=int, default=25, help="rows of each profile table")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="a new directory for logs and data of what is measured, which then stay")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as JSON")
    return parser.parse_args()


class Bench:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.cores = Cores.choose()
        self.material = text.prepare()
        self.results: list[Result] = []
        self.profiles: list[str] = []
        self.plan = Plan(
            seconds=arguments.seconds,
            warmup_seconds=arguments.warmup,
            connections=tuple(arguments.connections),
            num_concurrent=arguments.concurrent,
            num_idle_sessions=arguments.sessions,
        )

    def run(self) -> None:
        os.sched_setaffinity(0, {self.cores.load})
        with targets.work_dir(self.arguments.logs) as directory, targets.mock_engine(self.material, self.cores, directory) as mock:
            for number in range(self.arguments.runs):
                # All targets in each round, so that whatever else the machine does falls on all of them alike.
                round_directory = directory / f"round-{number}"
                round_directory.mkdir()
                for make in self._targets(round_directory, mock):
                    with make as target:
                        print(f"measuring {target.name} ...", file=sys.stderr, flush=True)
                        uvloop.run(self._measure(target, mock))

    def _targets(self, directory: Path, mock: Target) -> list[contextlib.AbstractContextManager[Target]]:
        chosen, made = self.arguments.targets, list[contextlib.AbstractContextManager[Target]]()
        if "mock" in chosen:
            made.append(contextlib.nullcontext(mock))
        for name in ("one", "separate"):
            if name in chosen:
                made.append(
                    targets.rlrun(
                        self.material,
                        self.cores,
                        directory,
                        mock_port=mock.port,
                        separate=name == "separate",
                        profile=self.arguments.profile,
                    )
                )
        if self.arguments.peers:
            environment = targets.peers_environment()
            for store in ("memory", "sqlite"):
                made.append(targets.rllm_gateway(environment, self.cores, directory, mock_port=mock.port, store=store))
            made.append(targets.litellm_proxy(environment, self.cores, directory, mock_port=mock.port))
        return made

    async def _measure(self, target: Target, mock: Target) -> None:
        chosen, plan, material = self.arguments.cases, self.plan, self.material
        if "memory" in chosen and target.records:  # first: memory that earlier calls gave back would hide what sessions take
            self._take(target, await cases.run_memory(target, plan, material))
        for turn in (SHORT, LONG):
            if turn.name in chosen:
                for connections in plan.connections:
                    self._take(target, await cases.run_turns(target, turn, connections, plan, material))
        if "growing" in chosen and target is not mock:
            for connections in (1, 8):
                self._take(target, await cases.run_growing(target, connections, plan, material))
            self._take(target, await cases.run_by_turn(target, material))
        if "engine20ms" in chosen:
            await cases.set_delay(mock, 0.020)
            result = await cases.run_turns(target, SHORT, 32, plan, material)
            await cases.set_delay(mock, 0.0)
            result.case = "short, 20 ms engine"
            self._take(target, result)
        if "concurrent" in chosen and target is not mock:
            for result in await cases.run_concurrent(target, mock, plan, material):
                self._take(target, result)

    def _take(self, target: Target, result: Result) -> None:
        self.results.append(result)
        print(f"  {result.case}, {result.connections}: {result.calls_per_second:.0f} calls/s {result.failure}", file=sys.stderr, flush=True)
        if result.case == "memory":
            return
        for name, path in target.profiles.items():
            if path.is_file():
                title = f"{target.name} ({name}), {result.case}, {result.connections} connections"
                self.profiles.append(report.profile_tables(path, title, result.calls, self.arguments.profile_rows))
                path.unlink()

    def print_report(self) -> None:
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        print(
            f"{machine()}; load average {load}; product on core {self.cores.product}, load on {self.cores.load}, mock on {self.cores.mock}\n"
        )
        results = report.medians(self.results)
        parts = [report.calls_table(results), report.memory_table(results)]
        parts.append(report.ratio_table(results, ours="rlrun, one process"))
        print("\n\n".join(part for part in [*parts, *self.profiles] if part))
        if self.arguments.json is not None:
            document = {"machine": machine(), "load_average": os.getloadavg(), "results": [result.as_dict() for result in self.results]}
            self.arguments.json.write_text(json.dumps(document, indent=1) + "\n")


def machine() -> str:
    model = next((line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


def _lines(path: str) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(path).read_text().splitlines()
    return []


def main() -> int:
    arguments = parse_arguments()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))
    bench = Bench(arguments)
    try:
        bench.run()
    finally:
        bench.print_report()
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())

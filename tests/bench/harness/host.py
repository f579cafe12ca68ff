"""`python -m harness.host router=7070 worker=7072 ...`: rlrun's services as `python -m rlrun.service` hosts them, with the mock's adapter.

BENCH_ENGINE_URL names the mock; BENCH_PROFILE a file that gets stack samples at the end.
"""

from __future__ import annotations

import os
import sys

import rlrun_worker.app

from harness import sampler
from harness.engine import MockServerEngine
from rlrun import service


def main() -> int:
    rlrun_worker.app.engine_of = lambda run: MockServerEngine(os.environ["BENCH_ENGINE_URL"])  # type: ignore[assignment]
    if (path := os.environ.get("BENCH_PROFILE")) is not None:
        with sampler.sampling(path):
            return service.main(sys.argv[1:])
    return service.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())

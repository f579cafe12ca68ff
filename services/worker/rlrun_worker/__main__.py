"""`rlrun-worker`: the worker as a process of its own."""

import sys

from rlrun.service import main as run_service


def main() -> int:
    return run_service(["worker"])


if __name__ == "__main__":
    sys.exit(main())

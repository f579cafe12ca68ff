"""`rlrun-router`: the router as a process of its own."""

import sys

from rlrun.service import main as run_service


def main() -> int:
    return run_service(["router"])


if __name__ == "__main__":
    sys.exit(main())

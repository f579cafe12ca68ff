"""`rlrun-gateway`: the gateway as a process of its own."""

import sys

from rlrun.service import main as run_service


def main() -> int:
    return run_service(["gateway"])


if __name__ == "__main__":
    sys.exit(main())

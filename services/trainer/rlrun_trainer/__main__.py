"""`rlrun-trainer`: the trainer as a process of its own; under torchrun, rank 0 is the service and the others follow it."""

import os
import sys

from rlrun import spec
from rlrun.errors import ConfigError
from rlrun.service import main as run_service
from rlrun.spec.process_env import ProcessEnv


def main() -> int:
    if os.environ.get("RANK", "0") == "0":
        return run_service(["trainer"])
    from rlrun_trainer.loop import follow_rank_zero

    env = ProcessEnv.read(os.environ)
    if env.config is None:
        raise ConfigError("RLRUN_CONFIG is not set; give the path of the RLRun document", param="RLRUN_CONFIG")
    follow_rank_zero(spec.load(env.config))
    return 0


if __name__ == "__main__":
    sys.exit(main())

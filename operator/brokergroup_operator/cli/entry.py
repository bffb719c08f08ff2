"""The console script `brokergroup`. A pod's replica starts without the libraries of the command line: they were two fifths of its
memory, which the kernel frees before it closes a killed replica's connections.
"""

import sys
from pathlib import Path


def main() -> None:
    """Run the replica of a pod's command; anything else, and any mistake in it, is the command line's."""
    match sys.argv[1:]:
        case ["replica", "--config", config, *more] if more in ([], ["--async-learner"]):
            from rocketmq_replica import process

            sys.exit(process.main(Path(config), async_learner=bool(more)))
    from brokergroup_operator.cli.main import app

    app()

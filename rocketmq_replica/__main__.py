"""``python -m rocketmq_replica``: what ``brokergroup replica`` does, for machines that have this package only."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rocketmq_replica import broker_container, process


def entry_point() -> int:
    """The exit code of the process."""
    parser = argparse.ArgumentParser(prog="rocketmq_replica", description="A RocketMQ broker replica, or several")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", type=Path, help="broker.conf of the one replica")
    what.add_argument("--container", type=Path, nargs="*", metavar="CONFIG", help="broker.conf files of several")
    parser.add_argument(
        "--container-config", type=Path, help="container.conf: the container's own port, and more brokers"
    )
    parser.add_argument("--async-learner", action="store_true", help="copies the log and never votes (asyncLearner)")
    arguments = parser.parse_args()
    if arguments.config is None:
        if arguments.async_learner:
            parser.error("--async-learner belongs to --config")
        return broker_container.main(arguments.container, arguments.container_config)
    if arguments.container_config is not None:
        parser.error("--container-config belongs to --container")
    return process.main(arguments.config, async_learner=arguments.async_learner)


sys.exit(entry_point())

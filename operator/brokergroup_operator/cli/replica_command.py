"""`brokergroup replica`: one broker replica in Python, configured like a Java broker."""

from pathlib import Path
from typing import Annotated

import typer


def replica(
    config: Annotated[Path, typer.Option("--config", help="broker.conf; ${VAR} is filled from the environment")],
) -> None:
    """Run a broker replica until SIGTERM."""
    from rocketmq_replica.process import main

    raise typer.Exit(main(config))

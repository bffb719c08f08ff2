"""`brokergroup replica`: broker replicas in Python, configured like Java brokers: one, or several in one process."""

from pathlib import Path
from typing import Annotated

import typer


def replica(
    configs: Annotated[
        list[Path] | None, typer.Argument(help="With --container: the broker.conf of each replica", show_default=False)
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="broker.conf; ${VAR} is filled from the environment")
    ] = None,
    async_learner: Annotated[
        bool,
        typer.Option(
            "--async-learner", help="Copies the log and never votes, whatever broker.conf says (asyncLearner)"
        ),
    ] = False,
    container: Annotated[
        bool, typer.Option("--container", help="Several replicas in this process (RocketMQ's BrokerContainer)")
    ] = False,
    container_config: Annotated[
        Path | None,
        typer.Option("--container-config", help="container.conf: the container's own port, and more brokers"),
    ] = None,
) -> None:
    """Run a broker replica, or with --container several, until SIGTERM."""
    if container:
        if config is not None or async_learner:
            raise typer.BadParameter("expected the files of a container as arguments", param_hint="--config")
        from rocketmq_replica.container import container_process

        raise typer.Exit(container_process.main(configs or [], container_config))
    if config is None or configs or container_config is not None:
        raise typer.BadParameter("expected --config FILE, or --container FILE...", param_hint="--config")
    from rocketmq_replica.container import process

    raise typer.Exit(process.main(config, async_learner=async_learner))

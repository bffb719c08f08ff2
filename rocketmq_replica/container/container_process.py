"""A BrokerContainer as a process: read its files, run it with its own port, stop it on SIGTERM or SIGINT.

A file that cannot be used stops the start: whoever starts a container means all of its brokers. What fails later fails alone.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rocketmq_remoting.server import RemotingServer
from rocketmq_replica.configuration.connections import server_tls
from rocketmq_replica.configuration.container import load_container_configuration
from rocketmq_replica.configuration.property_values import ConfigurationError
from rocketmq_replica.configuration.replica import load_configuration
from rocketmq_replica.container.broker_container import BrokerContainer
from rocketmq_replica.container.container_requests import ContainerRequests
from rocketmq_replica.container.process import run_process, stop_on_signals

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rocketmq_replica.configuration.container import ContainerConfiguration

_STOP_GRACE_SECONDS = 0.5


async def run_container(
    container: BrokerContainer, configuration: ContainerConfiguration | None, *, stop: asyncio.Event
) -> None:
    """Run until ``stop`` is set; without a configuration the container has no port of its own."""
    if configuration is None:
        await container.run(stop)
        return
    requests = ContainerRequests(container, configuration)
    server = RemotingServer(requests, tls=server_tls(configuration))
    await server.start(configuration.bind_address, configuration.listen_port)
    try:
        await container.run(stop)
    finally:
        await server.stop(grace_seconds=_STOP_GRACE_SECONDS)


def read_container(
    paths: Sequence[Path], container_file: Path | None, environment: Mapping[str, str]
) -> tuple[BrokerContainer, ContainerConfiguration | None]:
    """The container and the configuration of its port; ConfigurationError names the file and what is wrong with it."""
    configuration = None if container_file is None else load_container_configuration(container_file, environment)
    files = [*paths, *(configuration.broker_config_paths if configuration is not None else ())]
    if not files and configuration is None:
        raise ConfigurationError("a container needs broker.conf files, or a container.conf that can be told of some")
    loaded = [load_configuration(path, environment) for path in files]
    return BrokerContainer(loaded), configuration


def main(paths: Sequence[Path], container_file: Path | None = None) -> int:
    """Run the replicas of these ``broker.conf`` files in one process; its exit code."""

    async def run() -> None:
        container, configuration = read_container(paths, container_file, os.environ)
        await run_container(container, configuration, stop=stop_on_signals())

    return run_process(run)

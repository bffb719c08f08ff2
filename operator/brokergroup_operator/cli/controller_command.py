"""`brokergroup controller`: the controller plane alone, in place of RocketMQ's own controller; no Kubernetes."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from brokergroup_operator.cli.endpoints import parse_endpoint


def controller(
    *,
    store: Annotated[str, typer.Option("--store", help="memory, or file:<folder>")] = "memory",
    listen: Annotated[str, typer.Option("--listen", help="host:port of the controller")] = "127.0.0.1:9878",
    advertise: Annotated[str, typer.Option("--advertise", help="host:port as brokers dial it; default: --listen")] = "",
    name_servers: Annotated[list[str] | None, typer.Option("--name-server", help="host:port; repeatable")] = None,
    metrics_listen: Annotated[str | None, typer.Option("--metrics-listen", help="host:port of /metrics")] = None,
    incident_log: Annotated[Path | None, typer.Option("--incident-log", help="JSON lines, one a failover")] = None,
) -> None:
    """Serve brokers until SIGTERM, with records in a folder or in memory. There is nothing to fence a silent master with."""
    from brokergroup_operator.cli.signals import run_until_signalled
    from brokergroup_operator.controller.settings import PlaneSettings
    from brokergroup_operator.controller.standalone import StandaloneSettings, run_standalone

    host, port = parse_endpoint(listen, "--listen")
    settings = StandaloneSettings(
        plane=PlaneSettings(listen_host=host, listen_port=port, advertise_address=advertise),
        store=store,
        name_servers=tuple(name_servers or ()),
        metrics_listen=parse_endpoint(metrics_listen, "--metrics-listen") if metrics_listen else None,
        incident_log=incident_log,
    )

    async def run(stop: asyncio.Event) -> None:
        try:
            await run_standalone(settings, stop)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    run_until_signalled(run)

"""The other processes: `brokergroup controller`, `replica`, `fence` and `sandbox`."""

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Literal

import typer

from brokergroup_operator.api.brokergroup import Signature
from brokergroup_operator.cli.running import (
    DrainSeconds,
    LogOptions,
    check_store,
    configure_logging,
    parse_address,
    parse_endpoint,
    run_until_signalled,
)
from brokergroup_operator.cli.security_options import SecurityOptions, read_one
from brokergroup_operator.option_groups import with_option_groups


@with_option_groups
def controller(  # noqa: PLR0913 - one argument a flag
    *,
    store: Annotated[str, typer.Option("--store", help="memory, file:<folder>, or kubernetes:<namespace>")] = "memory",
    listen: Annotated[str, typer.Option("--listen", help="host:port of the controller")] = "127.0.0.1:9878",
    advertise: Annotated[str, typer.Option("--advertise", help="host:port as brokers dial it; default: --listen")] = "",
    name_servers: Annotated[list[str] | None, typer.Option("--name-server", help="host:port; repeatable")] = None,
    metrics_listen: Annotated[str | None, typer.Option("--metrics-listen", help="host:port of /metrics")] = None,
    incident_log: Annotated[Path | None, typer.Option("--incident-log", help="JSON lines, one a failover")] = None,
    security: SecurityOptions,
    drain_seconds: DrainSeconds = 0.0,
    open_admin: Annotated[
        bool,
        typer.Option("--open-admin", help="Any caller may designate and clean, as at Java's controller"),
    ] = False,
    signature: Annotated[
        Signature, typer.Option("--signature", help="Of brokers' requests; Required needs --broker-credentials")
    ] = Signature.ACCEPTED,
    broker_credentials: Annotated[
        Path | None,
        typer.Option(
            "--broker-credentials",
            help="With what brokers sign, and requests to them; in the form of --admin-credentials",
        ),
    ] = None,
    log: LogOptions,
) -> None:
    """Serve brokers until SIGTERM, with records in a folder or in memory. There is nothing to fence a silent master with."""
    from brokergroup_operator.controller.settings import PlaneSettings
    from brokergroup_operator.controller.standalone import StandaloneSettings, run_standalone
    from brokergroup_operator.records.store import RecordStoreError

    configure_logging(log)
    secured = security.settings(open_admin=open_admin)
    if signature is Signature.REQUIRED and broker_credentials is None:
        raise typer.BadParameter(
            "Required: expected --broker-credentials to check signatures with", param_hint="--signature"
        )
    check_store(store)
    host, port = parse_endpoint(listen, "--listen")
    settings = StandaloneSettings(
        plane=PlaneSettings(
            listen_host=host,
            listen_port=port,
            advertise_address=advertise and parse_address(advertise, "--advertise"),
            security=secured,
            drain_seconds=drain_seconds,
        ),
        signature=signature,
        broker_credentials=read_one(broker_credentials, "--broker-credentials") if broker_credentials else None,
        store=store,
        name_servers=tuple(parse_address(one, "--name-server") for one in name_servers or ()),
        metrics_listen=parse_endpoint(metrics_listen, "--metrics-listen") if metrics_listen else None,
        incident_log=incident_log,
    )

    async def run(stop: asyncio.Event) -> None:
        try:
            await run_standalone(settings, stop)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    try:
        run_until_signalled(run)
    except RecordStoreError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error


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
        from rocketmq_replica import broker_container

        raise typer.Exit(broker_container.main(configs or [], container_config))
    if config is None or configs or container_config is not None:
        raise typer.BadParameter("expected --config FILE, or --container FILE...", param_hint="--config")
    from rocketmq_replica import process

    raise typer.Exit(process.main(config, async_learner=async_learner))


def fence() -> None:
    """Kill the broker of this pod when it may no longer be master; everything it needs is in its environment."""
    # A new process, not an import: the command line has loaded more memory by now than a fence may take.
    os.execv(sys.executable, [sys.executable, "-m", "brokergroup_operator.fence"])  # noqa: S606 (no shell is wanted)


def sandbox(
    *,
    data_dir: Annotated[Path, typer.Option("--data-dir", help="Where volumes, logs and the kubeconfig are kept")],
    host: Annotated[str, typer.Option("--host", help="Loopback address of the API")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port of the API; 0 takes a free one", min=0, max=65535)] = 0,
    network: Annotated[
        Literal["loopback", "netns"],
        typer.Option(
            "--network", help="loopback: an address for each start of a pod; netns: a network namespace for each (root)"
        ),
    ] = "loopback",
    kubeconfig: Annotated[Path | None, typer.Option("--kubeconfig", help="Where to write the kubeconfig")] = None,
    api_server: Annotated[
        bool, typer.Option("--api-server", help="Run the kube-apiserver and etcd that `make parts` or PATH has")
    ] = False,
    name_server: Annotated[
        str | None,
        typer.Option("--name-server", help="Serve routes at HOST:PORT, for spec.nameServers and for clients; no JVM"),
    ] = None,
) -> None:
    """Run the sandbox until SIGTERM. It has no authentication and listens on loopback only."""
    from brokergroup_operator.demo.our_sandbox import (
        installed_api_server,
        our_definitions,
        our_images,
        served_routes,
    )
    from brokergroup_operator.page.access import is_loopback_host
    from kube_sandbox.kubelet.files import FolderInUseError
    from kube_sandbox.real_api_server import ApiServerProgramsError
    from kube_sandbox.sandbox import run_sandbox
    from rocketmq_remoting.address import plain_host

    if not is_loopback_host(host):
        raise typer.BadParameter(
            f"{host!r}: expected a loopback address: a client of the API can run programs here", param_hint="--host"
        )

    host = plain_host(host)
    _check_writable(data_dir, "--data-dir")
    if kubeconfig is not None:
        _check_writable(kubeconfig.parent, "--kubeconfig")

    routes = None if name_server is None else parse_endpoint(name_server, "--name-server")

    async def run(stop: asyncio.Event) -> None:
        async with served_routes(routes):
            await run_sandbox(
                data_dir=data_dir,
                images=our_images(),
                definitions=our_definitions(),
                host=host,
                port=port,
                network=network,
                kubeconfig_path=kubeconfig,
                stop=stop,
                programs=installed_api_server() if api_server else None,
            )

    try:
        run_until_signalled(run)
    except FolderInUseError as error:
        raise typer.BadParameter(str(error), param_hint="--data-dir") from error
    except ApiServerProgramsError as error:
        raise typer.BadParameter(str(error), param_hint="--api-server") from error


def _check_writable(folder: Path, option: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise typer.BadParameter(
            f"{str(folder)!r}: {error.strerror}; expected a folder to write in", param_hint=option
        ) from error

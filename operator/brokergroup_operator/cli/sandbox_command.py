"""`brokergroup sandbox`: the embedded Kubernetes API and the process kubelet, in one process."""

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated, Literal

import typer


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
    from brokergroup_operator.cli.endpoints import parse_endpoint
    from brokergroup_operator.cli.signals import run_until_signalled
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
            f"{host!r}: expected a loopback address: whoever reaches the API can run programs here", param_hint="--host"
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

"""`kubectl brokergroup dashboard`: forwards the live page of an operator pod to this machine, and opens it."""

import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Annotated, Any

import typer

from brokergroup_operator.kubectl import options
from brokergroup_operator.kubectl.errors import CannotConnectError, NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_LISTEN = re.compile(r"^--page-listen=.*:(?P<port>\d+)$")


def dashboard(
    port: Annotated[
        int, typer.Option("--port", help="Port on this machine; default: the page's own", min=0, max=65535)
    ] = 0,
    *,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only forward and say the address")] = False,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Open the live page of the operator; it is forwarded until Ctrl-C. Needs kubectl, and the right to forward ports."""
    from brokergroup_operator.kubectl.reach.cluster import Cluster
    from brokergroup_operator.kubectl.reach.operator_pods import operator_pods

    program = shutil.which("kubectl")
    if program is None:
        raise UsageError("no kubectl on the path: it forwards the port")
    namespace, pod, remote = page_of(operator_pods(Cluster(kubeconfig, context)))
    command = [program, *_connection(kubeconfig, context), "port-forward", "--namespace", namespace, f"pod/{pod}"]
    _forward([*command, f"{port or remote}:{remote}"], f"http://localhost:{port or remote}/", no_browser=no_browser)


def page_of(pods: "Sequence[dict[str, Any]]") -> tuple[str, str, int]:
    """Namespace, name and page port of the first ready operator pod that serves one. NotFoundError says what is missing."""
    if not pods:
        raise NotFoundError("no pod of the operator is in the cluster")
    ready = [pod for pod in pods if _is_ready(pod)]
    if not ready:
        raise NotFoundError(f"none of the {len(pods)} operator pods is ready")
    for pod in ready:
        for argument in pod["spec"]["containers"][0].get("args") or []:
            if found := _LISTEN.match(argument):
                return pod["metadata"]["namespace"], pod["metadata"]["name"], int(found["port"])
    raise NotFoundError("the operator serves no page: it is on with the chart's value page.enabled=true")


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def _connection(kubeconfig: "Path | None", context: str | None) -> list[str]:
    chosen = [("--kubeconfig", kubeconfig), ("--context", context)]
    return [word for name, value in chosen if value is not None for word in (name, str(value))]


def _forward(command: list[str], address: str, *, no_browser: bool) -> None:
    """Until kubectl ends; CannotConnectError where it ends before the port is there."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forwarding:  # noqa: S603 - kubectl from the path
        assert forwarding.stdout is not None
        try:
            if not forwarding.stdout.readline().startswith("Forwarding from"):
                raise CannotConnectError(f"kubectl did not forward the port (exit code {forwarding.wait()})")
            typer.echo(f"{address} (Ctrl-C ends it)")
            if not no_browser:
                typer.launch(address)
            for _ in forwarding.stdout:  # a line for each connection; read, or kubectl waits for a reader
                pass
        except KeyboardInterrupt:
            forwarding.terminate()

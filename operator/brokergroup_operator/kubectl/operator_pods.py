"""The operator's pods as the plugin sees them, found by the chart's label: whether they act, their version, their live page.

The verbs `version` and `dashboard`.
"""

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from brokergroup_operator.api import names
from brokergroup_operator.kubectl.command_line import (
    CannotConnectError,
    Context,
    ForbiddenError,
    Format,
    Kubeconfig,
    NotFoundError,
    Output,
    Place,
    RefusedError,
    UsageError,
)

if TYPE_CHECKING:
    from brokergroup_operator.kubectl.cluster import Cluster

SELECTOR: Final = f"{names.LABEL_COMPONENT}={names.COMPONENT_OPERATOR}"
LIST_PODS: Final = f"kubectl get pods -A -l {SELECTOR}"
VERSION_LABEL = "app.kubernetes.io/version"
_LISTEN = re.compile(r"^--page-listen=.*:(?P<port>\d+)$")
_OVER_TLS = "--page-tls-certificate="


def operator_pods(cluster: "Cluster") -> list[dict[str, Any]]:
    """Return the operator's pods of all namespaces and releases."""
    from brokergroup_operator.kubectl.cluster import Pod

    return cluster.list(Pod, everywhere=True, labelSelector=SELECTOR)


def why_nothing_acts(cluster: "Cluster") -> str:
    """Return what the operator's pods show about an operation that stays untouched. Never an error: it explains a silence."""
    try:
        pods = operator_pods(cluster)
    except (ForbiddenError, NotFoundError, RefusedError):
        return (
            f"no operator seems to act on namespace {cluster.namespace}; with the right to list pods of all namespaces:"
            f" {LIST_PODS}"
        )
    if not pods:
        return f"no operator seems to act: no pod of it is in the cluster ({LIST_PODS})"
    places = {f"{pod['metadata']['namespace']}/{pod['metadata']['name']}": _is_ready(pod) for pod in pods}
    ready = sorted(place for place, is_ready in places.items() if is_ready)
    if not ready:
        return f"no operator seems to act: none of its pods is ready: {', '.join(sorted(places))}"
    return (
        f"no operator seems to act on namespace {cluster.namespace}: {', '.join(ready)} ready; does it serve this namespace"
        " (--namespace), and what does its log say?"
    )


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def version(
    *,
    client: Annotated[
        bool, typer.Option("--client", help="Print only the plugin's version, without asking a cluster")
    ] = False,
    output: Output = Format.TABLE,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """The versions of this plugin, of the operator's pods and of Kubernetes."""
    from brokergroup_operator.kubectl.printing import print_objects

    found: dict[str, Any] = {"plugin": plugin_version()}
    if not client:
        cluster = Place(context=context, kubeconfig=kubeconfig).cluster()
        found["operator"] = operator_version(cluster)
        found["kubernetes"] = cluster.raw("/version").get("gitVersion")
    if not print_objects(found, output):
        for name, value in found.items():
            typer.echo(f"{name:<12}{value}")


def plugin_version() -> str:
    from importlib.metadata import version as installed_version

    return installed_version("brokergroup-operator")


def operator_version(cluster: "Cluster") -> str:
    """Return the version label of the operator's pods, else their image's tag; several while the operator is updated."""
    try:
        pods = operator_pods(cluster)
    except (ForbiddenError, RefusedError) as error:
        return f"unknown ({error})"
    known = set()
    for pod in pods:
        labels, image = pod["metadata"].get("labels") or {}, str(pod["spec"]["containers"][0].get("image", ""))
        known.add(str(labels.get(VERSION_LABEL) or image.rpartition(":")[2] or "unknown"))
    return ", ".join(sorted(known)) or "unknown (no pod of the operator was found)"


def dashboard(
    port: Annotated[
        int, typer.Option("--port", help="Port on this machine; default: the page's own", min=0, max=65535)
    ] = 0,
    *,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Forward the port and print the address, and open no browser")
    ] = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Open the live page of the operator; it is forwarded until Ctrl-C. Needs kubectl, and the right to forward ports."""
    program = shutil.which("kubectl")
    if program is None:
        raise UsageError("no kubectl on the path: it forwards the port")
    pods = operator_pods(Place(context=context, kubeconfig=kubeconfig).cluster())
    page = page_of(pods)
    chosen = [("--kubeconfig", kubeconfig), ("--context", context)]
    connection = [word for name, value in chosen if value is not None for word in (name, str(value))]
    command = [
        program,
        *connection,
        "port-forward",
        "--namespace",
        page.namespace,
        f"pod/{page.pod}",
        f"{port or page.port}:{page.port}",
    ]
    _forward(command, f"{page.scheme}://localhost:{port or page.port}/", no_browser=no_browser)


@dataclass(frozen=True)
class PageOfPod:
    """Where an operator pod serves its live page."""

    namespace: str
    pod: str
    port: int
    # https where the chart's page.tlsSecretName is set: a browser that speaks plain HTTP there gets nothing.
    scheme: str


def page_of(pods: Sequence[dict[str, Any]]) -> PageOfPod:
    """Return the page of the first ready pod that serves one. Raise NotFoundError if there is none."""
    if not pods:
        raise NotFoundError("no pod of the operator is in the cluster")
    ready = [pod for pod in pods if _is_ready(pod)]
    if not ready:
        raise NotFoundError(f"none of the {len(pods)} operator pods is ready")
    for pod in ready:
        # Of all containers: a service mesh may put its own before the operator's.
        arguments = [str(one) for container in pod["spec"]["containers"] for one in container.get("args") or []]
        if found := next(filter(None, map(_LISTEN.match, arguments)), None):
            scheme = "https" if any(one.startswith(_OVER_TLS) for one in arguments) else "http"
            return PageOfPod(pod["metadata"]["namespace"], pod["metadata"]["name"], int(found["port"]), scheme)
    raise NotFoundError("the operator serves no page: it is on with the chart's value page.enabled=true")


def _forward(command: list[str], address: str, *, no_browser: bool) -> None:
    """Forward until kubectl ends. Raise CannotConnectError if it ends before the port is there."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forwarding:  # noqa: S603 - kubectl from the path
        assert forwarding.stdout is not None
        try:
            if not forwarding.stdout.readline().startswith("Forwarding from"):
                raise CannotConnectError(f"kubectl did not forward the port (exit code {forwarding.wait()})")
            typer.echo(f"{address} (Ctrl-C ends it)")
            if not no_browser:
                typer.launch(address)
            for _ in forwarding.stdout:  # a line for each connection; unread, the pipe fills and kubectl stops
                pass
        except KeyboardInterrupt:
            forwarding.terminate()

"""`kubectl brokergroup version`: of the plugin, the operator and the cluster."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from brokergroup_operator.kubectl import options
from brokergroup_operator.kubectl.errors import ForbiddenError, PluginError, RefusedError

if TYPE_CHECKING:
    from brokergroup_operator.kubectl.reach.cluster import Cluster

VERSION_LABEL = "app.kubernetes.io/version"


def version(
    *,
    client: Annotated[bool, typer.Option("--client", help="Only the plugin's: ask no cluster")] = False,
    output: options.Output = options.Format.TABLE,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """The versions of this plugin, of the operator's pods and of Kubernetes."""
    from brokergroup_operator.kubectl.show.printing import print_objects

    found: dict[str, Any] = {"plugin": plugin_version()}
    if not client:
        from brokergroup_operator.kubectl.reach.cluster import Cluster

        cluster = Cluster(kubeconfig, context)
        found["operator"] = operator_version(cluster)
        found["kubernetes"] = cluster.raw("/version").get("gitVersion")
    if not print_objects(found, output):
        for name, value in found.items():
            typer.echo(f"{name:<12}{value}")


def plugin_version() -> str:
    from importlib.metadata import version as installed_version

    return installed_version("brokergroup-operator")


def operator_version(cluster: "Cluster") -> str:
    """By the label that the chart puts on the operator's pods; several while it is being updated."""
    from brokergroup_operator.kubectl.reach.operator_pods import operator_pods

    try:
        pods = operator_pods(cluster)
    except (ForbiddenError, RefusedError) as error:
        return f"unknown ({error})"
    except PluginError:
        raise
    known = {pod_version(pod) for pod in pods}
    return ", ".join(sorted(known)) or "unknown (no pod of the operator was found)"


def pod_version(pod: dict[str, Any]) -> str:
    labels = pod["metadata"].get("labels") or {}
    image = str(pod["spec"]["containers"][0].get("image", ""))
    return str(labels.get(VERSION_LABEL) or image.rpartition(":")[2] or "unknown")

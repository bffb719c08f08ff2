"""The operator's own pods: found by a label that the chart gives them under every release name; and whether they seem to act."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from brokergroup_operator.api import names
from brokergroup_operator.kubectl.errors import ForbiddenError, NotFoundError, RefusedError
from brokergroup_operator.kubectl.reach.kinds import PODS

if TYPE_CHECKING:
    from brokergroup_operator.kubectl.reach.cluster import Cluster

SELECTOR: Final = f"{names.LABEL_COMPONENT}={names.COMPONENT_OPERATOR}"


def operator_pods(cluster: Cluster) -> list[dict[str, Any]]:
    """Of all namespaces."""
    return cluster.list(PODS, everywhere=True, labelSelector=SELECTOR)


def why_nobody_acts(cluster: Cluster) -> str:
    """What can be seen of the operator by somebody who waits for it. Never an error: it only explains a silence."""
    look = f"kubectl get pods -A -l {SELECTOR}"
    try:
        pods = operator_pods(cluster)
    except (ForbiddenError, NotFoundError, RefusedError):
        return f"no operator seems to act on namespace {cluster.namespace}; who may list pods of all namespaces sees it: {look}"
    if not pods:
        return f"no operator seems to act: no pod of it is in the cluster ({look})"
    ready = sorted(_place(pod) for pod in pods if _is_ready(pod))
    if not ready:
        return f"no operator seems to act: none of its pods is ready: {', '.join(sorted(map(_place, pods)))}"
    return (
        f"no operator seems to act on namespace {cluster.namespace}: {', '.join(ready)} ready; does it serve this namespace"
        " (--namespace), and what does its log say?"
    )


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def _place(pod: dict[str, Any]) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"

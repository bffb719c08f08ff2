"""What a pod's object says, for both planes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketmq_remoting.address import plain_host

if TYPE_CHECKING:
    from brokergroup_operator.kube.client import JsonObject


def pod_ips(pod: JsonObject) -> tuple[str, ...]:
    """Return all its addresses in one spelling. A pod of both families has two, and its connections come from either."""
    return _ips(pod, "podIP")


def host_ips(pod: JsonObject) -> tuple[str, ...]:
    """Return all addresses of its node, likewise."""
    return _ips(pod, "hostIP")


def label_of(obj: JsonObject, name: str) -> str:
    """Return the label, or the empty text."""
    return str((obj["metadata"].get("labels") or {}).get(name, ""))


def node_of(pod: JsonObject | None) -> str:
    """Return the name of its node, or the empty text."""
    return "" if pod is None else str((pod.get("spec") or {}).get("nodeName") or "")


def is_over(pod: JsonObject) -> bool:
    """Whether nothing of it will run again."""
    return (pod.get("status") or {}).get("phase") in {"Failed", "Succeeded"}


def containers_are_terminated(pod: JsonObject) -> bool:
    """Whether `containerStatuses` has at least one entry and all are terminated. Init containers are not looked at."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return bool(statuses) and all((status.get("state") or {}).get("terminated") is not None for status in statuses)


def _ips(pod: JsonObject, field: str) -> tuple[str, ...]:
    status = pod.get("status", {})
    given = [status.get(field), *(one.get("ip") for one in status.get(f"{field}s") or [])]
    return tuple(dict.fromkeys(plain_host(str(one)) for one in given if one))

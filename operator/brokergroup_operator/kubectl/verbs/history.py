"""`kubectl brokergroup history`: failovers and operations of a group, the latest first."""

from typing import Any

import typer

from brokergroup_operator.kubectl import options


def history(
    group: options.GroupName,
    *,
    output: options.Output = options.Format.TABLE,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Failovers and operations of a group, the latest first."""
    from brokergroup_operator.kubectl.reach.cluster import Cluster
    from brokergroup_operator.kubectl.reach.kinds import BROKER_GROUPS
    from brokergroup_operator.kubectl.show.printing import columns, print_objects
    from brokergroup_operator.kubectl.verbs.status import operations_of

    cluster = Cluster(kubeconfig, context, namespace)
    found = entries(cluster.get(BROKER_GROUPS, group), operations_of(cluster, group))
    if print_objects(found, output):
        return
    if not found:
        typer.echo(f"{group}: no failover and no operation is remembered", err=True)
        return
    header = ("TIME", "WHAT", "OUTCOME", "FROM", "TO", "EPOCH", "MS", "MESSAGE", "INCIDENT")
    typer.echo(columns(header, [list(entry.values()) for entry in found]))


def entries(group: dict[str, Any], operations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pure. The keys are the columns."""
    status = group.get("status") or {}
    failovers = status.get("failovers") or ([status["lastFailover"]] if status.get("lastFailover") else [])
    found = [_of_failover(item) for item in failovers] + [_of_operation(item) for item in operations]
    return sorted(found, key=lambda entry: str(entry["time"]), reverse=True)


def _of_failover(item: dict[str, Any]) -> dict[str, Any]:
    return {
        "time": item["startedAt"],
        "what": "Failover",
        "outcome": "Completed" if item["to"] else "NoMaster",
        "from": item["from"] or None,
        "to": item["to"] or None,
        "epoch": item["epoch"],
        "milliseconds": item["durationMilliseconds"],
        "message": item["trigger"],
        "incident": item.get("id"),
    }


def _of_operation(item: dict[str, Any]) -> dict[str, Any]:
    status = item.get("status") or {}
    result = status.get("result") or {}
    dry = " (dry run)" if item["spec"].get("dryRun") == "All" else ""
    return {
        "time": status.get("startedAt") or item["metadata"]["creationTimestamp"],
        "what": f"{item['spec']['type']}{dry}",
        "outcome": status.get("phase") or "Pending",
        "from": result.get("fromBrokerId"),
        "to": result.get("toBrokerId"),
        "epoch": result.get("epoch"),
        "milliseconds": result.get("milliseconds"),
        "message": f"{item['metadata']['name']}: {result.get('message', '')}",
        "incident": None,
    }

"""`kubectl brokergroup lag`: how far each member is behind the master."""

from typing import Any

from brokergroup_operator.kubectl import options


def lag(
    group: options.GroupName,
    *,
    watch: options.Watch = False,
    output: options.Output = options.Format.TABLE,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Bytes that each member is behind the master, as the operator last wrote it down (coarsely)."""
    from brokergroup_operator.kubectl.reach.cluster import Cluster
    from brokergroup_operator.kubectl.reach.kinds import BROKER_GROUPS
    from brokergroup_operator.kubectl.show.printing import print_objects
    from brokergroup_operator.kubectl.show.watching import show

    cluster = Cluster(kubeconfig, context, namespace)
    if output in (options.Format.JSON, options.Format.YAML):
        print_objects(rows(cluster.get(BROKER_GROUPS, group)), output)
    else:
        show(cluster, group, table, watch=watch)


def rows(group: dict[str, Any]) -> list[dict[str, Any]]:
    """Pure."""
    members = (group.get("status") or {}).get("members") or []
    return [
        {name: member.get(name) for name in ("brokerId", "pod", "role", "state", "seat", "lagBytes")}
        for member in sorted(members, key=lambda item: int(item["brokerId"]))
    ]


def table(group: dict[str, Any]) -> str:
    from brokergroup_operator.kubectl.show.printing import columns, in_units

    lines = [
        (row["brokerId"], row["pod"], row["role"], row["state"], row["seat"], in_units(row["lagBytes"]))
        for row in rows(group)
    ]
    return columns(("ID", "POD", "ROLE", "STATE", "SEAT", "LAG"), lines)

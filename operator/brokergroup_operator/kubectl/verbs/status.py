"""`kubectl brokergroup status`: what a group is doing, in one look; without a name, one line per group."""

from typing import TYPE_CHECKING, Any

import typer

from brokergroup_operator.kubectl import options
from brokergroup_operator.kubectl.errors import ForbiddenError, NotFoundError, UsageError

if TYPE_CHECKING:
    from brokergroup_operator.kubectl.reach.cluster import Cluster


def status(
    group: options.OptionalGroupName = None,
    *,
    all_namespaces: options.AllNamespaces = False,
    watch: options.Watch = False,
    output: options.Output = options.Format.TABLE,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Master, epoch, SyncStateSet, members, conditions, last failover and running operations of a group; or all groups."""
    from brokergroup_operator.kubectl.reach.cluster import Cluster

    cluster = Cluster(kubeconfig, context, namespace)
    if group is not None and all_namespaces:
        raise UsageError("status: a group has one namespace: expected GROUP or --all-namespaces, not both")
    if group is None:
        if watch:
            _watch_list(cluster, everywhere=all_namespaces, output=output)
        else:
            _print_list(cluster, everywhere=all_namespaces, output=output)
    else:
        _print_group(cluster, group, watch=watch, output=output)


def _print_list(cluster: "Cluster", *, everywhere: bool, output: options.Format) -> None:
    from brokergroup_operator.kubectl.reach.kinds import BROKER_GROUPS
    from brokergroup_operator.kubectl.show.printing import as_list, print_objects
    from brokergroup_operator.kubectl.show.status_page import group_list

    groups = cluster.list(BROKER_GROUPS, everywhere=everywhere)
    if print_objects(as_list(groups), output):
        return
    if groups:
        typer.echo(group_list(groups, everywhere=everywhere, wide=output is options.Format.WIDE))
        for line in _away(cluster, groups):
            typer.echo(f"! {line}", err=True)
    else:
        typer.echo("No broker groups" + ("" if everywhere else f" in namespace {cluster.namespace}"), err=True)


def _watch_list(cluster: "Cluster", *, everywhere: bool, output: options.Format) -> None:
    from brokergroup_operator.kubectl.show.status_page import group_list
    from brokergroup_operator.kubectl.show.watching import show_all

    if output in (options.Format.JSON, options.Format.YAML):
        raise UsageError(f"status --watch: -o {output} shows no changes: expected -o table or -o wide")
    is_wide = output is options.Format.WIDE
    show_all(
        cluster,
        lambda groups: group_list(groups, everywhere=everywhere, wide=is_wide),
        everywhere=everywhere,
        watch=True,
    )


def _away(cluster: "Cluster", groups: list[dict[str, Any]]) -> list[str]:
    """A line for each operator that is gone: what it said of its groups stays as it was."""
    from brokergroup_operator.kubectl.show.its_operator import Presence, heartbeat, holder_of

    of_each = {holder_of(group["metadata"]): group for group in groups}
    heard = [heartbeat(cluster, group) for holder, group in sorted(of_each.items()) if holder]
    return [each.message for each in heard if each.presence is Presence.AWAY]


def _print_group(cluster: "Cluster", group: str, *, watch: bool, output: options.Format) -> None:
    from brokergroup_operator.kubectl.show.its_operator import heartbeat
    from brokergroup_operator.kubectl.show.printing import print_objects
    from brokergroup_operator.kubectl.show.status_page import page
    from brokergroup_operator.kubectl.show.watching import show

    if output in (options.Format.JSON, options.Format.YAML):
        from brokergroup_operator.kubectl.reach.kinds import BROKER_GROUPS

        print_objects(cluster.get(BROKER_GROUPS, group), output)
        return
    wide = output is options.Format.WIDE

    def render(obj: dict[str, Any]) -> str:
        return page(obj, operations_of(cluster, group), wide=wide, heard=heartbeat(cluster, obj))

    show(cluster, group, render, watch=watch)


def operations_of(cluster: "Cluster", group: str) -> list[dict[str, Any]]:
    """None where they may not be read: the rest of the page is worth showing."""
    from brokergroup_operator.kubectl.reach.kinds import BROKER_GROUP_OPERATIONS

    try:
        listed = cluster.list(BROKER_GROUP_OPERATIONS)
    except (ForbiddenError, NotFoundError):
        return []
    return [item for item in listed if item["spec"]["brokerGroupRef"]["name"] == group]

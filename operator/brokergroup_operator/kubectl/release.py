"""`kubectl brokergroup release`: remove the operator's finalizers from a group that is being deleted, without its operator.

The operator stops a group's brokers in order, then removes its finalizer. If it was uninstalled first, the finalizer stays, and
`kubectl delete` waits for ever.
"""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from brokergroup_operator.api import names
from brokergroup_operator.json_object import JsonObject
from brokergroup_operator.kubectl.command_line import (
    Confirmed,
    DryRun,
    ForbiddenError,
    GroupName,
    NotFoundError,
    NotProvedError,
    OperationFailedError,
    Place,
    confirm,
)
from brokergroup_operator.kubectl.its_operator import Presence, heartbeat
from brokergroup_operator.option_groups import with_option_groups

if TYPE_CHECKING:
    from collections.abc import Collection

    from brokergroup_operator.kubectl.cluster import Cluster, Kind

OF_A_POD: Final = frozenset({names.FINALIZER_FENCE, names.FINALIZER_BACKUP})


@with_option_groups
def release(
    group: GroupName,
    *,
    operator_is_gone: Annotated[
        bool,
        typer.Option(
            "--operator-is-gone", help="Confirm that no operator runs, if no Lease that you may read proves it"
        ),
    ] = False,
    confirmation: Confirmed,
    dry_run: DryRun = False,
    place: Place,
) -> None:
    """Let a group that is being deleted go, without an operator. Refused while one is alive. Claims and record stay."""
    from brokergroup_operator.kubectl.cluster import BrokerGroup, PersistentVolumeClaim, Pod

    cluster = place.cluster()
    found = cluster.group(group)
    _refuse_what_need_not_be(cluster, found, operator_is_gone=operator_is_gone)
    pods, claims = _of_group(cluster, Pod, group), _of_group(cluster, PersistentVolumeClaim, group)
    for line in _what_goes_and_stays(found, pods, claims):
        typer.echo(line)
    if dry_run:
        return
    confirm(group, "This lets the group go as it stands: its brokers are not stopped in order", confirmation)
    # Pods first: once the group is gone, a second run of this command would not find it.
    for pod in pods:
        if not OF_A_POD.isdisjoint(_finalizers(pod)):
            _remove_finalizers(cluster, Pod, pod, OF_A_POD)
    _remove_finalizers(cluster, BrokerGroup, found, {names.FINALIZER_BROKER_GROUP})
    typer.echo(f"brokergroup.{names.GROUP}/{group} released")


def _refuse_what_need_not_be(cluster: "Cluster", group: JsonObject, *, operator_is_gone: bool) -> None:
    metadata = group["metadata"]
    place = f"{metadata['namespace']}/{metadata['name']}"
    if not metadata.get("deletionTimestamp"):
        delete = f"kubectl delete brokergroup -n {metadata['namespace']} {metadata['name']} --wait=false"
        raise OperationFailedError(f"{place} is not being deleted, nothing was done; first: {delete}")
    if names.FINALIZER_BROKER_GROUP not in _finalizers(group):
        others = ", ".join(_finalizers(group)) or "none"
        raise OperationFailedError(f"{place}: the operator's finalizer does not hold it; its finalizers: {others}")
    heard = heartbeat(cluster, group)
    if heard.presence is Presence.HERE:
        explain = f"kubectl brokergroup explain -n {metadata['namespace']} {metadata['name']}"
        raise OperationFailedError(
            f"{place}: {heard.message}; the operator itself stops the brokers and lets the group go: {explain}"
        )
    if heard.presence is Presence.UNKNOWN and not operator_is_gone:
        raise NotProvedError(f"{place}: {heard.message}; sure that none runs? Say --operator-is-gone")


def _what_goes_and_stays(group: JsonObject, pods: list[JsonObject], claims: list[JsonObject]) -> list[str]:
    name, place = group["metadata"]["name"], f"-n {group['metadata']['namespace']}"
    label = f"{names.LABEL_BROKER_GROUP}={name}"
    pod_names, claim_names = (
        ", ".join(item["metadata"]["name"] for item in found) or "none" for found in (pods, claims)
    )
    children = f"pods ({pod_names}), Services, ConfigMap, PodDisruptionBudgets and NetworkPolicy"
    # The garbage collector removes the owner references first, then its finalizer "orphan".
    orphaned = "orphan" in _finalizers(group) or any(not pod["metadata"].get("ownerReferences") for pod in pods)
    fate = (
        f"stays, by --cascade=orphan: {children}: kubectl delete {place}"
        f" pods,services,configmaps,poddisruptionbudgets,networkpolicies -l {label}"
        if orphaned
        else f"goes with the group, by the cluster's garbage collector: {children}"
    )
    delete, record = f"kubectl delete {place}", f"the record brokergroupstate/{name}"
    return [
        fate,
        f"stays, with the data: claims ({claim_names}) and {record}; a group of this name takes both up again",
        f"  to delete them for good: {delete} persistentvolumeclaims -l {label} && {delete} brokergroupstates {name}",
    ]


def _of_group(cluster: "Cluster", kind: "Kind", group: str) -> list[JsonObject]:
    """Return the group's objects; none if they may not be listed, since the group can be released without them."""
    try:
        return cluster.list(kind, labelSelector=f"{names.LABEL_BROKER_GROUP}={group}")
    except (ForbiddenError, NotFoundError):
        return []


def _finalizers(obj: JsonObject) -> list[str]:
    return list(obj["metadata"].get("finalizers") or [])


def _remove_finalizers(cluster: "Cluster", kind: "Kind", obj: JsonObject, ours: "Collection[str]") -> None:
    """Only from the object as it was read: an operator that came back meanwhile has written it, and the patch conflicts."""
    metadata = obj["metadata"]
    kept = [item for item in _finalizers(obj) if item not in ours]
    patch = {"metadata": {"resourceVersion": metadata["resourceVersion"], "finalizers": kept}}
    cluster.patch(kind, metadata["name"], patch)

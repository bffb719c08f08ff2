"""`kubectl brokergroup release`: a group that is being deleted goes without its operator, which is gone for good.

The operator takes a group apart in order and then removes its finalizer. Where it was uninstalled first, nothing does, and
`kubectl delete` waits for ever.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from brokergroup_operator.api import names
from brokergroup_operator.kubectl import options
from brokergroup_operator.kubectl.errors import ForbiddenError, NotFoundError, NotProvedError, OperationFailedError

if TYPE_CHECKING:
    from brokergroup_operator.kubectl.reach.cluster import Cluster
    from brokergroup_operator.kubectl.reach.kinds import Kind

JsonObject = dict[str, Any]


def release(
    group: options.GroupName,
    *,
    operator_is_gone: Annotated[
        bool, typer.Option("--operator-is-gone", help="You know it, where no Lease that you may read proves it")
    ] = False,
    yes: options.Yes = False,
    confirm: options.Confirm = None,
    dry_run: options.DryRun = False,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Let a group that is being deleted go, without an operator. Refused while one is alive. Claims and record stay."""
    from brokergroup_operator.kubectl.confirming import confirm as ask_for_the_name
    from brokergroup_operator.kubectl.reach.cluster import Cluster
    from brokergroup_operator.kubectl.reach.kinds import BROKER_GROUPS

    cluster = Cluster(kubeconfig, context, namespace)
    found = cluster.get(BROKER_GROUPS, group)
    _refuse_what_need_not_be(cluster, found, operator_is_gone=operator_is_gone)
    held = [pod for pod in _of_group(cluster, "pods", group) if names.FINALIZER_FENCE in _finalizers(pod)]
    for line in _what_goes_and_stays(cluster, found):
        typer.echo(line)
    if dry_run:
        return
    ask_for_the_name(
        group, "This lets the group go as it stands: its brokers are not stopped in order", yes=yes, typed=confirm
    )
    # Pods first: once the group is gone, a second run of this command would not find it.
    for pod in held:
        _remove_finalizer(cluster, "pods", pod, names.FINALIZER_FENCE)
    _remove_finalizer(cluster, "brokergroups", found, names.FINALIZER_BROKER_GROUP)
    typer.echo(f"brokergroup.{names.GROUP}/{group} released")


def _refuse_what_need_not_be(cluster: "Cluster", group: JsonObject, *, operator_is_gone: bool) -> None:
    from brokergroup_operator.kubectl.show.its_operator import Presence, heartbeat

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
        raise OperationFailedError(f"{place}: {heard.message}; it takes the group apart itself: {explain}")
    if heard.presence is Presence.UNKNOWN and not operator_is_gone:
        raise NotProvedError(f"{place}: {heard.message}; sure that none runs? Say --operator-is-gone")


def _what_goes_and_stays(cluster: "Cluster", group: JsonObject) -> list[str]:
    metadata = group["metadata"]
    name, place = metadata["name"], f"-n {metadata['namespace']}"
    label = f"{names.LABEL_BROKER_GROUP}={name}"
    claims = (
        ", ".join(item["metadata"]["name"] for item in _of_group(cluster, "persistentvolumeclaims", name)) or "none"
    )
    found = _of_group(cluster, "pods", name)
    pods = ", ".join(item["metadata"]["name"] for item in found) or "none"
    children = f"pods ({pods}), Services, ConfigMap and PodDisruptionBudgets"
    # The garbage collector takes the owners away first, and then its finalizer.
    orphaned = "orphan" in _finalizers(group) or any(not one["metadata"].get("ownerReferences") for one in found)
    fate = (
        f"stays, by --cascade=orphan: {children}: kubectl delete {place} pods,services,configmaps,poddisruptionbudgets -l {label}"
        if orphaned
        else f"goes with the group, by the cluster's garbage collector: {children}"
    )
    return [
        fate,
        f"stays, with the data: claims ({claims}) and the record brokergroupstate/{name}; a group of this name takes both up again",
        (
            f"  to delete them for good: kubectl delete {place} persistentvolumeclaims -l {label} &&"
            f" kubectl delete {place} brokergroupstates {name}"
        ),
    ]


def _of_group(cluster: "Cluster", plural: str, group: str) -> list[JsonObject]:
    """Empty where they may not be listed: the group may be let go all the same."""
    try:
        return cluster.list(_kind(plural), labelSelector=f"{names.LABEL_BROKER_GROUP}={group}")
    except (ForbiddenError, NotFoundError):
        return []


def _finalizers(obj: JsonObject) -> list[str]:
    return list(obj["metadata"].get("finalizers") or [])


def _remove_finalizer(cluster: "Cluster", plural: str, obj: JsonObject, finalizer: str) -> None:
    """Only of the object as it was read: an operator that came back meanwhile has written it."""
    metadata = obj["metadata"]
    kept = [item for item in _finalizers(obj) if item != finalizer]
    patch = {"metadata": {"resourceVersion": metadata["resourceVersion"], "finalizers": kept}}
    cluster.patch(_kind(plural), metadata["name"], patch)


def _kind(plural: str) -> "Kind":
    from brokergroup_operator.kubectl.reach import kinds

    of_plural = {kind.plural: kind for kind in (kinds.BROKER_GROUPS, kinds.PODS, kinds.PERSISTENT_VOLUME_CLAIMS)}
    return of_plural[plural]

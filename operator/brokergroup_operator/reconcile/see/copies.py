"""What a pass needs to see of a backup that is taken, or that a new group begins with, and what its pods said. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from brokergroup_operator.api import names
from brokergroup_operator.api.backup_fields import Manifest
from brokergroup_operator.api.brokergroup_operation import OperationType
from brokergroup_operator.kube.pods import node_of
from brokergroup_operator.kube.resources import PERSISTENT_VOLUME_CLAIMS, PODS
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.members import left_disks
from brokergroup_operator.reconcile.see.pod_trouble import pod_trouble

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokergroup_operator.api.backup_fields import BackupResult, FromBackup
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.see.pod_trouble import Trouble

# Broker id 1 is the first of any group; in a restored one its pod's disk is that of the backup, whatever id its broker gets.
FIRST: Final = 1


def wanted_aside(seen: Observed) -> list[tuple[Resource, str]]:
    """The objects without the group's label that this pass must read, for `Observed.aside`."""
    return [*_of_backups(seen), *_of_restore(seen)]


def _of_backups(seen: Observed) -> Iterator[tuple[Resource, str]]:
    asked = [one for one in seen.operations if one.asked.spec.type is OperationType.BACKUP and not one.finished]
    if asked:
        yield PODS, names.backup_pod_name(seen.key.name)
    requests = [one.asked.spec.backup for one in asked if one.asked.spec.backup is not None]
    for name in {one.claim.name for one in requests if one.claim is not None}:
        yield PERSISTENT_VOLUME_CLAIMS, name


def _of_restore(seen: Observed) -> Iterator[tuple[Resource, str]]:
    if seen.group_object and not seen.unreadable and (source := source_of(seen)) is not None and not has_begun(seen):
        yield PODS, names.restore_pod_name(seen.key.name)
        if source.claim is not None:
            yield PERSISTENT_VOLUME_CLAIMS, source.claim.name


def backup_pod(seen: Observed) -> JsonObject | None:
    """The pod that copies a member's store, of whichever operation."""
    return _ours(seen, names.backup_pod_name(seen.key.name))


def restore_pod(seen: Observed) -> JsonObject | None:
    """The pod that copies a backup to the first claim, of this group or of an earlier one of its name (`is_of`)."""
    return _ours(seen, names.restore_pod_name(seen.key.name))


def _ours(seen: Observed, name: str) -> JsonObject | None:
    pod = seen.aside.get((PODS.kind, name))
    return pod if pod is not None and is_ours(seen, pod) else None


def is_ours(seen: Observed, pod: JsonObject) -> bool:
    return observed.labels_of(pod).get(names.LABEL_COPIES_FOR) == seen.key.name


def is_of(pod: JsonObject, owner_uid: str) -> bool:
    """Whether this very operation or group made the pod: one of an earlier name-sake has copied something else."""
    return any(owner.get("uid") == owner_uid for owner in observed.owners_of(pod))


def why_name_taken(seen: Observed, name: str) -> str:
    """Why a copying pod can't be made: a pod of that name is there that is none of ours. It is left alone."""
    pod = seen.aside.get((PODS.kind, name))
    if pod is None or is_ours(seen, pod):
        return ""
    return f"pod {name} is there and was not made by the operator: it needs that name to copy"


def claim_aside(seen: Observed, name: str) -> JsonObject | None:
    return seen.aside.get((PERSISTENT_VOLUME_CLAIMS.kind, name))


def source_of(seen: Observed) -> FromBackup | None:
    """The backup that the group is to begin with."""
    bootstrap = seen.group.spec.bootstrap
    return None if bootstrap is None else bootstrap.from_backup


def told_of(source: FromBackup) -> str:
    """The backup, for a message."""
    if source.claim is None:
        return f"VolumeSnapshot {source.backup}"
    return f"backup {source.claim.folder} of claim {source.claim.name}"


def has_begun(seen: Observed) -> bool:
    """Whether brokers have registered, or ran before the record was lost: from then on record and disks are what counts."""
    held = names.FINALIZER_BROKER_GROUP in observed.finalizers_of(seen.group_object)
    ran = bool(seen.pods) or bool(left_disks(seen))
    return (seen.record is not None and seen.record.has_registered) or (held and ran)


def first_pod(seen: Observed) -> str:
    """The pod whose claims a backup is restored to."""
    return names.pod_name(identity.name_of(seen.group), FIRST)


def awaits_restore(seen: Observed) -> bool:
    """Whether the group begins with a backup, and its record does not yet: no member is made until it does."""
    source = source_of(seen)
    return source is not None and not has_begun(seen) and (seen.record is None or not seen.record.restored_from)


def held_for_backup(seen: Observed) -> BackupResult | None:
    """The member that a running Backup stops, and keeps stopped until it may start and the copying pod is gone."""
    found = _of_running(seen)
    if found is None or found.compared_at is None:
        return None
    return None if may_start(found) and has_gone(seen, backup_pod(seen)) else found


def may_let_go(seen: Observed, pod: JsonObject) -> bool:
    """Whether a pod whose object a Backup keeps may vanish: that it is gone is then the proof that its broker has ended.

    Of the Backup's own pod only when its kubelet says so: it may have been deleted by force, while its container runs on.
    """
    if names.FINALIZER_BACKUP not in observed.finalizers_of(pod):
        return False
    held = _of_running(seen)
    if (
        held is None
        or may_start(held)
        or held.pod_uid != observed.uid(pod)
        or observed.being_deleted(seen.group_object)
    ):
        return True
    return observed.being_deleted(pod) and observed.kubelet_says_ended(pod, seen.nodes.get(node_of(pod)))


def _of_running(seen: Observed) -> BackupResult | None:
    operation = seen.operation
    if operation is None or operation.spec.type is not OperationType.BACKUP or operation.status is None:
        return None
    return operation.status.result.backup if operation.status.result is not None else None


def has_gone(seen: Observed, pod: JsonObject | None) -> bool:
    """Whether a copying pod is waited for no longer: it is gone, has ended and goes, or its node is lost. It only reads."""
    if pod is None or not observed.being_deleted(pod):
        return pod is None
    return observed.pod_has_ended(pod) or observed.is_stuck_terminating(pod, now=seen.now)


def member_of_claim(claim: JsonObject | None) -> str:
    """The pod of the member whose claim this is, of whichever group, also of one that has left; empty: of none."""
    if claim is None:
        return ""
    group, name = observed.labels_of(claim).get(names.LABEL_BROKER_GROUP, ""), str(observed.metadata(claim)["name"])
    pods = (name, name.removesuffix(names.commit_log_claim_name("")))
    return next((pod for pod in pods if group and names.broker_id_of_pod_name(group, pod) is not None), "")


def is_over(held: BackupResult) -> bool:
    """Whether the copy is whole or given up: what is left is the end of the copying pod, and the member's start."""
    return held.taken_at is not None or bool(held.failed)


def may_start(held: BackupResult) -> bool:
    """Whether the member may run again: what it writes from now on is in no copy, and in no snapshot."""
    return is_over(held) or held.cut_at is not None


def ended_seconds(pod: JsonObject) -> float:
    """When an ended pod ended, as far as it says; else when it was made."""
    statuses: list[dict[str, Any]] = observed.pod_status(pod).get("containerStatuses") or []
    ends = [(one.get("state") or {}).get("terminated", {}).get("finishedAt") for one in statuses]
    return max((observed.seconds_of(str(end)) for end in ends if end), default=observed.created_seconds(pod))


def trouble_of(pod: JsonObject, *, now: str) -> Trouble | None:
    """Why a copying pod does not run, where its kubelet or the scheduler says so; None for one that runs, goes or has ended."""
    return None if observed.being_deleted(pod) or end_of(pod) is not None else pod_trouble(pod, now=now)


@dataclass(frozen=True)
class Ended:
    """How a copying pod ended: with a manifest, or a fault in a sentence."""

    manifest: Manifest | None = None
    fault: str = ""


def end_of(pod: JsonObject) -> Ended | None:
    """None while it runs, or waits for its volumes."""
    phase = observed.pod_phase(pod)
    if phase not in {"Succeeded", "Failed"}:
        return None
    statuses: list[dict[str, Any]] = observed.pod_status(pod).get("containerStatuses") or []
    said = next((str((one.get("state") or {}).get("terminated", {}).get("message") or "") for one in statuses), "")
    name = observed.metadata(pod)["name"]
    if phase == "Failed":
        reason = observed.pod_status(pod).get("message") or observed.pod_status(pod).get("reason") or "it says nothing"
        return Ended(fault=said.strip() or f"pod {name} failed: {reason}")
    try:
        return Ended(manifest=msgspec.json.decode(said, type=Manifest))
    except msgspec.MsgspecError as error:
        return Ended(fault=f"pod {name} ended without a manifest: {error}")

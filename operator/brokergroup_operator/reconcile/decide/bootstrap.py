"""A new group that begins with a backup: its first claim is filled, then its record begins above the backup's ids and epochs. Pure.

The claim is filled by a copy, or made from a snapshot and checked.

No member's pod is made before that. The record then has one seat, that of the filled disk, so the members that follow can only
copy it (`controller_core/membership.py`, `restore_group`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.api.backup_fields import (
    BROKER_IDS_LEFT_OUT,
    EPOCHS_LEFT_OUT,
    EPOCHS_TO_COME,
    blocks_of,
)
from brokergroup_operator.api.bounds import JAVA_INT_MAX
from brokergroup_operator.kube.resources import BROKER_GROUPS, PODS
from brokergroup_operator.observe.group_view import RestoredStore
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile import plan as plans
from brokergroup_operator.reconcile.decide import snapshot_source
from brokergroup_operator.reconcile.decide.claims import claim_actions
from brokergroup_operator.reconcile.identity import Member
from brokergroup_operator.reconcile.render import copy_pods
from brokergroup_operator.reconcile.see import copies, observed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokergroup_operator.api.backup_fields import FromBackup, Manifest
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.settings import ReconcileSettings


# After the end of a copying pod that has not copied: its cause may be gone by then.
RETRY_SECONDS: Final = 60.0


def why_not_restored(seen: Observed, settings: ReconcileSettings) -> str:  # noqa: PLR0911 (one return per reason)
    """Why the group can't begin with the backup that its spec names; empty if it can, or has begun."""
    source = copies.source_of(seen)
    if source is None:
        return ""
    field = "spec.bootstrap.fromBackup"
    if not copies.awaits_restore(seen):
        return _other_record(seen, field)
    if seen.record is not None and seen.record.replicas:
        return f"{field}: the record of {seen.key.name} has members: a backup is restored into a new group only"
    first = copies.first_pod(seen)
    there = [name for name in (*seen.pods, *seen.claims) if name not in identity.claim_names(seen.group, first)]
    if there:
        return f"{field}: {', '.join(sorted(there))} is there already: a backup is restored into a new group only"
    if why := _why_no_source(seen, source, settings, field):
        return why
    if why := copies.why_name_taken(seen, names.restore_pod_name(seen.key.name)):
        return f"{field}: {why}"
    pod = _own_pod(seen)
    ended = copies.end_of(pod) if pod is not None else None
    if ended is None:
        return ""
    why = ended.fault or (_unfit(seen, ended.manifest, settings) if ended.manifest is not None else "")
    pod_name = names.restore_pod_name(seen.key.name)
    again = f"; it is tried again {RETRY_SECONDS:.0f} s later, or at once when pod {pod_name} is deleted"
    return f"{field}: {why}{again if ended.fault else ''}" if why else ""


def _why_no_source(seen: Observed, source: FromBackup, settings: ReconcileSettings, field: str) -> str:
    """Why there is nothing to begin with; empty if the claim or the snapshots are there."""
    if source.snapshot is not None:
        if why := snapshot_source.why_not_from_snapshots(seen, source.snapshot.name):
            return why
        known = snapshot_source.with_log(snapshot_source.known_of(seen, source.snapshot.name))
        return f"{field}: {why}" if (why := _unfit(seen, known, settings)) else ""
    if source.claim is None:
        return f"{field}: expected claim or snapshot"
    name = source.claim.name
    if name in identity.claim_names(seen.group, copies.first_pod(seen)):
        return f"{field}.claim.name: {name} is the claim that the backup is copied to: use another group name"
    if copies.claim_aside(seen, name) is None:
        return f"{field}.claim.name: there is no claim {name} in namespace {seen.key.namespace}"
    return ""


def _own_pod(seen: Observed) -> JsonObject | None:
    """The copying pod of this very group: that of an earlier one of its name may have filled another claim with another backup."""
    pod = copies.restore_pod(seen)
    return pod if pod is not None and copies.is_of(pod, observed.uid(seen.group_object)) else None


def retried_restore(seen: Observed) -> Iterator[plans.Action]:
    """Delete a pod whose copy failed a while ago, so that another tries: the cause may be gone, or was an eviction."""
    pod = _own_pod(seen)
    if pod is None or not copies.awaits_restore(seen) or observed.being_deleted(pod):
        return
    ended = copies.end_of(pod)
    if ended is not None and ended.fault and observed.seconds_of(seen.now) - copies.ended_seconds(pod) >= RETRY_SECONDS:
        yield plans.DeleteObject.of(PODS, pod, "the backup could not be restored, and is tried again")


def _other_record(seen: Observed, field: str) -> str:
    source, record = copies.source_of(seen), seen.record
    if source is None or record is None or record.restored_from == source.backup:
        return ""
    if not record.restored_from and names.FINALIZER_BROKER_GROUP in observed.finalizers_of(seen.group_object):
        return ""  # the record was lost, and made again from its brokers
    began = f"with {record.restored_from}" if record.restored_from else "with empty disks"
    return f"{field}: the record of {seen.key.name} began {began}: a backup is restored into a new group only"


def _unfit(seen: Observed, manifest: Manifest, settings: ReconcileSettings) -> str:
    """Why brokers of this group can't run on that store."""
    version = seen.group.spec.version or ("" if seen.group.spec.image else settings.rocketmq_version)
    if manifest.version and version and _numbers(version) < _numbers(manifest.version):
        return f"the backup is of RocketMQ {manifest.version}, the group's brokers are {version}: an older one may not read it"
    begun = _begun_above(seen, manifest)
    if begun.master_epoch + EPOCHS_TO_COME > JAVA_INT_MAX:
        return f"the backup's epoch is {manifest.master_epoch}: too few are left above it, up to {JAVA_INT_MAX}"
    if begun.broker_id + BROKER_IDS_LEFT_OUT > JAVA_INT_MAX:
        return (
            f"the backup's next broker id is {manifest.next_broker_id}: too few are left above it, up to {JAVA_INT_MAX}"
        )
    return "" if manifest.offset >= 0 else "the backup's manifest does not say where its log ends"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("-", maxsplit=1)[0].split(".") if part.isdecimal())


def restore_actions(seen: Observed, settings: ReconcileSettings) -> Iterator[plans.Action]:
    """The next step of a group that awaits its backup: claims, the copying pod, then the beginning of the record."""
    source, first = copies.source_of(seen), copies.first_pod(seen)
    if source is None:
        return
    sources = {} if source.snapshot is None else snapshot_source.sources(seen, source.snapshot.name)
    yield from claim_actions(seen, Member(broker_id=copies.FIRST, pod=first), sources=sources)
    pod = copies.restore_pod(seen)
    if pod is not None and _own_pod(seen) is None:
        if not observed.being_deleted(pod):
            yield plans.DeleteObject.of(PODS, pod, "an earlier group of this name has made it")
        return
    if pod is None:
        wanted = _pod_for(seen, source, settings)
        told = f"Copying {copies.told_of(source)} to claim {first}"
        note = plans.Note(reason="RestoreStarted", message=told)
        yield plans.ApplyObject(reason="the group begins with a backup", resource=PODS, object=wanted, note=note)
        return
    ended = copies.end_of(pod)
    if ended is None or ended.manifest is None:
        return
    restored = _begun_above(seen, ended.manifest)
    told = (
        f"Claim {first} has the log of {copies.told_of(source)} up to {restored.held_offset}:"
        f" its broker gets id {restored.broker_id}, and the group goes on above epoch {restored.master_epoch}"
    )
    note = plans.Note(reason="Restored", message=told)
    noted = list(_noted(seen, restored.master_epoch, restored.broker_id))
    yield from noted
    # A pass goes on after a conflict: the record begins in the pass that has read the note.
    if not noted:
        yield plans.BeginRestored(reason="its first claim has the backup", restored=restored, note=note)


def noted_beginning(seen: Observed) -> Iterator[plans.Action]:
    """Note where the record began, of a group that an earlier release restored."""
    record = seen.record
    if copies.source_of(seen) is not None and record is not None and record.restored_from:
        yield from _noted(seen, record.master_epoch, record.next_broker_id)


def _noted(seen: Observed, epoch: int, broker_id: int) -> Iterator[plans.Action]:
    """On the group, which outlives its record: up to there brokers are followed after the record was lost."""
    if names.ANNOTATION_BEGUN_ABOVE in observed.annotations_of(seen.group_object):
        return
    # Of the object as it was read: a note that was written since stays.
    version = observed.resource_version(seen.group_object)
    yield plans.PatchMetadata(
        reason="it began with a backup",
        resource=BROKER_GROUPS,
        name=seen.key.name,
        uid=observed.uid(seen.group_object),
        change={"resourceVersion": version, "annotations": {names.ANNOTATION_BEGUN_ABOVE: f"{epoch}/{broker_id}"}},
    )


def _pod_for(seen: Observed, source: FromBackup, settings: ReconcileSettings) -> JsonObject:
    """The pod that copies the folder, or adopts the claim that was made from the snapshot."""
    first = copies.first_pod(seen)
    if source.claim is not None:
        folder = source.claim.folder
        return copy_pods.restore_pod(seen.group, pod=first, claim=source.claim.name, folder=folder, settings=settings)
    known = snapshot_source.known_of(seen, source.backup)
    return copy_pods.adopt_pod(seen.group, pod=first, manifest=known, settings=settings)


def _begun_above(seen: Observed, manifest: Manifest) -> RestoredStore:
    """With which id and epoch the group begins: above all that the backup's group can have had, and in a block of its own.

    By the block, which follows from the group's uid, two groups that begin with the same backup have no id and no epoch in common,
    in whatever clusters they are: a disk of the one is unknown to the other, and so is each epoch of its log.
    """
    source = copies.source_of(seen)
    assert source is not None, "a manifest is that of spec.bootstrap"
    epoch_block, id_block = blocks_of(observed.uid(seen.group_object))
    return RestoredStore(
        backup=source.backup,
        pod_name=copies.first_pod(seen),
        broker_id=manifest.next_broker_id + id_block * BROKER_IDS_LEFT_OUT,
        master_epoch=max(manifest.master_epoch, manifest.store_epoch) + epoch_block * EPOCHS_LEFT_OUT,
        held_epoch=manifest.store_epoch,
        held_offset=manifest.offset,
    )


def finished_copies(seen: Observed) -> Iterator[plans.Action]:
    """Delete the pod that copied the backup, once the record says that the group began with it, or the group goes."""
    pod = copies.restore_pod(seen)
    if pod is not None and not observed.being_deleted(pod):
        yield plans.DeleteObject.of(PODS, pod, "nothing waits for its copy any more")

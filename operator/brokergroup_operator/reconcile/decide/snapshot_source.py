"""The VolumeSnapshots that a new group begins with: whether they are a whole set that its claims can be made from. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.render.snapshots import data_source
from brokergroup_operator.reconcile.see import copies, foreign, observed, snapshots
from brokergroup_operator.reconcile.see.snapshots import DamagedManifestError

if TYPE_CHECKING:
    from brokergroup_operator.api.backup_fields import Manifest, SnapshotManifest
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.reconcile.see.observed import Observed

FIELD: Final = "spec.bootstrap.fromBackup.snapshot"
# Of the manifest that a Backup writes today.
FORMAT: Final = 1


def why_not_from_snapshots(seen: Observed, name: str) -> str:
    """Why no claim can be made from the set that this snapshot is the first of; empty if they can be, or are."""
    found = _set_of(seen, name)
    return found if isinstance(found, str) else _why_not_for(seen, found)


def known_of(seen: Observed, name: str) -> Manifest:
    """What the set is of. Only of one that nothing stands against."""
    found = _set_of(seen, name)
    assert not isinstance(found, str), "why_not_from_snapshots has looked"
    return found.backup


def sources(seen: Observed, name: str) -> dict[str, JsonObject]:
    """What each claim of the first member is made from. Only of a set that nothing stands against."""
    found = _set_of(seen, name)
    assert not isinstance(found, str), "why_not_from_snapshots has looked"
    claims = identity.claim_names(seen.group, copies.first_pod(seen))
    return {claim: data_source(one.snapshot) for claim, one in zip(claims, found.snapshots, strict=True)}


def _set_of(seen: Observed, name: str) -> SnapshotManifest | str:
    """The manifest that all snapshots of the set have, or what is wrong with them."""
    if seen.snapshots_problem:
        return f"{FIELD}: {seen.snapshots_problem}"
    named = f"{FIELD}.name: VolumeSnapshot {name}"
    first = snapshots.snapshot_named(seen, name)
    if first is None:
        return f"{FIELD}.name: there is no VolumeSnapshot {name} in namespace {seen.key.namespace}"
    try:
        manifest = snapshots.manifest_of(first)
        why = _why_no_set(seen, name, manifest)
    except DamagedManifestError as error:
        return f"{named} is damaged: annotation {snapshots.MANIFEST}: {error}"
    return manifest if manifest is not None and not why else f"{FIELD}.name: {why}"


def _why_no_set(seen: Observed, name: str, manifest: SnapshotManifest | None) -> str:
    named = f"VolumeSnapshot {name}"
    if manifest is None:
        told = "a Backup writes it on each of its snapshots when all of them are ready"
        return f"{named} is torn: it has no annotation {snapshots.MANIFEST}: {told}"
    if manifest.backup.format != FORMAT:
        return f"{named} has a manifest of format {manifest.backup.format}, this operator reads {FORMAT}"
    if not manifest.snapshots or manifest.snapshots[0].snapshot != name:
        expected = manifest.snapshots[0].snapshot if manifest.snapshots else "one of a Backup"
        return f"{named} is not the first of its set, expected {expected}"
    if len({one.snapshot for one in manifest.snapshots}) < len(manifest.snapshots):
        return f"{named} is in its set twice, expected one VolumeSnapshot of each claim"
    parts = ((one.snapshot, _why_not_whole(seen, one.snapshot, manifest)) for one in manifest.snapshots)
    return next((f"VolumeSnapshot {part} {why}" for part, why in parts if why), "")


def _why_not_whole(seen: Observed, name: str, manifest: SnapshotManifest) -> str:
    one = snapshots.snapshot_named(seen, name)
    if one is None:
        return f"is missing in namespace {seen.key.namespace}: the set is torn"
    if observed.being_deleted(one):
        return "is being deleted: no claim can be made from it"
    if snapshots.manifest_of(one) != manifest:
        return f"has not the manifest of {manifest.snapshots[0].snapshot}: the set is torn"
    if not snapshots.is_ready(one):
        return f"is not ready to use: {snapshots.error_of(one) or 'expected status.readyToUse true'}"
    return ""


def _why_not_for(seen: Observed, manifest: SnapshotManifest) -> str:
    """Why this very group can't begin with a whole set."""
    storage, backup = seen.group.spec.storage, manifest.backup
    if (given := seen.group.spec.implementation.value) != backup.implementation:
        return f"spec.implementation: {given}, expected {backup.implementation}: the backup is of such brokers"
    has_log_claim = len(manifest.snapshots) > 1
    if has_log_claim != (storage.commit_log is not None):
        claims = ", ".join(one.claim for one in manifest.snapshots)
        expected = "given" if has_log_claim else "absent"
        return f"spec.storage.commitLog: the backup has the claims {claims}, expected it to be {expected}"
    sizes = {"spec.storage.size": storage.size}
    if storage.commit_log is not None:
        sizes["spec.storage.commitLog.size"] = storage.commit_log.size
    for (field, size), one in zip(sizes.items(), manifest.snapshots, strict=True):
        snapshot = snapshots.snapshot_named(seen, one.snapshot)
        needed = snapshots.restore_size(snapshot) if snapshot is not None else ""
        if _is_smaller(size, needed):
            return f"{field}: {size} is smaller than VolumeSnapshot {one.snapshot}, expected {needed} or more"
    for claim, one in zip(identity.claim_names(seen.group, copies.first_pod(seen)), manifest.snapshots, strict=True):
        there = seen.claims.get(claim)
        if there is not None and observed.claim_source(there) != data_source(one.snapshot):
            told = f"claim {claim} is there, and was not made from VolumeSnapshot {one.snapshot}"
            return f"{FIELD}: {told}: delete the claim, or use another group name"
    return ""


def _is_smaller(size: str, needed: str) -> bool:
    """Of a size that is not understood it is not known: the provisioner compares too, and the claim's events say so."""
    try:
        return bool(needed) and foreign.parse_quantity(size) < foreign.parse_quantity(needed)
    except ValueError:
        return False


def with_log(manifest: Manifest) -> Manifest:
    """The manifest, with the least that its log has as the log's end: for what is judged before the log is read."""
    return msgspec.structs.replace(manifest, offset=manifest.confirm_offset)

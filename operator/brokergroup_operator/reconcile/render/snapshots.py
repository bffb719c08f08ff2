"""Builds the VolumeSnapshots of a Backup, and what is written on them when all are ready. Pure.

They have no owner: a backup must outlive its operation, which goes with its group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.kube.resources import VOLUME_SNAPSHOTS
from brokergroup_operator.reconcile import identity

if TYPE_CHECKING:
    from brokergroup_operator.api.backup_fields import Manifest, SnapshotManifest
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup
    from brokergroup_operator.reconcile.settings import ReconcileSettings


def volume_snapshot(group: BrokerGroup, *, name: str, claim: str, class_name: str | None, mark: str) -> JsonObject:
    """The snapshot of one claim, marked with what it is of."""
    spec: JsonObject = {"source": {"persistentVolumeClaimName": claim}}
    if class_name is not None:
        spec["volumeSnapshotClassName"] = class_name
    metadata: JsonObject = {
        "name": name,
        "namespace": identity.namespace_of(group),
        "labels": identity.copy_labels(group),
        "annotations": {names.ANNOTATION_SNAPSHOT_OF: mark},
    }
    kind = {"apiVersion": VOLUME_SNAPSHOTS.api_version, "kind": VOLUME_SNAPSHOTS.kind}
    return {**kind, "metadata": metadata, "spec": spec}


def sealing(group: BrokerGroup, manifest: SnapshotManifest, settings: ReconcileSettings) -> dict[str, str]:
    """The annotation by which a set of snapshots is whole."""
    whole = msgspec.structs.replace(manifest, backup=with_version(group, manifest.backup, settings))
    return {names.ANNOTATION_MANIFEST: msgspec.json.encode(whole).decode()}


def with_version(group: BrokerGroup, manifest: Manifest, settings: ReconcileSettings) -> Manifest:
    """The manifest with the version of RocketMQ, where the group runs one that is known."""
    if group.spec.image is not None or group.spec.implementation is not Implementation.JAVA:
        return manifest
    return msgspec.structs.replace(manifest, version=group.spec.version or settings.rocketmq_version)


def data_source(snapshot: str) -> JsonObject:
    """What a claim has that is made from this snapshot."""
    return {"apiGroup": VOLUME_SNAPSHOTS.group, "kind": VOLUME_SNAPSHOTS.kind, "name": snapshot}

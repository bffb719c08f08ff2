"""Builds the pods that copy a store: of a stopped member to a backup, and of a backup to the first disk of a new group; and the one
that adopts a disk that was made from snapshots. Pure.

They run the operator's image as the broker's user, without rights in the cluster, and say how they ended as their termination
message (`brokergroup_operator.backup`). They carry no label of the group's members: no Service, budget or controller counts them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from brokergroup_operator.api import names
from brokergroup_operator.api.pod_fields import AntiAffinity
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.render.containers import restricted
from brokergroup_operator.reconcile.render.pods import as_broker_user, scheduling
from brokergroup_operator.reconcile.render.snapshots import with_version

if TYPE_CHECKING:
    from brokergroup_operator.api.backup_fields import Manifest
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup
    from brokergroup_operator.reconcile.settings import ReconcileSettings

COMMAND: Final = ("python", "-m", "brokergroup_operator.backup")
CONTAINER: Final = "copy"
BACKUP_VOLUME: Final = "backup"
BACKUP_DIR: Final = "/var/lib/brokergroup/backup"
TERMINATION_LOG: Final = "/dev/termination-log"
# It holds nothing that a graceful end would save.
GRACE_SECONDS: Final = 1


def backup_pod(
    group: BrokerGroup, *, pod: str, claim: str, manifest: Manifest, owner: JsonObject, settings: ReconcileSettings
) -> JsonObject:
    """The pod that copies the store of `pod` to a folder of the claim. `owner`: the reference to its operation."""
    manifest = with_version(group, manifest, settings)
    environment = {"BACKUP_NAME": manifest.name, "BACKUP_MANIFEST": msgspec.json.encode(manifest).decode()}
    name = names.backup_pod_name(identity.name_of(group))
    return _copy_pod(group, name, "take", pod, claim, environment, owner, settings, reads_store=True)


def restore_pod(group: BrokerGroup, *, pod: str, claim: str, folder: str, settings: ReconcileSettings) -> JsonObject:
    """The pod that copies a backup to the claims of `pod`."""
    environment = {"BACKUP_NAME": folder, "IMPLEMENTATION": group.spec.implementation.value}
    name, owner = names.restore_pod_name(identity.name_of(group)), identity.owner_reference(group)
    return _copy_pod(group, name, "restore", pod, claim, environment, owner, settings, reads_store=False)


def adopt_pod(group: BrokerGroup, *, pod: str, manifest: Manifest, settings: ReconcileSettings) -> JsonObject:
    """The pod that checks and adopts the claims of `pod`, which were made from the snapshots of a backup."""
    environment = {"BACKUP_NAME": manifest.name, "BACKUP_MANIFEST": msgspec.json.encode(manifest).decode()}
    name, owner = names.restore_pod_name(identity.name_of(group)), identity.owner_reference(group)
    return _copy_pod(group, name, "adopt", pod, None, environment, owner, settings, reads_store=False)


def _copy_pod(  # noqa: PLR0913 (one argument per difference between the two)
    group: BrokerGroup,
    name: str,
    verb: str,
    pod: str,
    claim: str | None,
    environment: dict[str, str],
    owner: JsonObject,
    settings: ReconcileSettings,
    *,
    reads_store: bool,
) -> JsonObject:
    folders = dict(zip((names.STORE_DIR, names.COMMIT_LOG_DIR), identity.claim_names(group, pod), strict=False))
    volumes = {names.VOLUME_STORE: names.STORE_DIR, names.VOLUME_COMMIT_LOG: names.COMMIT_LOG_DIR}
    mounted = {volume: path for volume, path in volumes.items() if path in folders}
    if names.COMMIT_LOG_DIR in folders:
        environment = environment | {"COMMIT_LOG_DIR": names.COMMIT_LOG_DIR}
    environment |= {"STORE_DIR": names.STORE_DIR, "BACKUP_DIR": BACKUP_DIR, "TERMINATION_LOG": TERMINATION_LOG}
    container: JsonObject = {
        "name": CONTAINER,
        "image": settings.replica_image,
        "imagePullPolicy": group.spec.image_pull_policy.value,
        "command": [*COMMAND, verb],
        "env": [{"name": key, "value": value} for key, value in environment.items()],
        "volumeMounts": [
            # Read-only here and not at the claim: a file system that was not unmounted must still be repaired by its mount.
            *({"name": volume, "mountPath": path, "readOnly": reads_store} for volume, path in mounted.items()),
            *(
                [{"name": BACKUP_VOLUME, "mountPath": BACKUP_DIR, "readOnly": not reads_store}]
                if claim is not None
                else []
            ),
        ],
        "terminationMessagePath": TERMINATION_LOG,
        "securityContext": restricted(),
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
    }
    apart = msgspec.structs.replace(group.spec.anti_affinity, type=AntiAffinity.NONE)
    placed = scheduling(apart, group.spec.pod_template.spec, {})
    spec: JsonObject = {
        "containers": [container],
        "volumes": [
            *(
                {"name": volume, "persistentVolumeClaim": {"claimName": folders[path]}}
                for volume, path in mounted.items()
            ),
            *([{"name": BACKUP_VOLUME, "persistentVolumeClaim": {"claimName": claim}}] if claim is not None else []),
        ],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": as_broker_user(),
        **{field: value for field, value in placed.items() if field != "topologySpreadConstraints"},
    }
    if group.spec.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret.name} for secret in group.spec.image_pull_secrets]
    metadata: JsonObject = {
        "name": name,
        "namespace": identity.namespace_of(group),
        "labels": identity.copy_labels(group),
        "ownerReferences": [owner],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

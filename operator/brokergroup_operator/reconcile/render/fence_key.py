"""The key by which a pod's fence verifies the operator's orders: its Secret, its volume, and the fence's part of it. Pure.

Only the fence's container mounts it. The volume is optional: a pod starts without the Secret too, and its fence then obeys no
order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from brokergroup_operator.api import names, pod_fence
from brokergroup_operator.kube.recipes import ENTRY, secret_object
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.plan import MakeSecret

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup
    from brokergroup_operator.reconcile.settings import ReconcileSettings

MODE: Final = 0o440


def make(group: BrokerGroup, settings: ReconcileSettings) -> Iterator[MakeSecret]:
    """Make the Secret with the key before a pod is made that mounts it."""
    keys = settings.fence_keys
    if keys is None or not pod_fence.wanted(group.spec):
        return
    uid, namespace = str(group.metadata["uid"]), identity.namespace_of(group)
    secret = secret_object(
        _name(group, settings), keys.key_of(uid), namespace=namespace, labels=identity.child_labels(group)
    )
    secret["metadata"]["ownerReferences"] = [identity.owner_reference(group)]
    yield MakeSecret(reason="the fences' key", object=secret)


def volumes(group: BrokerGroup, settings: ReconcileSettings) -> list[JsonObject]:
    if settings.fence_keys is None or not pod_fence.wanted(group.spec):
        return []
    source = {"secretName": _name(group, settings), "defaultMode": MODE, "optional": True}
    return [{"name": names.VOLUME_FENCE_KEY, "secret": source}]


def with_key_of(group: BrokerGroup, pod: JsonObject) -> BrokerGroup:
    """The group as the pod was made for it: an orphaned group's pods go on with its key, which the operator still knows."""
    uid = ((pod.get("metadata") or {}).get("annotations") or {}).get(names.ANNOTATION_GROUP_UID)
    return replace(group, metadata=group.metadata | {"uid": uid}) if uid else group


def mounts(settings: ReconcileSettings) -> list[JsonObject]:
    if settings.fence_keys is None:
        return []
    return [{"name": names.VOLUME_FENCE_KEY, "mountPath": names.FENCE_KEY_DIR, "readOnly": True}]


def environment(settings: ReconcileSettings) -> list[JsonObject]:
    if settings.fence_keys is None:
        return []
    return [{"name": "FENCE_KEY_FILE", "value": f"{names.FENCE_KEY_DIR}/{ENTRY}"}]


def _name(group: BrokerGroup, settings: ReconcileSettings) -> str:
    assert settings.fence_keys is not None
    return settings.fence_keys.secret_name(identity.name_of(group), str(group.metadata["uid"]))

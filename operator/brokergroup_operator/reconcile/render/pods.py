"""Builds the pod of one member: pure, from the group, the member and the settings.

The pod is restricted (no root, no writable root file system, no capabilities, no API token). Its containers are built in
`containers.py` and `fence_container.py`, where it runs in `scheduling.py`, what users add in `pod_template.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names, pod_fence
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.api.durability import LEARNER
from brokergroup_operator.api.network_fields import Addressing
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.render import certificate, fence_container, fence_key, hot_config
from brokergroup_operator.reconcile.render.addressing import as_placed
from brokergroup_operator.reconcile.render.containers import broker_container
from brokergroup_operator.reconcile.render.pod_template import with_template_metadata, with_template_spec
from brokergroup_operator.reconcile.render.scheduling import scheduling
from brokergroup_operator.reconcile.see.drift import content_hash

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup
    from brokergroup_operator.api.pod_fields import TemplateMetadata
    from brokergroup_operator.api.storage_fields import StorageSpec
    from brokergroup_operator.reconcile.identity import Member
    from brokergroup_operator.reconcile.render.place import Place
    from brokergroup_operator.reconcile.settings import ReconcileSettings

# The user of the image apache/rocketmq.
BROKER_UID: Final = 3000


def build_pod(
    group: BrokerGroup,
    member: Member,
    settings: ReconcileSettings,
    *,
    place: Place | None = None,
    learner: bool = False,
) -> JsonObject:
    """`place` is where the member is known to be, if that is not the pod's own address."""
    template = group.spec.pod_template
    spec = with_template_spec(
        _pod_spec(as_placed(group, place), member, settings, place, learner=learner), template.spec
    )
    labels = identity.member_labels(group, member) | _version_label(group, settings)
    own = identity.object_metadata(group, member.pod, labels)
    metadata = with_template_metadata(own, template.metadata)
    metadata["annotations"] = metadata.get("annotations", {}) | {
        names.ANNOTATION_CONFIG_HASH: hot_config.cold_hash(group, settings),
        names.ANNOTATION_REVISION: pod_revision(spec, template.metadata),
    }
    if place is not None:
        metadata["annotations"][names.ANNOTATION_ADDRESS] = place.text
    if learner:
        metadata["annotations"][names.ANNOTATION_LEARNER] = LEARNER
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _version_label(group: BrokerGroup, settings: ReconcileSettings) -> dict[str, str]:
    """What runs in the pod, where that is known: an image of one's own says nothing of its version."""
    if group.spec.image is not None or group.spec.implementation is not Implementation.JAVA:
        return {}
    return {names.LABEL_APP_VERSION: group.spec.version or settings.rocketmq_version}


def pod_revision(spec: JsonObject, template: TemplateMetadata) -> str:
    """Changes when the pod should run something else; what API servers add to a pod does not count."""
    further = [template.labels, template.annotations]
    return content_hash(json.dumps([spec, *further] if any(further) else spec, sort_keys=True))


def _data_volumes(storage: StorageSpec, member: Member) -> list[JsonObject]:
    if storage.ephemeral is not None:
        limit = storage.ephemeral.size_limit
        return [{"name": names.VOLUME_STORE, "emptyDir": {"sizeLimit": limit} if limit else {}}]
    claims = {names.VOLUME_STORE: member.pod}
    if storage.commit_log is not None:
        claims[names.VOLUME_COMMIT_LOG] = names.commit_log_claim_name(member.pod)
    return [{"name": name, "persistentVolumeClaim": {"claimName": claim}} for name, claim in claims.items()]


def _pod_spec(
    group: BrokerGroup, member: Member, settings: ReconcileSettings, place: Place | None, *, learner: bool
) -> JsonObject:
    containers = [broker_container(group.spec, settings, place=place, learner=learner)]
    spec: JsonObject = {
        "containers": containers,
        "volumes": [
            *_data_volumes(group.spec.storage, member),
            {"name": names.VOLUME_CONFIG, "configMap": {"name": names.config_map_name(identity.name_of(group))}},
            {"name": names.VOLUME_RUN, "emptyDir": {}},
            *certificate.volumes(group.spec),
            *fence_key.volumes(group, settings),
        ],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": group.spec.termination_grace_period_seconds,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # A stable name `<pod>.<group>-members`; the pod's address changes with every start.
        "hostname": member.pod,
        "subdomain": names.members_service_name(identity.name_of(group)),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": BROKER_UID,
            "runAsGroup": BROKER_UID,
            "fsGroup": BROKER_UID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **scheduling(group.spec.anti_affinity, group.spec.pod_template.spec, identity.selector_labels(group)),
    }
    if group.spec.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret.name} for secret in group.spec.image_pull_secrets]
    if group.spec.network.addressing is Addressing.HOST_NETWORK:
        # Else its names would be looked up by the node, which knows none of the cluster's.
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if pod_fence.wanted(group.spec):
        containers.append(fence_container.container(group, settings, place=place))
        spec["shareProcessNamespace"] = True
    return spec

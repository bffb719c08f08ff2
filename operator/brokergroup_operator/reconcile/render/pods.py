"""Builds the pod of one member: pure, from the group, the member and the settings.

The pod is restricted (no root, no writable root file system, no capabilities, no API token). Its containers are built in
`containers.py` and `fence_container.py`. What spec.podTemplate says is added as a strategic merge does: named things by their
name, the rest beside ours. Ours always wins; the API server refuses the names of our own containers, volumes and labels
(api/pod_fields.py), and this holds without.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Final

import msgspec

from brokergroup_operator.api import names, pod_fence
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.api.definitions.schema import without_nulls
from brokergroup_operator.api.durability import LEARNER
from brokergroup_operator.api.network_fields import Addressing
from brokergroup_operator.api.pod_fields import AntiAffinity
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.render import broker_config, certificate, fence_container
from brokergroup_operator.reconcile.render.addressing import as_placed
from brokergroup_operator.reconcile.render.containers import broker_container, runs_operators_image
from brokergroup_operator.reconcile.render.fence_container import restricted
from brokergroup_operator.reconcile.see.foreign import content_hash
from brokergroup_operator.reconcile.see.observed import annotations_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup, BrokerGroupSpec
    from brokergroup_operator.api.pod_fields import (
        AntiAffinitySpec,
        BrokerContainerSpec,
        PlacementSpec,
        TemplateMetadata,
        TemplateSpec,
    )
    from brokergroup_operator.api.storage_fields import StorageSpec
    from brokergroup_operator.reconcile.identity import Member
    from brokergroup_operator.reconcile.render.addressing import Place
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
        names.ANNOTATION_CONFIG_HASH: broker_config.cold_hash(group, settings),
        names.ANNOTATION_REVISION: pod_revision(spec, group.spec),
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


def pod_revision(spec: JsonObject, group: BrokerGroupSpec) -> str:
    """Changes when the group wants something else to run; neither what API servers add to a pod nor the operator's image counts."""
    containers = [fence_container.without_release(container) for container in spec["containers"]]
    if runs_operators_image(group):
        containers = [one | ({"image": ""} if one["name"] == names.CONTAINER_BROKER else {}) for one in containers]
    template = [group.pod_template.metadata.labels, group.pod_template.metadata.annotations]
    what_runs = spec | {"containers": containers}
    return content_hash(json.dumps([what_runs, *template] if any(template) else what_runs, sort_keys=True))


def made_as(pod: JsonObject, wanted: JsonObject) -> bool:
    """Whether the pod was made from what is wanted now. Its fence must ask at least one of the present controllers."""
    have, want = (annotations_of(each).get(names.ANNOTATION_REVISION) for each in (pod, wanted))
    return have == want and fence_container.knows_a_controller(pod, wanted)


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
            *certificate.key_volumes(group, settings),
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


OWN: Final = {
    "containers": names.OWN_CONTAINERS,
    "initContainers": names.OWN_CONTAINERS,
    "volumes": names.OWN_VOLUMES,
}


def with_template_spec(spec: JsonObject, template: TemplateSpec) -> JsonObject:
    lists = {
        "containers": [_as_restricted(item) for item in template.containers],
        "initContainers": [_as_restricted(item) for item in template.init_containers],
        "volumes": template.volumes,
    }
    own = [
        _with_more(item, template.broker) if item["name"] == names.CONTAINER_BROKER else item
        for item in spec["containers"]
    ]
    spec = spec | {"containers": own}
    added: JsonObject = {
        field: [*spec.get(field, []), *(item for item in items if item.get("name") not in OWN[field])]
        for field, items in lists.items()
        if items
    }
    others: JsonObject = {
        "hostAliases": list(template.host_aliases),
        "dnsConfig": dict(template.dns_config),
        "runtimeClassName": template.runtime_class_name,
        "schedulerName": template.scheduler_name,
        "serviceAccountName": template.service_account_name,
    }
    return spec | added | {field: value for field, value in others.items() if value}


def _with_more(broker: JsonObject, template: BrokerContainerSpec) -> JsonObject:
    more = {
        "env": [item for item in template.env if item.get("name") not in names.OWN_VARIABLES],
        "volumeMounts": [item for item in template.volume_mounts if item.get("mountPath") not in names.OWN_FOLDERS],
    }
    return broker | {field: [*broker[field], *items] for field, items in more.items()}


def _as_restricted(container: JsonObject) -> JsonObject:
    """Where a further container says nothing, what holds for the broker holds for it."""
    return container | {"securityContext": {**restricted(), **(container.get("securityContext") or {})}}


def with_template_metadata(metadata: JsonObject, template: TemplateMetadata) -> JsonObject:
    return metadata | {
        field: {**more, **metadata.get(field, {})}
        for field, more in (("labels", template.labels), ("annotations", template.annotations))
        if more
    }


def scheduling(apart: AntiAffinitySpec, wish: PlacementSpec, labels: Mapping[str, str]) -> JsonObject:
    """The fields of the PodSpec; only those that say something. `labels`: by which the pods that are kept apart are known."""
    selector: JsonObject = {"matchLabels": dict(labels)}
    fields: JsonObject = {
        "affinity": _affinity(apart, wish, selector),
        "nodeSelector": dict(wish.node_selector),
        "tolerations": [without_nulls(msgspec.to_builtins(item)) for item in wish.tolerations],
        "topologySpreadConstraints": [
            msgspec.to_builtins(item) | {"labelSelector": selector} for item in wish.topology_spread_constraints
        ],
        "priorityClassName": wish.priority_class_name,
    }
    return {name: value for name, value in fields.items() if value}


def _affinity(apart: AntiAffinitySpec, wish: PlacementSpec, selector: JsonObject) -> JsonObject:
    """What the user wrote, and our own term beside it: another term of theirs doesn't switch ours off, antiAffinity does."""
    affinity: JsonObject = copy.deepcopy(wish.affinity)
    if apart.type is AntiAffinity.NONE:
        return affinity
    term: JsonObject = {"topologyKey": apart.topology_key, "labelSelector": selector}
    if apart.type is AntiAffinity.REQUIRED:
        terms, ours = "requiredDuringSchedulingIgnoredDuringExecution", term
    else:
        terms, ours = "preferredDuringSchedulingIgnoredDuringExecution", {"weight": 100, "podAffinityTerm": term}
    all_terms = affinity.setdefault("podAntiAffinity", {})
    all_terms[terms] = [ours, *all_terms.get(terms, [])]
    return affinity

"""Builds the pod of one member: pure, from the group, the member and the settings.

The pod is restricted (no root, no writable root file system, no capabilities, no API token). Its containers are built in
`containers.py`. What spec.podTemplate says is added as a strategic merge does: named things by their
name, the rest beside ours. Ours always wins; the API server refuses the names of our own containers, volumes and labels
(api/pod_fields.py), and this holds without.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Final

import msgspec

from brokergroup_operator.api import names, pod_fence, pod_fields, versions
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.api.definitions.schema import without_nulls
from brokergroup_operator.api.durability import LEARNER
from brokergroup_operator.api.network_fields import Addressing
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.render import broker_config, certificate, containers, stop_gate, tls
from brokergroup_operator.reconcile.render.addressing import as_placed
from brokergroup_operator.reconcile.see.foreign import content_hash
from brokergroup_operator.reconcile.see.observed import annotations_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup, BrokerGroupSpec
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
    template, placed = group.spec.pod_template, as_placed(group, place)
    spec = with_template_spec(_pod_spec(placed, member, settings, place, learner=learner), template.spec)
    labels = identity.member_labels(group, member) | _version_label(group, settings)
    metadata = with_template_metadata(identity.object_metadata(group, member.pod, labels), template.metadata)
    metadata["annotations"] = metadata.get("annotations", {}) | {
        names.ANNOTATION_CONFIG_HASH: broker_config.cold_hash(group, settings),
        names.ANNOTATION_REVISION: pod_revision(spec, group.spec),
    }
    metadata["annotations"] |= tls.pod_annotations(group.spec.tls)
    if features := versions.features_of(group.spec.config):
        metadata["annotations"][names.ANNOTATION_FEATURES] = ",".join(sorted(features))
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
    spec = stop_gate.without_gate(spec)
    compared = [containers.without_release(container) for container in spec["containers"]]
    if containers.runs_operators_image(group):
        compared = [one | ({"image": ""} if one["name"] == names.CONTAINER_BROKER else {}) for one in compared]
    template = [group.pod_template.metadata.labels, group.pod_template.metadata.annotations]
    what_runs = spec | {"containers": compared}
    return content_hash(json.dumps([what_runs, *template] if any(template) else what_runs, sort_keys=True))


def made_as(pod: JsonObject, wanted: JsonObject) -> bool:
    """Whether the pod was made from what is wanted now. Its fence must ask at least one of the present controllers."""
    have, want = (annotations_of(each).get(names.ANNOTATION_REVISION) for each in (pod, wanted))
    return have == want and containers.knows_a_controller(pod, wanted)


def _data_volumes(group: BrokerGroup, member: Member) -> list[JsonObject]:
    if (ephemeral := group.spec.storage.ephemeral) is not None:
        limit = ephemeral.size_limit
        return [{"name": names.VOLUME_STORE, "emptyDir": {"sizeLimit": limit} if limit else {}}]
    claims = zip((names.VOLUME_STORE, names.VOLUME_COMMIT_LOG), identity.claim_names(group, member.pod), strict=False)
    return [{"name": name, "persistentVolumeClaim": {"claimName": claim}} for name, claim in claims]


def _pod_spec(
    group: BrokerGroup, member: Member, settings: ReconcileSettings, place: Place | None, *, learner: bool
) -> JsonObject:
    built = [containers.broker_container(group.spec, settings, place=place, learner=learner)]
    spec: JsonObject = {
        "containers": built,
        "volumes": [
            *_data_volumes(group, member),
            {"name": names.VOLUME_CONFIG, "configMap": {"name": names.config_map_name(identity.name_of(group))}},
            {"name": names.VOLUME_RUN, "emptyDir": {}},
            *certificate.volumes(group, settings),
            *([stop_gate.volume()] if pod_fence.wanted(group.spec) else []),
        ],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": group.spec.termination_grace_period_seconds,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # A stable name `<pod>.<group>-members`; the pod's address changes with every start.
        "hostname": member.pod,
        "subdomain": names.members_service_name(identity.name_of(group)),
        "securityContext": as_broker_user(),
        **scheduling(group.spec.anti_affinity, group.spec.pod_template.spec, identity.selector_labels(group)),
    }
    if group.spec.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret.name} for secret in group.spec.image_pull_secrets]
    if group.spec.network.addressing is Addressing.HOST_NETWORK:
        # Else its names would be looked up by the node, which knows none of the cluster's.
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if pod_fence.wanted(group.spec):
        built.append(containers.fence_container(group, settings, place=place))
        spec["shareProcessNamespace"] = True
    return spec


OWN: Final = {"containers": names.OWN_CONTAINERS, "initContainers": names.OWN_CONTAINERS, "volumes": names.OWN_VOLUMES}
AS_WISHED: Final = ("hostAliases", "dnsConfig", "runtimeClassName", "schedulerName", "serviceAccountName")


def with_template_spec(spec: JsonObject, template: pod_fields.TemplateSpec) -> JsonObject:
    wish: JsonObject = msgspec.to_builtins(template)
    broker, *others = spec["containers"]
    merged = spec | {"containers": [_with_more(broker, template.broker), *others]}
    for field, own in OWN.items():
        items = [item for item in wish[field] if item.get("name") not in own]
        if field != "volumes":
            items = [_as_restricted(item) for item in items]
        if wish[field]:
            merged[field] = [*merged.get(field, []), *items]
    return merged | {field: wish[field] for field in AS_WISHED if wish[field]}


def _with_more(broker: JsonObject, template: pod_fields.BrokerContainerSpec) -> JsonObject:
    more = {
        "env": [item for item in template.env if item.get("name") not in names.OWN_VARIABLES],
        "volumeMounts": [item for item in template.volume_mounts if item.get("mountPath") not in names.OWN_FOLDERS],
    }
    return broker | {field: [*broker[field], *items] for field, items in more.items()}


def as_broker_user() -> JsonObject:
    """Return a pod's securityContext: the user and group that own a broker's volumes."""
    return {
        "runAsNonRoot": True,
        "runAsUser": BROKER_UID,
        "runAsGroup": BROKER_UID,
        "fsGroup": BROKER_UID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _as_restricted(container: JsonObject) -> JsonObject:
    """Where a further container says nothing, what holds for the broker holds for it."""
    return container | {"securityContext": {**containers.restricted(), **(container.get("securityContext") or {})}}


def with_template_metadata(metadata: JsonObject, template: pod_fields.TemplateMetadata) -> JsonObject:
    return metadata | {
        field: {**more, **metadata.get(field, {})}
        for field, more in (("labels", template.labels), ("annotations", template.annotations))
        if more
    }


def scheduling(
    apart: pod_fields.AntiAffinitySpec, wish: pod_fields.PlacementSpec, labels: Mapping[str, str]
) -> JsonObject:
    """The fields of the PodSpec; only those that say something. `labels`: by which the pods that are kept apart are known."""
    selector: JsonObject = {"matchLabels": dict(labels)}
    said = without_nulls(msgspec.to_builtins(wish))
    fields: JsonObject = {
        "affinity": _affinity(apart, wish, selector),
        "nodeSelector": said["nodeSelector"],
        "tolerations": said["tolerations"],
        "topologySpreadConstraints": [one | {"labelSelector": selector} for one in said["topologySpreadConstraints"]],
        "priorityClassName": wish.priority_class_name,
    }
    return {name: value for name, value in fields.items() if value}


def _affinity(apart: pod_fields.AntiAffinitySpec, wish: pod_fields.PlacementSpec, selector: JsonObject) -> JsonObject:
    """What the user wrote, and our own term beside it: another term of theirs doesn't switch ours off, antiAffinity does."""
    affinity: JsonObject = copy.deepcopy(wish.affinity)
    if apart.type is pod_fields.AntiAffinity.NONE:
        return affinity
    term: JsonObject = {"topologyKey": apart.topology_key, "labelSelector": selector}
    if apart.type is pod_fields.AntiAffinity.REQUIRED:
        terms, ours = "requiredDuringSchedulingIgnoredDuringExecution", term
    else:
        terms, ours = "preferredDuringSchedulingIgnoredDuringExecution", {"weight": 100, "podAffinityTerm": term}
    all_terms = affinity.setdefault("podAntiAffinity", {})
    all_terms[terms] = [ours, *all_terms.get(terms, [])]
    return affinity

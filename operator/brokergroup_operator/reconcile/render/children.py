"""Builds everything of a group that is no pod: configuration, claims, Services, the disruption budgets. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names, pod_fence
from brokergroup_operator.kube.resources import CONFIG_MAPS, POD_DISRUPTION_BUDGETS, SERVICES
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.render import addressing, tls
from brokergroup_operator.reconcile.render.broker_config import broker_conf
from brokergroup_operator.reconcile.render.pods import with_template_metadata
from brokergroup_operator.reconcile.render.proxy_config import local_file, local_mode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup
    from brokergroup_operator.api.storage_fields import CommitLogStorage, StorageSpec
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.reconcile.identity import Member
    from brokergroup_operator.reconcile.settings import ReconcileSettings


def build_config_map(
    group: BrokerGroup, settings: ReconcileSettings, *, kept: Mapping[str, str] | None = None
) -> JsonObject:
    """`kept`: files of before that pods still read, and the spec needs no more (`proxy_config.still_read`)."""
    name = names.config_map_name(identity.name_of(group))
    data = {names.CONFIG_FILE: broker_conf(group, settings), **(kept or {}), **tls.trust_files(group.spec.tls)}
    if proxy := local_mode(group.spec):
        data[local_file(group.spec)] = proxy
    if settings.controller_authority is not None and pod_fence.kills_the_isolated(group.spec):
        # With a bundle of the group: fences follow it without a restart.
        data[names.AUTHORITY_FILE] = tls.authorities(group.spec.tls) or settings.controller_authority
    return made(group, CONFIG_MAPS, name, data=data)


def made(group: BrokerGroup, resource: Resource, name: str, **fields: JsonObject) -> JsonObject:
    """Return an object that lives and dies with the group."""
    metadata = identity.object_metadata(group, name, identity.child_labels(group))
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **fields}


def build_claim(
    group: BrokerGroup, member: Member, *, size: str | None = None, source: JsonObject | None = None
) -> JsonObject:
    """Not owned by the group: data outlives it unless its deletion was asked for. `size` instead of the spec's.

    `source`: the snapshot that it is made from. The API server refuses a change of it, so it stays in what is applied.
    """
    return _claim(group, member, member.pod, group.spec.storage, size, source)


def build_commit_log_claim(
    group: BrokerGroup, member: Member, *, size: str | None = None, source: JsonObject | None = None
) -> JsonObject:
    """Where the commit log has a volume of its own."""
    storage = group.spec.storage.commit_log
    assert storage is not None
    return _claim(group, member, names.commit_log_claim_name(member.pod), storage, size, source)


def _claim(
    group: BrokerGroup,
    member: Member,
    name: str,
    storage: StorageSpec | CommitLogStorage,
    size: str | None,
    source: JsonObject | None,
) -> JsonObject:
    spec: JsonObject = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size or storage.size}}}
    if storage.storage_class_name is not None:
        spec["storageClassName"] = storage.storage_class_name
    if source is not None:
        spec["dataSource"] = source
    metadata = identity.object_metadata(group, name, identity.member_labels(group, member), owned=False)
    if (template := group.spec.storage.claim_template) is not None:
        metadata = with_template_metadata(metadata, template.metadata)
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def build_services(group: BrokerGroup) -> list[JsonObject]:
    """Those of the whole group; a member's own is `render/addressing.py`'s."""
    return [build_members_service(group), build_master_service(group), build_slaves_service(group)]


def build_members_service(group: BrokerGroup) -> JsonObject:
    """Headless: gives each pod its name. Also for pods that are not ready, so that a recovering member can be found."""
    name, selector = names.members_service_name(identity.name_of(group)), identity.selector_labels(group)
    return _service(group, name, selector, {}, clusterIP="None", publishNotReadyAddresses=True)


def build_master_service(group: BrokerGroup) -> JsonObject:
    """Follows the role label, which moves at a role change. A Proxy whose broker is a slave takes no messages."""
    selector = identity.selector_labels(group) | {names.LABEL_ROLE: names.ROLE_MASTER}
    name = names.master_service_name(identity.name_of(group))
    return _service(group, name, selector, addressing.proxy_ports(group.spec))


def build_slaves_service(group: BrokerGroup) -> JsonObject:
    """For reads: the ready pods whose role label says slave. A learner is none: it may be far behind."""
    selector = identity.selector_labels(group) | {names.LABEL_ROLE: names.ROLE_SLAVE}
    return _service(group, names.slaves_service_name(identity.name_of(group)), selector, {})


def _service(
    group: BrokerGroup, name: str, selector: dict[str, str], more_ports: Mapping[str, int], **more: object
) -> JsonObject:
    """Pods are reached by the names of their ports: while a change of the numbers is rolled out, they differ."""
    network = group.spec.network
    numbers = {names.PORT_BROKER: network.listen_port, names.PORT_HA: network.ha_port, **more_ports}
    ports = [{"name": port, "port": at, "targetPort": port, "protocol": "TCP"} for port, at in numbers.items()]
    return made(group, SERVICES, name, spec={"selector": selector, "ports": ports, **network.on_services(), **more})


# More than any group has members: no pod may be evicted.
NO_EVICTION: Final = 1000


def build_disruption_budgets(group: BrokerGroup, *, open_for_one: bool, apart: int = 0) -> list[JsonObject]:
    """Return the slaves' budget and the master's: a pod under two could not be evicted. `apart`: learners and stopped members."""
    # The master stays: when its node is drained, mastership moves first. Not `maxUnavailable`: that counts against the whole
    # group's scale subresource, and each budget has only a part of its pods.
    slaves = group.spec.replicas - 1 - apart
    kept = max(0, slaves - 1) if open_for_one else NO_EVICTION
    return [
        _budget(group, names.disruption_budget_name(identity.name_of(group)), names.ROLE_SLAVE, kept),
        _budget(group, names.master_disruption_budget_name(identity.name_of(group)), names.ROLE_MASTER, NO_EVICTION),
    ]


def _budget(group: BrokerGroup, name: str, role: str, minimum: int) -> JsonObject:
    spec: JsonObject = {
        "minAvailable": minimum,
        # A pod that is not ready gives nothing that its claim does not keep: it must not hold a drain up.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": identity.selector_labels(group) | {names.LABEL_ROLE: role}},
    }
    return made(group, POD_DISRUPTION_BUDGETS, name, spec=spec)

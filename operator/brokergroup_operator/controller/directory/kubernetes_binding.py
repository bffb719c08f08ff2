"""From a BrokerGroup, its pods and nodes to what the controller plane needs. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import structlog

import metric_names
from brokergroup_operator.api import names
from brokergroup_operator.api.broker_keys import watched_keys
from brokergroup_operator.api.brokergroup import BrokerGroup, BrokerGroupSpec
from brokergroup_operator.api.durability import acknowledgement_rule, masters_shrink_first, with_durability
from brokergroup_operator.api.failover_fields import UncleanElection
from brokergroup_operator.api.names import AnnotationError, accepted_epoch
from brokergroup_operator.api.network_fields import Addressing
from brokergroup_operator.api.pod_fence import trust_without_confirmation
from brokergroup_operator.controller.directory.group_directory import GroupBinding
from brokergroup_operator.controller.directory.pods import broker_id_of, label_of, node_of
from brokergroup_operator.kube.reflector import key_of
from brokergroup_operator.records.store import GroupKey
from controller_core.settings import ControllerSettings
from rocketmq_remoting.address import heard_address, is_ip, join_address, one_spelling

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from brokergroup_operator.kube.client import JsonObject

log = structlog.get_logger(__name__)


def binding_of(obj: JsonObject) -> GroupBinding:
    """Reduce a BrokerGroup to its binding, without what its pods, nodes and Secret add. `msgspec.ValidationError` if invalid."""
    group = with_durability(msgspec.convert(obj, BrokerGroup))
    namespace, name = key_of(obj)
    spec = group.spec
    times = spec.failover.times
    return GroupBinding(
        key=GroupKey(namespace, name),
        cluster_name=spec.broker_cluster_name,
        broker_name=spec.broker_name or name,
        settings=_settings_of(spec, up_to_epoch=_accepted_epoch(obj)),
        name_servers=tuple(_as_brokers_mean(address, namespace) for address in spec.name_servers),
        heartbeat_timeout_seconds=times.heartbeat_timeout_milliseconds / 1000,
        fence_timeout_seconds=times.fence_milliseconds / 1000,
        unconfirmed_trust=trust_without_confirmation(spec),
        failover_delay_seconds=float(spec.failover.delay_seconds),
        deleting="deletionTimestamp" in obj["metadata"] or spec.maintenance.hibernated,
        hibernated=spec.maintenance.hibernated,
        signature=spec.security.signature,
        credentials_secret=spec.security.credentials_secret_name,
        ha_port=spec.network.ha_port,
        translated=spec.network.addressing.has_member_services,
        ephemeral=spec.storage.ephemeral is not None,
        canary=spec.monitoring.canary.enabled,
        watched_keys=watched_keys(spec),
        tenant=label_of(obj, names.LABEL_TENANT),
        log_at_pods=spec.network.addressing in {Addressing.NODE_PORT, Addressing.LOAD_BALANCER},
    )


def _as_brokers_mean(address: str, namespace: str) -> str:
    """A name without a dot is a Service in the brokers' namespace; from the operator's pod it would be one in its own."""
    found = heard_address(address)
    if found is None or is_ip(found.host) or "." in found.host or found.host == "localhost":
        return one_spelling(address)
    return join_address(f"{found.host}.{namespace}", found.port)


def _accepted_epoch(obj: JsonObject) -> int:
    try:
        return accepted_epoch(obj) or 0
    except AnnotationError as error:
        log.warning("annotation ignored", group="/".join(key_of(obj)), error=str(error))
        return 0


def _settings_of(spec: BrokerGroupSpec, *, up_to_epoch: int) -> ControllerSettings:
    rule = acknowledgement_rule(spec)
    return ControllerSettings(
        unclean_election_allowed=spec.failover.unclean_election is UncleanElection.ALLOWED,
        shrink_floor=rule.shrink_floor,
        masters_shrink_first=masters_shrink_first(spec),
        min_in_sync_replicas=rule.minimum_in_sync,
        election_priorities={item.broker_id: item.priority for item in spec.failover.priorities},
        preferred_zones=tuple(spec.failover.preferred_zones),
        election_policy=spec.failover.election_policy,
        expected_replicas=spec.replicas,
        accepted_epoch=up_to_epoch,
    )


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Zone and rack by the node's labels."""

    zone: str = ""
    rack: str = ""


def member_facts(
    before: Mapping[int, Mapping[str, str]],
    pods: Iterable[JsonObject],
    nodes: Mapping[str, NodePlace | None],
    tenant: str,
) -> dict[int, Mapping[str, str]]:
    """Return the known facts of each member by its id; of a member whose pod is gone those from `before`, for its incident."""
    found = dict(before)
    for pod in pods:
        broker_id, node = broker_id_of(pod), node_of(pod)
        if broker_id is None or not node:
            continue
        place = nodes.get(node) or NodePlace()
        facts = {
            metric_names.LABEL_NODE: node,
            metric_names.LABEL_ZONE: place.zone,
            metric_names.LABEL_RACK: place.rack,
            metric_names.LABEL_VERSION: label_of(pod, names.LABEL_APP_VERSION),
            metric_names.LABEL_TENANT: tenant,
        }
        found[broker_id] = {name: value for name, value in facts.items() if value}
    return found

"""All objects that the operator renders for an object of its kinds, as it would send them, with the longest names."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec

from brokergroup_operator.api.brokergroup import BrokerGroup
from brokergroup_operator.api.network_fields import Addressing
from brokergroup_operator.api.rocketmq_cluster import RocketMQCluster
from brokergroup_operator.reconcile.clusters import parts
from brokergroup_operator.reconcile.identity import Member
from brokergroup_operator.reconcile.render import children, network_policies
from brokergroup_operator.reconcile.render.addressing import Place, build_member_service
from brokergroup_operator.reconcile.render.children import build_disruption_budgets
from brokergroup_operator.reconcile.render.pods import build_pod
from brokergroup_operator.reconcile.settings import ReconcileSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS = ReconcileSettings(controller_addresses=("operator-0.operator:9878",))
# Ids only rise, and no group reaches ten digits.
LAST_ID = 9_999_999_999


def made_of(obj: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Render a BrokerGroup or RocketMQCluster with its defaults; for a cluster its groups, but not their objects."""
    obj["metadata"].setdefault("uid", "00000000-0000-0000-0000-000000000000")
    if obj["kind"] == "BrokerGroup":
        yield from made_of_group(msgspec.convert(obj, BrokerGroup))
    elif obj["kind"] == "RocketMQCluster":
        cluster = msgspec.convert(obj, RocketMQCluster)
        yield from parts.name_servers(cluster, SETTINGS)
        yield from parts.proxies(cluster, SETTINGS)
        yield from parts.network_policies(cluster, SETTINGS)
        yield from parts.broker_groups(cluster, obj)


def made_of_group(group: BrokerGroup) -> Iterator[dict[str, Any]]:
    member = Member(broker_id=LAST_ID, pod=f"{group.metadata['name']}-{LAST_ID}")
    yield children.build_config_map(group, SETTINGS)
    yield from children.build_services(group)
    yield from build_disruption_budgets(group, open_for_one=True)
    if (policy := network_policies.of_group(group, SETTINGS)) is not None:
        yield policy
    yield children.build_claim(group, member)
    if group.spec.storage.commit_log is not None:
        yield children.build_commit_log_claim(group, member)
    for addressing in (Addressing.SERVICE_IP, Addressing.LOAD_BALANCER):
        known_by = msgspec.structs.replace(group.spec.network, addressing=addressing)
        spec = msgspec.structs.replace(group.spec, network=known_by)
        yield build_member_service(msgspec.structs.replace(group, spec=spec), member, slot=0)
    yield build_pod(group, member, SETTINGS)
    place = Place(host="10.0.0.1", port=group.spec.network.listen_port)
    yield build_pod(group, member, dataclasses.replace(SETTINGS), place=place, learner=True)

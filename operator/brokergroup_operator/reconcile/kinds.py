"""The kinds a group is made of, for fetching and deleting."""

from __future__ import annotations

from typing import Final

from brokergroup_operator.kube.resources import (
    BROKER_GROUP_OPERATIONS,
    BROKER_GROUP_STATES,
    BROKER_GROUPS,
    CONFIG_MAPS,
    PERSISTENT_VOLUME_CLAIMS,
    POD_DISRUPTION_BUDGETS,
    PODS,
    ROCKETMQ_CLUSTERS,
    SERVICES,
    Resource,
)

# What is labelled as a group's own and lives and dies with it; claims and the record have rules of their own.
OWNED: Final = (PODS, CONFIG_MAPS, SERVICES, POD_DISRUPTION_BUDGETS)

__all__ = [
    "BROKER_GROUPS",
    "BROKER_GROUP_OPERATIONS",
    "BROKER_GROUP_STATES",
    "CONFIG_MAPS",
    "OWNED",
    "PERSISTENT_VOLUME_CLAIMS",
    "PODS",
    "POD_DISRUPTION_BUDGETS",
    "ROCKETMQ_CLUSTERS",
    "SERVICES",
    "Resource",
]

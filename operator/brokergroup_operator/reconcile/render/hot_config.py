"""Configuration keys that a running broker takes by request 25, and how they get there without a restart. Pure.

A key is hot only where the broker reads it each time it uses it. Everything else needs a new start, so it is part of the
pod's configuration hash. What a process was given last stands as JSON in an annotation of its pod; a start reads the
ConfigMap, which always has the present values. A hot key that is *taken away* has no value to send, so that takes a
restart.

`minInSyncReplicas` follows the members, not only the spec (`minimum_reached`): it is raised when as many members are in sync, and
lowered after the member that leaves has left. Told at once, a group of one that grows to three refused every write until its first
slave had copied the log.

Java keys: those that RocketMQ 5.5.0 reads at each use, and its list of NameServers, which a task of its own reads again every
``updateNameServerAddrPeriod``: a task that only a broker has that was started with NameServers. So whether there are any is part
of the hash, and which ones is not (apache/rocketmq-operator issue 52). Python keys: ``rocketmq_replica.controller.live_settings``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.reconcile.render.broker_config import broker_properties, parse, render
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.drift import content_hash

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.settings import ReconcileSettings

NAME_SERVERS: Final = "namesrvAddr"
MINIMUM: Final = "minInSyncReplicas"
# No group has that many members: a broker with this minimum acknowledges nothing.
QUIET_MINIMUM: Final = "99"
_BOTH: Final = frozenset(
    {
        "allAckInSyncStateSet",
        "fileReservedTime",
        "haMaxTimeSlaveNotCatchup",
        "inSyncReplicas",
        MINIMUM,
        NAME_SERVERS,
    }
)
HOT_KEYS: Final = {
    Implementation.REPLICA: _BOTH | {"authenticationEnabled"},
    Implementation.ROCKETMQ: _BOTH
    | {
        "autoCreateSubscriptionGroup",
        "brokerPermission",
        "deleteWhen",
        "diskMaxUsedSpaceRatio",
        "haSendHeartbeatInterval",
        "transactionCheckMax",
        "transactionTimeOut",
        "waitTimeMillsInSendQueue",
    },
}


def wanted(seen: Observed, settings: ReconcileSettings) -> dict[str, str]:
    """The hot keys of the group, as every running broker should have them."""
    return hot(seen.group, settings)


def hot(group: BrokerGroup, settings: ReconcileSettings) -> dict[str, str]:
    keys = HOT_KEYS[group.spec.implementation]
    return {key: value for key, value in _properties(group, settings).items() if key in keys}


def cold_hash(group: BrokerGroup, settings: ReconcileSettings) -> str:
    """Of everything that only a start reads: another hash needs another start."""
    return _cold_hash(_properties(group, settings), HOT_KEYS[group.spec.implementation])


def cold_hash_of(group: BrokerGroup, config_map: JsonObject) -> str:
    """The same of the broker.conf that the group's ConfigMap has."""
    text = str((config_map.get("data") or {}).get(names.CONFIG_FILE, ""))
    return _cold_hash(parse(text), HOT_KEYS[group.spec.implementation])


def _cold_hash(properties: Mapping[str, str], hot_keys: frozenset[str]) -> str:
    cold = {key: text for key, text in properties.items() if key not in hot_keys}
    return content_hash(render(cold | ({NAME_SERVERS: "some"} if NAME_SERVERS in properties else {})))


def _properties(group: BrokerGroup, settings: ReconcileSettings) -> dict[str, str]:
    return broker_properties(str(group.metadata["name"]), group.spec, settings)


def given_to(pod: JsonObject) -> Mapping[str, str]:
    """What the pod's broker process was given last; nothing where the pod does not say so, or says it of an earlier process.

    A container that is started again reads the ConfigMap as the kubelet has it, which may be a minute old.
    """
    notes = observed.annotations_of(pod)
    if notes.get(names.ANNOTATION_HOT_CONFIG_RESTARTS, "0") != str(observed.broker_restarts(pod)):
        return {}
    text = notes.get(names.ANNOTATION_HOT_CONFIG)
    try:
        values = json.loads(text) if text else {}
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def minimum_reached(seen: Observed, pod: JsonObject, wanted: str, *, a_member_leaves: bool) -> str:
    """The `minInSyncReplicas` this pod's broker should have now, on its way from what it was given to `wanted`.

    A lost member lowers nothing, only another wish does (`test_the_minimum_is_never_lowered_because_a_member_is_lost`). A broker
    that was kept quiet (99) had no minimum to keep, and is given the wish at once.
    """
    given, target = given_to(pod).get(MINIMUM), int(wanted)
    if given is None or given == QUIET_MINIMUM or not given.isdecimal():
        return wanted
    if target < int(given):
        return given if a_member_leaves else wanted
    in_sync = len(seen.record.sync_state_set & set(seen.snapshot.live)) if seen.record and seen.snapshot else 0
    return str(min(target, max(int(given), in_sync)))


def changes(pod: JsonObject, values: Mapping[str, str]) -> dict[str, str]:
    """The keys to send to this pod's broker, so that it has all of `values`."""
    given = given_to(pod)
    return {key: value for key, value in values.items() if given.get(key) != value}

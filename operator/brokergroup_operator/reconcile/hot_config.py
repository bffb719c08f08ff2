"""Configuration keys that a running broker takes by request 25, and how they get there without a restart. Pure.

A key is hot only where the broker reads it each time it uses it. Everything else needs a new start, so it is part of the
pod's configuration hash. What a process was given last stands as JSON in an annotation of its pod; a start reads the
ConfigMap, which always has the present values. A hot key that is *taken away* has no value to send, so that takes a
restart.

Java keys: those that RocketMQ 5.5.0 reads at each use, and its list of NameServers, which a task of its own reads again every
``updateNameServerAddrPeriod``: a task that only a broker has that was started with NameServers. So whether there are any is part
of the hash, and which ones is not (apache/rocketmq-operator issue 52). Python keys: ``rocketmq_replica.live_settings``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.reconcile import observed
from brokergroup_operator.reconcile.broker_config import broker_properties, content_hash, render

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup
    from brokergroup_operator.reconcile.observed import Observed
    from brokergroup_operator.reconcile.settings import ReconcileSettings

NAME_SERVERS: Final = "namesrvAddr"
_BOTH: Final = frozenset(
    {
        "allAckInSyncStateSet",
        "fileReservedTime",
        "haMaxTimeSlaveNotCatchup",
        "inSyncReplicas",
        "minInSyncReplicas",
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
    keys, properties = HOT_KEYS[group.spec.implementation], _properties(group, settings)
    cold = {key: text for key, text in properties.items() if key not in keys}
    return content_hash(render(cold | ({NAME_SERVERS: "some"} if NAME_SERVERS in properties else {})))


def _properties(group: BrokerGroup, settings: ReconcileSettings) -> dict[str, str]:
    return broker_properties(str(group.metadata["name"]), group.spec, settings)


def given_to(pod: JsonObject) -> Mapping[str, str]:
    """What the pod's process was given last; nothing where the pod does not say so."""
    text = observed.annotations_of(pod).get(names.ANNOTATION_HOT_CONFIG)
    try:
        values = json.loads(text) if text else {}
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def changes(pod: JsonObject, values: Mapping[str, str]) -> dict[str, str]:
    """The keys to send to this pod's broker, so that it has all of `values`."""
    given = given_to(pod)
    return {key: value for key, value in values.items() if given.get(key) != value}

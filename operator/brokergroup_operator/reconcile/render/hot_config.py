"""Configuration keys that a running broker takes by request 25, and how they get there without a restart. Pure.

A key is hot only where the broker reads it each time it uses it. Everything else needs a new start, so it is part of the
pod's configuration hash. What a process was given last stands as JSON in an annotation of its pod; a start reads the
ConfigMap, which always has the present values. A hot key that is *removed* has no value to send, so that takes a
restart.

`minInSyncReplicas` follows the members, not only the spec (`minimum_reached`): it is raised when as many members are in sync, and
lowered after the member that leaves has left. Sent at once, it let a group of one that grew to three refuse every write until its
first slave had copied the log.

A Java broker's list of NameServers is read again by a task of its own, every ``updateNameServerAddrPeriod``: a task that only a
broker has that was started with NameServers. So whether there are any is part of the hash, and which ones is not
(apache/rocketmq-operator issue 52). Which keys are hot: ``api/broker_keys.py``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from brokergroup_operator.api import names
from brokergroup_operator.api.broker_keys import ASSIGNED_KEYS, HOT_KEYS, MINIMUM, NAME_SERVERS, QUIET_MINIMUM
from brokergroup_operator.reconcile.render.broker_config import broker_properties, parse, render
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.drift import content_hash

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.settings import ReconcileSettings


def wanted(seen: Observed, settings: ReconcileSettings) -> dict[str, str]:
    """The hot keys of the group, as every running broker should have them."""
    return hot(seen.group, settings)


def hot(group: BrokerGroup, settings: ReconcileSettings) -> dict[str, str]:
    keys = HOT_KEYS[group.spec.implementation]
    return {key: value for key, value in _properties(group, settings).items() if key in keys}


@dataclass(frozen=True, kw_only=True)
class StartValues:
    """What only a start reads, and its hash."""

    cold: Mapping[str, str]
    cold_hash: str


def start_values(group: BrokerGroup, settings: ReconcileSettings) -> StartValues:
    """Of the keys whose value neither a pod's environment nor the controller fills in."""
    properties, hot_keys = _properties(group, settings), HOT_KEYS[group.spec.implementation]
    cold = {
        key: value for key, value in properties.items() if key not in hot_keys | ASSIGNED_KEYS and "${" not in value
    }
    return StartValues(cold=cold, cold_hash=_cold_hash(properties, hot_keys))


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

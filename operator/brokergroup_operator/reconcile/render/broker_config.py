"""Renders broker.conf for a group: one text for all its members, since what differs comes from the pod's environment. Pure.

A broker's id is -1 and its role SLAVE, since both come from the controller. A key is hot, and sent to a running broker (25), if
the broker reads it at each use (`api/broker_keys.py`). Any other, and a hot key that is removed, takes a start, so it is part of
the pod's configuration hash. So is whether there are NameServers: a Java broker that was started without one looks for none
(apache/rocketmq-operator issue 52).
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import broker_keys, names
from brokergroup_operator.api.brokergroup import Implementation, Signature
from brokergroup_operator.api.durability import acknowledgement_rule
from brokergroup_operator.api.network_fields import Addressing
from brokergroup_operator.reconcile.render import certificate, proxy_config
from brokergroup_operator.reconcile.render.addressing import known_host
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.foreign import content_hash
from rocketmq_remoting.serialization import decode_properties

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup, BrokerGroupSpec
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.settings import ReconcileSettings


# All that is not printable ASCII.
_ESCAPED: Final = re.compile(r"[^ -\[\]-~]")
HEADER: Final = "# Written by the BrokerGroup operator; changes are overwritten. Use spec.config for further keys.\n"

# With what a broker signs its requests: JSON of two texts.
CREDENTIALS_KEY: Final = "innerClientAuthenticationCredentials"
CREDENTIALS_FORM: Final = '{{"accessKey":"{}","secretKey":"{}"}}'
# A Java broker looks its own user up as soon as it has credentials, also with authentication off, and does not start without a
# place to look (measured with 5.5.0: "The authenticationMetadataProvider is not configured").
JAVA_USERS_KEPT_LOCALLY: Final = "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"

# Keys a user may set through spec.config; ours where they do not. Times in milliseconds.
OVERRIDABLE: Final = {
    # The master's own check of which slaves are in sync, and the poll of the controller's record.
    "checkSyncStateSetPeriod": "1000",
    "syncBrokerMetadataPeriod": "2000",
    "syncControllerMetadataPeriod": "5000",
}
OVERRIDABLE_OF_JAVA: Final = {
    # A Java slave that has just connected sends its first ack only after this time plus a select of 1 s; 1 makes it 20-50 ms, and
    # idle cost is not measurable. One join of six still waits that second: its handshake was answered within 1 ms. -1 ended that,
    # and one join of 525 destroyed a slave: Java 5.5.0 answered its handshake twice, and it read the second answer as data.
    "haSendHeartbeatInterval": "1",
    # How soon it uses a list of NameServers that it was given while it runs; its own default is two minutes.
    "updateNameServerAddrPeriod": "10000",
    # After a change of master a slave may register before the new master does. The NameServer's answer then names no master, and
    # the slave copies no topics until it registers again. Its own default is 30 s; it takes nothing below 10 s.
    "registerNameServerPeriod": "10000",
    # A 5.5.0 master answers a slave's copy of its topics in pages of 2000: a topic made while a page is cut, or one beyond a full
    # page, is left out, and the slave never asks again (apache/rocketmq #11041). Whole, as older versions answer, a copy has a
    # frame of 16 MiB, about 80,000 topics; a group with more sets it to true.
    "enableSplitMetadata": "false",
}
# From an election to the moment in which slaves have been told.
JAVA_TELLING_MILLISECONDS: Final = 1000

HAND_OVER_MOST_SECONDS: Final = 20


def broker_properties(group_name: str, spec: BrokerGroupSpec, settings: ReconcileSettings) -> dict[str, str]:
    """Every key of broker.conf. Ours win over spec.config: the API refuses those keys, and this holds without it too."""
    own = _own_properties(group_name, spec, settings)
    return {**OVERRIDABLE, **_implementation_defaults(spec), **spec.config, **own}


def _own_properties(group_name: str, spec: BrokerGroupSpec, settings: ReconcileSettings) -> dict[str, str]:
    times, rule = spec.failover.times, acknowledgement_rule(spec)
    properties = {
        "brokerClusterName": spec.broker_cluster_name,
        "brokerName": broker_name(group_name, spec),
        "brokerId": "-1",
        "brokerRole": "SLAVE",
        **_addresses(spec),
        "haListenPort": str(spec.network.ha_port),
        "enableControllerMode": "true",
        broker_keys.CONTROLLERS: ";".join(settings.controller_addresses),
        "brokerHeartbeatInterval": str(times.heartbeat_interval_milliseconds),
        "controllerHeartBeatTimeoutMills": str(times.heartbeat_timeout_milliseconds),
        "storePathRootDir": "${STORE_DIR}",
        # Not the volume itself: what a file system keeps there (lost+found) is no part of a log.
        "storePathCommitLog": f"${{{'STORE_DIR' if spec.storage.commit_log is None else 'COMMIT_LOG_DIR'}}}/commitlog",
        "storePathEpochFile": "${STORE_DIR}/epochFileCheckpoint",
        "storePathBrokerIdentity": "${STORE_DIR}/brokerIdentity",
        "allAckInSyncStateSet": "true" if rule.all_acknowledge else "false",
        "inSyncReplicas": str(rule.minimum_in_sync),
        "minInSyncReplicas": str(rule.minimum_in_sync),
    }
    if spec.name_servers:
        properties["namesrvAddr"] = ";".join(spec.name_servers)
    if spec.security.credentials_secret_name is not None and spec.implementation is Implementation.PYTHON:
        properties[CREDENTIALS_KEY] = CREDENTIALS_FORM.format(
            f"${{{names.ENVIRONMENT_ACCESS_KEY}}}", f"${{{names.ENVIRONMENT_SECRET_KEY}}}"
        )
    if spec.monitoring.exporter:
        properties |= {"metricsExporterType": "PROM", "metricsPromExporterPort": str(spec.monitoring.port)}
    return properties


def _addresses(spec: BrokerGroupSpec) -> dict[str, str]:
    """By which addresses the broker is known (addressing.py); only the pod knows them, so its start fills them in."""
    addressing, known = spec.network.addressing, f"${{{known_host(spec)}}}"
    by_node = addressing is Addressing.NODE_PORT
    properties = {
        "brokerIP1": known,
        # No replica outside the cluster copies the log, so only a Service inside it is worth the way through one.
        "brokerIP2": known if addressing is Addressing.SERVICE_IP else "${POD_IP}",
        "listenPort": f"${{{names.ENVIRONMENT_LISTEN_PORT}}}" if by_node else str(spec.network.listen_port),
    }
    # A Java broker listens on every address; a Python replica on this one, since it can't listen on its Service's.
    if spec.implementation is Implementation.PYTHON and addressing.has_member_services:
        properties["bindAddress"] = "${POD_IP}"
    if spec.implementation is Implementation.PYTHON and spec.network.broker_family:
        properties["listenAddress"] = "${LISTEN_IP}"
    return properties


def _implementation_defaults(spec: BrokerGroupSpec) -> dict[str, str]:
    signs = spec.security.credentials_secret_name is not None
    defaults = {"haMaxTimeSlaveNotCatchup": str(acknowledgement_rule(spec).slave_not_caught_up_milliseconds)}
    if spec.implementation is Implementation.JAVA:
        own = {"authenticationMetadataProvider": JAVA_USERS_KEPT_LOCALLY} if signs else {}
        housekeeping = str(_java_housekeeping_milliseconds(spec))
        return {**defaults, **OVERRIDABLE_OF_JAVA, "haHousekeepingInterval": housekeeping, **own}
    if signs:
        # A Python replica takes changes from us only with the key. Disabled while the key changes: ours is new, its old.
        defaults["authenticationEnabled"] = "false" if spec.security.signature is Signature.DISABLED else "true"
    handing_over = str(1000 * hand_over_seconds(spec))
    return {**defaults, "stopHandOverTimeout": handing_over, **certificate.replica_properties(spec)}


def _java_housekeeping_milliseconds(spec: BrokerGroupSpec) -> int:
    """After how long without a byte either end of a replication link closes it: not before another master can be elected."""
    # A master counts a slave that is cut off until then, and writes wait. But a slave that closes its link dials the same master
    # for 3 s, deaf to the next master's address.
    times = spec.failover.times
    elected = times.heartbeat_timeout_milliseconds + times.fence_milliseconds
    return max(acknowledgement_rule(spec).slave_not_caught_up_milliseconds, elected + JAVA_TELLING_MILLISECONDS)


def hand_over_seconds(spec: BrokerGroupSpec) -> int:
    """How long a master that is asked to stop goes on, so that the controller plane can move its role."""
    return min(HAND_OVER_MOST_SECONDS, spec.termination_grace_period_seconds // 2)


def broker_name(group_name: str, spec: BrokerGroupSpec) -> str:
    return spec.broker_name or group_name


def render(properties: Mapping[str, str]) -> str:
    """Java properties, sorted, so that equal settings give equal text."""
    return HEADER + "".join(f"{key}={_escaped(value)}\n" for key, value in sorted(properties.items()))


def _escaped(value: str) -> str:
    """A backslash begins an escape, a blank before the value is none of it, and Java reads a byte as a character (ISO 8859-1)."""
    text = _ESCAPED.sub(_escape, value)
    return f"\\{text}" if text.startswith(" ") else text


def _escape(found: re.Match[str]) -> str:
    if found[0] == "\\":
        return "\\\\"
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def broker_conf(group: BrokerGroup, settings: ReconcileSettings) -> str:
    return render(_properties(group, settings))


def hot_values(group: BrokerGroup, settings: ReconcileSettings) -> dict[str, str]:
    """The hot keys of the group, as every running broker should have them."""
    keys = broker_keys.HOT_KEYS[group.spec.implementation]
    return {key: value for key, value in _properties(group, settings).items() if key in keys}


def start_values(group: BrokerGroup, settings: ReconcileSettings) -> dict[str, str]:
    """What only a start reads, of the keys whose value neither a pod's environment nor the controller fills in."""
    known = _properties(group, settings)
    others = broker_keys.HOT_KEYS[group.spec.implementation] | broker_keys.ASSIGNED_KEYS
    return {key: value for key, value in known.items() if key not in others and "${" not in value}


@observed.rendered_once
def cold_hash(group: BrokerGroup, settings: ReconcileSettings) -> str:
    """Of everything that only a start reads: another hash needs another start."""
    hot_keys = broker_keys.HOT_KEYS[group.spec.implementation]
    return _cold_hash(_properties(group, settings), hot_keys, proxy_config.local_mode(group.spec))


def cold_hash_of(group: BrokerGroup, config_map: JsonObject) -> str:
    """The same of what the group's ConfigMap has."""
    # Without a Proxy in the spec, the file is there for pods that were made with one.
    proxy = proxy_config.stored_in(config_map) if group.spec.local_proxy is not None else ""
    return _cold_hash(written_in(config_map), broker_keys.HOT_KEYS[group.spec.implementation], proxy)


def written_in(config_map: JsonObject) -> dict[str, str]:
    """The properties of the broker.conf in the group's ConfigMap."""
    return decode_properties(str((config_map.get("data") or {}).get(names.CONFIG_FILE, "")).encode())


def started_as(pod: JsonObject, group: BrokerGroup, settings: ReconcileSettings) -> bool:
    """Whether the pod was made with the keys that only a start reads as the group has them now."""
    return observed.annotations_of(pod).get(names.ANNOTATION_CONFIG_HASH) == cold_hash(group, settings)


def _cold_hash(properties: Mapping[str, str], hot_keys: frozenset[str], proxy: str) -> str:
    """`proxy`: the text of rmq-proxy.json. A running Proxy reads no key of it again, not even the NameServers."""
    cold = {key: text for key, text in properties.items() if key not in hot_keys}
    some = {broker_keys.NAME_SERVERS: "some"} if broker_keys.NAME_SERVERS in properties else {}
    return content_hash(render(cold | some) + proxy)


@observed.rendered_once
def _properties(group: BrokerGroup, settings: ReconcileSettings) -> Mapping[str, str]:
    return broker_properties(str(group.metadata["name"]), group.spec, settings)


def given_to(pod: JsonObject) -> Mapping[str, str]:
    """What the pod's broker process was given last; nothing where the pod does not say so, or says it of an earlier process."""
    # A container that is started again reads the ConfigMap as the kubelet has it, which may be a minute old.
    restarts = observed.annotations_of(pod).get(names.ANNOTATION_HOT_CONFIG_RESTARTS, "0")
    return noted(pod) if restarts == str(observed.broker_restarts(pod)) else {}


def noted(pod: JsonObject) -> Mapping[str, str]:
    """What any process of the pod was given last."""
    text = observed.annotations_of(pod).get(names.ANNOTATION_HOT_CONFIG)
    try:
        values = json.loads(text) if text else {}
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def minimum_so_far(seen: Observed, master_pod: str) -> int | None:
    """Return the `minInSyncReplicas` that the group acknowledges by: its master's, else that of the file; None without either."""
    # What the master was given counts also if its container was started again, and wins over a file that another writer changed.
    given = _minimum_of(noted(seen.pods.get(master_pod) or {}))
    return _minimum_of(written_in(seen.config_map or {})) if given is None else given


def minimum_in_force(seen: Observed, pod: JsonObject | None) -> int:
    """How many replicas must have a write before this pod's broker acknowledges it: as given last, else as it starts with."""
    given = _minimum_of(given_to(pod)) if pod is not None else None
    return acknowledgement_rule(seen.group.spec).minimum_in_sync if given is None else given


def _minimum_of(values: Mapping[str, str]) -> int | None:
    """Return the minimum; None where there is none, or the broker is kept quiet (99)."""
    text = values.get(broker_keys.MINIMUM, "")
    return int(text) if text.isdecimal() and text != broker_keys.QUIET_MINIMUM else None


def hot_changes(pod: JsonObject, values: Mapping[str, str]) -> dict[str, str]:
    """The keys to send to this pod's broker, so that it has all of `values`."""
    given = given_to(pod)
    return {key: value for key, value in values.items() if given.get(key) != value}

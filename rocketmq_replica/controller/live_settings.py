"""The configuration as it is now, and the keys of it that may change while the replica runs (requests 26 and 25)."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

from rocketmq_remoting.address import bracketed
from rocketmq_remoting.tls import ClientCertificates
from rocketmq_replica.configuration.property_values import addresses, is_secret, properties_of
from rocketmq_replica.configuration.replica import ReplicaConfiguration
from rocketmq_replica.term.broker import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rocketmq_replica.term.broker import Broker


class LiveSettingError(ValueError):
    """The key cannot be changed while the replica runs, or not to this value."""


def _all_ack(broker: Broker, value: str) -> None:
    broker.policy.all_ack_in_sync_state_set = value == "true"


def _in_sync(broker: Broker, value: str) -> None:
    broker.policy.in_sync_replicas = int(value)


def _min_in_sync(broker: Broker, value: str) -> None:
    broker.policy.min_in_sync_replicas = int(value)


def _auto_in_sync(broker: Broker, value: str) -> None:
    broker.policy.auto_in_sync_replicas = value == "true"


def _slave_timeout(broker: Broker, value: str) -> None:
    broker.live.slave_timeout_seconds = int(value) / 1000


def _max_lag(broker: Broker, value: str) -> None:
    broker.live.ha_max_time_slave_not_catchup_seconds = int(value) / 1000


def _priority(broker: Broker, value: str) -> None:
    broker.live.broker_election_priority = int(value)


def _authentication(broker: Broker, value: str) -> None:
    broker.live.operators_sign = value == "true"


def _reserved_hours(broker: Broker, value: str) -> None:
    broker.retention = dataclasses.replace(broker.retention, reserved_hours=int(value))


def _name_servers(broker: Broker, value: str) -> None:
    broker.live.name_server_addresses = addresses(value)
    broker.on_name_servers()


_SETTERS: dict[str, Callable[[Broker, str], None]] = {
    "allAckInSyncStateSet": _all_ack,
    "inSyncReplicas": _in_sync,
    "minInSyncReplicas": _min_in_sync,
    "enableAutoInSyncReplicas": _auto_in_sync,
    "slaveTimeout": _slave_timeout,
    "haMaxTimeSlaveNotCatchup": _max_lag,
    "brokerElectionPriority": _priority,
    "fileReservedTime": _reserved_hours,
    "authenticationEnabled": _authentication,
    "namesrvAddr": _name_servers,
}
_FIELDS = properties_of(ReplicaConfiguration)


def apply_live_settings(broker: Broker, properties: Mapping[str, str]) -> None:
    """Change all of these keys, or none: LiveSettingError names the first that cannot be changed."""
    for key, value in properties.items():
        if key not in _SETTERS:
            raise LiveSettingError(f"{key}: cannot be changed while the replica runs; these can: {', '.join(_SETTERS)}")
        try:
            _FIELDS[key].metadata["parse"](value)
        except ValueError as error:
            raise LiveSettingError(f"{key}={value}: {error}") from error
        if key == "namesrvAddr" and not (addresses(value) and broker.configuration.name_server_addresses):
            raise LiveSettingError(f"{key}={value}: the first NameServer, and the last one's end, need a restart")
        if key == "authenticationEnabled" and value.lower() == "true" and broker.configuration.credentials is None:
            raise LiveSettingError(f"{key}={value}: expected innerClientAuthenticationCredentials in broker.conf")
    for key, value in properties.items():
        _SETTERS[key](broker, value.lower())


def shown_configuration(broker: Broker) -> dict[str, str]:
    """Every key with its present value, in the form of the file; id and role are those of now."""
    # Whoever may ask for the configuration is not told the key that lets him change it.
    values = {key: getattr(broker.configuration, field.name) for key, field in _FIELDS.items() if not is_secret(field)}
    shown = {key: _shown(value, key) for key, value in values.items() if value is not None}
    return shown | {
        "brokerId": str(broker.shown_broker_id),
        "brokerRole": (broker.role if broker.role is not Role.FENCED else Role.SLAVE).value,
        "enableControllerMode": "true",
        "haListenPort": str(broker.configuration.ha_port),
        "brokerIP1": bracketed(broker.configuration.broker_ip),
        "brokerIP2": bracketed(broker.configuration.ha_ip or broker.configuration.broker_ip),
        "storePathCommitLog": str(broker.configuration.commit_log_folder),
        "storePathEpochFile": str(broker.configuration.epoch_file),
        "storePathBrokerIdentity": str(broker.configuration.identity_file),
        "allAckInSyncStateSet": str(broker.policy.all_ack_in_sync_state_set).lower(),
        "inSyncReplicas": str(broker.policy.in_sync_replicas),
        "minInSyncReplicas": str(broker.policy.min_in_sync_replicas),
        "enableAutoInSyncReplicas": str(broker.policy.auto_in_sync_replicas).lower(),
        "slaveTimeout": str(round(broker.live.slave_timeout_seconds * 1000)),
        "haMaxTimeSlaveNotCatchup": str(round(broker.live.ha_max_time_slave_not_catchup_seconds * 1000)),
        "brokerElectionPriority": str(broker.live.broker_election_priority),
        "fileReservedTime": str(broker.retention.reserved_hours),
        "authenticationEnabled": str(broker.live.operators_sign).lower(),
        **({"namesrvAddr": ";".join(servers)} if (servers := broker.live.name_server_addresses) else {}),
    }


def _shown(value: object, key: str) -> str:
    if key == "flushDiskType":
        return "SYNC_FLUSH" if value else "ASYNC_FLUSH"
    if value is ClientCertificates.REQUIRED:
        return "require"  # Java's word
    match value:
        case enum.Enum():
            text = value.value
        case bool():
            text = str(value).lower()
        case float():
            text = round(value * 1000)
        case frozenset():
            text = ";".join(f"{each:02d}" for each in sorted(value))
        case tuple():
            text = ";".join(value)
        case _:
            text = value
    return str(text)

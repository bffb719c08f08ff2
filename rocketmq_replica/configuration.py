"""``broker.conf``: the properties a Java broker reads, as far as this replica acts on them.

Java's file has no substitution from the environment, so an init step has to render pod addresses into it; here ``${NAME}`` is
taken from the environment. Keys this replica does not know are ignored and named in one log line; a value it cannot use is an
error that names key, value and what was expected.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocketmq_remoting.properties import decode_properties
from rocketmq_remoting.signature import Credentials
from rocketmq_remoting.tls import ClientCertificates, TlsMode
from rocketmq_replica.retention import RetentionPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from dataclasses import Field

logger = logging.getLogger(__name__)

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class ConfigurationError(ValueError):
    """A key of ``broker.conf`` cannot be used as it is."""


def _read(name: str, parse: Callable[[str], Any], *, secret: bool = False) -> dict[str, Any]:
    """How a field is read from the property ``name``; a secret one is in no message and no answer."""
    return {"key": name, "parse": parse, "secret": secret}


def _key(name: str, parse: Callable[[str], Any], *, default: Any) -> Any:
    """A field that is read from the property ``name``."""
    return field(default=default, metadata=_read(name, parse))


def _text(value: str) -> str:
    if not value:
        raise ValueError("expected a text")
    return value


def _name(value: str) -> str:
    if not value or "#" in value:
        raise ValueError("expected a name without '#'")
    return value


def _whole(minimum: int, maximum: int = 2**63 - 1) -> Callable[[str], int]:
    def parse(value: str) -> int:
        expected = f"expected a whole number from {minimum} to {maximum}"
        try:
            number = int(value)
        except ValueError:
            raise ValueError(expected) from None
        if not minimum <= number <= maximum:
            raise ValueError(expected)
        return number

    return parse


def _boolean(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return value.lower() == "true"


def _milliseconds(value: str) -> float:
    return _whole(0)(value) / 1000


def _addresses(value: str) -> tuple[str, ...]:
    addresses = tuple(part.strip() for part in value.split(";") if part.strip())
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError("expected host:port, several separated by ';'")
    return addresses


def _ip(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise ValueError("expected an IP address") from None


def _hours(value: str) -> frozenset[int]:
    try:
        return frozenset(_whole(0, 23)(part) for part in value.split(";"))
    except ValueError:
        raise ValueError("expected hours from 00 to 23, several separated by ';'") from None


def _flush(value: str) -> bool:
    if value not in ("SYNC_FLUSH", "ASYNC_FLUSH"):
        raise ValueError("expected SYNC_FLUSH or ASYNC_FLUSH")
    return value == "SYNC_FLUSH"


def _path(value: str) -> Path:
    return Path(_text(value))


def _tls_mode(value: str) -> TlsMode:
    try:
        return TlsMode(value.lower())
    except ValueError:
        raise ValueError("expected disabled, permissive or enforcing") from None


def _client_certificates(value: str) -> ClientCertificates:
    """Java's words."""
    words = {"none": ClientCertificates.NONE, "optional": ClientCertificates.OPTIONAL}
    found = (words | {"require": ClientCertificates.REQUIRED}).get(value.lower())
    if found is None:
        raise ValueError("expected none, optional or require")
    return found


def _credentials(value: str) -> Credentials:
    """What is wrong with it is told without it."""
    try:
        pair = json.loads(value)
        return Credentials(access_key=pair["accessKey"], secret_key=pair["secretKey"])
    except (ValueError, KeyError, TypeError):
        raise ValueError('expected {"accessKey":"…","secretKey":"…"} with two texts that are not empty') from None


@dataclass(frozen=True)
class ReplicaConfiguration:
    """Every key this replica acts on, with Java's defaults unless said otherwise."""

    broker_name: str = _key("brokerName", _name, default="")
    controller_addresses: tuple[str, ...] = _key("controllerAddr", _addresses, default=())
    store_path_root: str = _key("storePathRootDir", _text, default="store")
    broker_cluster_name: str = _key("brokerClusterName", _name, default="DefaultCluster")
    name_server_addresses: tuple[str, ...] = _key("namesrvAddr", _addresses, default=())
    broker_ip: str = _key("brokerIP1", _ip, default="127.0.0.1")
    ha_ip: str = _key("brokerIP2", _ip, default="")
    listen_port: int = _key("listenPort", _whole(1, 65535), default=10911)
    ha_listen_port: int = _key("haListenPort", _whole(0, 65535), default=0)
    store_path_commit_log: str = _key("storePathCommitLog", _text, default="")
    store_path_epoch_file: str = _key("storePathEpochFile", _text, default="")
    store_path_broker_identity: str = _key("storePathBrokerIdentity", _text, default="")
    mapped_file_size_commit_log: int = _key("mappedFileSizeCommitLog", _whole(1024, 1 << 31), default=1 << 30)
    file_reserved_hours: int = _key("fileReservedTime", _whole(1), default=72)
    delete_hours: frozenset[int] = _key("deleteWhen", _hours, default=frozenset({4}))
    commit_log_retention_bytes: int = _key("commitLogRetentionBytes", _whole(0), default=0)
    disk_max_used_percent: int = _key("diskMaxUsedSpaceRatio", _whole(10, 100), default=75)
    disk_clean_forcibly_percent: int = _key("diskSpaceCleanForciblyRatio", _whole(10, 100), default=85)
    disk_warning_percent: int = _key("diskSpaceWarningLevelRatio", _whole(10, 100), default=90)
    sync_flush: bool = _key("flushDiskType", _flush, default=False)
    all_ack_in_sync_state_set: bool = _key("allAckInSyncStateSet", _boolean, default=False)
    in_sync_replicas: int = _key("inSyncReplicas", _whole(1), default=1)
    min_in_sync_replicas: int = _key("minInSyncReplicas", _whole(1), default=1)
    enable_auto_in_sync_replicas: bool = _key("enableAutoInSyncReplicas", _boolean, default=False)
    sync_flush_timeout_seconds: float = _key("syncFlushTimeout", _milliseconds, default=5.0)
    async_learner: bool = _key("asyncLearner", _boolean, default=False)
    sync_from_last_file: bool = _key("syncFromLastFile", _boolean, default=False)
    slave_read_enable: bool = _key("slaveReadEnable", _boolean, default=False)
    auto_create_topic_enable: bool = _key("autoCreateTopicEnable", _boolean, default=True)
    default_topic_queue_nums: int = _key("defaultTopicQueueNums", _whole(1, 1024), default=4)
    broker_permission: int = _key("brokerPermission", _whole(0, 7), default=6)
    broker_election_priority: int = _key("brokerElectionPriority", _whole(0, 2**31 - 1), default=2**31 - 1)
    max_message_size: int = _key("maxMessageSize", _whole(1), default=4 * 1024 * 1024)
    slave_timeout_seconds: float = _key("slaveTimeout", _milliseconds, default=3.0)
    broker_heartbeat_interval_seconds: float = _key("brokerHeartbeatInterval", _milliseconds, default=1.0)
    controller_heartbeat_timeout_seconds: float = _key("controllerHeartBeatTimeoutMills", _milliseconds, default=10.0)
    sync_broker_metadata_period_seconds: float = _key("syncBrokerMetadataPeriod", _milliseconds, default=5.0)
    sync_controller_metadata_period_seconds: float = _key("syncControllerMetadataPeriod", _milliseconds, default=10.0)
    ha_max_time_slave_not_catchup_seconds: float = _key("haMaxTimeSlaveNotCatchup", _milliseconds, default=15.0)
    ha_send_heartbeat_interval_seconds: float = _key("haSendHeartbeatInterval", _milliseconds, default=5.0)
    ha_housekeeping_interval_seconds: float = _key("haHousekeepingInterval", _milliseconds, default=20.0)
    register_name_server_period_seconds: float = _key("registerNameServerPeriod", _milliseconds, default=30.0)
    credentials: Credentials | None = field(
        default=None, metadata=_read("innerClientAuthenticationCredentials", _credentials, secret=True)
    )
    authentication_enabled: bool | None = _key("authenticationEnabled", _boolean, default=None)
    tls_enable: bool = _key("tls.enable", _boolean, default=False)
    tls_client_certificate: Path | None = field(default=None, metadata=_read("tls.client.certPath", _path))
    tls_client_key: Path | None = field(default=None, metadata=_read("tls.client.keyPath", _path))
    tls_client_trust: Path | None = field(default=None, metadata=_read("tls.client.trustCertPath", _path))
    tls_server_mode: TlsMode | None = field(default=None, metadata=_read("tls.server.mode", _tls_mode))
    tls_server_certificate: Path | None = field(default=None, metadata=_read("tls.server.certPath", _path))
    tls_server_key: Path | None = field(default=None, metadata=_read("tls.server.keyPath", _path))
    tls_server_trust: Path | None = field(default=None, metadata=_read("tls.server.trustCertPath", _path))
    tls_server_client_certificates: ClientCertificates = field(
        default=ClientCertificates.NONE, metadata=_read("tls.server.need.client.auth", _client_certificates)
    )

    @property
    def broker_address(self) -> str:
        """Where clients and the controller reach this replica."""
        return f"{self.broker_ip}:{self.listen_port}"

    @property
    def ha_port(self) -> int:
        """The port slaves dial."""
        return self.ha_listen_port or self.listen_port + 1

    @property
    def ha_address(self) -> str:
        """Where slaves reach this replica."""
        return f"{self.ha_ip or self.broker_ip}:{self.ha_port}"

    @property
    def operators_sign(self) -> bool:
        """Whether operators' requests are heard only with our key's signature: where there is a key, unless it is turned off."""
        return self.credentials is not None and self.authentication_enabled is not False

    @property
    def retention(self) -> RetentionPolicy:
        """How long the log is kept."""
        return RetentionPolicy(
            self.file_reserved_hours,
            self.delete_hours,
            self.commit_log_retention_bytes,
            self.disk_max_used_percent,
            self.disk_clean_forcibly_percent,
            self.disk_warning_percent,
        )

    @property
    def root_folder(self) -> Path:
        """The folder of everything."""
        return Path(self.store_path_root)

    @property
    def commit_log_folder(self) -> Path:
        """The folder of the commit log files."""
        return Path(self.store_path_commit_log or f"{self.store_path_root}/commitlog")

    @property
    def epoch_file(self) -> Path:
        """The epoch history."""
        return Path(self.store_path_epoch_file or f"{self.store_path_root}/epochFileCheckpoint")

    @property
    def identity_file(self) -> Path:
        """The broker id."""
        return Path(self.store_path_broker_identity or f"{self.store_path_root}/brokerIdentity")


_FIELDS = {each.metadata["key"]: each for each in fields(ReplicaConfiguration)}
_REQUIRED = ("brokerName", "controllerAddr", "storePathRootDir")


def load_configuration(path: Path, environment: Mapping[str, str]) -> ReplicaConfiguration:
    """Read the file; ConfigurationError names what is wrong with it."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error
    return parse_configuration(text, environment)


def parse_configuration(text: str, environment: Mapping[str, str]) -> ReplicaConfiguration:
    """Read the properties."""
    properties = decode_properties(text.encode())
    values: dict[str, Any] = {}
    unknown: list[str] = []
    for key, raw in properties.items():
        known = _FIELDS.get(key)
        if known is None:
            unknown.append(key)
            continue
        try:
            value = _substitute(raw.strip(), environment)
            values[known.name] = known.metadata["parse"](value)
        except _MissingVariableError as error:
            raise ConfigurationError(f"{_named(known, raw.strip())}: {error}") from None
        except ValueError as error:
            raise ConfigurationError(f"{_named(known, value)}: {error}") from None
    for key in _REQUIRED:
        if _FIELDS[key].name not in values:
            raise ConfigurationError(f"{key}: missing, expected in every broker.conf of a controller-mode broker")
    configuration = ReplicaConfiguration(**values)
    if configuration.authentication_enabled and configuration.credentials is None:
        raise ConfigurationError(
            "authenticationEnabled=true: expected innerClientAuthenticationCredentials, the only key that is known here"
        )
    if unknown:
        logger.info("ignored keys of broker.conf: %s", ", ".join(sorted(unknown)))
    return configuration


class _MissingVariableError(ValueError):
    """The environment lacks what a value names."""


def _named(known: Field[Any], value: str) -> str:
    """Key and value, as messages name them."""
    key: str = known.metadata["key"]
    return key if known.metadata["secret"] else f"{key}={value}"


def _substitute(value: str, environment: Mapping[str, str]) -> str:
    def replacement(match: re.Match[str]) -> str:
        found = environment.get(match[1])
        if found is None:
            raise _MissingVariableError(f"the environment has no {match[1]}")
        return found

    return _VARIABLE.sub(replacement, value)

"""``broker.conf`` and ``container.conf``, as far as they have an effect here, and the clients and TLS settings that follow.

``tls.enable`` applies to all outgoing connections, as in a Java broker. The HA port has neither TLS nor signatures, as in Java.
Requests to controllers and masters are signed; NameServers check no signature.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rocketmq_remoting.address import ip_of_family, join_address
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.signature import Credentials, sign_command
from rocketmq_remoting.tls import (
    ClientCertificates,
    ClientTls,
    ServerTls,
    TlsConfigurationError,
    TlsFiles,
    TlsMode,
    TlsServerSettings,
)
from rocketmq_replica.log.retention import RetentionPolicy
from rocketmq_replica.property_values import (
    ConfigurationError,
    addresses,
    boolean,
    delay_levels,
    delay_levels_text,
    flush_kind,
    hours,
    ip_address,
    load,
    milliseconds,
    name,
    path,
    prop,
    read_as,
    read_properties,
    text,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocketmq_remoting.command import RemotingCommand


def _tls_mode(value: str) -> TlsMode:
    try:
        return TlsMode(value.lower())
    except ValueError:
        raise ValueError("expected disabled, permissive or enforcing") from None


def _client_certificates(value: str) -> ClientCertificates:
    """Java's values."""
    words = {"none": ClientCertificates.NONE, "optional": ClientCertificates.OPTIONAL}
    found = (words | {"require": ClientCertificates.REQUIRED}).get(value.lower())
    if found is None:
        raise ValueError("expected none, optional or require")
    return found


class _Pair(msgspec.Struct, rename="camel"):
    access_key: str
    secret_key: str


def _credentials(value: str) -> Credentials:
    """Parse the credentials. The error does not contain the value."""
    try:
        pair = msgspec.json.decode(value, type=_Pair)
        return Credentials(access_key=pair.access_key, secret_key=pair.secret_key)
    except (msgspec.DecodeError, ValueError):
        raise ValueError('expected {"accessKey":"…","secretKey":"…"} with two texts that are not empty') from None


@dataclass(frozen=True, kw_only=True)
class SecurityConfiguration:
    """Security of one listener and its outgoing connections: Java's ACL and ``tls.properties`` (``docs/concepts/security.md``).

    By default: plain frames, no signatures, every caller is accepted.
    """

    credentials: Credentials | None = field(
        default=None, metadata=read_as("innerClientAuthenticationCredentials", _credentials, secret=True)
    )
    authentication_enabled: bool | None = prop("authenticationEnabled", boolean, default=None)
    tls_enable: bool = prop("tls.enable", boolean, default=False)
    tls_client_certificate: Path | None = field(default=None, metadata=read_as("tls.client.certPath", path))
    tls_client_key: Path | None = field(default=None, metadata=read_as("tls.client.keyPath", path))
    tls_client_trust: Path | None = field(default=None, metadata=read_as("tls.client.trustCertPath", path))
    tls_server_mode: TlsMode | None = field(default=None, metadata=read_as("tls.server.mode", _tls_mode))
    tls_server_certificate: Path | None = field(default=None, metadata=read_as("tls.server.certPath", path))
    tls_server_key: Path | None = field(default=None, metadata=read_as("tls.server.keyPath", path))
    tls_server_trust: Path | None = field(default=None, metadata=read_as("tls.server.trustCertPath", path))
    tls_server_client_certificates: ClientCertificates = field(
        default=ClientCertificates.NONE, metadata=read_as("tls.server.need.client.auth", _client_certificates)
    )

    @property
    def operators_sign(self) -> bool:
        """Whether operators' requests need a signature with our key: if there is a key and the check is not turned off."""
        return self.credentials is not None and self.authentication_enabled is not False

    def __post_init__(self) -> None:
        """Raise ConfigurationError for a signature check without a key."""
        if self.authentication_enabled and self.credentials is None:
            raise ConfigurationError(
                "authenticationEnabled=true: expected innerClientAuthenticationCredentials, the only known key"
            )


@dataclass(frozen=True, kw_only=True)
class ReplicaConfiguration(SecurityConfiguration):
    """``broker.conf``: every key with an effect here, with Java's defaults."""

    broker_name: str = prop("brokerName", name, default="")
    controller_addresses: tuple[str, ...] = prop("controllerAddr", addresses, default=())
    store_path_root: str = prop("storePathRootDir", text, default="store")
    broker_cluster_name: str = prop("brokerClusterName", name, default="DefaultCluster")
    name_server_addresses: tuple[str, ...] = prop("namesrvAddr", addresses, default=())
    broker_ip: str = prop("brokerIP1", ip_address, default="127.0.0.1")
    ha_ip: str = prop("brokerIP2", ip_address, default="")
    bind_address: str = prop("bindAddress", ip_address, default="")
    listen_address: str = prop("listenAddress", ip_address, default="")
    listen_port: int = prop("listenPort", whole(1, 65535), default=10911)
    ha_listen_port: int = prop("haListenPort", whole(0, 65535), default=0)
    store_path_commit_log: str = prop("storePathCommitLog", text, default="")
    store_path_epoch_file: str = prop("storePathEpochFile", text, default="")
    store_path_broker_identity: str = prop("storePathBrokerIdentity", text, default="")
    mapped_file_size_commit_log: int = prop("mappedFileSizeCommitLog", whole(1024, 1 << 31), default=1 << 30)
    file_reserved_hours: int = prop("fileReservedTime", whole(1), default=72)
    delete_hours: frozenset[int] = prop("deleteWhen", hours, default=frozenset({4}))
    commit_log_retention_bytes: int = prop("commitLogRetentionBytes", whole(0), default=0)
    disk_max_used_percent: int = prop("diskMaxUsedSpaceRatio", whole(10, 100), default=75)
    disk_clean_forcibly_percent: int = prop("diskSpaceCleanForciblyRatio", whole(10, 100), default=85)
    disk_warning_percent: int = prop("diskSpaceWarningLevelRatio", whole(10, 100), default=90)
    sync_flush: bool = prop("flushDiskType", flush_kind, default=False)
    all_ack_in_sync_state_set: bool = prop("allAckInSyncStateSet", boolean, default=False)
    in_sync_replicas: int = prop("inSyncReplicas", whole(1), default=1)
    min_in_sync_replicas: int = prop("minInSyncReplicas", whole(1), default=1)
    enable_auto_in_sync_replicas: bool = prop("enableAutoInSyncReplicas", boolean, default=False)
    sync_flush_timeout_seconds: float = prop("syncFlushTimeout", milliseconds, default=5.0)
    async_learner: bool = prop("asyncLearner", boolean, default=False)
    sync_from_last_file: bool = prop("syncFromLastFile", boolean, default=False)
    slave_read_enable: bool = prop("slaveReadEnable", boolean, default=False)
    auto_create_topic_enable: bool = prop("autoCreateTopicEnable", boolean, default=True)
    default_topic_queue_nums: int = prop("defaultTopicQueueNums", whole(1, 1024), default=4)
    message_delay_level: str = prop(
        "messageDelayLevel",
        delay_levels_text,
        default="1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    )
    broker_permission: int = prop("brokerPermission", whole(0, 7), default=6)
    broker_election_priority: int = prop("brokerElectionPriority", whole(0, 2**31 - 1), default=2**31 - 1)
    max_message_size: int = prop("maxMessageSize", whole(1), default=4 * 1024 * 1024)
    slave_timeout_seconds: float = prop("slaveTimeout", milliseconds, default=3.0)
    broker_heartbeat_interval_seconds: float = prop("brokerHeartbeatInterval", milliseconds, default=1.0)
    controller_heartbeat_timeout_seconds: float = prop("controllerHeartBeatTimeoutMills", milliseconds, default=10.0)
    sync_broker_metadata_period_seconds: float = prop("syncBrokerMetadataPeriod", milliseconds, default=5.0)
    sync_controller_metadata_period_seconds: float = prop("syncControllerMetadataPeriod", milliseconds, default=10.0)
    ha_max_time_slave_not_catchup_seconds: float = prop("haMaxTimeSlaveNotCatchup", milliseconds, default=15.0)
    ha_send_heartbeat_interval_seconds: float = prop("haSendHeartbeatInterval", milliseconds, default=5.0)
    ha_housekeeping_interval_seconds: float = prop("haHousekeepingInterval", milliseconds, default=20.0)
    register_name_server_period_seconds: float = prop("registerNameServerPeriod", milliseconds, default=30.0)
    stop_hand_over_seconds: float = prop("stopHandOverTimeout", milliseconds, default=0.0)

    @property
    def delay_levels_seconds(self) -> tuple[int, ...]:
        """The delays of the levels 1, 2, …"""
        return delay_levels(self.message_delay_level)

    @property
    def broker_address(self) -> str:
        """The address for clients and controllers."""
        return join_address(self.broker_ip, self.listen_port)

    @property
    def own_ip(self) -> str:
        """The address of outgoing connections, and of listeners without `listenAddress`. Others may use another address."""
        return self.bind_address or self.broker_ip

    @property
    def listen_ip(self) -> str:
        """The address of the listener for clients."""
        return self.listen_address or self.own_ip

    @property
    def addresses_are_translated(self) -> bool:
        """Whether the group's addresses differ from those that connections come from (Services)."""
        return self.own_ip != self.broker_ip

    @property
    def ha_bind_ip(self) -> str:
        """The address of the HA listener."""
        return self.listen_address or self.bind_address or self.ha_ip or self.broker_ip

    @property
    def ha_port(self) -> int:
        """The port of the HA listener."""
        return self.ha_listen_port or self.listen_port + 1

    @property
    def ha_address(self) -> str:
        """The HA address for slaves."""
        return join_address(self.ha_ip or self.broker_ip, self.ha_port)

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
        """The root folder of the store."""
        return Path(self.store_path_root)

    @property
    def commit_log_folder(self) -> Path:
        """The folder of the commit log files."""
        return Path(self.store_path_commit_log or f"{self.store_path_root}/commitlog")

    @property
    def epoch_file(self) -> Path:
        """The file of the epoch history."""
        return Path(self.store_path_epoch_file or f"{self.store_path_root}/epochFileCheckpoint")

    @property
    def identity_file(self) -> Path:
        """The file of the broker id."""
        return Path(self.store_path_broker_identity or f"{self.store_path_root}/brokerIdentity")


_REQUIRED = ("brokerName", "controllerAddr", "storePathRootDir")


def load_configuration(path: Path, environment: Mapping[str, str]) -> ReplicaConfiguration:
    """Read the file; ConfigurationError names what is wrong with it."""
    return load(path, lambda content: _parse(content, environment))


def parse_configuration(content: str, environment: Mapping[str, str]) -> ReplicaConfiguration:
    """Read the properties."""
    return _parse(content.encode(), environment)


def _parse(content: bytes, environment: Mapping[str, str]) -> ReplicaConfiguration:
    own = _of_own_family(environment)
    return read_properties(ReplicaConfiguration, content, own, file_name="broker.conf", required=_REQUIRED)


def _of_own_family(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment with the pod's and node's addresses of the group's IP family.

    LISTEN_IP covers both families if the pod has both: the kubelet probes the first one, whatever the group's family.
    """
    family, own = environment.get("POD_IP_FAMILY", ""), environment.get("POD_IPS", environment.get("POD_IP", ""))
    all_of = {name: environment.get(every) for name, every in (("POD_IP", "POD_IPS"), ("BROKER_HOST", "NODE_IPS"))}
    listens = {"LISTEN_IP": "::" if "," in own else own}
    return {**environment, **listens, **{name: ip_of_family(every, family) for name, every in all_of.items() if every}}


def _paths(value: str) -> tuple[Path, ...]:
    found = tuple(Path(part) for part in value.split(":") if part)
    if not found:
        raise ValueError("expected paths of broker.conf files, separated by ':'")
    return found


@dataclass(frozen=True, kw_only=True)
class ContainerConfiguration(SecurityConfiguration):
    """``container.conf``: the container's own port and its security, with Java's keys.

    Java listens on all addresses; here the default is loopback, because this port lists the brokers. ``namesrvAddr`` has no effect:
    each broker registers with the NameServers of its own ``broker.conf``.
    """

    bind_address: str = prop("bindAddress", ip_address, default="127.0.0.1")
    listen_port: int = prop("listenPort", whole(1, 65535), default=10811)
    broker_config_paths: tuple[Path, ...] = prop("brokerConfigPaths", _paths, default=())


def load_container_configuration(path: Path, environment: Mapping[str, str]) -> ContainerConfiguration:
    """Read the file; ConfigurationError names what is wrong with it."""
    return load(
        path, lambda content: read_properties(ContainerConfiguration, content, environment, file_name="container.conf")
    )


_CONNECT_TIMEOUT_SECONDS = 1.0


def new_client(configuration: ReplicaConfiguration) -> RemotingClient:
    """Return a client that dials from the pod's own address, by which the operator recognises the pod."""
    return RemotingClient(
        local_host=configuration.own_ip,
        connect_timeout_seconds=_CONNECT_TIMEOUT_SECONDS,
        tls=client_tls(configuration),
    )


def client_tls(configuration: SecurityConfiguration) -> ClientTls | None:
    """Return TLS for outgoing connections, None for plain frames. Raise ConfigurationError if the files cannot be used."""
    if not configuration.tls_enable:
        return None
    try:
        return ClientTls(
            TlsFiles(
                certificate=configuration.tls_client_certificate,
                key=configuration.tls_client_key,
                ca=configuration.tls_client_trust,
            )
        )
    except TlsConfigurationError as error:
        raise ConfigurationError(f"tls.client.certPath, keyPath, trustCertPath: {error}") from error


def server_tls(configuration: SecurityConfiguration) -> TlsServerSettings | None:
    """Return TLS of the broker port, None for plain frames. Raise ConfigurationError if keys or files do not match."""
    mode = configuration.tls_server_mode
    if mode is None:
        mode = TlsMode.DISABLED if configuration.tls_server_certificate is None else TlsMode.PERMISSIVE
    if mode is TlsMode.DISABLED:
        if configuration.tls_server_client_certificates is not ClientCertificates.NONE:
            raise ConfigurationError("tls.server.need.client.auth: expected tls.server.certPath and keyPath beside it")
        return None
    try:
        settings = TlsServerSettings(
            mode=mode,
            files=TlsFiles(
                certificate=configuration.tls_server_certificate,
                key=configuration.tls_server_key,
                ca=configuration.tls_server_trust,
            ),
            client_certificates=configuration.tls_server_client_certificates,
        )
        ServerTls(settings)  # unusable files are an error now, not when the listener starts
    except TlsConfigurationError as error:
        raise ConfigurationError(f"tls.server.mode, certPath, keyPath, trustCertPath: {error}") from error
    return settings


def signed(command: RemotingCommand, credentials: Credentials | None) -> RemotingCommand:
    """Return the command, signed if there is a key."""
    return command if credentials is None else sign_command(command, credentials)


class SharedConnections:
    """One connection per controller address for all replicas of a process with the same own address and TLS.

    A controller recognises replicas by these. Each replica still signs with its own key.
    """

    def __init__(self) -> None:
        self._clients: dict[tuple[object, ...], RemotingClient] = {}

    def client(self, configuration: ReplicaConfiguration) -> RemotingClient:
        """Return the client for this replica, shared with replicas like it. Raise ConfigurationError as ``client_tls``."""
        likeness = (
            configuration.own_ip,
            configuration.tls_enable,
            configuration.tls_client_certificate,
            configuration.tls_client_key,
            configuration.tls_client_trust,
        )
        if likeness not in self._clients:
            self._clients[likeness] = new_client(configuration)
        return self._clients[likeness]

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.close()

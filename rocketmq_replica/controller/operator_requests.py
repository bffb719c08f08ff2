"""Requests of controllers, operators and slaves: role, log, settings; and which of them need a signature.

1008 is answered when the change of role is complete. 25 only changes keys that are read at every use, in memory: an operator that
raises ``minInSyncReplicas`` for a switchover and dies leaves nothing on disk.
"""

from __future__ import annotations

import enum
import json
import logging
from typing import TYPE_CHECKING, Final

from rocketmq_remoting.address import bracketed
from rocketmq_remoting.broker_protocol import (
    BrokerRuntimeInfoBody,
    EpochCacheBody,
    EpochEntry,
    ExchangeHAInfoRequestHeader,
    ExchangeHAInfoResponseHeader,
    GetBrokerConfigResponseHeader,
    HAClientRuntimeInfo,
    HAConnectionRuntimeInfo,
    HARuntimeInfoBody,
)
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.controller_protocol import NotifyBrokerRoleChangedRequestHeader, SyncStateSetBody
from rocketmq_remoting.errors import BodyError
from rocketmq_remoting.limits import PeerLog
from rocketmq_remoting.serialization import decode_properties, encode_properties
from rocketmq_remoting.signature import SignatureState, verify
from rocketmq_remoting.tls import ClientCertificates
from rocketmq_replica.broker import Broker, Role, monotonic_seconds, now, wall_clock_ms
from rocketmq_replica.configuration import ReplicaConfiguration
from rocketmq_replica.property_values import is_secret, properties_of
from rocketmq_replica.role_change import GroupInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection
    from rocketmq_replica.controller.replicas_manager import ReplicasManager
    from rocketmq_replica.controller.roles import Roles
    from rocketmq_replica.ha.client import HaClient
    from rocketmq_replica.ha.server import HaServer


_VERSION = "V5_5_0"


LARGEST_EPOCH_JUMP = 100
"""The largest accepted increase of the epoch in a 1008. Any peer can send a 1008 without a signature; one with an epoch that no
controller has would make this replica ignore all later ones (poisoned epoch). Above this, the controllers are polled (1004)."""


class OperatorRequests:
    """Handlers, one method for each request."""

    def __init__(
        self,
        broker: Broker,
        *,
        roles: Roles,
        ha_server: HaServer,
        ha_client: HaClient,
        manager: ReplicasManager,
    ) -> None:
        self._manager = manager
        self._broker = broker
        self._roles = roles
        self._ha_server = ha_server
        self._ha_client = ha_client

    def role_changed(self, request: RemotingCommand) -> RemotingCommand:  # noqa: PLR0911 - each refusal has its own words
        """1008."""
        header = NotifyBrokerRoleChangedRequestHeader.decode(request.ext_fields)
        if header.master_broker_id is None:
            return request.answer(ResponseCode.SUCCESS)  # Java ignores it too
        try:
            body = SyncStateSetBody.decode(request.body)
        except BodyError as error:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark=f"1008 without a SyncStateSet: {error}")
        if header.master_epoch is None or not header.master_address:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark="1008 without masterEpoch or masterAddress")
        if self._broker.broker_id < 1:
            return request.answer(ResponseCode.SERVICE_NOT_AVAILABLE, remark="this replica has no broker id yet")
        if header.master_broker_id == self._broker.broker_id and self._manager.is_registering:
            # The grant was for an earlier process, whose reported log may not be on this disk (rule 6).
            remark = f"masterEpoch={header.master_epoch}: expected one granted to this process, and it has not registered yet"
            return request.answer(ResponseCode.SERVICE_NOT_AVAILABLE, remark=remark)
        seen = max(self._broker.master.master_epoch, self._broker.store.epochs.last_epoch)
        if seen > 0 and header.master_epoch - seen > LARGEST_EPOCH_JUMP:
            self._manager.poll_soon()
            remark = (
                f"masterEpoch={header.master_epoch}: expected at most {LARGEST_EPOCH_JUMP} above {seen}; "
                "the controllers are asked whether they have it"
            )
            return request.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
        self._manager.master_changed()
        self._roles.apply(
            GroupInfo(
                header.master_epoch,
                header.master_broker_id,
                header.master_address,
                body.sync_state_set,
                body.sync_state_set_epoch,
            ),
            now(),
        )
        return request.answer(ResponseCode.SUCCESS)

    def exchange_ha_info(self, request: RemotingCommand) -> RemotingCommand:
        """906: with an address, follow it; without, a master answers with its own."""
        header = ExchangeHAInfoRequestHeader.decode(request.ext_fields)
        if header.master_ha_address:
            self._ha_client.push_address(header.master_ha_address)
            return request.answer(ResponseCode.SUCCESS)
        if self._broker.role is not Role.MASTER:
            return request.answer(ResponseCode.SUCCESS)
        configuration = self._broker.configuration
        fields = ExchangeHAInfoResponseHeader(
            master_ha_address=configuration.ha_address,
            master_flush_offset=self._broker.store.log.flushed_offset,
            master_address=configuration.broker_address,
        )
        return request.answer(ResponseCode.SUCCESS, ext_fields=fields.encode())

    def ha_status(self, request: RemotingCommand) -> RemotingCommand:
        """907."""
        broker = self._broker
        term = broker.term
        if term is None:
            return request.answer(ResponseCode.SUCCESS, body=self._slave_status().encode())
        max_offset = broker.store.max_offset
        links = tuple(
            HAConnectionRuntimeInfo(
                addr=connection.peer,
                slave_ack_offset=progress.ack_offset,
                diff=max_offset - max(progress.ack_offset, 0),
                in_sync=progress.broker_id in term.sync_state.members,
                transferred_byte_in_second=connection.link.flow.bytes_in_last_second(monotonic_seconds()),
                transfer_from_where=connection.link.next_offset,
            )
            for connection in self._ha_server.connections
            if (progress := connection.link.progress) is not None
        )
        body = HARuntimeInfoBody(
            master=True,
            master_commit_log_max_offset=max_offset,
            in_sync_slave_nums=sum(link.in_sync for link in links),
            ha_connection_info=links,
        )
        return request.answer(ResponseCode.SUCCESS, body=body.encode())

    def epoch_cache(self, request: RemotingCommand) -> RemotingCommand:
        """1007."""
        configuration, store = self._broker.configuration, self._broker.store
        body = EpochCacheBody(
            cluster_name=configuration.broker_cluster_name,
            broker_name=configuration.broker_name,
            broker_id=self._broker.shown_broker_id,
            epoch_list=tuple(
                EpochEntry(epoch=entry.epoch, start_offset=entry.start_offset, end_offset=entry.end_offset)
                for entry in store.epochs.entries
            ),
            max_offset=store.max_offset,
        )
        return request.answer(ResponseCode.SUCCESS, body=body.encode())

    def runtime_info(self, request: RemotingCommand) -> RemotingCommand:
        """28."""
        broker = self._broker
        store = broker.store
        table = {
            "brokerActive": str(broker.role is Role.MASTER).lower(),
            "brokerVersionDesc": _VERSION,
            "bootTimestamp": str(broker.started_ms),
            "runtime": f"{(wall_clock_ms() - broker.started_ms) // 1000} seconds",
            "commitLogMinOffset": str(store.log.min_offset),
            "commitLogMaxOffset": str(store.max_offset),
            "commitLogDiskRatio": f"{store.log.space().used_percent / 100:.2f}",
            "confirmOffset": str(store.confirm_offset),
            "dispatchBehindBytes": "0",
            "remainHowManyDataToFlush": f"{store.max_offset - store.log.flushed_offset} B",
            "masterEpoch": str(broker.master.master_epoch),
            "brokerRole": broker.role.value,
            "sendThreadPoolQueueSize": str(0 if broker.term is None else broker.term.waiting_count),
            **self._manager.shown_health(),
        }
        return request.answer(ResponseCode.SUCCESS, body=BrokerRuntimeInfoBody(table=table).encode())

    def configuration(self, request: RemotingCommand) -> RemotingCommand:
        """26."""
        properties = shown_configuration(self._broker)
        version = json.dumps(self._broker.topics.data_version(), separators=(",", ":"))
        fields = GetBrokerConfigResponseHeader(version=version)
        return request.answer(ResponseCode.SUCCESS, ext_fields=fields.encode(), body=encode_properties(properties))

    def update_configuration(self, request: RemotingCommand) -> RemotingCommand:
        """25, for live keys; all of the request or nothing."""
        try:
            apply_live_settings(self._broker, decode_properties(request.body))
        except LiveSettingError as error:
            return request.answer(ResponseCode.NO_PERMISSION, remark=str(error))
        except BodyError as error:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
        self._broker.settle()
        return request.answer(ResponseCode.SUCCESS)

    def _slave_status(self) -> HARuntimeInfoBody:
        connection = self._ha_client.connection
        flow = connection.link.flow if connection is not None else None
        return HARuntimeInfoBody(
            master=False,
            master_commit_log_max_offset=self._broker.store.max_offset,
            ha_client_runtime_info=HAClientRuntimeInfo(
                master_addr=self._ha_client.connected_address or None,
                transferred_byte_in_second=flow.bytes_in_last_second(monotonic_seconds()) if flow is not None else 0,
                max_offset=self._broker.store.max_offset,
                last_read_timestamp=connection.last_read_ms if connection is not None else 0,
                master_flush_offset=self._broker.store.confirm_offset,
            ),
        )


peer_log = PeerLog(logging.getLogger(__name__))

OPERATORS_ONLY: Final = frozenset(
    {
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
        RequestCode.EXCHANGE_BROKER_HA_INFO,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.DELETE_TOPIC_IN_BROKER,
    }
)


class SignatureCheck:
    """Checks the signature of requests that change role or settings, or delete messages.

    Above all 1008, which makes masters, and 215, which cannot be undone. Requests that only read (907, 1007, 26, 28) need none: a
    controller with a wrong key must still see which broker acts as master, or a wrong Secret would cost a failover. Nor do requests
    of slaves (906 without an address, 21, 43, 45, 201): a slave without the new key must find its master, or a rolling restart
    would not end. For producers and consumers there is a NetworkPolicy, or TLS with client certificates. Without credentials every
    request is accepted, as on a Java broker without ACL.
    """

    def __init__(self, broker: Broker) -> None:
        """``authenticationEnabled`` is read at every request: operators turn it off while they change the key."""
        self._broker = broker

    def refusal(self, request: RemotingCommand, connection: RemotingConnection) -> RemotingCommand | None:
        """Return the refusal of a request without a valid signature; None if it is accepted."""
        if request.code not in OPERATORS_ONLY or not self._broker.live.operators_sign or _is_slaves_question(request):
            return None
        credentials = self._broker.configuration.credentials
        assert credentials is not None, "a signature is only required if there is a key"
        state = verify(request.ext_fields, request.body, credentials)
        if state is SignatureState.VALID:
            return None
        peer_log.warning("%s: code %d refused: %s", connection.peer_host, request.code, state.value)
        remark = f"{state.value}: expected a signature with this broker's innerClientAuthenticationCredentials"
        return request.answer(ResponseCode.NO_PERMISSION, remark=remark)


def _is_slaves_question(request: RemotingCommand) -> bool:
    """Whether this is a slave's 906, which asks for the HA address."""
    if request.code != RequestCode.EXCHANGE_BROKER_HA_INFO:
        return False
    return not ExchangeHAInfoRequestHeader.decode(request.ext_fields).master_ha_address


class LiveSettingError(ValueError):
    """The key cannot be changed at run time, or not to this value."""


# The keys that 25 changes: the broker's part that has the value, and its attribute.
_LIVE: Final = {
    "allAckInSyncStateSet": ("policy", "all_ack_in_sync_state_set"),
    "inSyncReplicas": ("policy", "in_sync_replicas"),
    "minInSyncReplicas": ("policy", "min_in_sync_replicas"),
    "enableAutoInSyncReplicas": ("policy", "auto_in_sync_replicas"),
    "slaveTimeout": ("live", "slave_timeout_seconds"),
    "haMaxTimeSlaveNotCatchup": ("live", "ha_max_time_slave_not_catchup_seconds"),
    "brokerElectionPriority": ("live", "broker_election_priority"),
    "fileReservedTime": ("retention", "reserved_hours"),
    "authenticationEnabled": ("live", "operators_sign"),
    "namesrvAddr": ("live", "name_server_addresses"),
    "controllerAddr": ("live", "controller_addresses"),
    "brokerPermission": ("live", "broker_permission"),
}
_FIELDS: Final = properties_of(ReplicaConfiguration)


def apply_live_settings(broker: Broker, properties: Mapping[str, str]) -> None:
    """Change all of these keys, or none. Raise LiveSettingError for the first that cannot be changed."""
    parsed = {key: _parsed(broker, key, value) for key, value in properties.items()}
    for key, value in parsed.items():
        part, attribute = _LIVE[key]
        setattr(getattr(broker, part), attribute, value)
    if "brokerPermission" in parsed:
        # A NameServer takes topics of a newer version only; clients find the permission in their routes.
        broker.topics.changed(now_ms=wall_clock_ms())
    if {"namesrvAddr", "brokerPermission"} & parsed.keys():
        broker.on_name_servers()


def _parsed(broker: Broker, key: str, value: str) -> object:
    if key not in _LIVE:
        raise LiveSettingError(f"{key}: cannot be changed while the replica runs; these can: {', '.join(_LIVE)}")
    try:
        parsed: object = _FIELDS[key].metadata["parse"](value)
    except ValueError as error:
        raise LiveSettingError(f"{key}={value}: {error}") from error
    if key == "controllerAddr" and not parsed:
        raise LiveSettingError(f"{key}={value}: expected at least one address")
    if key == "namesrvAddr" and not (parsed and broker.configuration.name_server_addresses):
        raise LiveSettingError(f"{key}={value}: the first NameServer, and the last one's end, need a restart")
    if key == "authenticationEnabled" and parsed and broker.configuration.credentials is None:
        raise LiveSettingError(f"{key}={value}: expected innerClientAuthenticationCredentials in broker.conf")
    return parsed


def shown_configuration(broker: Broker) -> dict[str, str]:
    """Return every key with its present value, in the form of ``broker.conf``, with the present id and role."""
    # Secrets are left out: reading the configuration must not give the key that permits changes.
    values = {key: getattr(broker.configuration, field.name) for key, field in _FIELDS.items() if not is_secret(field)}
    values |= {key: getattr(getattr(broker, part), attribute) for key, (part, attribute) in _LIVE.items()}
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
    }


def _shown(value: object, key: str) -> str:
    if key == "flushDiskType":
        return "SYNC_FLUSH" if value else "ASYNC_FLUSH"
    if value is ClientCertificates.REQUIRED:
        return "require"  # Java's value
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

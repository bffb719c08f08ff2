"""What controllers, operators and slaves ask a broker: its role, its log, its settings.

1008 is answered when the switch is complete. 25 takes the few keys that are read at every use, and keeps them in memory only: an
operator that raises ``minInSyncReplicas`` for a switchover and dies leaves nothing behind on disk.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

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
from rocketmq_remoting.codes import ResponseCode
from rocketmq_remoting.controller_protocol import NotifyBrokerRoleChangedRequestHeader, SyncStateSetBody
from rocketmq_remoting.errors import BodyError
from rocketmq_remoting.serialization import decode_properties, encode_properties
from rocketmq_replica.controller.live_settings import LiveSettingError, apply_live_settings, shown_configuration
from rocketmq_replica.term.broker import Broker, Role, monotonic_seconds, now, wall_clock_ms
from rocketmq_replica.term.group_info import GroupInfo

if TYPE_CHECKING:
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_replica.controller.replicas_manager import ReplicasManager
    from rocketmq_replica.controller.roles import Roles
    from rocketmq_replica.ha.client import HaClient
    from rocketmq_replica.ha.server import HaServer

_VERSION = "V5_5_0"


LARGEST_EPOCH_JUMP = 100
"""Anybody who reaches this port can send a 1008. One with an epoch that no controller has would make this replica deaf to all that
come later (poisoned epoch). So one that is further above than this is not obeyed: the controllers are asked at once (1004), and
what they say is."""


class OperatorRequests:
    """Handlers by the name of their request."""

    def __init__(
        self,
        broker: Broker,
        *,
        roles: Roles,
        ha_server: HaServer,
        ha_client: HaClient,
        manager: ReplicasManager,
    ) -> None:
        """Keep what they read and change."""
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
            # The grant was for the process before this one: what that one reported may not be on this disk (rule 6).
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
        """906: with an address, where to follow; without, a master tells its own."""
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
                master_flush_offset=self._broker.store.confirm_offset,
            ),
        )

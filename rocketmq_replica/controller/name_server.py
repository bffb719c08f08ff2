"""Registration with the NameServers, if there is a ``namesrvAddr``; the list may change at run time.

The state version in a registration is the master epoch, by which a NameServer decides between two masters. Its answer to a slave
contains the master's HA address, one of the ways to find it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from rocketmq_remoting.broker_protocol import (
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
)
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import MQ_VERSION_5_5_0, request
from rocketmq_remoting.errors import RemotingError
from rocketmq_replica.broker import Broker, Role
from rocketmq_replica.log.disk import compact_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketmq_remoting.client import RemotingClient

logger = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 1.5


class NameServerRegistration:
    """Registers with every NameServer: at the start, on every change, and at regular intervals."""

    def __init__(self, broker: Broker, client: RemotingClient, *, on_ha_address: Callable[[str], None]) -> None:
        self._broker = broker
        self._on_ha_address = on_ha_address
        self._client = client
        self._changed = asyncio.Event()
        broker.on_name_servers = self.changed

    def changed(self) -> None:
        """Register again at once, after a change of role or topics."""
        self._changed.set()

    async def run(self) -> None:
        """Register until cancelled."""
        while True:
            self._changed.clear()
            if self._broker.role is not Role.FENCED:
                await self._register_everywhere()
            try:
                async with asyncio.timeout(self._broker.configuration.register_name_server_period_seconds):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def stop(self) -> None:
        """Unregister, so that clients look elsewhere at once."""
        header = UnRegisterBrokerRequestHeader(
            cluster_name=self._broker.configuration.broker_cluster_name,
            broker_addr=self._broker.configuration.broker_address,
            broker_name=self._broker.configuration.broker_name,
            broker_id=self._broker.shown_broker_id,
        )
        command = request(RequestCode.UNREGISTER_BROKER, ext_fields=header.encode(), version=MQ_VERSION_5_5_0)
        calls = [
            self._client.invoke(address, command, timeout_seconds=0.5)
            for address in self._broker.live.name_server_addresses
            if self._client.is_connected(address)
        ]
        await asyncio.gather(*calls, return_exceptions=True)

    async def _register_everywhere(self) -> None:
        await asyncio.gather(*(self._register(address) for address in self._broker.live.name_server_addresses))

    async def _register(self, address: str) -> None:
        role = self._broker.role
        configuration = self._broker.configuration
        header = RegisterBrokerRequestHeader(
            broker_name=configuration.broker_name,
            broker_addr=configuration.broker_address,
            cluster_name=configuration.broker_cluster_name,
            ha_server_addr=configuration.ha_address,
            broker_id=self._broker.shown_broker_id,
        )
        ext_fields = header.encode()
        command = request(
            RequestCode.REGISTER_BROKER, ext_fields=ext_fields, body=self._body(), version=MQ_VERSION_5_5_0
        )
        try:
            answer = await self._client.invoke(address, command, timeout_seconds=_TIMEOUT_SECONDS)
        except RemotingError as error:
            logger.info("NameServer %s: %s", address, error)
            return
        if answer.code != ResponseCode.SUCCESS:
            logger.warning("NameServer %s refused the registration: code %d, %s", address, answer.code, answer.remark)
            return
        fields = RegisterBrokerResponseHeader.decode(answer.ext_fields)
        same_master = fields.master_addr in (None, "", self._broker.master.address)
        if role is Role.SLAVE and self._broker.role is Role.SLAVE and fields.ha_server_addr and same_master:
            self._on_ha_address(fields.ha_server_addr)

    def _body(self) -> bytes:
        data_version = self._broker.topics.data_version()
        wrapper = self._broker.topics.to_json(permitted=self._broker.live.broker_permission) | {
            "mappingDataVersion": data_version | {"stateVersion": 0, "counter": 0},
            "topicQueueMappingInfoMap": {},
            "topicQueueMappingDetailMap": {},
        }
        document = {"filterServerList": [], "topicConfigSerializeWrapper": wrapper}
        return compact_json(document)

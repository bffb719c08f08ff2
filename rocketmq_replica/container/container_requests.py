"""The container's own port: which brokers it has (26), one more (902), one less (903).

Brokers are added and removed by who signs with the container's key. Without a key nobody is asked to believe: 902 makes this
process read a file that the caller names. What is added is not remembered over a restart; the list of ``broker.conf`` files
that the container is started with is.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocketmq_remoting.broker_protocol import AddBrokerRequestHeader, RemoveBrokerRequestHeader
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.handler import not_supported
from rocketmq_remoting.limits import PeerLog
from rocketmq_remoting.serialization import encode_properties
from rocketmq_remoting.signature import SignatureState, verify
from rocketmq_replica.configuration.property_values import ConfigurationError
from rocketmq_replica.configuration.replica import load_configuration
from rocketmq_replica.container.broker_container import ContainerError, NoSuchBrokerError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection
    from rocketmq_replica.configuration.container import ContainerConfiguration
    from rocketmq_replica.configuration.replica import ReplicaConfiguration
    from rocketmq_replica.container.broker_container import BrokerContainer, Member

peer_log = PeerLog(logging.getLogger(__name__))
NO_KEY: Final = "this container has no innerClientAuthenticationCredentials: its brokers are those it was started with"


class ContainerRequests:
    """The RemotingHandler of the container's port."""

    def __init__(self, container: BrokerContainer, configuration: ContainerConfiguration) -> None:
        """Keep what is asked about."""
        self._container = container
        self._configuration = configuration
        self._changes: dict[int, Callable[[RemotingCommand], Awaitable[RemotingCommand]]] = {
            RequestCode.ADD_BROKER: self._add,
            RequestCode.REMOVE_BROKER: self._remove,
        }

    def handle(
        self, request: RemotingCommand, connection: RemotingConnection
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Answer now, or when the broker has started or stopped."""
        change = self._changes.get(request.code)
        if change is None and request.code != RequestCode.GET_BROKER_CONFIG:
            return not_supported(request)
        refused = self._refused(request, is_change=change is not None)
        if refused:
            peer_log.warning("%s: code %d refused: %s", connection.peer_host, request.code, refused)
            return request.answer(ResponseCode.NO_PERMISSION, remark=refused)
        return self._show(request) if change is None else change(request)

    def connection_opened(self, connection: RemotingConnection) -> None:
        """Nothing is kept per connection."""

    def connection_closed(self, connection: RemotingConnection) -> None:
        """Nothing is kept per connection."""

    def _refused(self, request: RemotingCommand, *, is_change: bool) -> str:
        """Why this caller may not; empty: he may."""
        credentials = self._configuration.credentials
        if credentials is None:
            return NO_KEY if is_change else ""
        if not is_change and not self._configuration.operators_sign:
            return ""
        state = verify(request.ext_fields, request.body, credentials)
        return "" if state is SignatureState.VALID else f"{state.value}: expected a signature with this container's key"

    def _show(self, request: RemotingCommand) -> RemotingCommand:
        """26: Java's keys, and one line for each broker."""
        members = self._container.members
        properties = {
            "bindAddress": self._configuration.bind_address,
            "listenPort": str(self._configuration.listen_port),
            "brokerConfigPaths": ":".join(str(path) for path in self._configuration.broker_config_paths),
        }
        lines = {f"broker.{'.'.join(member.name)}.{_address(member)}": _state(member) for member in members}
        return request.answer(ResponseCode.SUCCESS, body=encode_properties(properties | lines))

    async def _add(self, request: RemotingCommand) -> RemotingCommand:
        path = AddBrokerRequestHeader.decode(request.ext_fields).config_path
        if not path:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark="configPath: missing, expected a broker.conf")
        try:
            # In a thread: the caller names the path, and a slow disk under it would stop every broker in this process.
            await self._container.add(await asyncio.to_thread(_read, Path(path)))
        except (ConfigurationError, ContainerError) as error:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
        return request.answer(ResponseCode.SUCCESS)

    async def _remove(self, request: RemotingCommand) -> RemotingCommand:
        header = RemoveBrokerRequestHeader.decode(request.ext_fields)
        if not header.broker_cluster_name or not header.broker_name:
            remark = "brokerClusterName and brokerName: missing, expected the broker's"
            return request.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
        try:
            await self._container.remove(header.broker_cluster_name, header.broker_name, header.broker_id)
        except NoSuchBrokerError as error:
            return request.answer(ResponseCode.BROKER_NOT_EXIST, remark=str(error))
        return request.answer(ResponseCode.SUCCESS)


def _read(path: Path) -> ReplicaConfiguration:
    """ConfigurationError also for a pipe or a device, which would hold the thread for ever."""
    if path.exists() and not path.is_file():
        raise ConfigurationError(f"{path}: cannot be read: expected a file")
    return load_configuration(path, os.environ)


def _address(member: Member) -> str:
    return member.configuration.broker_address


def _state(member: Member) -> str:
    """What somebody wants to know at a glance; the broker's own port tells the rest."""
    if member.process is None or not member.listens:
        return f"STARTING failures={member.supervision.failures} {member.problem}".rstrip()
    broker = member.process.broker
    unheard = member.process.manager.shown_health()["controllersWithoutHeartbeat"]
    return f"{broker.role.value} brokerId={broker.broker_id} failures={member.supervision.failures}" + (
        f" no heartbeat to {unheard}" if unheard else ""
    )

"""What a migration asks of a Java controller and of its brokers: one method for each request, each with a deadline.

A refusal is a value where the caller's next step depends on it (``RemotingCommand.code``), and :class:`MigrationCallError` where
anything but success ends what was being done. The message names the peer, the request and what came back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from rocketmq_remoting.address import one_spelling
from rocketmq_remoting.broker_protocol import BrokerRuntimeInfoBody, ClusterInfoBody, EpochCacheBody, HARuntimeInfoBody
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import MQ_VERSION_5_5_0, RemotingCommand, request
from rocketmq_remoting.controller_protocol import (
    BrokerReplicasInfoBody,
    GetMetaDataResponseHeader,
    GetNextBrokerIdRequestHeader,
    GetNextBrokerIdResponseHeader,
    encode_broker_names,
)
from rocketmq_remoting.errors import BodyError, RemotingConnectError, RemotingError
from rocketmq_remoting.serialization import decode_properties, encode_properties
from rocketmq_remoting.signature import Credentials, sign_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rocketmq_remoting.client import RemotingClient
    from rocketmq_remoting.controller_protocol import ReplicasInfo

CALL_DEADLINE_SECONDS = 3.0
CONTROLLER_ADDRESS = "controllerAddr"
CONTROLLER_LOOK_UP = "fetchControllerAddrByDnsLookup"
_PEER = re.compile(r"(?:[^:;]+:)?(?P<address>(?:\[[^\]]+\]|[^:;]+):[0-9]+)\Z")

_Body = TypeVar("_Body")


class MigrationCallError(Exception):
    """A controller or broker did not do what it was asked, or did not answer."""


class NobodyListensError(MigrationCallError):
    """The peer's host refused the connection: surely no process has that port."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """1005 of one controller: who leads, as far as it knows, and who belongs to its group."""

    leader: str | None
    peers: tuple[str, ...]


class JavaCalls:
    """The client side. The client belongs to the caller. With credentials every request is signed: brokers may ask for it."""

    def __init__(
        self,
        client: RemotingClient,
        *,
        deadline_seconds: float = CALL_DEADLINE_SECONDS,
        credentials: Credentials | None = None,
    ) -> None:
        self._client = client
        self._deadline_seconds = deadline_seconds
        self._credentials = credentials

    async def ask(self, address: str, command: RemotingCommand) -> RemotingCommand:
        """The answer, whatever its code. ``NobodyListensError`` or ``MigrationCallError`` when there is none."""
        if self._credentials is not None:
            command = sign_command(command, self._credentials)
        try:
            return await self._client.invoke(address, command, timeout_seconds=self._deadline_seconds)
        except RemotingConnectError as error:
            kind = NobodyListensError if error.refused else MigrationCallError
            raise kind(f"{address}: request {int(command.code)}: {error}") from error
        except RemotingError as error:
            raise MigrationCallError(f"{address}: request {int(command.code)}: {error}") from error

    async def must(self, address: str, command: RemotingCommand) -> RemotingCommand:
        """The same, where anything but success is an error."""
        answer = await self.ask(address, command)
        if answer.code != ResponseCode.SUCCESS:
            raise MigrationCallError(f"{address}: request {int(command.code)} answered {answer.code}: {answer.remark}")
        return answer

    # ---- the controller

    async def metadata(self, controller: str) -> Metadata:
        """1005 (docs/reference/controller.md)."""
        answer = await self.must(controller, request(RequestCode.CONTROLLER_GET_METADATA_INFO))
        header = GetMetaDataResponseHeader.decode(answer.ext_fields)
        return Metadata(header.controller_leader_address or None, parse_peers(header.peers or ""))

    async def sync_state_data(self, leader: str, broker_names: Iterable[str]) -> Mapping[str, ReplicasInfo]:
        """1006: every group that is known, in one answer; the rest is left out."""
        names = sorted(broker_names)
        if not names:
            return {}
        command = request(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=encode_broker_names(names))
        answer = await self.must(leader, command)
        return self._read(leader, answer, BrokerReplicasInfoBody.decode).replicas_info_table

    async def next_broker_id(self, leader: str, *, cluster_name: str, broker_name: str) -> int:
        """1012: nothing is reserved by asking."""
        header = GetNextBrokerIdRequestHeader(cluster_name=cluster_name, broker_name=broker_name)
        answer = await self.must(leader, request(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, ext_fields=header.encode()))
        found = GetNextBrokerIdResponseHeader.decode(answer.ext_fields).next_broker_id
        if found is None:
            raise MigrationCallError(f"{leader}: request 1012 for {broker_name} named no nextBrokerId")
        return found

    async def controller_configuration(self, controller: str) -> dict[str, str]:
        """1010."""
        answer = await self.must(controller, request(RequestCode.GET_CONTROLLER_CONFIG))
        return self._read(controller, answer, decode_properties)

    async def configure_controller(self, controller: str, properties: Mapping[str, str]) -> None:
        """1009: this one controller, in memory and in its file."""
        body = encode_properties(dict(properties))
        await self.must(controller, request(RequestCode.UPDATE_CONTROLLER_CONFIG, body=body))

    # ---- brokers and NameServers

    async def clusters(self, name_server: str) -> ClusterInfoBody:
        """106: every broker group by name, with its cluster and its brokers' addresses."""
        command = request(RequestCode.GET_BROKER_CLUSTER_INFO, version=MQ_VERSION_5_5_0)
        return self._read(name_server, await self.must(name_server, command), ClusterInfoBody.decode)

    async def broker_configuration(self, broker: str) -> dict[str, str]:
        """26."""
        return self._read(broker, await self.must(broker, request(RequestCode.GET_BROKER_CONFIG)), decode_properties)

    async def list_controllers(self, broker: str, controller_address: str) -> None:
        """25: change ``controllerAddr`` in the broker's memory and file; it is used from the next look, every 2 minutes."""
        body = encode_properties({CONTROLLER_ADDRESS: controller_address})
        await self.must(broker, request(RequestCode.UPDATE_BROKER_CONFIG, body=body))

    async def epochs(self, broker: str) -> EpochCacheBody:
        """1007: the broker's epoch file and the end of its log."""
        answer = await self.must(broker, request(RequestCode.GET_BROKER_EPOCH_CACHE))
        return self._read(broker, answer, EpochCacheBody.decode)

    async def ha_status(self, broker: str) -> HARuntimeInfoBody:
        """907: whether it acts as master, and how many it believes in sync."""
        answer = await self.must(broker, request(RequestCode.GET_BROKER_HA_STATUS))
        return self._read(broker, answer, HARuntimeInfoBody.decode)

    async def version(self, broker: str) -> str:
        """28: the version as text, ``V5_5_0``; empty where the broker does not say."""
        answer = await self.must(broker, request(RequestCode.GET_BROKER_RUNTIME_INFO))
        return self._read(broker, answer, BrokerRuntimeInfoBody.decode).table.get("brokerVersionDesc", "")

    @staticmethod
    def _read(address: str, answer: RemotingCommand, decode: Callable[[bytes | None], _Body]) -> _Body:
        try:
            return decode(answer.body)
        except BodyError as error:
            raise MigrationCallError(f"{address} answered something unreadable: {error}") from error


def parse_peers(text: str) -> tuple[str, ...]:
    """The members' addresses out of 1005: ``n0:host:port;`` of DLedger, ``host:port;`` of jRaft."""
    found = (_PEER.match(part.strip()) for part in text.split(";") if part.strip())
    return tuple(one_spelling(match["address"]) for match in found if match is not None)

"""What a Java controller and its brokers say: as values, the requests that ask for it, and the reading of a whole controller.

Reading changes nothing, and needs no mqadmin. The leader gives the state of every group in one answer (1006) and each group's
next id (1012); the NameServers list the groups and their clusters; each broker reports itself (26, 28, 907, 1007). The state is
read twice with a pause, to see whether it is settled.

A refusal is a value where the caller's next step depends on it (``RemotingCommand.code``), else a ``MigrationCallError`` that
names peer, request and answer.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from controller_core.model import BrokerGroupRecord, Replica
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


MIGRATED = "migrated"
"""Java does not disclose a register check code; a migrated id gets ``<address>;migrated`` instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaState:
    """One group in a Java controller's tables, as 1006 shows it. Comparison ignores ``alive``, which changes by itself."""

    broker_name: str
    addresses: Mapping[int, str] = field(default_factory=dict)
    master_broker_id: int | None = None
    master_epoch: int = 0
    sync_state_set: frozenset[int] = frozenset()
    sync_state_set_epoch: int = 0
    alive: frozenset[int] = field(default=frozenset(), compare=False)

    def describe(self) -> str:
        """Return one readable line."""
        members = ",".join(str(one) for one in sorted(self.sync_state_set))
        return f"master={self.master_broker_id} epoch={self.master_epoch} set={{{members}}}@{self.sync_state_set_epoch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSaid:
    """One broker's answers about itself: 26, 28, 907 and 1007. ``slave_id`` is its broker id, None if it acts as master."""

    address: str
    cluster_name: str = ""
    broker_name: str = ""
    slave_id: int | None = None
    listed_controllers: str = ""
    looks_up_controllers: bool = False
    version: str = ""
    last_epoch: int = 0
    max_offset: int = 0
    acts_as_master: bool = False
    in_sync_slaves: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaGroup:
    """One group in the view of controller, NameServers and brokers. ``brokers`` has the error of a broker that did not answer."""

    state: JavaState
    next_broker_id: int
    cluster_names: frozenset[str] = frozenset()
    brokers: Mapping[int, BrokerSaid | str] = field(default_factory=dict)
    # Whether a second reading gave the same state.
    steady: bool = True

    @property
    def cluster_name(self) -> str:
        """Return the cluster that the brokers report; empty if they disagree or none answered."""
        said = {one.cluster_name for one in self.brokers.values() if isinstance(one, BrokerSaid)} or self.cluster_names
        return next(iter(said)) if len(said) == 1 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The result of one reading."""

    controller: str
    leader: str
    peers: tuple[str, ...]
    groups: tuple[JavaGroup, ...]
    # Requested names, or names at the NameServers, that the controller does not know.
    unknown: tuple[str, ...] = ()
    # Further groups at the NameServers that the controller decides for, and that were not requested.
    others: tuple[str, ...] = ()

    @property
    def members(self) -> tuple[str, ...]:
        """Return every known address of this controller group. (jRaft names its Raft addresses as peers.)"""
        return tuple(dict.fromkeys((self.leader, self.controller, *self.peers)))


def state_of(broker_name: str, info: ReplicasInfo) -> JavaState:
    """Return the state in an answer to 1006."""
    replicas = (*info.in_sync_replicas, *info.not_in_sync_replicas)
    return JavaState(
        broker_name=broker_name,
        addresses={one.broker_id: one.broker_address or "" for one in sorted(replicas, key=lambda one: one.broker_id)},
        master_broker_id=info.master_broker_id,
        master_epoch=info.master_epoch,
        sync_state_set=frozenset(one.broker_id for one in info.in_sync_replicas),
        sync_state_set_epoch=info.sync_state_set_epoch,
        alive=frozenset(one.broker_id for one in replicas if one.alive),
    )


def record_of(state: JavaState, *, cluster_name: str, next_broker_id: int = 1) -> BrokerGroupRecord:
    """Return the equivalent record. Every id counts as registered, since a disk may know it and an election must consider it."""
    return BrokerGroupRecord(
        cluster_name=cluster_name,
        broker_name=state.broker_name,
        next_broker_id=max([next_broker_id, *(broker_id + 1 for broker_id in state.addresses)]),
        replicas={
            broker_id: Replica(broker_id, f"{address};{MIGRATED}", address, registered=True)
            for broker_id, address in state.addresses.items()
        },
        master_broker_id=state.master_broker_id,
        master_epoch=state.master_epoch,
        sync_state_set=state.sync_state_set,
        sync_state_set_epoch=state.sync_state_set_epoch,
    )


def with_set_epoch_above(record: BrokerGroupRecord, margin: int) -> BrokerGroupRecord:
    """Return the record with a SyncStateSet epoch above the brokers', so that the master accepts it at its next poll."""
    return replace(record, sync_state_set_epoch=record.sync_state_set_epoch + margin)


CALL_DEADLINE_SECONDS = 3.0
CONTROLLER_ADDRESS = "controllerAddr"
CONTROLLER_LOOK_UP = "fetchControllerAddrByDnsLookup"
_PEER = re.compile(r"(?:[^:;]+:)?(?P<address>(?:\[[^\]]+\]|[^:;]+):[0-9]+)\Z")

_Body = TypeVar("_Body")


class MigrationCallError(Exception):
    """A controller or broker refused a request, or did not answer."""


class PortClosedError(MigrationCallError):
    """The peer's host refused the connection: no process has that port."""


class StartingError(MigrationCallError):
    """A broker answered with an exception what a running one knows of itself: it was just started, so ask again."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """One controller's answer to 1005: the leader that it knows, and the members of its group."""

    leader: str | None
    peers: tuple[str, ...]


class JavaCalls:
    """Requests to Java controllers and brokers. The caller owns the client. With credentials every request is signed."""

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
        """Return the answer with any code. Raises ``PortClosedError`` or ``MigrationCallError`` without an answer."""
        if self._credentials is not None:
            command = sign_command(command, self._credentials)
        try:
            return await self._client.invoke(address, command, timeout_seconds=self._deadline_seconds)
        except RemotingConnectError as error:
            kind = PortClosedError if error.refused else MigrationCallError
            raise kind(f"{address}: request {int(command.code)}: {error}") from error
        except RemotingError as error:
            raise MigrationCallError(f"{address}: request {int(command.code)}: {error}") from error

    async def must(self, address: str, command: RemotingCommand) -> RemotingCommand:
        """Return a successful answer. Raises ``MigrationCallError`` for any other code."""
        answer = await self.ask(address, command)
        if answer.code != ResponseCode.SUCCESS:
            raise MigrationCallError(_refusal(address, command, answer))
        return answer

    # ---- the controller

    async def metadata(self, controller: str) -> Metadata:
        """Return the answer to 1005 (docs/reference/controller.md)."""
        answer = await self.must(controller, request(RequestCode.CONTROLLER_GET_METADATA_INFO))
        header = GetMetaDataResponseHeader.decode(answer.ext_fields)
        return Metadata(header.controller_leader_address or None, parse_peers(header.peers or ""))

    async def sync_state_data(self, leader: str, broker_names: Iterable[str]) -> Mapping[str, ReplicasInfo]:
        """Return the known ones of these groups (1006)."""
        names = sorted(broker_names)
        if not names:
            return {}
        command = request(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=encode_broker_names(names))
        answer = await self.must(leader, command)
        return self._read(leader, answer, BrokerReplicasInfoBody.decode).replicas_info_table

    async def next_broker_id(self, leader: str, *, cluster_name: str, broker_name: str) -> int:
        """Return the next broker id (1012). The request reserves nothing."""
        header = GetNextBrokerIdRequestHeader(cluster_name=cluster_name, broker_name=broker_name)
        answer = await self.must(leader, request(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, ext_fields=header.encode()))
        found = GetNextBrokerIdResponseHeader.decode(answer.ext_fields).next_broker_id
        if found is None:
            raise MigrationCallError(f"{leader}: request 1012 for {broker_name} named no nextBrokerId")
        return found

    async def controller_configuration(self, controller: str) -> dict[str, str]:
        """Return the controller's configuration (1010)."""
        answer = await self.must(controller, request(RequestCode.GET_CONTROLLER_CONFIG))
        return self._read(controller, answer, decode_properties)

    async def configure_controller(self, controller: str, properties: Mapping[str, str]) -> None:
        """Change the configuration of this one controller, in memory and in its file (1009)."""
        body = encode_properties(dict(properties))
        await self.must(controller, request(RequestCode.UPDATE_CONTROLLER_CONFIG, body=body))

    # ---- brokers and NameServers

    async def clusters(self, name_server: str) -> ClusterInfoBody:
        """Return every broker group by name, with its cluster and its brokers' addresses (106)."""
        command = request(RequestCode.GET_BROKER_CLUSTER_INFO, version=MQ_VERSION_5_5_0)
        return self._read(name_server, await self.must(name_server, command), ClusterInfoBody.decode)

    async def broker_configuration(self, broker: str) -> dict[str, str]:
        """Return the broker's configuration (26)."""
        return self._read(broker, await self.must(broker, request(RequestCode.GET_BROKER_CONFIG)), decode_properties)

    async def list_controllers(self, broker: str, controller_address: str) -> None:
        """Change ``controllerAddr`` in the broker's memory and file (25). The broker re-reads it every 2 minutes."""
        await self.configure_broker(broker, {CONTROLLER_ADDRESS: controller_address})

    async def configure_broker(self, broker: str, properties: Mapping[str, str]) -> None:
        """Change the broker's configuration in its memory and file (25)."""
        body = encode_properties(dict(properties))
        await self.must(broker, request(RequestCode.UPDATE_BROKER_CONFIG, body=body))

    async def epochs(self, broker: str) -> EpochCacheBody:
        """Return the broker's epoch file and the end of its log (1007)."""
        answer = await self.must(broker, request(RequestCode.GET_BROKER_EPOCH_CACHE))
        return self._read(broker, answer, EpochCacheBody.decode)

    async def ha_status(self, broker: str) -> HARuntimeInfoBody:
        """Return whether the broker acts as master, and how many slaves it counts as in sync (907)."""
        answer = await self.must(broker, request(RequestCode.GET_BROKER_HA_STATUS))
        return self._read(broker, answer, HARuntimeInfoBody.decode)

    async def version(self, broker: str) -> str:
        """Return the version as text, ``V5_5_0`` (28); empty if the broker does not report it."""
        return (await self.runtime(broker)).get("brokerVersionDesc", "")

    async def runtime(self, broker: str) -> Mapping[str, str]:
        """Return what the broker says of its state (28), all values as text. ``StartingError`` while it is being started."""
        command = request(RequestCode.GET_BROKER_RUNTIME_INFO)
        answer = await self.ask(broker, command)
        if answer.code == ResponseCode.SYSTEM_ERROR:
            told = f"{_refusal(broker, command, answer)}. So does a broker of 5.0.0 that was just started"
            raise StartingError(f"{told}: try again in some seconds, and if it stays so, look at the broker's log")
        if answer.code != ResponseCode.SUCCESS:
            raise MigrationCallError(_refusal(broker, command, answer))
        return self._read(broker, answer, BrokerRuntimeInfoBody.decode).table

    @staticmethod
    def _read(address: str, answer: RemotingCommand, decode: Callable[[bytes | None], _Body]) -> _Body:
        try:
            return decode(answer.body)
        except BodyError as error:
            raise MigrationCallError(f"{address} answered something unreadable: {error}") from error


def _refusal(address: str, command: RemotingCommand, answer: RemotingCommand) -> str:
    return f"{address}: request {int(command.code)} answered {answer.code}: {answer.remark}"


def parse_peers(text: str) -> tuple[str, ...]:
    """Return the members' addresses in 1005: ``n0:host:port;`` by DLedger, ``host:port;`` by jRaft."""
    found = (_PEER.match(part.strip()) for part in text.split(";") if part.strip())
    return tuple(one_spelling(match["address"]) for match in found if match is not None)


SETTLE_SECONDS = 1.0


async def read_controller(
    calls: JavaCalls,
    *,
    controller: str,
    name_servers: Iterable[str] = (),
    broker_names: Iterable[str] = (),
    settle_seconds: float = SETTLE_SECONDS,
) -> Reading:
    """Read the named groups, or all that the NameServers know. Raises ``MigrationCallError`` if no controller leads."""
    metadata = await calls.metadata(controller)
    if metadata.leader is None:
        raise MigrationCallError(f"{controller} knows no leader: wait until its group has elected one, and try again")
    clusters = await _clusters(calls, name_servers)
    wanted = sorted(set(broker_names) or set(clusters))
    first = await read_states(calls, metadata.leader, wanted)
    await asyncio.sleep(settle_seconds)
    groups = [
        await _group(calls, metadata.leader, state, clusters.get(name, frozenset())) for name, state in first.items()
    ]
    last = await read_states(calls, metadata.leader, wanted)
    others = await read_states(calls, metadata.leader, set(clusters) - set(wanted))
    return Reading(
        controller=controller,
        leader=metadata.leader,
        peers=metadata.peers or (metadata.leader,),
        groups=tuple(_settled(group, last.get(group.state.broker_name)) for group in groups),
        unknown=tuple(name for name in wanted if name not in last),
        others=tuple(sorted(others)),
    )


async def read_state(calls: JavaCalls, leader: str, broker_name: str) -> JavaState | None:
    """Read one group once."""
    return (await read_states(calls, leader, [broker_name])).get(broker_name)


async def ask_brokers(calls: JavaCalls, addresses: Mapping[int, str]) -> dict[int, BrokerSaid | str]:
    """Ask all brokers of a group concurrently."""
    said = await asyncio.gather(*(ask_broker(calls, address) for address in addresses.values()))
    return dict(zip(addresses, said, strict=True))


async def ask_broker(calls: JavaCalls, address: str) -> BrokerSaid | str:
    """Return a Java broker's answers about itself, or the error text if it refuses, or does not answer, one of the four calls."""
    try:
        configuration = await calls.broker_configuration(address)
        epochs = await calls.epochs(address)
        status = await calls.ha_status(address)
        version = await calls.version(address)
    except MigrationCallError as error:
        return str(error)
    broker_id = configuration.get("brokerId", "")
    return BrokerSaid(
        address=address,
        cluster_name=configuration.get("brokerClusterName", ""),
        broker_name=configuration.get("brokerName", ""),
        slave_id=int(broker_id) if broker_id.isdecimal() and int(broker_id) > 0 else None,
        listed_controllers=configuration.get(CONTROLLER_ADDRESS, ""),
        looks_up_controllers=configuration.get(CONTROLLER_LOOK_UP, "false") == "true",
        version=version,
        last_epoch=max((entry.epoch for entry in epochs.epoch_list), default=0),
        max_offset=epochs.max_offset,
        acts_as_master=status.master,
        in_sync_slaves=status.in_sync_slave_nums,
    )


async def _clusters(calls: JavaCalls, name_servers: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return every brokerName at the NameServers, with its clusters."""
    found: dict[str, frozenset[str]] = {}
    for name_server in name_servers:
        info = await calls.clusters(name_server)
        for cluster_name, names in info.cluster_addr_table.items():
            for name in names:
                found[name] = found.get(name, frozenset()) | {cluster_name}
        for name, data in info.broker_addr_table.items():
            found[name] = found.get(name, frozenset()) | ({data.cluster} if data.cluster else frozenset())
    return found


async def read_states(calls: JavaCalls, leader: str, broker_names: Iterable[str]) -> dict[str, JavaState]:
    """Return the known ones of these groups by name, from one answer."""
    infos = await calls.sync_state_data(leader, broker_names)
    return {name: state_of(name, info) for name, info in sorted(infos.items())}


async def _group(calls: JavaCalls, leader: str, state: JavaState, cluster_names: frozenset[str]) -> JavaGroup:
    brokers = await ask_brokers(calls, state.addresses)
    group = JavaGroup(state=state, next_broker_id=1, cluster_names=cluster_names, brokers=brokers)
    next_broker_id = await calls.next_broker_id(leader, cluster_name=group.cluster_name, broker_name=state.broker_name)
    return replace(group, next_broker_id=next_broker_id)


def _settled(group: JavaGroup, last: JavaState | None) -> JavaGroup:
    if last is None:
        return replace(group, steady=False)
    return replace(group, state=last, steady=last == group.state)

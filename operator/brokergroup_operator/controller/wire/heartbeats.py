"""Hearing the brokers: heartbeats (docs/reference/controller.md, 904) and which connection carries which group's members."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakSet

from brokergroup_operator.controller.directory.places import advertises
from brokergroup_operator.observe.group_view import AddressSource
from controller_core.liveness import Heartbeat
from controller_core.membership import MAX_IDS_AHEAD

if TYPE_CHECKING:
    from collections.abc import Iterable

    from brokergroup_operator.controller.detect.holdings_watch import HoldingsWatch
    from brokergroup_operator.controller.directory.group_directory import Peer
    from brokergroup_operator.controller.group.adoption import AdoptionDesk
    from brokergroup_operator.controller.group.group import Group
    from brokergroup_operator.controller.settings import PlaneSettings
    from brokergroup_operator.controller.upkeep.silent_members import SilentMembers
    from controller_core.liveness import HeartbeatTable
    from rocketmq_remoting.connection import RemotingConnection
    from rocketmq_remoting.controller_protocol import BrokerHeartbeatRequestHeader

# While the record was not read, ids up to this are listened to.
_MOST_IDS_BEFORE_THE_RECORD = 10_000


class Heartbeats:
    """Takes heartbeats and other signs of life into the groups' tables; knows which groups a connection carries."""

    def __init__(
        self,
        *,
        settings: PlaneSettings,
        holdings: HoldingsWatch,
        adoption: AdoptionDesk,
        silent_members: SilentMembers,
    ) -> None:
        self._silent_members = silent_members
        self._holdings = holdings
        self._adoption = adoption
        self._settings = settings
        # Weakly: a connection may speak for any number of names, and what gave way is not kept for its sake.
        self._carried: dict[int, WeakSet[Group]] = {}

    def take(
        self,
        header: BrokerHeartbeatRequestHeader,
        broker_id: int,
        group: Group,
        connection: RemotingConnection,
        peer: Peer | None,
    ) -> None:
        """A 904 from a caller that may speak for this broker of the group."""
        if not _may_exist(group, broker_id):
            return
        _, address, host = group.addresses.spelled(broker_id, header.broker_addr or "")
        self._note(group, broker_id, address, header, connection)
        requester = peer.pod_name if peer is not None and peer.group == group.key else None
        if requester is not None and (host == connection.peer_host or advertises(group.binding, requester, address)):
            group.members.whereabouts[broker_id] = address
        self._adoption.heard(group, broker_id, address, requester)

    def _note(
        self,
        group: Group,
        broker_id: int,
        address: str,
        header: BrokerHeartbeatRequestHeader,
        connection: RemotingConnection,
    ) -> None:
        now_seconds = asyncio.get_running_loop().time()
        wished_seconds = group.binding.heartbeat_timeout_seconds or header.heartbeat_timeout_ms / 1000
        minimum_seconds = group.binding.minimum_heartbeat_timeout_seconds
        if not group.members.beats_regularly(broker_id, now_seconds):
            wished_seconds, minimum_seconds = max(wished_seconds, self._settings.startup_timeout_seconds), None
        heartbeat = Heartbeat(
            identity=group.identity(broker_id),
            address=address,
            epoch=header.epoch,
            max_offset=header.max_offset,
            confirm_offset=header.confirm_offset,
            heartbeat_timeout_seconds=wished_seconds,
            minimum_timeout_seconds=minimum_seconds,
            election_priority=header.election_priority,
        )
        known = group.table.entry(heartbeat.identity)
        is_carried = known is not None and known.connection_id == connection.id
        table = group.table if is_carried else self.table_for(group, connection)
        came_back = table.heartbeat(now_seconds, heartbeat, connection.id)
        group.addresses.heard_from(broker_id, connection.peer_host, address, now_seconds)
        group.heard(broker_id, header.epoch, came_back=came_back)
        self._holdings.heard(group, broker_id)

    def registered(self, group: Group, broker_id: int, address: str, connection: RemotingConnection) -> None:
        """A new process of a replica registered (1003): what an earlier one said is not true any more."""
        now_seconds = asyncio.get_running_loop().time()
        table = self.table_for(group, connection)
        table.registered(now_seconds, group.identity(broker_id), connection.id, address=address)
        group.addresses.note(broker_id, AddressSource.REGISTRATION, address, now_seconds)
        group.addresses.heard_from(broker_id, connection.peer_host, address, now_seconds)
        group.new_process(broker_id)

    def must_register(self, group: Group, connection: RemotingConnection) -> bool:
        """Whether a poll (1004) comes from a member that runs and that is not heard: it is told to register again."""
        return self._silent_members.must_register(group, connection.peer_host)

    def sign_of_life(self, group: Group, broker_id: int, connection: RemotingConnection) -> None:
        """A member's own ElectMaster proves that it lives, and may have overtaken its heartbeat."""
        table = self.table_for(group, connection)
        table.sign_of_life(asyncio.get_running_loop().time(), group.identity(broker_id), connection.id)

    def table_for(self, group: Group, connection: RemotingConnection) -> HeartbeatTable:
        """The group's heartbeat table, for an entry bound to this connection: its end is told to every group it carried."""
        carried = self._carried.get(connection.id)
        if carried is None:
            carried = self._carried[connection.id] = WeakSet()
        carried.add(group)
        return group.table

    def connection_closed(self, connection: RemotingConnection) -> Iterable[Group]:
        """The groups whose members this connection carried."""
        return self._carried.pop(connection.id, ())


def _may_exist(group: Group, broker_id: int) -> bool:
    """Whether the group can have such a member, known or to be adopted: what is kept of each must not grow by made-up ids."""
    record = group.record
    if record is not None and broker_id in record.replicas:
        return True
    if not group.loaded:
        return 0 <= broker_id <= _MOST_IDS_BEFORE_THE_RECORD
    return 0 <= broker_id <= (record.next_broker_id if record is not None else 1) + MAX_IDS_AHEAD

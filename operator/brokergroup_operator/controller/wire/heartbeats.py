"""Takes heartbeats (904) and other signs of life into the groups' tables, and knows which connection carries which members."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING
from weakref import WeakSet

from brokergroup_operator.controller.directory.places import advertises
from brokergroup_operator.controller.peers.services import Part
from controller_core.membership import MAX_IDS_AHEAD
from controller_core.model import LiveReplica

if TYPE_CHECKING:
    from collections.abc import Iterable

    from brokergroup_operator.controller.detect.record_watch import AdoptionDesk, HoldingsWatch
    from brokergroup_operator.controller.directory.pods import Peer
    from brokergroup_operator.controller.group.group import Group
    from brokergroup_operator.controller.peers.services import Services
    from controller_core.liveness import HeartbeatTable
    from rocketmq_remoting.connection import RemotingConnection
    from rocketmq_remoting.controller_protocol import BrokerHeartbeatRequestHeader

# While the record was not read, ids up to this are listened to.
_MOST_IDS_BEFORE_THE_RECORD = 10_000
# A broker polls for one name, a container for a few dozen.
_MAX_NAMES_PER_CONNECTION = 100


class Heartbeats(Part):
    """Of all groups."""

    def __init__(self, services: Services, *, holdings: HoldingsWatch, adoption: AdoptionDesk) -> None:
        super().__init__(services)
        self._holdings, self._adoption = holdings, adoption
        # By connection. Weakly, because a connection may speak for any number of names: a group that was dropped is not kept.
        self._carried: defaultdict[int, WeakSet[Group]] = defaultdict(WeakSet)

    def take(
        self,
        header: BrokerHeartbeatRequestHeader,
        broker_id: int,
        group: Group,
        connection: RemotingConnection,
        peer: Peer | None,
    ) -> None:
        """Take a 904 from a caller that may speak for this broker of the group."""
        if not _may_exist(group, broker_id):
            return
        _, address, host = group.addresses.spelled(broker_id, header.broker_addr or "")
        now_seconds = asyncio.get_running_loop().time()
        wished_seconds = group.binding.heartbeat_timeout_seconds or header.heartbeat_timeout_ms / 1000
        if not group.members.beats_regularly(broker_id, now_seconds):
            wished_seconds = max(wished_seconds, self._settings.startup_timeout_seconds)
        told = LiveReplica(
            broker_id, header.epoch, header.max_offset, header.confirm_offset, header.election_priority, address
        )
        known = group.table.entry(broker_id)
        is_carried = known is not None and known.connection_id == connection.id
        table = group.table if is_carried else self._table_for(group, connection)
        came_back = table.heartbeat(now_seconds, told, connection.id, timeout_seconds=wished_seconds)
        group.addresses.heard_from(broker_id, connection.peer_host)
        group.heard(broker_id, header.epoch, came_back=came_back)
        self._holdings.heard(group, broker_id)
        requester = peer.pod_name if peer is not None and peer.group == group.key else None
        if requester is not None and (host == connection.peer_host or advertises(group.binding, requester, address)):
            group.members.whereabouts[broker_id] = address
        self._adoption.heard(group, broker_id, address, requester)

    def registered(self, group: Group, broker_id: int, address: str, connection: RemotingConnection) -> None:
        """Note that a new process of a replica registered (1003): reports of the process before it do not count any more."""
        now_seconds = asyncio.get_running_loop().time()
        table = self._table_for(group, connection)
        table.registered(now_seconds, broker_id, connection.id, address=address)
        group.addresses.heard_from(broker_id, connection.peer_host)
        group.new_process(broker_id)

    def sign_of_life(self, group: Group, broker_id: int, connection: RemotingConnection) -> None:
        """Note that a member has sent an ElectMaster: it lives, and the request may have overtaken its heartbeat."""
        table = self._table_for(group, connection)
        table.sign_of_life(asyncio.get_running_loop().time(), broker_id, connection.id)

    def _table_for(self, group: Group, connection: RemotingConnection) -> HeartbeatTable:
        """Return the group's heartbeat table for an entry of this connection, whose end then reaches this group too."""
        self._carried[connection.id].add(group)
        return group.table

    def connection_closed(self, connection: RemotingConnection) -> Iterable[Group]:
        """Return the groups whose members this connection carried."""
        return self._carried.pop(connection.id, ())


def _may_exist(group: Group, broker_id: int) -> bool:
    """Whether the group can have such a member, known or to be adopted. Invented ids must not fill the tables."""
    record = group.record
    if record is not None and broker_id in record.replicas:
        return True
    if not group.loaded:
        return 0 <= broker_id <= _MOST_IDS_BEFORE_THE_RECORD
    return 0 <= broker_id <= (record.next_broker_id if record is not None else 1) + MAX_IDS_AHEAD


class UnknownPolls:
    """Remembers which names each connection was told to be unknown by a poll (1004, code 2008), until it registers.

    A running broker registers on that answer alone, on the same connection. If the group became known in between, its 1003
    would count as a new process of the recorded master and end its mastership (safety rule 6). One answer covers one 1003: a
    broker container starts its brokers again on the old connection.
    """

    def __init__(self) -> None:
        self._names: dict[int, set[str]] = {}

    def told_unknown(self, connection_id: int, broker_name: str) -> None:
        names = self._names.setdefault(connection_id, set())
        if len(names) < _MAX_NAMES_PER_CONNECTION:
            names.add(broker_name)

    def registers_because_of_one(self, connection_id: int, broker_name: str) -> bool:
        """Whether a registration follows such a poll. Each poll counts once."""
        names = self._names.get(connection_id, set())
        is_one = broker_name in names
        names.discard(broker_name)
        return is_one

    def connection_closed(self, connection_id: int) -> None:
        self._names.pop(connection_id, None)

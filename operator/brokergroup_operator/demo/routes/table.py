"""Which broker is where, as a NameServer knows it: pure, with the time as an argument.

The rules are Java's, for clients rely on them: an address has one id; of two that claim one id the higher master epoch (the data
version's stateVersion) wins; topics are those that the master registered. What is kept is what was said last, in memory only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rocketmq_remoting.broker_protocol import BrokerData, ClusterInfoBody, QueueData, RegisterBrokerBody, TopicRouteBody

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rocketmq_remoting.broker_protocol import RegisterBrokerRequestHeader

MASTER_ID: Final = 0
DEFAULT_TIMEOUT_SECONDS: Final = 120.0

Group = tuple[str, str]


class RegistrationRefusedError(Exception):
    """The registration cannot be taken; the message says why."""


@dataclass
class Registration:
    """One broker, as it registered last."""

    group: Group
    address: str
    broker_id: int
    ha_address: str
    state_version: int
    timeout_seconds: float
    connection_id: int
    heard_seconds: float


@dataclass
class RouteTable:
    """All brokers, and the topics of each group."""

    registrations: dict[str, Registration] = field(default_factory=dict)
    topics: dict[Group, dict[str, QueueData]] = field(default_factory=dict)

    def register(
        self, header: RegisterBrokerRequestHeader, body: RegisterBrokerBody, *, connection_id: int, now_seconds: float
    ) -> Registration | None:
        """Take a registration in; the group's master, of which a slave is told. RegistrationRefusedError as Java refuses."""
        new = _registration(header, body, connection_id=connection_id, now_seconds=now_seconds)
        holder = self._holder(new.group, new.broker_id)
        if holder is not None and holder.address != new.address:
            if holder.state_version > new.state_version:
                self.registrations.pop(new.address, None)
                return None
            del self.registrations[holder.address]
        wrapper = body.topic_config_serialize_wrapper
        if new.address not in self.registrations and len(wrapper.topic_config_table) == 1:
            raise RegistrationRefusedError("register broker failed: a first registration with exactly one topic")
        self.registrations[new.address] = new
        if new.broker_id == MASTER_ID:
            self.topics[new.group] = {
                name: QueueData(
                    broker_name=new.group[1],
                    read_queue_nums=topic.read_queue_nums,
                    write_queue_nums=topic.write_queue_nums,
                    perm=topic.perm,
                    topic_sys_flag=topic.topic_sys_flag,
                )
                for name, topic in wrapper.topic_config_table.items()
            }
            return None
        return self._holder(new.group, MASTER_ID)

    def unregister(self, address: str, broker_id: int) -> None:
        """104: only what this address registered under this id, so that a late one does not unseat a new master."""
        known = self.registrations.get(address)
        if known is not None and known.broker_id == broker_id:
            self._forget([known])

    def heard(self, address: str, *, now_seconds: float) -> None:
        """904 from a broker that is registered."""
        known = self.registrations.get(address)
        if known is not None:
            known.heard_seconds = now_seconds

    def connection_closed(self, connection_id: int) -> None:
        """Whoever registered on it last is gone."""
        self._forget([each for each in self.registrations.values() if each.connection_id == connection_id])

    def expire(self, *, now_seconds: float) -> None:
        """Forget who was silent for longer than he said."""
        late = [each for each in self.registrations.values() if now_seconds - each.heard_seconds > each.timeout_seconds]
        self._forget(late)

    def route(self, topic: str) -> TopicRouteBody | None:
        """105: None where no group has the topic."""
        groups = sorted(group for group, topics in self.topics.items() if topic in topics)
        if not groups:
            return None
        return TopicRouteBody(
            queue_datas=tuple(self.topics[group][topic] for group in groups),
            broker_datas=tuple(self._broker_data(group) for group in groups),
        )

    def cluster_info(self) -> ClusterInfoBody:
        """106."""
        groups = sorted({each.group for each in self.registrations.values()})
        clusters = {cluster: frozenset(name for of, name in groups if of == cluster) for cluster, _ in groups}
        return ClusterInfoBody(
            broker_addr_table={group[1]: self._broker_data(group) for group in groups}, cluster_addr_table=clusters
        )

    def members(self, group: Group) -> dict[int, str]:
        """901: addresses by id."""
        found = [each for each in self.registrations.values() if each.group == group]
        return {each.broker_id: each.address for each in sorted(found, key=lambda each: each.broker_id)}

    def _broker_data(self, group: Group) -> BrokerData:
        return BrokerData(cluster=group[0], broker_name=group[1], broker_addrs=self.members(group))

    def _holder(self, group: Group, broker_id: int) -> Registration | None:
        found = (each for each in self.registrations.values() if (each.group, each.broker_id) == (group, broker_id))
        return next(found, None)

    def _forget(self, gone: Iterable[Registration]) -> None:
        for each in gone:
            del self.registrations[each.address]
            if not self.members(each.group):
                self.topics.pop(each.group, None)


def _registration(
    header: RegisterBrokerRequestHeader, body: RegisterBrokerBody, *, connection_id: int, now_seconds: float
) -> Registration:
    named = (header.cluster_name, header.broker_name, header.broker_addr, header.broker_id)
    cluster, name, address, broker_id = named
    if not cluster or not name or not address or broker_id is None or broker_id < 0:
        raise RegistrationRefusedError(
            f"clusterName, brokerName, brokerAddr, brokerId: expected all four, brokerId not below 0, found {named}"
        )
    timeout_ms = header.heartbeat_timeout_ms
    return Registration(
        group=(cluster, name),
        address=address,
        broker_id=broker_id,
        ha_address=header.ha_server_addr or "",
        state_version=body.topic_config_serialize_wrapper.data_version.state_version,
        timeout_seconds=DEFAULT_TIMEOUT_SECONDS if timeout_ms is None else timeout_ms / 1000,
        connection_id=connection_id,
        heard_seconds=now_seconds,
    )

"""Which pod is behind an address of a Service, a load balancer or a node's port (spec.network.addressing). Pure.

The record knows a member by the address that it advertises, which the pod carries as an annotation. Its connections come from
the pod, and only the pod's own port shows whether the process is dead: a Service without an endpoint refuses also while the
broker lives, as it does for seconds after its pod was removed by force.

A master's links (907) carry no broker id, only the host from which they come.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from brokergroup_operator.controller.peers.broker_calls import BrokerCallError
from rocketmq_remoting.address import EXPECTED, heard_address, host_of, join_address

if TYPE_CHECKING:
    from collections.abc import Iterable

    from brokergroup_operator.controller.directory.group_directory import GroupBinding
    from controller_core.model import BrokerGroupRecord
    from rocketmq_remoting.broker_protocol import HARuntimeInfoBody


def advertises(binding: GroupBinding, pod_name: str, address: str) -> bool:
    """Whether this pod of the group is known by this address, although the address is not its own."""
    place = binding.places.get(pod_name)
    return place is not None and place.address == address


def pod_ip_behind(binding: GroupBinding, address: str) -> str | None:
    """Return the pod behind this address, if there is exactly one."""
    found = {place.ip for place in binding.places.values() if place.address == address}
    return found.pop() if len(found) == 1 else None


def hosts_of_links(binding: GroupBinding, record: BrokerGroupRecord, broker_ids: Iterable[int]) -> dict[int, str]:
    """Return the host from which each member's connections come."""
    hosts = {}
    for broker_id in broker_ids:
        address = record.address_of(broker_id) or ""
        hosts[broker_id] = pod_ip_behind(binding, address) or host_of(address)
    return hosts


def probe_address(binding: GroupBinding, address: str, channel_host: str | None) -> str | None:
    """Return where a refused connection proves that this process does not listen any more; None if nothing can be asked.

    A new pod has the address of the one before it, so it is asked only if the heartbeats came from there. Another host is
    perhaps a node that translates addresses: it refuses also while the broker lives.
    """
    if not binding.translated:
        return address
    if not channel_host:
        return None
    if channel_host != pod_ip_behind(binding, address):
        return own_address(binding, address, channel_host)
    return process_address(binding, address, channel_host)


def own_address(binding: GroupBinding, address: str, channel_host: str) -> str | None:
    """Return the pod's own address of the process that was heard from this host; None unless its pod was removed by force.

    The Service leads elsewhere by now. The address is the old process's as long as the API gives it to no other pod.
    """
    removed = (place.ip for place in binding.removed_places.values() if place.address == address)
    return process_address(binding, address, channel_host) if channel_host in removed else None


def process_address(binding: GroupBinding, address: str, channel_host: str | None) -> str | None:
    """Return the address that tells this process from its successor behind the same address; None if it was not heard."""
    if not binding.translated:
        return address
    return join_address(channel_host, address.rpartition(":")[2]) if channel_host else None


def ha_address_of(binding: GroupBinding, address: str) -> str:
    """Return where the broker at this address serves its log; raise `BrokerCallError` for an invalid address."""
    found = heard_address(address)
    if found is None:
        raise BrokerCallError(f"address {address!r}: expected {EXPECTED}")
    host = (pod_ip_behind(binding, address) if binding.log_at_pods else None) or found.host
    return join_address(host, binding.ha_port or found.port + 1)


def unlinked(hosts: dict[int, str], status: HARuntimeInfoBody) -> list[int]:
    """Return the slaves without a link at this master; if slaves share a host: all, while any link is missing."""
    linked = [host_of(link.addr) for link in status.ha_connection_info]
    if len(set(hosts.values())) == len(hosts):
        return [broker_id for broker_id, host in hosts.items() if host not in linked]
    return list(hosts) if len(linked) < len(hosts) else []


def links_by_host(hosts: dict[int, str], status: HARuntimeInfoBody) -> dict[int, bool | None]:
    """Return whether this master has a link to each slave; None for slaves that share a host."""
    linked = {host_of(link.addr) for link in status.ha_connection_info}
    several = Counter(hosts.values())
    return {one: host in linked if several[host] == 1 else None for one, host in hosts.items()}


def speeds_of_links(hosts: dict[int, str], status: HARuntimeInfoBody) -> dict[int, int]:
    """Return the bytes that each slave's link carried in the last second; none without a link, or if slaves share a host."""
    speeds: Counter[str] = Counter()
    for link in status.ha_connection_info:
        speeds[host_of(link.addr)] += link.transferred_byte_in_second
    several = Counter(hosts.values())
    return {one: speeds[host] for one, host in hosts.items() if host in speeds and several[host] == 1}


def level_members(hosts: dict[int, str], live: list[int], status: HARuntimeInfoBody) -> frozenset[int] | None:
    """Return the members that have caught up with this master; None if hosts do not tell whose a link is."""
    # A dead member may have had an address that a living one has now.
    by_host = {hosts[broker_id]: broker_id for broker_id in (*hosts, *live)}
    level: set[int] = set()
    for link in status.ha_connection_info:
        broker_id = by_host.get(host_of(link.addr))
        if broker_id is None:
            return None
        level |= {broker_id} if link.diff == 0 else set()
    return frozenset(level) if all(by_host[hosts[one]] == one for one in live) else None


def respelled(address: str) -> str:
    """Return the same address in other characters: a leading zero before the port."""
    host, _, port = address.rpartition(":")
    return f"{host}:0{port}"

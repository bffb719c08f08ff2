"""What a master's 907 says of its links: it names no broker ids, only the host from which each link comes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rocketmq_remoting.address import host_of

if TYPE_CHECKING:
    from rocketmq_remoting import broker_protocol as protocol


def unlinked(hosts: dict[int, str], status: protocol.HARuntimeInfoBody) -> list[int]:
    """Return the slaves without a link at this master; if slaves share a host: all, while any link is missing."""
    return _without_one(hosts, [host_of(link.addr) for link in status.ha_connection_info])


def silent(hosts: dict[int, str], status: protocol.HARuntimeInfoBody) -> list[int]:
    """Return the slaves without a link on which they have acknowledged anything: it may be in its handshake, and end there."""
    links = status.ha_connection_info
    return _without_one(hosts, [host_of(link.addr) for link in links if link.slave_ack_offset >= 0])


def _without_one(hosts: dict[int, str], linked: list[str]) -> list[int]:
    if len(set(hosts.values())) == len(hosts):
        return [broker_id for broker_id, host in hosts.items() if host not in linked]
    return list(hosts) if len(linked) < len(hosts) else []


def counted_without_link(hosts: dict[int, str], status: protocol.HARuntimeInfoBody) -> frozenset[int]:
    """Return the slaves in the SyncStateSet that this master counts, and waits for at every message, though it has no link to them.

    `hosts` are those of all slaves in the set. Empty if the master counts others than these, or if slaves share a host.
    """
    linked = links_by_host(hosts, status)
    lost = frozenset(one for one, is_linked in linked.items() if is_linked is False)
    # An old link of a slave may stand beside its new one, so hosts are compared, not numbers.
    counted = {host_of(link.addr) for link in status.ha_connection_info if link.in_sync}
    counts_all = status.in_sync_slave_nums == len(hosts) and counted == {hosts[one] for one in linked.keys() - lost}
    return lost if counts_all and None not in linked.values() else frozenset()


def surely_unlinked(
    hosts: dict[int, str], status: protocol.HARuntimeInfoBody, refused: frozenset[int]
) -> frozenset[int]:
    """Return those of the members that this master was refused to which it has no link; none while a link comes from another host
    than `hosts`: it may be theirs.
    """
    links, several = status.ha_connection_info, Counter(hosts.values())
    if {host_of(link.addr) for link in links} - several.keys():
        return frozenset()
    # A link from a shared host may be its, unless this master's own set has it: a refused member is not in that.
    linked = {host for link in links if several[host := host_of(link.addr)] == 1 or not link.in_sync}
    return frozenset(one for one in refused if hosts[one] not in linked)


def all_have_the_log(hosts: dict[int, str], status: protocol.HARuntimeInfoBody) -> bool:
    """Whether each of these members of the SyncStateSet has a link to this master, and no link lacks a byte."""
    if any(link.diff != 0 for link in status.ha_connection_info):
        return False
    # Members may share a host: so the links that the master itself counts as in sync must be as many as these members.
    in_sync = sum(link.in_sync for link in status.ha_connection_info)
    return not unlinked(hosts, status) and in_sync >= len(hosts)


def links_by_host(hosts: dict[int, str], status: protocol.HARuntimeInfoBody) -> dict[int, bool | None]:
    """Return whether this master has a link to each slave; None for slaves that share a host."""
    linked = {host_of(link.addr) for link in status.ha_connection_info}
    several = Counter(hosts.values())
    return {one: host in linked if several[host] == 1 else None for one, host in hosts.items()}


def speeds_of_links(hosts: dict[int, str], status: protocol.HARuntimeInfoBody) -> dict[int, int]:
    """Return the bytes that each slave's link carried in the last second; none without a link, or if slaves share a host."""
    speeds: Counter[str] = Counter()
    for link in status.ha_connection_info:
        speeds[host_of(link.addr)] += link.transferred_byte_in_second
    several = Counter(hosts.values())
    return {one: speeds[host] for one, host in hosts.items() if host in speeds and several[host] == 1}


def level_members(hosts: dict[int, str], live: list[int], status: protocol.HARuntimeInfoBody) -> frozenset[int] | None:
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

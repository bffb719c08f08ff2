"""Whose links a master has, as far as its 907 tells: links carry no broker id, only the host they come from."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rocketmq_remoting.address import host_of

if TYPE_CHECKING:
    from rocketmq_remoting.broker_protocol import HARuntimeInfoBody


def unlinked(hosts: dict[int, str], status: HARuntimeInfoBody) -> list[int]:
    """The slaves that have no link at this master. Links carry no broker id, only the host they come from.

    Where several slaves share a host, the hosts prove nothing: then all of them count as missing while links are missing at all.
    """
    linked = [host_of(link.addr) for link in status.ha_connection_info]
    if len(set(hosts.values())) == len(hosts):
        return [broker_id for broker_id, host in hosts.items() if host not in linked]
    return list(hosts) if len(linked) < len(hosts) else []


def links_by_host(hosts: dict[int, str], status: HARuntimeInfoBody) -> dict[int, bool | None]:
    """Whether this master has a link to each slave; None for those that share a host: nobody can tell whose such a link is."""
    linked = {host_of(link.addr) for link in status.ha_connection_info}
    several = Counter(hosts.values())
    return {one: host in linked if several[host] == 1 else None for one, host in hosts.items()}


def speeds_of_links(hosts: dict[int, str], status: HARuntimeInfoBody) -> dict[int, int]:
    """Return the bytes that each slave's link carried in the last second; none without a link, or where slaves share a host."""
    speeds: Counter[str] = Counter()
    for link in status.ha_connection_info:
        speeds[host_of(link.addr)] += link.transferred_byte_in_second
    several = Counter(hosts.values())
    return {one: speeds[host] for one, host in hosts.items() if host in speeds and several[host] == 1}


def level_members(hosts: dict[int, str], live: list[int], status: HARuntimeInfoBody) -> frozenset[int] | None:
    """The members that have all that this master has; None where hosts do not tell whose a link is."""
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
    """The same address in other characters: a leading zero before the port."""
    host, _, port = address.rpartition(":")
    return f"{host}:0{port}"

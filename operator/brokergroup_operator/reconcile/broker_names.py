"""Which BrokerGroup has which broker name at which NameServer: two that share one are one broker to every client.

A NameServer keeps one address list by broker name, whatever cluster a broker says it is of: of two groups with one name the brokers
overwrite each other's routes, and clients send to and read from both as if they were one. The older group keeps the name. A younger
one that has no members yet gets none; one that has lives on, for its messages are there, and says so (condition `Stalled`).

The table is that of one reconcile plane: a list of all groups from time to time and each pass keep it. A plane that serves one
namespace sees the groups of that alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from brokergroup_operator.reconcile.turns import key_of
from rocketmq_remoting.address import heard_address, is_ip, join_address

if TYPE_CHECKING:
    from collections.abc import Iterable

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.records.store import GroupKey


@dataclass(frozen=True, slots=True)
class _Claim:
    """What a group's spec says. The claim with the lowest `age` is the oldest: by creation, of one second by name."""

    group: GroupKey
    age: tuple[str, str]
    broker_name: str
    name_servers: frozenset[str]


class BrokerNames:
    """The broker names of all groups that this plane knows."""

    def __init__(self) -> None:
        self._claims: dict[GroupKey, _Claim] = {}

    def keep_only(self, groups: Iterable[JsonObject]) -> None:
        """These are all the groups there are."""
        self._claims = {key_of(group): _claim_of(group) for group in groups}

    def note(self, group: JsonObject) -> None:
        """As a pass has just read it."""
        self._claims[key_of(group)] = _claim_of(group)

    def forget(self, key: GroupKey) -> None:
        """The group is gone."""
        self._claims.pop(key, None)

    def taken(self, key: GroupKey) -> str:
        """Which older group has this one's broker name at one of its NameServers, for a person to read; empty where none has."""
        own = self._claims.get(key)
        if own is None:
            return ""
        rivals = (
            other for other in self._claims.values() if other.broker_name == own.broker_name and other.age < own.age
        )
        sharing = [other for other in rivals if other.name_servers & own.name_servers]
        if not sharing:
            return ""
        oldest = min(sharing, key=lambda other: other.age)
        shared = ", ".join(sorted(oldest.name_servers & own.name_servers))
        return (
            f"spec.brokerName is {own.broker_name!r}, and group {oldest.group} has that name at NameServer {shared}:"
            " clients take both for one broker. Expected another spec.brokerName, or other spec.nameServers"
        )


def _claim_of(group: JsonObject) -> _Claim:
    key, metadata, spec = key_of(group), group["metadata"], group.get("spec") or {}
    addresses = (str(one) for one in spec.get("nameServers") or [])
    return _Claim(
        group=key,
        age=(str(metadata.get("creationTimestamp", "")), str(key)),
        broker_name=str(spec.get("brokerName") or key.name),
        name_servers=frozenset(_seen_from(key.namespace, address) for address in addresses),
    )


def _seen_from(namespace: str, address: str) -> str:
    """A Service's name means another one in another namespace: `ns:9876` in `team` is `ns.team:9876`, with or without `.svc`."""
    found = heard_address(address)
    if found is None:
        return address
    host = found.host.rstrip(".").partition(".svc")[0]
    return join_address(host if is_ip(host) or "." in host else f"{host}.{namespace}", found.port)

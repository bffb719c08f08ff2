"""Where each member is, by all that say so (safety rule 8).

A pod's IP is a fact with an age, not an identity: pods get new ones, and other pods get the old ones. Three say where a member is:
the pod watch, its registration, and the connection that its heartbeats come on. All of them are kept with the time since when they
say so, for the status and for people.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from brokergroup_operator.observe.group_view import AddressFact, AddressSource
from rocketmq_remoting.address import host_of, one_spelling

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Proof:
    """What was so when the broker at an address said that it is the member."""

    address: str
    connection_id: int
    pod_ip: str | None


class Spelled(NamedTuple):
    """An address as a broker sends it, in the one spelling, and its host."""

    sent: str
    address: str
    host: str


class AddressNotes:
    """The addresses of one group's members, by source, and since when each is what it is."""

    def __init__(self) -> None:
        self._facts: dict[int, dict[AddressSource, tuple[str, float]]] = {}
        # The host that each member's heartbeats come from, and the connections on which somebody proved to be it.
        self.channel_hosts: dict[int, str] = {}
        self.proven: dict[int, tuple[Proof, float]] = {}
        # What each member sent last: a heartbeat brings the same address every second, and reading one costs more than the rest.
        self._spelled: dict[int, Spelled] = {}

    def spelled(self, broker_id: int, sent: str) -> Spelled:
        """The address that a member's heartbeat brings."""
        known = self._spelled.get(broker_id)
        if known is None or known.sent != sent:
            address = one_spelling(sent)
            known = self._spelled[broker_id] = Spelled(sent, address, host_of(address))
        return known

    def note(self, broker_id: int, source: AddressSource, address: str, now_seconds: float) -> None:
        """Somebody says where a member is; an empty address: nowhere any more."""
        facts = self._facts.setdefault(broker_id, {})
        if not address:
            facts.pop(source, None)
        elif source not in facts or facts[source][0] != address:
            facts[source] = (address, now_seconds)

    def heard_from(self, broker_id: int, host: str, address: str, now_seconds: float) -> None:
        """A heartbeat, or another request of the member itself, came from this host."""
        self.channel_hosts[broker_id] = host
        known = self._spelled.get(broker_id)
        own_host = known.host if known is not None and known.address == address else host_of(address)
        own = address if own_host == host else host
        self.note(broker_id, AddressSource.HEARTBEAT, own, now_seconds)

    def facts(self, broker_ids: Mapping[int, object], now_seconds: float) -> dict[int, tuple[AddressFact, ...]]:
        """What is said of these members, the youngest first."""
        return {
            broker_id: tuple(
                AddressFact(address, source, max(0.0, now_seconds - since_seconds))
                for source, (address, since_seconds) in sorted(
                    self._facts.get(broker_id, {}).items(), key=lambda item: -item[1][1]
                )
            )
            for broker_id in broker_ids
        }

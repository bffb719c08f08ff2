"""The pods of all groups as the watch last reported, indexed by address and by group.

A container reported terminated stays evidence of that process's death after its pod went, until a pod has the address again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.controller.directory.kubernetes_binding import (
    is_at,
    is_leaving,
    is_over,
    peer_of,
    place_of,
    pod_ip,
    pod_ips,
    termination,
)
from brokergroup_operator.kube.reflector import ObjectKey, key_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.controller.directory.group_directory import Peer, PodPlace
    from brokergroup_operator.kube.client import JsonObject, WatchEvent
    from brokergroup_operator.records.store import GroupKey


class PodIndex:
    """Fed with every event of the pod watch (`take`)."""

    def __init__(self) -> None:
        self._pods: dict[ObjectKey, JsonObject] = {}
        self._by_group: dict[GroupKey, dict[str, JsonObject]] = {}
        self._with_two_addresses = 0
        # The pods at each address: several, where pods share their node's.
        self._by_address: dict[str, set[Peer]] = {}
        # The pods of each group whose end was reported before they went, by name, and how they ended.
        self._ended: dict[GroupKey, dict[str, tuple[JsonObject, str]]] = {}
        # The pods of each group that were removed by force while their brokers ran, by name, and the addresses of each.
        self._removed: dict[GroupKey, dict[str, tuple[str, ...]]] = {}
        # Of these, the ones that were known by another address than their own: until a pod has their own again.
        self._removed_places: dict[GroupKey, dict[str, PodPlace]] = {}

    def of_group(self, key: GroupKey) -> Mapping[str, JsonObject]:
        """Return the group's pods by name."""
        return self._by_group.get(key, {})

    def all(self) -> list[JsonObject]:
        """Return every pod of every group."""
        return list(self._pods.values())

    def has_both_families(self) -> bool:
        """Whether a pod has a second address, for which the API cannot be asked (it selects by status.podIP only)."""
        return self._with_two_addresses > 0

    def is_known_address(self, host: str) -> bool:
        """Whether any pod has this address."""
        return host in self._by_address

    def peer_at(self, host: str) -> Peer | None:
        """Return the pod with this address; None if several share it."""
        found = self._by_address.get(host, ())
        return next(iter(found)) if len(found) == 1 else None

    def hosts(self, key: GroupKey) -> dict[str, str]:
        """Return the address of each of the group's pods that has one, by the pod's name."""
        return {name: pod_ip(pod) for name, pod in self.of_group(key).items() if pod_ip(pod) and not is_over(pod)}

    def leaving_hosts(self, key: GroupKey) -> frozenset[str]:
        """Return where the group's pods are that are being deleted and whose brokers still run, pods removed by force included."""
        leaving = (_known_by(pod) for pod in self.of_group(key).values() if is_leaving(pod) and pod_ip(pod))
        return self.removed_hosts(key).union(leaving)

    def removed_hosts(self, key: GroupKey) -> frozenset[str]:
        """Return the own addresses of the group's pods that were removed by force while their brokers ran."""
        return frozenset(addresses[0] for addresses in self._removed.get(key, {}).values())

    def removed_places(self, key: GroupKey) -> Mapping[str, PodPlace]:
        """Return the group's pods, by name, that were removed by force and known by another address, until a pod has theirs."""
        return self._removed_places.get(key, {})

    def groups_with_removed_pods(self) -> frozenset[GroupKey]:
        """Return the groups of which a pod was removed by force: a pod of another group may get its address."""
        return frozenset(self._removed).union(self._removed_places)

    def termination_at(self, key: GroupKey, address: str) -> str | None:
        """Return how the process at this address (host:port) ended, if that was reported; None while one may run there."""
        at_address = [termination(pod) for pod in self.of_group(key).values() if is_at(pod, address)]
        if at_address:
            return None if None in at_address else at_address[0]
        ended = self._ended.get(key, {})
        return next((how for pod, how in ended.values() if is_at(pod, address)), None)

    def take(self, event: WatchEvent) -> JsonObject | None:
        """Take an event of a pod; return the pod as it was before, None for a new one."""
        pod = event.object
        previous = self._pods.pop(key_of(pod), None)
        if previous is not None:
            self._remove(previous)
        if event.type != "DELETED":
            self._add(pod)
        elif (group := peer_of(pod).group) is not None:
            # A pod that was removed by force vanishes before its process: only a reported end counts.
            if (how := termination(pod)) is not None:
                self._ended.setdefault(group, {})[key_of(pod)[1]] = (pod, how)
            elif addresses := _own_first(pod):
                self._removed.setdefault(group, {})[key_of(pod)[1]] = addresses
                if (place := place_of(pod)) is not None:
                    self._removed_places.setdefault(group, {})[key_of(pod)[1]] = place
        return previous

    def _add(self, pod: JsonObject) -> None:
        peer, addresses = peer_of(pod), pod_ips(pod)
        self._pods[key_of(pod)] = pod
        self._with_two_addresses += len(addresses) > 1
        if peer.group is not None:
            self._by_group.setdefault(peer.group, {})[peer.pod_name] = pod
        if not addresses:
            return
        for address in addresses if not is_over(pod) else ():
            # A new pod may have the address of one that is just going; only pods of a node's network share one.
            shares = (pod.get("spec") or {}).get("hostNetwork")
            self._by_address[address] = (self._by_address.get(address, set()) if shares else set()) | {peer}
        self._forget_ends(pod)
        self._forget_removed(pod)

    def _remove(self, pod: JsonObject) -> None:
        peer, addresses = peer_of(pod), pod_ips(pod)
        self._with_two_addresses -= len(addresses) > 1
        for address in addresses:
            there = self._by_address.get(address)
            if there is not None:
                there.discard(peer)
                if not there:
                    del self._by_address[address]
        if peer.group is not None:
            own = self._by_group.get(peer.group, {})
            own.pop(peer.pod_name, None)
            if not own:
                self._by_group.pop(peer.group, None)

    def _forget_ends(self, pod: JsonObject) -> None:
        """An address that has a pod again says nothing any more about the pod that had it."""
        for group, ended in list(self._ended.items()):
            for name in [name for name, (one, _) in ended.items() if _share_an_address(one, pod)]:
                del ended[name]
            if not ended:
                del self._ended[group]

    def _forget_removed(self, pod: JsonObject) -> None:
        """A pod with an address replaces the one of its name before it, and the one that had this address."""
        peer, addresses = peer_of(pod), set(pod_ips(pod))
        for group, removed in list(self._removed.items()):
            for name, those in list(removed.items()):
                if not addresses.isdisjoint(those) or (group, name) == (peer.group, peer.pod_name):
                    del removed[name]
            if not removed:
                del self._removed[group]
        for group, places in list(self._removed_places.items()):
            for name in [name for name, place in places.items() if place.ip in addresses]:
                del places[name]
            if not places:
                del self._removed_places[group]


def _own_first(pod: JsonObject) -> tuple[str, ...]:
    """Return all addresses of the pod, first the one that its broker uses."""
    own = pod_ip(pod)
    return (own, *(one for one in pod_ips(pod) if one != own)) if own else ()


def _known_by(pod: JsonObject) -> str:
    place = place_of(pod)
    return pod_ip(pod) if place is None else place.address


def _share_an_address(one: JsonObject, other: JsonObject) -> bool:
    places = place_of(one), place_of(other)
    if None in places:
        return places == (None, None) and not set(pod_ips(one)).isdisjoint(pod_ips(other))
    return places[0] is not None and places[1] is not None and places[0].address == places[1].address

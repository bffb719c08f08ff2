"""The pods of all groups as the watch last reported: whose address is which, which process is dead, which broker is leaving.

A container reported terminated stays evidence of that process's death after its pod went, until a pod has the address again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from brokergroup_operator.api import names
from brokergroup_operator.kube.pods import host_ips, is_over, label_of, pod_ips
from brokergroup_operator.kube.reflector import ObjectKey, key_of
from brokergroup_operator.observe.timeline import OUT_OF_MEMORY_WORD
from brokergroup_operator.records.store import GroupKey
from rocketmq_remoting.address import host_of, ip_of_family, join_address, one_spelling

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

    from brokergroup_operator.kube.client import JsonObject, WatchEvent

Row = TypeVar("Row", bound="Hashable")
Column = TypeVar("Column", bound="Hashable")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlace:
    """Where a pod is, and by which address (host:port) its broker is known."""

    ip: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A pod that speaks from an address."""

    namespace: str
    pod_name: str
    group: GroupKey | None = None


def only(peers: Collection[Peer]) -> Peer | None:
    """Return the one peer; None if there is none, or several."""
    return next(iter(peers)) if len(peers) == 1 else None


def peer_of(pod: JsonObject) -> Peer:
    """Return the pod's namespace, name and group; the group is None without the BrokerGroup label."""
    namespace, name = key_of(pod)
    group = label_of(pod, names.LABEL_BROKER_GROUP)
    return Peer(namespace=namespace, pod_name=name, group=GroupKey(namespace, group) if group else None)


def broker_id_of(pod: JsonObject) -> int | None:
    """Return the broker id by the pod's label, else by its name: a pod whose disk was wiped comes back under a new id.

    None for a pod that is no member of a group.
    """
    label, group = label_of(pod, names.LABEL_BROKER_ID), label_of(pod, names.LABEL_BROKER_GROUP)
    if label.isascii() and label.isdecimal() and label != "0":
        return int(label)
    return names.broker_id_of_pod_name(group, str(pod["metadata"]["name"])) if group else None


def pod_ip(pod: JsonObject) -> str:
    """Return the address that its broker uses, or the empty text: of several the one of the family that the pod was given."""
    return ip_of_family(",".join(pod_ips(pod)), _family_of(pod))


def place_of(pod: JsonObject) -> PodPlace | None:
    """Return where it is if its broker is known by another address than the pod's own; else None."""
    text = str((pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_ADDRESS, ""))
    if text.startswith(":"):
        node = ip_of_family(",".join(host_ips(pod)), _family_of(pod))
        text = join_address(node, text[1:]) if node else ""
    return PodPlace(ip=pod_ip(pod), address=one_spelling(text)) if text else None


def is_at(pod: JsonObject, address: str) -> bool:
    """Whether the pod's broker is the one at this address (host:port): the one by which it is known, or its pod's own."""
    if not pod_ips(pod):
        return False  # it has not started: another pod had the address
    place = place_of(pod)
    return (place is not None and place.address == address) or has_ip_of(pod, address)


def has_ip_of(pod: JsonObject, address: str) -> bool:
    """Whether this is the pod's own address (host:port), which tells it from its successor behind the same Service."""
    return host_of(address) in pod_ips(pod)


def listens_at(pod: JsonObject, address: str) -> bool:
    """Whether the pod's broker listens at this address (host:port) of the pod. On a node's network the port decides."""
    spec = pod.get("spec") or {}
    if not spec.get("hostNetwork"):
        return True
    containers = (one for one in spec.get("containers") or [] if one.get("name") == names.CONTAINER_BROKER)
    ports = {port.get("containerPort") for one in containers for port in one.get("ports") or []}
    return address.rpartition(":")[2] in set(map(str, ports))


def restarts(pod: JsonObject) -> int:
    return int(broker_status(pod).get("restartCount", 0))


def termination(pod: JsonObject) -> str | None:
    """Return how the broker's last process ended, or None while one may run."""
    status = broker_status(pod)
    state = status.get("state") or {}
    terminated = state.get("terminated")
    if "waiting" in state:  # between two processes (CrashLoopBackOff): the last one has ended, the next has not begun
        terminated = (status.get("lastState") or {}).get("terminated")
    if terminated:
        # The kubelet's word tells a kill for memory from any other one.
        word = f"{terminated['reason']}, " if terminated.get("reason") == OUT_OF_MEMORY_WORD else ""
        return f"container terminated ({word}exit code {terminated.get('exitCode')})"
    # The control plane calls pods of a lost node Failed (PodGC): it knows no more of their containers than their kubelet last said.
    return f"pod {pod['status']['phase']}" if is_over(pod) and "running" not in state else None


def is_leaving(pod: JsonObject) -> bool:
    """Whether it is being deleted and its broker still has time to hand over. Without grace it has none."""
    metadata = pod["metadata"]
    has_time = metadata.get("deletionGracePeriodSeconds") != 0
    return "deletionTimestamp" in metadata and has_time and termination(pod) is None


def _family_of(pod: JsonObject) -> str:
    """Return the IP family that the pod's broker was given (spec.network.ipFamilies), or the empty text."""
    containers = (pod.get("spec") or {}).get("containers") or []
    entries = (
        entry for one in containers if one.get("name") == names.CONTAINER_BROKER for entry in one.get("env") or []
    )
    return next((str(one.get("value") or "") for one in entries if one.get("name") == names.ENVIRONMENT_IP_FAMILY), "")


def broker_status(pod: JsonObject) -> dict[str, Any]:
    statuses: list[dict[str, Any]] = pod.get("status", {}).get("containerStatuses") or []
    return next((one for one in statuses if one.get("name") == names.CONTAINER_BROKER), {})


class Table(dict[Row, dict[Column, Value]]):
    """Values in rows. A row without values is not kept."""

    def put(self, row: Row, column: Column, value: Value) -> None:
        self.setdefault(row, {})[column] = value

    def drop(self, row: Row, column: Column) -> None:
        there = self.get(row, {})
        there.pop(column, None)
        if not there:
            self.pop(row, None)


class _Gone(Generic[Value]):
    """What is known of pods that went, by group and name: each until a pod has one of its tokens (addresses, say).

    Of each name the last one, since no pod may ever have its tokens again.
    """

    def __init__(self, tokens_of: Callable[[Value], Iterable[Hashable]]) -> None:
        self._tokens_of = tokens_of
        self._kept: Table[GroupKey, str, Value] = Table()
        self._until: Table[Hashable, tuple[GroupKey, str], None] = Table()

    def of_group(self, key: GroupKey) -> Mapping[str, Value]:
        return self._kept.get(key, {})

    def keep(self, key: GroupKey, name: str, value: Value) -> None:
        self._drop(key, name)
        self._kept.put(key, name, value)
        for token in self._tokens_of(value):
            self._until.put(token, (key, name), None)

    def forget(self, tokens: Iterable[Hashable]) -> set[GroupKey]:
        """Forget what was kept until now, when a pod has these tokens; return the groups concerned."""
        forgotten = {one for token in tokens for one in self._until.get(token, {})}
        for key, name in forgotten:
            self._drop(key, name)
        return {key for key, _ in forgotten}

    def _drop(self, key: GroupKey, name: str) -> None:
        if (value := self._kept.get(key, {}).get(name)) is not None:
            for token in self._tokens_of(value):
                self._until.drop(token, (key, name))
            self._kept.drop(key, name)


class PodIndex:
    """Fed with every event of the pod watch (`take`)."""

    def __init__(self) -> None:
        self._pods: dict[ObjectKey, JsonObject] = {}
        self._by_group: Table[GroupKey, str, JsonObject] = Table()
        # How many pods have a second address, for which the API cannot be asked (it selects by status.podIP only).
        self.with_two_addresses = 0
        # The pods at each address: several, where pods share their node's.
        self._by_address: Table[str, Peer, None] = Table()
        # Of pods of both families: the address that the broker uses, by the other one, from which its connections may come too.
        self._broker_hosts: dict[str, str] = {}
        # The pods whose end was reported before they went, and how they ended.
        self._ended: _Gone[tuple[JsonObject, str]] = _Gone(lambda ended: _known_at(ended[0]))
        # The pods that were removed by force while their brokers ran.
        self._removed: _Gone[JsonObject] = _Gone(lambda pod: (*pod_ips(pod), peer_of(pod)))
        # Of these, the ones that were known by another address than their own: until a pod has their own again.
        self._removed_places: _Gone[PodPlace] = _Gone(lambda place: (place.ip,))

    def all(self) -> list[JsonObject]:
        return list(self._pods.values())

    def of_group(self, key: GroupKey) -> Mapping[str, JsonObject]:
        """Return the group's pods by pod name, finished ones included; the next event may change this mapping."""
        return self._by_group.get(key, {})

    def peers_at(self, host: str) -> Collection[Peer]:
        return self._by_address.get(host, {})

    def peer_at(self, host: str) -> Peer | None:
        """Return the pod with this address; None if several share it."""
        return only(self._by_address.get(host, {}))

    def broker_host(self, host: str) -> str:
        """Return the address by which the broker at this address is known: another one only for a pod of both families."""
        return self._broker_hosts.get(host, host)

    def hosts(self, key: GroupKey) -> dict[str, str]:
        """Return the address of each of the group's pods that has one, by the pod's name."""
        return {name: pod_ip(pod) for name, pod in self.of_group(key).items() if pod_ip(pod) and not is_over(pod)}

    def leaving_hosts(self, key: GroupKey) -> frozenset[str]:
        """Return where the group's pods are that are being deleted and whose brokers still run, pods removed by force included."""
        leaving = (pod for pod in self.of_group(key).values() if is_leaving(pod) and pod_ip(pod))
        hosts = (pod_ip(pod) if (place := place_of(pod)) is None else place.address for pod in leaving)
        return self.removed_hosts(key).union(hosts)

    def removed(self, key: GroupKey) -> Mapping[str, JsonObject]:
        """Return the group's pods, by name, that were removed by force; each until a pod has its name or one of its addresses."""
        return self._removed.of_group(key)

    def removed_hosts(self, key: GroupKey) -> frozenset[str]:
        return frozenset(ip for pod in self.removed(key).values() for ip in pod_ips(pod))

    def removed_places(self, key: GroupKey) -> Mapping[str, PodPlace]:
        """Return where those of them were that were known by another address; each until a pod has its own."""
        return self._removed_places.of_group(key)

    def termination_at(self, key: GroupKey, address: str) -> str | None:
        """Return how the process at this address (host:port) ended, if that was reported; None while one may run there.

        The address decides, not the broker id: the pod that carries an id may have just changed.
        """
        at_address = [termination(pod) for pod in self.of_group(key).values() if is_at(pod, address)]
        if at_address:
            return None if None in at_address else at_address[0]
        return next((how for pod, how in self._ended.of_group(key).values() if is_at(pod, address)), None)

    def take(self, event: WatchEvent) -> tuple[JsonObject | None, set[GroupKey]]:
        """Take an event of a pod. Return the pod as it was before, and the groups of which removed pods came or went."""
        pod, peer = event.object, peer_of(event.object)
        previous = self._pods.pop(key_of(pod), None)
        if previous is not None:
            self._remove(previous)
        if event.type != "DELETED":
            return previous, self._add(pod, peer)
        group, how = peer.group, termination(pod)
        # A pod that was removed by force vanishes before its process: only a reported end counts.
        if group is not None and how is not None:
            self._ended.keep(group, peer.pod_name, (pod, how))
        elif group is not None and pod_ip(pod):
            self._removed.keep(group, peer.pod_name, pod)
            if (place := place_of(pod)) is not None:
                self._removed_places.keep(group, peer.pod_name, place)
            return previous, {group}
        return previous, set()

    def _add(self, pod: JsonObject, peer: Peer) -> set[GroupKey]:
        addresses = pod_ips(pod)
        self._pods[key_of(pod)] = pod
        self.with_two_addresses += len(addresses) > 1
        if peer.group is not None:
            self._by_group.put(peer.group, peer.pod_name, pod)
        if not addresses:
            return set()
        for address in addresses if not is_over(pod) else ():
            # A new pod may have the address of one that is just going; only pods of a node's network share one.
            shares = (pod.get("spec") or {}).get("hostNetwork")
            for other in () if shares else tuple(self._by_address.get(address, {})):
                self._by_address.drop(address, other)
            self._by_address.put(address, peer, None)
            self._broker_hosts.pop(address, None)
            if not shares and address != (own := pod_ip(pod)):
                self._broker_hosts[address] = own
        # An address that has a pod again says nothing any more about the pod that had it.
        self._ended.forget(_known_at(pod))
        # A pod with an address replaces the one of its name before it, and the one that had this address.
        return self._removed.forget((*addresses, peer)) | self._removed_places.forget(addresses)

    def _remove(self, pod: JsonObject) -> None:
        peer, addresses = peer_of(pod), pod_ips(pod)
        self.with_two_addresses -= len(addresses) > 1
        for address in addresses:
            self._by_address.drop(address, peer)
            if self._broker_hosts.get(address) == pod_ip(pod):
                del self._broker_hosts[address]
        if peer.group is not None:
            self._by_group.drop(peer.group, peer.pod_name)


def _known_at(pod: JsonObject) -> tuple[str, ...]:
    """Return the address by which its broker is known, or all its own."""
    place = place_of(pod)
    return pod_ips(pod) if place is None else (place.address,)

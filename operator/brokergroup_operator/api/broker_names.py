"""Which of several BrokerGroups keeps a broker name that all of them request; the same answer for both planes. Pure.

A controller finds a group by brokerName, and a NameServer keeps one address list per brokerName, whatever the cluster: two groups
that share either would receive each other's requests or routes. One group keeps the name, in this order (`NameClaim.rank`): its
brokers have registered, so it has messages; it has been served (our finalizer precedes its first child); its record is kept from
an earlier group of its name; it is older; within one second, its uid is lower.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from brokergroup_operator.api.names import FINALIZER_BROKER_GROUP
from rocketmq_remoting.address import heard_address, is_ip, join_address

if TYPE_CHECKING:
    from collections.abc import Iterable

    from brokergroup_operator.api.bounds import JsonObject


_LABELS_OF_A_PODS_NAME = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class NameClaim:
    """A BrokerGroup's claim to its broker name. The claim with the lowest `rank` keeps the name."""

    namespace: str
    name: str
    cluster_name: str
    broker_name: str
    name_servers: frozenset[str] = frozenset()
    # Services whose pods include a NameServer: a client of the Service reaches that pod too.
    services: frozenset[str] = frozenset()
    has_begun: bool = False
    has_registered: bool = False
    created: str = ""
    uid: str = ""

    @property
    def lives(self) -> bool:
        """Whether brokers of this object have registered: such a group is never held back."""
        return self.has_begun and self.has_registered

    @property
    def rank(self) -> tuple[bool, bool, bool, str, str, str]:
        return (
            not self.lives,
            not self.has_begun,
            not self.has_registered,
            self.created,
            self.uid,
            f"{self.namespace}/{self.name}",
        )

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def claim_of(group: JsonObject, *, has_registered: bool) -> NameClaim:
    """Return the claim of a BrokerGroup object; `has_registered`: whether a broker of its record has registered."""
    metadata, spec = group["metadata"], group.get("spec") or {}
    namespace, name = str(metadata["namespace"]), str(metadata["name"])
    addresses = [_seen_from(namespace, str(one)) for one in spec.get("nameServers") or []]
    return NameClaim(
        namespace=namespace,
        name=name,
        cluster_name=str(spec.get("brokerClusterName") or "DefaultCluster"),
        broker_name=str(spec.get("brokerName") or name),
        name_servers=frozenset(one for meanings in addresses for one in meanings),
        services=frozenset(service for meanings in addresses for one in meanings if (service := _service_of(one))),
        has_begun=FINALIZER_BROKER_GROUP in (metadata.get("finalizers") or ()),
        has_registered=has_registered,
        created=str(metadata.get("creationTimestamp") or ""),
        uid=str(metadata.get("uid") or ""),
    )


def holder_before(own: NameClaim, others: Iterable[NameClaim]) -> NameClaim | None:
    """Return the claim that keeps the name instead of `own`; None if `own` may have it."""
    # Few groups share a name: among 1,000 groups, a rank of each would cost a fifth of a pass.
    before = [one for one in others if shared_by(own, one) and one.rank < own.rank]
    return min(before, key=lambda one: one.rank, default=None)


def shared_by(own: NameClaim, other: NameClaim) -> str:
    """Return where the two would count as one broker; empty: nowhere."""
    if own.broker_name != other.broker_name or (own.namespace, own.name) == (other.namespace, other.name):
        return ""
    common = (own.name_servers & (other.name_servers | other.services)) | (own.services & other.name_servers)
    if common:
        return f"at NameServer {', '.join(sorted(_plainest(common)))}"
    in_one_place = (own.namespace, own.cluster_name) == (other.namespace, other.cluster_name)
    return f"in cluster {own.cluster_name} of namespace {own.namespace}" if in_one_place else ""


def _plainest(addresses: frozenset[str]) -> list[str]:
    """Return the addresses without a second meaning whose first one is among them."""
    hosts = {one: one.rpartition(":")[0] for one in addresses}
    return [one for one in addresses if not any(hosts[one].startswith(f"{host}.") for host in hosts.values())]


def complaint(own: NameClaim, holder: NameClaim) -> str:
    """Return the message for the condition."""
    told = (
        f"spec.brokerName is {own.broker_name!r}, and group {holder} has that name {shared_by(own, holder)}: clients and"
        " the controller would take both for one broker."
    )
    if own.lives:
        return (
            f"{told} Both have messages, so both run on: move one of them to another NameServer, or drain and delete it"
        )
    return (
        f"{told} Expected another spec.brokerName, or other spec.nameServers. It starts by itself once the name is free"
    )


def _seen_from(namespace: str, address: str) -> tuple[str, ...]:
    """Return what a NameServer's address can mean to pods of this namespace, without the cluster's domain.

    `ns:9876` in `team` is `ns.team:9876`. `ns.team` is a Service of `team`, or pod `ns` of a headless Service `team` beside us.
    """
    found = heard_address(address.lower())
    if found is None:
        return (address,)
    host, number = found.host, found.port
    if is_ip(host):
        return (join_address(host, number),)
    labels = host.rstrip(".").split(".")
    if "svc" in labels[1:]:
        return (f"{'.'.join(labels[: labels.index('svc', 1)])}:{number}",)
    if len(labels) == 1 and host != "localhost":
        return (f"{host}.{namespace}:{number}",)
    plain = f"{'.'.join(labels)}:{number}"
    is_short_name = len(labels) == _LABELS_OF_A_PODS_NAME - 1
    return (plain, f"{'.'.join(labels)}.{namespace}:{number}") if is_short_name else (plain,)


def _service_of(address: str) -> str:
    """Return the Service in a pod's name: `ns.team:9876` of `ns-0.ns.team:9876`. Empty for other addresses."""
    pod, _, rest = address.partition(".")
    host = rest.rpartition(":")[0]
    return rest if not pod.isdigit() and len(host.split(".")) == _LABELS_OF_A_PODS_NAME - 1 else ""

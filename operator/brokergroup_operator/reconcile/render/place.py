"""The address by which a member is known where that is not its pod's own, and how its containers learn it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from brokergroup_operator.api import names
from brokergroup_operator.api.network_fields import Addressing
from rocketmq_remoting.address import join_address

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroupSpec


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a member is reached. `host` is empty where only the pod will know it: the address of its node."""

    host: str = ""
    port: int
    # Why there is no address yet; the pod waits for it.
    missing: str = ""

    @property
    def text(self) -> str:
        """As the pod's annotation has it."""
        return join_address(self.host, self.port)


def known_host(spec: BrokerGroupSpec) -> str:
    """The variable with the host by which others know the broker."""
    return names.ENVIRONMENT_BROKER_HOST if spec.network.addressing.has_member_services else "POD_IP"


def pod_addresses(spec: BrokerGroupSpec) -> list[JsonObject]:
    """Variables with the pod's address; where the group names a family, all addresses and which one it uses."""
    own = [_from_status("POD_IP", "podIP")]
    if not spec.network.broker_family:
        return own
    family = {"name": names.ENVIRONMENT_IP_FAMILY, "value": spec.network.broker_family}
    return [*own, _from_status(names.ENVIRONMENT_POD_IPS, "podIPs"), family]


def own_hosts(spec: BrokerGroupSpec, variable: str) -> str:
    """The variable with all addresses of which `variable` has the first; the same one where the group names no family."""
    if not spec.network.broker_family:
        return variable
    of_node = spec.network.addressing is Addressing.NODE_PORT
    all_of = {"POD_IP": names.ENVIRONMENT_POD_IPS} | (
        {names.ENVIRONMENT_BROKER_HOST: names.ENVIRONMENT_NODE_IPS} if of_node else {}
    )
    return all_of.get(variable, variable)


def environment(spec: BrokerGroupSpec, place: Place | None) -> list[JsonObject]:
    """What a container needs beside its pod's own address; nothing where that is the one."""
    addressing = spec.network.addressing
    if not addressing.has_member_services:
        return []
    if addressing is not Addressing.NODE_PORT:
        return [{"name": names.ENVIRONMENT_BROKER_HOST, "value": place.host if place else ""}]
    all_of_node = [_from_status(names.ENVIRONMENT_NODE_IPS, "hostIPs")] if spec.network.broker_family else []
    return [
        _from_status(names.ENVIRONMENT_BROKER_HOST, "hostIP"),
        *all_of_node,
        {"name": names.ENVIRONMENT_LISTEN_PORT, "value": str(place.port if place else spec.network.listen_port)},
    ]


def _from_status(name: str, field: str) -> JsonObject:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"status.{field}"}}}

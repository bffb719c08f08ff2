"""The address by which a member is known where that is not its pod's own, and how its containers learn it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from brokergroup_operator.api import names
from brokergroup_operator.api.fields.pod_fields import Addressing

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
        return f"{self.host}:{self.port}"


def known_host(spec: BrokerGroupSpec) -> str:
    """The variable with the host by which others know the broker."""
    return names.ENVIRONMENT_BROKER_HOST if spec.network.addressing.has_member_services else "POD_IP"


def environment(spec: BrokerGroupSpec, place: Place | None) -> list[JsonObject]:
    """What a container needs beside its pod's own address; nothing where that is the one."""
    addressing = spec.network.addressing
    if not addressing.has_member_services:
        return []
    if addressing is not Addressing.NODE_PORT:
        return [{"name": names.ENVIRONMENT_BROKER_HOST, "value": place.host if place else ""}]
    return [
        {"name": names.ENVIRONMENT_BROKER_HOST, "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        {"name": names.ENVIRONMENT_LISTEN_PORT, "value": str(place.port if place else spec.network.listen_port)},
    ]

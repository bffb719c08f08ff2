"""Where a group and its members are, as BrokerGroup.status tells it. An address is a fact with an age, not an identity."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from brokergroup_operator.api import bounds


class AddressSource(StrEnum):
    """Who told an address of a member."""

    POD_WATCH = "PodWatch"
    REGISTRATION = "Registration"
    HEARTBEAT = "Heartbeat"


class MemberAddress(Struct, frozen=True, rename="camel", kw_only=True):
    """One address of a member, as one source tells it."""

    source: Annotated[
        AddressSource,
        Meta(
            description="PodWatch: the pod's status. Registration: what the broker registered. Heartbeat: where the connection of"
            " its heartbeats comes from."
        ),
    ]
    address: Annotated[bounds.AddressText, Meta(description="The address; without a port where the source has none.")]
    since: Annotated[bounds.TimeText, Meta(description="Since when this source has told this address.")]


class Endpoints(Struct, frozen=True, rename="camel", kw_only=True):
    """Where the group is reached inside the cluster."""

    master: Annotated[bounds.AddressText, Meta(description="The Service that follows the master.")]
    members: Annotated[
        list[bounds.AddressText],
        Meta(
            max_length=bounds.MAX_KNOWN_REPLICAS,
            description="The stable name of each member, in the order of broker ids.",
            extra_json_schema=bounds.ATOMIC_LIST,
        ),
    ] = []

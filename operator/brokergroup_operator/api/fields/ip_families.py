"""Which IP families Services and brokers have, in the words of a Kubernetes Service."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from brokergroup_operator.api import bounds


class IPFamily(StrEnum):
    """As Kubernetes has it."""

    IPV4 = "IPv4"
    IPV6 = "IPv6"


class IPFamilyPolicy(StrEnum):
    """As Kubernetes has it."""

    SINGLE_STACK = "SingleStack"
    PREFER_DUAL_STACK = "PreferDualStack"
    REQUIRE_DUAL_STACK = "RequireDualStack"


class IPFamiliesSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """The IP families of Services."""

    ip_families: Annotated[
        list[IPFamily],
        Meta(
            max_length=2,
            description="The families of the Services, as in a Service, and of what is known by an address of a pod or a node:"
            " the first one given. Absent: the cluster's own first family. The first one stays as it is once it is given.",
            extra_json_schema=bounds.ATOMIC_LIST,
        ),
    ] = []
    ip_family_policy: Annotated[
        IPFamilyPolicy | None,
        Meta(
            description="Whether the Services have both families, as in a Service. Absent: what Kubernetes makes of it. Once it is"
            " given it can be changed, not taken away: a Service keeps the one it has."
        ),
    ] = None

    @property
    def broker_family(self) -> str:
        """The family of the address by which a broker is known; empty where the cluster's own counts."""
        return self.ip_families[0].value if self.ip_families else ""

    def on_services(self) -> bounds.JsonObject:
        """What the spec of each Service gets; nothing where nothing is asked for."""
        families = {"ipFamilies": [one.value for one in self.ip_families]} if self.ip_families else {}
        return families | ({"ipFamilyPolicy": self.ip_family_policy.value} if self.ip_family_policy else {})

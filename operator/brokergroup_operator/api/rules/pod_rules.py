"""Rules of what a pod is made from: network, security, JVM, scheduling and the pod template."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api.brokergroup import JvmSpec, SecuritySpec
from brokergroup_operator.api.fields.ip_families import IPFamiliesSpec
from brokergroup_operator.api.fields.pod_fields import NetworkSpec, TemplateSpec, Toleration
from brokergroup_operator.api.names import OWN_CONTAINERS, OWN_VOLUMES
from brokergroup_operator.api.rules.rule import Rule

if TYPE_CHECKING:
    from msgspec import Struct


def not_of_the_operator(field: str, own: tuple[str, ...]) -> Rule:
    """Items of these names are the operator's; a pod template adds, it doesn't change them."""
    listed = ", ".join(f"'{name}'" for name in own)
    return Rule(
        f"self.{field}.all(item, !(item.name in [{listed}]))",
        f"{field} may not name {', '.join(own)}: those are the operator's own; use the fields of spec, or another name",
        field_path=f".{field}",
        reason="FieldValueForbidden",
    )


_IP_FAMILIES: Final = (
    Rule(
        "size(self.ipFamilies) < 2 || self.ipFamilies[0] != self.ipFamilies[1]",
        "ipFamilies must not name one family twice",
        field_path=".ipFamilies",
    ),
    Rule(
        "size(self.ipFamilies) < 2 || !has(self.ipFamilyPolicy) || self.ipFamilyPolicy != 'SingleStack'",
        "ipFamilyPolicy SingleStack has one family: name one in ipFamilies, or choose PreferDualStack or RequireDualStack",
        field_path=".ipFamilyPolicy",
    ),
    Rule(
        "size(oldSelf.ipFamilies) == 0 || (size(self.ipFamilies) > 0 && self.ipFamilies[0] == oldSelf.ipFamilies[0])",
        "the first of ipFamilies is immutable: Kubernetes keeps the first family of a Service",
        field_path=".ipFamilies",
    ),
    Rule(
        "!has(oldSelf.ipFamilyPolicy) || has(self.ipFamilyPolicy)",
        "ipFamilyPolicy can't be taken away, for a Service keeps the one it has: name SingleStack, Kubernetes' own default",
        field_path=".ipFamilyPolicy",
    ),
)

# On a whole object, by its type.
OBJECT_RULES: Final[dict[type[Struct], tuple[Rule, ...]]] = {
    SecuritySpec: (
        Rule(
            "self.signature != 'Required' || has(self.credentialsSecretName)",
            "signature Required needs credentialsSecretName: without it no broker could sign",
            field_path=".credentialsSecretName",
            reason="FieldValueRequired",
        ),
    ),
    IPFamiliesSpec: _IP_FAMILIES,
    NetworkSpec: (
        *_IP_FAMILIES,
        Rule(
            "!(self.haPort in [self.listenPort - 2, self.listenPort, self.listenPort + 2])",
            "haPort must not be listenPort, nor the fast port two below it, nor the fence's port two above it",
            field_path=".haPort",
        ),
        Rule(
            "(self.addressing == 'NodePort') == has(self.firstNodePort)",
            "firstNodePort belongs to addressing NodePort, and to it alone: each member needs a port that is known before"
            " its broker starts",
            field_path=".firstNodePort",
            reason="FieldValueRequired",
        ),
    ),
    Toleration: (
        Rule(
            "self.operator != 'Equal' || has(self.key)",
            "a toleration with operator Equal needs a key; operator Exists without a key bears every taint",
            field_path=".key",
            reason="FieldValueRequired",
        ),
        Rule(
            "self.operator != 'Exists' || !has(self.value)",
            "a toleration with operator Exists looks at no value",
            field_path=".value",
        ),
        Rule(
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            "tolerationSeconds needs effect NoExecute: of the other effects none ends",
            field_path=".effect",
        ),
    ),
    TemplateSpec: (
        not_of_the_operator("containers", OWN_CONTAINERS),
        not_of_the_operator("initContainers", OWN_CONTAINERS),
        not_of_the_operator("volumes", OWN_VOLUMES),
        Rule(
            "self.initContainers.all(item, !self.containers.exists(other, other.name == item.name))",
            "initContainers and containers may not have one name: a pod's containers are told apart by it",
            field_path=".initContainers",
        ),
    ),
    JvmSpec: (
        Rule(
            "self.heapPercent + self.directMemoryPercent <= 90",
            "heapPercent and directMemoryPercent together must leave 10 percent of limits.memory to the JVM itself",
            field_path=".heapPercent",
        ),
    ),
}

# On a single field, by its object's type and its name on the wire.
FIELD_RULES: Final[dict[tuple[str, str], tuple[Rule, ...]]] = {}

"""Rules of the keys of maps that become labels, annotations, selectors or resources: a schema can't say what a map's key may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api.bounds import LABEL_KEY_PATTERN, LONGEST_LABEL_KEY
from brokergroup_operator.api.brokergroup import ResourceRequirements
from brokergroup_operator.api.rules.rule import Rule

if TYPE_CHECKING:
    from msgspec import Struct

_IS_KEY: Final = f"size(key) <= {LONGEST_LABEL_KEY} && key.matches('{LABEL_KEY_PATTERN}')"
_FORM: Final = (
    "(at most 63 letters, digits, '-', '_' and '.', with an optional DNS prefix and '/' before them;"
    f" {LONGEST_LABEL_KEY} in all)"
)
# Of these a container may ask for less than it may use at most.
_SHARED: Final = "['cpu', 'memory', 'ephemeral-storage']"


def label_keys(what: str, *reserved: str) -> Rule:
    """Keys of labels or annotations, `reserved` prefixes excepted."""
    own = "".join(f" && !key.startsWith('{prefix}')" for prefix in reserved)
    named = f", and those of {' and '.join(reserved)} are the operator's own" if reserved else ""
    told = f"{what} must be label names {_FORM}{named}"
    return Rule(
        f"self.all(key, {_IS_KEY}{own})",
        told,
        reason="FieldValueForbidden" if reserved else "FieldValueInvalid",
        message_expression=f'self.filter(key, !({_IS_KEY}{own}))[0] + ": {told}"',
    )


# A quota on a device is called requests.DOMAIN/NAME.
_LONGEST_RESOURCE: Final = LONGEST_LABEL_KEY - len("requests.")
_RESOURCE_NAMES: Final = Rule(
    f"self.all(key, {_IS_KEY} && size(key) <= {_LONGEST_RESOURCE} && !key.startsWith('requests.')"
    f" && (key in {_SHARED} || key.startsWith('hugepages-') || key.contains('/')))",
    "resources are cpu, memory, ephemeral-storage, hugepages-SIZE, or a device's as DOMAIN/NAME",
)

# On a whole object, by its type.
OBJECT_RULES: Final[dict[type[Struct], tuple[Rule, ...]]] = {
    ResourceRequirements: (
        Rule(
            "self.requests.all(key, !(key in self.limits) || quantity(self.requests[key]).compareTo(quantity(self.limits[key]))"
            " <= 0)",
            "resources.requests must not exceed resources.limits",
            field_path=".requests",
        ),
        Rule(
            f"self.requests.all(key, key in {_SHARED} || (key in self.limits && self.limits[key] == self.requests[key]))",
            "of hugepages and devices resources.requests must be what resources.limits has: Kubernetes gives out no more",
            field_path=".requests",
        ),
        Rule(
            "self.limits.all(key, !key.contains('/') || quantity(self.limits[key]).isInteger())",
            "of a device resources.limits must be a whole number",
            field_path=".limits",
        ),
        Rule(
            "!self.limits.exists(key, key.startsWith('hugepages-')) || 'cpu' in self.requests || 'memory' in self.requests"
            " || 'cpu' in self.limits || 'memory' in self.limits",
            "hugepages need cpu or memory beside them",
            field_path=".limits",
        ),
    ),
}

# On a single field, by its object's type and its name on the wire.
FIELD_RULES: Final[dict[tuple[str, str], tuple[Rule, ...]]] = {
    ("ResourceRequirements", "requests"): (_RESOURCE_NAMES,),
    ("ResourceRequirements", "limits"): (_RESOURCE_NAMES,),
    ("TemplateMetadata", "labels"): (label_keys("labels", "brokergroup.dev/", "app.kubernetes.io/"),),
    ("TemplateMetadata", "annotations"): (label_keys("annotations", "brokergroup.dev/"),),
    ("SchedulingSpec", "nodeSelector"): (label_keys("nodeSelector keys"),),
    ("GroupOverride", "labels"): (label_keys("labels"),),
}

"""Bounded value types of our kinds. Every string, list and map has an upper bound: an API server refuses a CEL rule whose
worst-case cost it cannot estimate, and an object in etcd must not hold unbounded text.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from brokergroup_operator.api.times import MOMENT_PATTERN
from brokergroup_operator.api.versions import LONGEST_VERSION, VERSION_PATTERN
from brokergroup_operator.json_object import JsonObject as JsonObject  # noqa: PLC0414, TC001 (the structs name it here)

MAX_REPLICAS = 16
# Ids are never reused, so the record may list more than the live replicas until the departed ones are cleaned.
MAX_KNOWN_REPLICAS = 64
MAX_CONFIG_ENTRIES = 256
JAVA_INT_MAX = 2**31 - 1
JAVA_LONG_EXACT_MAX = 2**53 - 1

BrokerNameText = Annotated[str, Meta(min_length=1, max_length=63, pattern="^[A-Za-z0-9_-]{1,63}$")]
AddressText = Annotated[str, Meta(max_length=259)]
NameText = Annotated[str, Meta(max_length=253)]
# Kubernetes' own rules of names (apimachinery/pkg/util/validation). A dot stands in brackets: the same text is used in CEL.
_DNS_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_SUBDOMAIN = f"{_DNS_LABEL}([.]{_DNS_LABEL})*"
DNS_LABEL_PATTERN = f"^{_DNS_LABEL}$"
OBJECT_NAME_PATTERN = f"^{_DNS_SUBDOMAIN}$"
# Of a Service (RFC 1035), and so of what Services are named after.
SERVICE_NAME_PATTERN = DNS_LABEL_PATTERN.replace("[a-z0-9]", "[a-z]", 1)
# The key of a label, an annotation, a taint or a resource; the whole within what its prefix alone may have.
LABEL_KEY_PATTERN = f"^({_DNS_SUBDOMAIN}/)?[A-Za-z0-9]([A-Za-z0-9._-]{{0,61}}[A-Za-z0-9])?$"
LONGEST_LABEL_KEY = 253
LONGEST_OBJECT_NAME = 253


def judged_by_the_api(pattern: str, longest: int, shortest: int = 0) -> Meta:
    """Return a pattern and lengths that only the CRD checks, not the operator: a stored text may be older than the rule."""
    shape: JsonObject = {"minLength": shortest} if shortest else {}
    return Meta(extra_json_schema=shape | {"maxLength": longest, "pattern": pattern})


ObjectName = Annotated[str, judged_by_the_api(OBJECT_NAME_PATTERN, LONGEST_OBJECT_NAME, 1)]
LabelKey = Annotated[str, judged_by_the_api(LABEL_KEY_PATTERN, LONGEST_LABEL_KEY, 1)]
# The empty text is Kubernetes' own: no class.
ClassName = Annotated[str, judged_by_the_api(f"^({_DNS_SUBDOMAIN})?$", LONGEST_OBJECT_NAME)]
LabelValue = Annotated[str, judged_by_the_api("^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$", 63)]
# The longest names made of a group's are those of its Services, `<group>-<brokerId>` of ten digits among them; they have 63.
LONGEST_GROUP_NAME = 52
GroupNameText = Annotated[str, judged_by_the_api(SERVICE_NAME_PATTERN, LONGEST_GROUP_NAME, 1)]
# The folder of a backup: the group's name, and the operation's.
LONGEST_BACKUP_NAME = LONGEST_GROUP_NAME + 1 + LONGEST_OBJECT_NAME
BackupName = Annotated[str, judged_by_the_api(f"^{_DNS_SUBDOMAIN}/{_DNS_SUBDOMAIN}$", LONGEST_BACKUP_NAME, 3)]
ZoneText = Annotated[str, Meta(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")]
ImageText = Annotated[str, judged_by_the_api(r"^[A-Za-z0-9\[]([A-Za-z0-9._/:@\[\]-]*[A-Za-z0-9_-])?$", 512, 1)]
# A version is a label's value and an image's tag.
VersionText = Annotated[str, judged_by_the_api(VERSION_PATTERN, LONGEST_VERSION)]
WordText = Annotated[str, Meta(max_length=64)]
TimeText = Annotated[str, Meta(max_length=40, extra_json_schema={"format": "date-time"})]
# A time that a person writes. Only the schema has the pattern: an object that was stored before it is still read, and refused with
# words (times.py).
MomentText = Annotated[str, Meta(max_length=40, extra_json_schema={"format": "date-time", "pattern": MOMENT_PATTERN})]
QuantityText = Annotated[
    str, Meta(min_length=1, max_length=20, pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$")
]
# A volume of no size is none: the API server refuses its claim, long after the group was taken.
SizeText = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=20,
        pattern=r"^(0*[1-9][0-9]*(\.[0-9]+)?|0+\.0*[1-9][0-9]*)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$",
    ),
]
ConfigValue = Annotated[str, Meta(max_length=1024, pattern=r"^[^\r\n]*$")]
BrokerId = Annotated[int, Meta(ge=1, le=JAVA_LONG_EXACT_MAX)]
Epoch = Annotated[int, Meta(ge=0, le=JAVA_INT_MAX)]
Count = Annotated[int, Meta(ge=0, le=MAX_KNOWN_REPLICAS)]
Milliseconds = Annotated[int, Meta(ge=0, le=JAVA_INT_MAX)]

SET_LIST = {"x-kubernetes-list-type": "set"}
ATOMIC_LIST = {"x-kubernetes-list-type": "atomic"}


def map_list(*keys: str) -> JsonObject:
    """List whose items are identified by these fields: server-side apply merges them, and the API refuses doubles."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


_PORT: Final = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_OCTET: Final = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4: Final = rf"{_OCTET}([.]{_OCTET}){{3}}"
_LABEL: Final = "[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_PAIR: Final = "[0-9A-Fa-f]{1,4}"
_IPV6: Final = "|".join(
    (
        rf"({_PAIR}:){{7}}{_PAIR}",
        rf"({_PAIR}:){{1,7}}:",
        *(rf"({_PAIR}:){{1,{left}}}(:{_PAIR}){{1,{7 - left}}}" for left in range(6, 0, -1)),
        rf":(:{_PAIR}){{1,7}}",
        "::",
        rf"::[Ff]{{4}}:{_IPV4}",
    )
)
# Up to 32, and up to 128.
_IPV4_PREFIX: Final = "/(3[0-2]|[12]?[0-9])"
_IPV6_PREFIX: Final = "/(12[0-8]|1[01][0-9]|[1-9]?[0-9])"
CIDR_PATTERN: Final = f"^({_IPV4}{_IPV4_PREFIX}|({_IPV6}){_IPV6_PREFIX})$"
ADDRESS_OR_CIDR_PATTERN: Final = f"^({_IPV4}({_IPV4_PREFIX})?|({_IPV6})({_IPV6_PREFIX})?)$"
_HOST_AND_PORT: Final = (
    rf"self.matches('^({_IPV4}|\\[({_IPV6})\\]|{_LABEL}([.]{_LABEL})*[.]?):{_PORT}$')"
    rf" && (!self.matches('^[0-9.]+:') || self.matches('^{_IPV4}:'))"
)
_EXPECTED_HOST_AND_PORT: Final = (
    "expected host:port with a port from 1 to 65535; an IPv6 address stands in brackets and has no zone, as in"
    " [fd00::10]:9876"
)
HostAndPort = Annotated[
    str,
    Meta(
        min_length=3,
        max_length=259,
        extra_json_schema={
            "x-kubernetes-validations": [
                {"rule": _HOST_AND_PORT, "message": _EXPECTED_HOST_AND_PORT, "reason": "FieldValueInvalid"}
            ]
        },
    ),
]

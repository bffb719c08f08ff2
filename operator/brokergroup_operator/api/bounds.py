"""Bounded value types of our kinds.

Every string, list and map carries an upper bound: a real API server refuses a CEL rule whose worst case cost it cannot
bound, and an object that etcd must hold is no place for unbounded text.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

JsonObject = dict[str, Any]

MAX_REPLICAS = 16
# Ids are never reused, so the record may list more than the live replicas until the departed ones are cleaned.
MAX_KNOWN_REPLICAS = 64
MAX_CONFIG_ENTRIES = 256
JAVA_INT_MAX = 2**31 - 1
JAVA_LONG_EXACT_MAX = 2**53 - 1

BrokerNameText = Annotated[str, Meta(min_length=1, max_length=63, pattern="^[A-Za-z0-9_-]{1,63}$")]
AddressText = Annotated[str, Meta(max_length=259)]
NameText = Annotated[str, Meta(max_length=253)]
OBJECT_NAME_PATTERN = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
SecretNameText = Annotated[str, Meta(min_length=1, max_length=253, pattern=OBJECT_NAME_PATTERN)]
ZoneText = Annotated[str, Meta(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")]
ImageText = Annotated[str, Meta(min_length=1, max_length=512, pattern=r"^[^\s]+$")]
VersionText = Annotated[str, Meta(max_length=32, pattern=r"^[0-9]+\.[0-9]+\.[0-9]+[0-9A-Za-z.-]*$")]
WordText = Annotated[str, Meta(max_length=64)]
TimeText = Annotated[str, Meta(max_length=40, extra_json_schema={"format": "date-time"})]
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

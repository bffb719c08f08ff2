"""Request bodies in protobuf, for the few kinds that kubectl's own verbs send that way.

`kubectl create namespace|configmap|secret|serviceaccount` and `kubectl drain` do not negotiate: they send Kubernetes'
protobuf. Answers stay JSON, which those clients accept. The envelope and field numbers are those of
k8s.io/apimachinery/pkg/runtime/generated.proto and k8s.io/api/*/generated.proto; kinds not listed are refused with 415.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from brokergroup_operator.sandbox.api_server.errors import bad_request, unsupported_media_type
from brokergroup_operator.sandbox.api_server.metadata import timestamp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokergroup_operator.sandbox.api_server.json_values import JsonObject

MAGIC = b"k8s\x00"
CONTENT_TYPE = "application/vnd.kubernetes.protobuf"


@dataclass(frozen=True)
class _Field:
    """A field of a message: its JSON name and how to read it."""

    name: str
    kind: str = "text"
    repeated: bool = False


_MESSAGES: dict[str, dict[int, _Field]] = {
    "ObjectMeta": {
        1: _Field("name"),
        2: _Field("generateName"),
        3: _Field("namespace"),
        5: _Field("uid"),
        6: _Field("resourceVersion"),
        8: _Field("creationTimestamp", "Time"),
        11: _Field("labels", "text map"),
        12: _Field("annotations", "text map"),
        13: _Field("ownerReferences", "OwnerReference", repeated=True),
        14: _Field("finalizers", repeated=True),
    },
    "OwnerReference": {
        1: _Field("kind"),
        3: _Field("name"),
        4: _Field("uid"),
        5: _Field("apiVersion"),
        6: _Field("controller", "flag"),
        7: _Field("blockOwnerDeletion", "flag"),
    },
    "LocalObjectReference": {1: _Field("name")},
    "Namespace": {1: _Field("metadata", "ObjectMeta")},
    "ConfigMap": {
        1: _Field("metadata", "ObjectMeta"),
        2: _Field("data", "text map"),
        3: _Field("binaryData", "bytes map"),
        4: _Field("immutable", "flag"),
    },
    "Secret": {
        1: _Field("metadata", "ObjectMeta"),
        2: _Field("data", "bytes map"),
        3: _Field("type"),
        4: _Field("stringData", "text map"),
        5: _Field("immutable", "flag"),
    },
    "ServiceAccount": {
        1: _Field("metadata", "ObjectMeta"),
        3: _Field("imagePullSecrets", "LocalObjectReference", repeated=True),
        4: _Field("automountServiceAccountToken", "flag"),
    },
    "Eviction": {1: _Field("metadata", "ObjectMeta"), 2: _Field("deleteOptions", "DeleteOptions")},
    "DeleteOptions": {
        1: _Field("gracePeriodSeconds", "number"),
        2: _Field("preconditions", "Preconditions"),
        3: _Field("orphanDependents", "flag"),
        4: _Field("propagationPolicy"),
        5: _Field("dryRun", repeated=True),
    },
    "Preconditions": {1: _Field("uid"), 2: _Field("resourceVersion")},
}
_KINDS = ("Namespace", "ConfigMap", "Secret", "ServiceAccount", "Eviction", "DeleteOptions")


def decode(body: bytes) -> JsonObject:
    """The object in a protobuf request body; 400 if it is none, 415 for a kind not listed here."""
    if not body.startswith(MAGIC):
        raise bad_request("the protobuf body does not begin with k8s\\x00")
    try:
        envelope = dict(_fields(body[len(MAGIC) :]))
        type_meta = dict(_fields(envelope.get(1, b"")))
        kind = bytes(type_meta.get(2, b"")).decode()
        if kind not in _KINDS:
            raise unsupported_media_type(f"{CONTENT_TYPE} with a {kind}", ("application/json", "application/yaml"))
        content = _message(kind, envelope.get(2, b""))
        return {"apiVersion": bytes(type_meta.get(1, b"")).decode(), "kind": kind, **content}
    except (IndexError, UnicodeDecodeError, TypeError) as error:
        raise bad_request(f"the protobuf body cannot be read: {error}") from error


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        shift += 7
        if not byte & 0x80:
            return value, position


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of each field: an int for a varint, bytes for everything else."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            value, position = _varint(data, position)
            yield number, value
        elif wire_type == 2:
            length, position = _varint(data, position)
            if position + length > len(data):
                raise IndexError(f"field {number} is longer than the message")
            yield number, data[position : position + length]
            position += length
        else:
            raise TypeError(f"field {number} has the unexpected wire type {wire_type}")


def _message(name: str, data: bytes) -> JsonObject:
    """A message as JSON; what is empty is left out, since Go's encoder writes empty texts too."""
    known = _MESSAGES[name]
    found: JsonObject = {}
    for number, raw in _fields(data):
        field = known.get(number)
        if field is None:
            continue
        if field.kind.endswith(" map"):
            key, value = _map_entry(raw, field.kind)
            found.setdefault(field.name, {})[key] = value
            continue
        value = _value(field.kind, raw)
        if field.repeated:
            found.setdefault(field.name, []).append(value)
        elif value not in ("", None, {}):
            found[field.name] = value
    return found


def _map_entry(raw: bytes, kind: str) -> tuple[str, str]:
    entry = dict(_fields(raw))
    value = bytes(entry.get(2, b""))
    return bytes(entry.get(1, b"")).decode(), base64.b64encode(
        value
    ).decode() if kind == "bytes map" else value.decode()


def _value(kind: str, raw: Any) -> Any:
    match kind:
        case "text":
            return bytes(raw).decode()
        case "flag":
            return bool(raw)
        case "number":
            return raw - (1 << 64) if raw >= 1 << 63 else raw
        case "Time":
            seconds = dict(_fields(raw)).get(1)
            return timestamp(seconds) if seconds else None
    return _message(kind, raw)

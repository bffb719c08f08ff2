"""ObjectMeta: fields that a client sets, fields that only the server sets, and the rules for names and labels.

Rules as in k8s.io/apimachinery/pkg/api/validation/objectmeta.go and util/validation.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kube_sandbox.api_server.errors import FieldError, bad_request, forbidden_field, invalid, required

if TYPE_CHECKING:
    import random

    from kube_sandbox.api_server.resource_types import ResourceType
    from kube_sandbox.api_server.values import JsonObject

_KNOWN = {
    "name": str,
    "generateName": str,
    "namespace": str,
    "selfLink": str,
    "uid": str,
    "resourceVersion": str,
    "generation": int,
    "creationTimestamp": str,
    "deletionTimestamp": str,
    "deletionGracePeriodSeconds": int,
    "labels": dict,
    "annotations": dict,
    "ownerReferences": list,
    "finalizers": list,
    "managedFields": list,
}
_SERVER_OWNED = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end"
    " with an alphanumeric character (e.g. 'example.com', regex used for validation is"
    " '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an"
    " alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_DNS_1035_RULE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end"
    " with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_QUALIFIED_NAME = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_KEY_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric"
    " character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is"
    " '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end"
    " with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is"
    " '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


def timestamp(now_seconds: float) -> str:
    """Return a metav1.Time: whole seconds, UTC."""
    return datetime.fromtimestamp(int(now_seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def check_shape(obj: JsonObject, resource: ResourceType) -> None:
    """Raise 400 for what kube-apiserver's decoder would not read; drop unknown metadata fields."""
    if obj.setdefault("apiVersion", resource.api_version) != resource.api_version:
        raise bad_request(
            f"the API version in the data ({obj['apiVersion']}) does not match the expected API version"
            f" ({resource.api_version})"
        )
    if obj.setdefault("kind", resource.kind) != resource.kind:
        raise bad_request(f"the kind in the data ({obj['kind']}) does not match the expected kind ({resource.kind})")
    metadata = obj.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise bad_request(f"metadata must be an object, got {metadata!r}")
    obj["metadata"] = {key: value for key, value in metadata.items() if key in _KNOWN and value is not None}
    for key, value in obj["metadata"].items():
        if type(value) is not _KNOWN[key]:
            raise bad_request(f"metadata.{key} must be of type {_KNOWN[key].__name__}, got {value!r}")
    for key in ("labels", "annotations"):
        for name, text in (obj["metadata"].get(key) or {}).items():
            if not isinstance(text, str):
                raise bad_request(f"metadata.{key}: expected a string at {name!r}, got {text!r}")


def tidy(metadata: JsonObject) -> None:
    """Drop empty maps, lists and strings: Go's omitempty."""
    for key in ("labels", "annotations", "ownerReferences", "finalizers", "generateName", "managedFields", "selfLink"):
        if key in metadata and not metadata[key]:
            del metadata[key]


def prepare_create(metadata: JsonObject, *, uid: str, now_seconds: float, random_source: random.Random) -> None:
    """Give a new object its identity, whatever the client sent of it."""
    for key in (*_SERVER_OWNED, "resourceVersion", "selfLink"):
        metadata.pop(key, None)
    if not metadata.get("name") and metadata.get("generateName"):
        suffix = "".join(random_source.choice(_NAME_LETTERS) for _ in range(5))
        metadata["name"] = metadata["generateName"][:58] + suffix
    metadata["uid"] = uid
    metadata["creationTimestamp"] = timestamp(now_seconds)


def prepare_update(metadata: JsonObject, old: JsonObject) -> None:
    """Carry identity over from the stored object."""
    for key in _SERVER_OWNED:
        if key in old:
            metadata[key] = old[key]
        else:
            metadata.pop(key, None)
    if "generateName" in old:
        metadata.setdefault("generateName", old["generateName"])


def validate(metadata: JsonObject, old: JsonObject | None, *, name_rule: str = "subdomain") -> list[FieldError]:
    """Return complaints about name, labels, finalizers and owners."""
    errors: list[FieldError] = []
    if old is None:
        name = metadata.get("name", "")
        missing = [required("metadata.name", "name or generateName is required")]
        errors += name_errors("metadata.name", name, name_rule) if name else missing
    errors += label_errors("metadata.labels", metadata.get("labels") or {})
    errors += [
        invalid("metadata.annotations", key, _KEY_RULE)
        for key in metadata.get("annotations") or {}
        if not _is_qualified_name(key.lower())
    ]
    errors += _owner_errors(metadata.get("ownerReferences") or [])
    errors += _finalizer_errors(metadata, old)
    return errors


def name_errors(field: str, name: str, rule: str = "subdomain") -> list[FieldError]:
    """Return complaints about a name, its own or another object's: `subdomain`, `label` or `dns1035`."""
    pattern, longest, text = {
        "subdomain": (_SUBDOMAIN, 253, _SUBDOMAIN_RULE),
        "label": (_LABEL, 63, _LABEL_RULE),
        "dns1035": ("[a-z]([-a-z0-9]*[a-z0-9])?", 63, _DNS_1035_RULE),
    }[rule]
    if len(name) > longest:
        unit = "characters" if rule == "dns1035" else "bytes"
        return [invalid(field, name, f"must be no more than {longest} {unit}")]
    if re.fullmatch(pattern, name):
        return []
    has_dots = rule == "label" and re.fullmatch(_SUBDOMAIN, name) is not None
    return [invalid(field, name, "must not contain dots" if has_dots else text)]


def key_errors(field: str, key: str) -> list[FieldError]:
    """Return complaints about the key of a label, also in a field of its own."""
    return [] if _is_qualified_name(key) else [invalid(field, key, _KEY_RULE)]


def _is_qualified_name(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    if slash and not (prefix and len(prefix) <= 253 and re.fullmatch(_SUBDOMAIN, prefix)):
        return False
    return len(name) <= 63 and re.fullmatch(_QUALIFIED_NAME, name) is not None


def label_errors(field: str, labels: JsonObject) -> list[FieldError]:
    """Return complaints about labels, also those that a selector wants."""
    errors = [error for key in labels for error in key_errors(field, key)]
    for value in labels.values():
        errors += label_value_errors(field, value)
    return errors


def label_value_errors(field: str, value: str) -> list[FieldError]:
    """Return complaints about the value of a label."""
    if len(value) > 63:
        return [invalid(field, value, "must be no more than 63 bytes")]
    return [invalid(field, value, _VALUE_RULE)] if value and not re.fullmatch(_QUALIFIED_NAME, value) else []


def _owner_errors(owners: list[JsonObject]) -> list[FieldError]:
    errors = []
    for index, owner in enumerate(owners):
        for key in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(key):
                shown = {"apiVersion": "version"}.get(key, key)
                errors.append(invalid(f"metadata.ownerReferences[{index}].{key}", "", f"{shown} must not be empty"))
    controllers = [owner for owner in owners if owner.get("controller")]
    if len(controllers) > 1:
        names = ", ".join(f"{owner.get('kind')}/{owner.get('name')}" for owner in controllers)
        errors.append(invalid("metadata.ownerReferences", names, "Only one reference can have Controller set to true"))
    return errors


def _finalizer_errors(metadata: JsonObject, old: JsonObject | None) -> list[FieldError]:
    errors = [
        invalid("metadata.finalizers", finalizer, _KEY_RULE)
        for finalizer in metadata.get("finalizers") or ()
        if not _is_qualified_name(str(finalizer))
    ]
    if old is not None and "deletionTimestamp" in old:
        added = [name for name in metadata.get("finalizers") or () if name not in (old.get("finalizers") or ())]
        if added:
            listed = ", ".join(f'"{name}"' for name in added)
            detail = (
                "no new finalizers can be added if the object is being deleted, found new finalizers"
                f" []string{{{listed}}}"
            )
            errors.append(forbidden_field("metadata.finalizers", detail))
    return errors

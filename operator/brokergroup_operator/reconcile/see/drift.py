"""Says whether an object already is what we would apply, so that a pass over a healthy group writes nothing."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from brokergroup_operator.api import names
from brokergroup_operator.reconcile import quantities
from brokergroup_operator.reconcile.plan import Action, ApplyObject
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.observed import annotations_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.resources import Resource


def content_hash(text: str) -> str:
    """Short, stable, no secret: it only says whether two texts are the same."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def with_revision(desired: JsonObject) -> JsonObject:
    """Marks the object with a hash of what we want: fields we stop wanting are then noticed too."""
    revision = content_hash(json.dumps(desired, sort_keys=True))
    metadata = dict(desired["metadata"])
    metadata["annotations"] = dict(metadata.get("annotations") or {}) | {names.ANNOTATION_REVISION: revision}
    return desired | {"metadata": metadata}


def apply_if_drifted(resource: Resource, existing: Mapping[str, JsonObject], wanted: JsonObject) -> Iterator[Action]:
    """The object as we want it, unless it is so already or just going."""
    desired = with_revision(wanted)
    actual = existing.get(str(desired["metadata"]["name"]))
    if actual is not None and observed.being_deleted(actual):
        return
    if why := drifted(actual, desired):
        yield ApplyObject(reason=why, resource=resource, object=desired)


def drifted(actual: JsonObject | None, desired: JsonObject) -> str:
    """Why the object must be applied, or the empty text. `desired` carries its revision."""
    if actual is None:
        return "missing"
    wanted = annotations_of(desired).get(names.ANNOTATION_REVISION)
    if annotations_of(actual).get(names.ANNOTATION_REVISION) != wanted:
        return "the wanted object changed"
    difference = first_difference(desired, actual)
    return f"another writer changed {difference}" if difference else ""


def first_difference(desired: Any, actual: Any, path: str = "") -> str:
    """The path of the first field that is not as desired; fields that the API server adds do not count."""
    if isinstance(desired, dict):
        if not isinstance(actual, dict):
            return path or "."
        return next(filter(None, (first_difference(v, actual.get(k), f"{path}.{k}") for k, v in desired.items())), "")
    if isinstance(desired, list):
        return _list_difference(desired, actual, path) if isinstance(actual, list) else path
    return "" if _equal(desired, actual) else path


def _list_difference(desired: list[Any], actual: list[Any], path: str) -> str:
    """Other managers may add items (owner references, ports); ours must be there, in whatever order."""
    for index, item in enumerate(desired):
        if not any(first_difference(item, other) == "" for other in actual):
            return f"{path}[{index}]"
    return ""


def _equal(desired: Any, actual: Any) -> bool:
    if desired == actual:
        return True
    if not (isinstance(desired, str) and isinstance(actual, str)):
        return False
    try:
        return quantities.parse(desired) == quantities.parse(actual)
    except quantities.QuantityError:
        return False

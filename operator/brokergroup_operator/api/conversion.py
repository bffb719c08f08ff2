"""Objects of v1alpha1 as objects of v1beta1. Pure; the command is `brokergroup convert`.

Each field keeps its place. What changes is reported field by field. A value that v1beta1 can't have is a problem: it names the
field, the value and what is expected, and nothing of the input may then be written. The record (BrokerGroupState) has the same
fields in both versions. The definitions of our kinds are converted too: the result stores v1beta1, and still lists v1alpha1, so
that stored objects stay where they are until each has been written once (docs/tasks/upgrade.md).
"""

from __future__ import annotations

import copy
import functools
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup import BrokerGroup
from brokergroup_operator.api.brokergroup_operation import BrokerGroupOperation
from brokergroup_operator.api.brokergroup_state import BrokerGroupState
from brokergroup_operator.api.rocketmq_cluster import RocketMQCluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.api.bounds import JsonObject

OLD_VERSION: Final = "v1alpha1"
OLD_API_VERSION: Final = f"{names.GROUP}/{OLD_VERSION}"
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

IMPLEMENTATIONS: Final = {"rocketmq": "Java", "replica": "Python"}
SIGNATURES: Final = {"Off": "Disabled", "Accepted": "Accepted", "Required": "Required"}
SECRETS: Final = {"credentialsSecretName": "credentialsSecretRef", "certificateSecretName": "certificateSecretRef"}
APART: Final = {"antiAffinity": "type", "topologyKey": "topologyKey"}
PLACEMENT: Final = ("nodeSelector", "tolerations", "affinity", "topologySpreadConstraints", "priorityClassName")
FINISHED: Final = ("Succeeded", "Failed", "Rejected")
DEFAULT_HEARTBEAT_TIMEOUT: Final = 3000


@dataclass
class Report:
    """What was renamed or dropped, and what could not be carried over; each line names object and field."""

    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    of: str = ""

    def note(self, path: str, what: str) -> None:
        self.notes.append(f"{self.of}: {path} {what}")

    def problem(self, path: str, value: Any, expected: str) -> None:
        self.problems.append(f"{self.of}: {path} is {json.dumps(value, default=str)}, expected {expected}")


def converted(document: Any, report: Report) -> Any:
    """Return the document as v1beta1 has it; one that is no object of ours, or of v1beta1 already, as it is."""
    if not isinstance(document, dict):
        return document
    if isinstance(document.get("items"), list) and str(document.get("kind")).endswith("List"):
        items = [converted(item, report) for item in document["items"]]
        version = {"apiVersion": names.API_VERSION} if document.get("apiVersion") == OLD_API_VERSION else {}
        return document | version | {"items": items}
    report.of = _title(document)
    if document.get("kind") == "CustomResourceDefinition":
        return _definition(document, report)
    if document.get("apiVersion") != OLD_API_VERSION:
        return document
    convert = _OF_KINDS.get(str(document.get("kind")))
    if convert is None:
        report.problem("kind", document.get("kind"), f"one of {', '.join(_OF_KINDS)}")
        return document
    result = copy.deepcopy(document) | {"apiVersion": names.API_VERSION}
    _metadata(result, report)
    known = len(report.problems)
    convert(result, report)
    if len(report.problems) == known:
        _judge(result, report)
    return result


def _title(document: JsonObject) -> str:
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    where = [str(metadata[key]) for key in ("namespace", "name") if metadata.get(key)]
    return f"{document.get('kind')} {'/'.join(where) or '(without a name)'}"


def _metadata(document: JsonObject, report: Report) -> None:
    """Owners among our kinds have the new version too, and so does what `kubectl apply` compares the next manifest with."""
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        return
    for owner in metadata.get("ownerReferences") or []:
        if owner.get("apiVersion") == OLD_API_VERSION:
            owner["apiVersion"] = names.API_VERSION
    for entry in metadata.get("managedFields") or []:
        if entry.get("apiVersion") == OLD_API_VERSION:
            entry["apiVersion"] = names.API_VERSION
            entry["fieldsV1"] = _known_fields(entry.get("fieldsV1") or {}, _schema_of(document["kind"]))
    annotations = metadata.get("annotations")
    if not isinstance(annotations, dict) or LAST_APPLIED not in annotations:
        return
    inner = Report()
    try:
        applied = converted(json.loads(annotations[LAST_APPLIED]), inner)
    except ValueError:
        inner.problems.append("no JSON")
    if inner.problems:
        del annotations[LAST_APPLIED]
        report.note(f"metadata.annotations[{LAST_APPLIED}]", "is dropped: it can't be converted")
    else:
        annotations[LAST_APPLIED] = json.dumps(applied, separators=(",", ":"), ensure_ascii=False)


def _known_fields(fields: JsonObject, schema: JsonObject) -> JsonObject:
    """Return the fields of a manager that v1beta1 has; below a field without a schema (metadata, a map), all of them.

    The API server forgets the managers of an object if one of them has a version that it can't read. An operator that applies a
    status then no longer removes what it applied before.
    """
    known: JsonObject = {}
    for key, inner in fields.items():
        name = key.removeprefix("f:")
        if key.startswith("f:") and "properties" in schema:
            if name == "metadata":
                known[key] = inner
            elif name in schema["properties"]:
                known[key] = _known_fields(inner, schema["properties"][name])
        else:
            known[key] = _known_fields(inner, schema.get("items", {}) if key.startswith("k:") else schema)
    return known


def _judge(document: JsonObject, report: Report) -> None:
    """Report the first value that the API server would refuse: once it stores v1beta1, there is no way back to correct it."""
    from brokergroup_operator.api.definitions.schema import without_nulls  # noqa: PLC0415 (as below)

    try:
        msgspec.convert(without_nulls(document), _TYPES[document["kind"]])
    except msgspec.ValidationError as error:
        what, _, place = str(error).replace("`", "").partition(" - at $.")
        missing = what.partition("missing required field ")[2]
        path = ".".join(filter(None, (place, missing)))
        expected = "a value" if missing else _names_at(document["kind"], path) or what.removeprefix("Expected ")
        report.problem(path, _value_at(document, path), expected)


def _steps(path: str) -> list[str]:
    """Return the fields and indexes of a path as msgspec writes it. It does not name the entry of a map, `[...]`."""
    return re.findall(r"[^.\[\]]+", path.replace("[...]", ""))


def _value_at(document: JsonObject, path: str) -> Any:
    value: Any = document
    for step in _steps(path):
        value = value[int(step)] if isinstance(value, list) else (value or {}).get(step)
    return value


def _names_at(kind: str, path: str) -> str:
    """Return what an enumeration at that path can be; nothing where the path has another type."""
    schema = _schema_of(kind)
    for step in _steps(path):
        schema = schema.get("items") or schema.get("properties", {}).get(step, {})
    return f"one of {', '.join(schema['enum'])}" if "enum" in schema else ""


@functools.cache
def _schema_of(kind: str) -> JsonObject:
    from brokergroup_operator.api.definitions.generate import (  # noqa: PLC0415 (heavy, and seldom asked for)
        KINDS,
        custom_resource_definition,
    )

    [found] = [one for one in KINDS if one.type is _TYPES[kind]]
    schema: JsonObject = custom_resource_definition(found)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _group(document: JsonObject, report: Report) -> None:
    _without_status(document, report)
    spec = _section(document, "spec", "spec", report)
    if spec is None:
        return
    _group_spec(spec, "spec", report)
    if spec.get("implementation", "Java") == "Java" and not spec.get("nameServers"):
        # Absent or empty; a RocketMQCluster has set those of its groups.
        expected = "a NameServer as host:port: Java brokers register nowhere else"
        report.problem("spec.nameServers", spec.get("nameServers"), expected)


def _cluster(document: JsonObject, report: Report) -> None:
    _without_status(document, report)
    spec = _section(document, "spec", "spec", report) or {}
    for part in ("nameServer", "proxy"):
        if section := _section(spec, part, f"spec.{part}", report):
            _scheduling(section, f"spec.{part}", report)
    groups = _section(spec, "brokerGroups", "spec.brokerGroups", report) or {}
    path = "spec.brokerGroups.template"
    if template := _section(groups, "template", path, report):
        _group_spec(template, path, report)


def _operation(document: JsonObject, report: Report) -> None:
    phase = (document.get("status") or {}).get("phase")
    if phase in FINISHED:
        report.note("status.phase", f"is {phase}: create it nowhere anew, since it would be done again")
    _without_status(document, report)


def _state(_document: JsonObject, _report: Report) -> None:
    """The record is the same in both versions."""


_OF_KINDS: Final[dict[str, Callable[[JsonObject, Report], None]]] = {
    names.BROKER_GROUP_KIND: _group,
    names.ROCKETMQ_CLUSTER_KIND: _cluster,
    names.BROKER_GROUP_OPERATION_KIND: _operation,
    names.BROKER_GROUP_STATE_KIND: _state,
}
_TYPES: Final[dict[str, type[msgspec.Struct]]] = {
    names.BROKER_GROUP_KIND: BrokerGroup,
    names.ROCKETMQ_CLUSTER_KIND: RocketMQCluster,
    names.BROKER_GROUP_OPERATION_KIND: BrokerGroupOperation,
    names.BROKER_GROUP_STATE_KIND: BrokerGroupState,
}


def _without_status(document: JsonObject, report: Report) -> None:
    if document.pop("status", None):
        report.note("status", "is dropped: the operator writes it")


def _group_spec(spec: JsonObject, path: str, report: Report) -> None:
    _renamed_value(spec, "implementation", IMPLEMENTATIONS, path, report)
    if security := _section(spec, "security", f"{path}.security", report):
        _security(security, f"{path}.security", report)
    _scheduling(spec, path, report)
    _times(spec, path, report)
    replication = _section(spec, "replication", f"{path}.replication", report) or {}
    for name in ("inSyncReplicas", "allAckInSyncStateSet"):
        if (value := replication.pop(name, None)) is not None:
            report.note(f"{path}.replication.{name}", f"({json.dumps(value)}) is dropped: it follows from durability")
    _drop_if_emptied(spec, "replication", replication)


def _security(security: JsonObject, path: str, report: Report) -> None:
    _renamed_value(security, "signature", SIGNATURES, path, report)
    for old, new in SECRETS.items():
        name = security.get(old)
        if name is None:
            security.pop(old, None)
        elif isinstance(name, str):
            _replace(security, old, {new: {"name": name}})
            report.note(f"{path}.{old}", f"is {path}.{new}.name")
        else:
            report.problem(f"{path}.{old}", name, "the name of a Secret")


def _renamed_value(owner: JsonObject, name: str, values: dict[str, str], path: str, report: Report) -> None:
    value = owner.get(name)
    if value is None:
        return
    new = values.get(value) if isinstance(value, str) else None
    if new is None:
        report.problem(f"{path}.{name}", value, f"one of {', '.join(values)}")
    elif new != value:
        owner[name] = new
        report.note(f"{path}.{name}", f"{value} is {new}")


def _scheduling(owner: JsonObject, path: str, report: Report) -> None:
    """Kubernetes' fields to podTemplate.spec, ours to antiAffinity."""
    scheduling = _section(owner, "scheduling", f"{path}.scheduling", report)
    apart: JsonObject = {}
    placed: JsonObject = {}
    for name, value in (scheduling or {}).items():
        if name in APART:
            apart[APART[name]] = value
            report.note(f"{path}.scheduling.{name}", f"is {path}.antiAffinity.{APART[name]}")
        elif name in PLACEMENT:
            placed[name] = value
            report.note(f"{path}.scheduling.{name}", f"is {path}.podTemplate.spec.{name}")
        else:
            report.problem(f"{path}.scheduling.{name}", value, f"one of {', '.join((*APART, *PLACEMENT))}")
    template = owner.get("podTemplate")
    new: JsonObject = {"antiAffinity": apart} if apart else {}
    if placed and isinstance(template, dict):
        template["spec"] = (template.get("spec") or {}) | placed
    elif placed:
        new["podTemplate"] = {"spec": placed}
    _replace(owner, "scheduling", new)


def _times(spec: JsonObject, path: str, report: Report) -> None:
    """The times that follow from the heartbeat timeout in v1beta1."""
    failover = _section(spec, "failover", f"{path}.failover", report) or {}
    isolation = _section(failover, "isolation", f"{path}.failover.isolation", report) or {}
    timeout = failover.get("heartbeatTimeoutMilliseconds") or DEFAULT_HEARTBEAT_TIMEOUT
    if not isinstance(timeout, int):
        report.problem(f"{path}.failover.heartbeatTimeoutMilliseconds", timeout, "a number of milliseconds")
        return
    for owner, name, follows in (
        (failover, "heartbeatIntervalMilliseconds", timeout // 6),
        (failover, "fenceTimeoutMilliseconds", max(3000, timeout)),
        (failover, "minimumHeartbeatTimeoutMilliseconds", timeout),
        (isolation, "timeoutMilliseconds", timeout * 5 // 6),
    ):
        value = owner.pop(name, None)
        if value not in (None, follows):
            where = f"{path}.failover.isolation.{name}" if owner is isolation else f"{path}.failover.{name}"
            report.note(where, f"({value}) is dropped: it follows from heartbeatTimeoutMilliseconds, and is {follows}")
    _drop_if_emptied(failover, "isolation", isolation)
    _drop_if_emptied(spec, "failover", failover)


def _definition(document: JsonObject, report: Report) -> JsonObject:
    """One of our kinds, as it was installed for v1alpha1."""
    from brokergroup_operator.api.definitions.generate import (  # noqa: PLC0415 (heavy, and seldom asked for)
        KINDS,
        custom_resource_definition,
    )

    spec = document.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    versions = spec.get("versions")
    versions = versions if isinstance(versions, list) else []
    stored = [version for version in versions if version.get("name") == OLD_VERSION and version.get("storage")]
    found = [kind for kind in KINDS if kind.plural == (spec.get("names") or {}).get("plural")]
    if spec.get("group") != names.GROUP or not stored or not found:
        return document
    new = custom_resource_definition(found[0])["spec"]
    report.note("spec.versions", f"stores {names.VERSION}; {OLD_VERSION} is listed and not served")
    former = [version | {"served": False, "storage": False} for version in stored]
    kept = {key: value for key, value in document.items() if key != "status"}
    return kept | {"spec": spec | new | {"versions": [*new["versions"], *former]}}


def _section(owner: JsonObject, name: str, path: str, report: Report) -> JsonObject | None:
    """Return the map of that name; None where it is absent."""
    value = owner.get(name)
    if value is not None and not isinstance(value, dict):
        report.problem(path, value, "a map")
        return None
    return value


def _replace(owner: JsonObject, name: str, new: JsonObject) -> None:
    """Put the new fields where the old one was."""
    if name not in owner:
        return
    items = list(owner.items())
    owner.clear()
    for key, value in items:
        owner.update(new if key == name else {key: value})


def _drop_if_emptied(owner: JsonObject, name: str, section: JsonObject) -> None:
    """A section that said only what follows by itself now."""
    if name in owner and owner[name] is section and not section:
        del owner[name]

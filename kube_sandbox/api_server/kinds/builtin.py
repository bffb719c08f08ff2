"""The built-in kinds, one table: names, scope, subresources, selectable fields, columns, and how each behaves.

Columns are printer columns, as a definition has them. Each behaviour stands for one kind's `strategy.go` in
kubernetes/pkg/registry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kube_sandbox.api_server.errors import FieldError
from kube_sandbox.api_server.kinds import model_schemas, rules
from kube_sandbox.api_server.kinds.custom_resources import custom_resource_types
from kube_sandbox.api_server.resource_types import Behaviour, ResourceType
from kube_sandbox.api_server.tables import printer_columns
from kube_sandbox.api_server.values import clone, field_at

if TYPE_CHECKING:
    from kube_sandbox.api_server.values import JsonObject

DEFINITION_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
CLAIM_FINALIZER = "kubernetes.io/pvc-protection"

Defaults = Callable[["JsonObject"], None]
Rules = Callable[["JsonObject", "JsonObject | None"], list[FieldError]]


@dataclass(eq=False, kw_only=True)
class BuiltinBehaviour(Behaviour):
    """A built-in kind: its fields are those of the client's model; defaults and rules are given."""

    model: str = field(kw_only=False)
    defaults: Defaults | None = None
    rules: Rules | None = None
    counts_generation: bool = False
    unconditional_update: bool = True
    returns_deleted_object: bool = False
    name_rule: str = "subdomain"
    new_status: JsonObject | None = None

    def prepare_create(self, obj: JsonObject) -> None:
        if self.new_status is not None:
            obj["status"] = clone(self.new_status)

    def drop_unknown_fields(self, obj: JsonObject) -> list[str]:
        return model_schemas.read_as(obj, self.model)

    def set_defaults(self, obj: JsonObject) -> None:
        if self.defaults is not None:
            self.defaults(obj)

    def validate(self, new: JsonObject, old: JsonObject | None, subresource: str) -> list[FieldError]:
        return [] if self.rules is None or subresource == "status" else self.rules(new, old)


class PodBehaviour(BuiltinBehaviour):
    """Pods: the only kind that is deleted gracefully, because a kubelet must stop processes first."""

    marks_deletion = True

    def prepare_status_update(self, new: JsonObject, old: JsonObject) -> None:
        """A kubelet may change labels, annotations and finalizers along with the status, never the spec."""
        for key in [key for key in new if key not in ("metadata", "status")]:
            del new[key]
        new.update({key: value for key, value in old.items() if key not in ("metadata", "status")})
        owners = old["metadata"].get("ownerReferences")
        new["metadata"].pop("ownerReferences", None)
        if owners is not None:
            new["metadata"]["ownerReferences"] = owners

    def admit(self, obj: JsonObject, old: JsonObject | None) -> None:  # noqa: ARG002  the same at each write
        rules.admit_pod(obj)

    def grace_period_seconds(self, obj: JsonObject, asked: int | None) -> int:
        if not field_at(obj, "spec.nodeName") or field_at(obj, "status.phase") in ("Succeeded", "Failed"):
            return 0
        if asked is None:
            asked = field_at(obj, "spec.terminationGracePeriodSeconds")
        if asked is None:
            return 30
        return asked if asked >= 0 else 1


class EventBehaviour(BuiltinBehaviour):
    """Events: what a reporter left out is there, empty."""

    def admit(self, obj: JsonObject, old: JsonObject | None) -> None:  # noqa: ARG002  the same at each write
        for name in ("reportingComponent", "reportingInstance"):
            obj.setdefault(name, "")


class NodeBehaviour(BuiltinBehaviour):
    """Nodes: their kubelet writes the status and may set labels with it."""

    def prepare_create(self, obj: JsonObject) -> None:
        obj.setdefault("spec", {})

    def prepare_status_update(self, new: JsonObject, old: JsonObject) -> None:
        new["spec"] = old.get("spec", {})


class ServiceBehaviour(BuiltinBehaviour):
    """Services get an address of the cluster and keep it."""

    def admit(self, obj: JsonObject, old: JsonObject | None) -> None:
        if old is None:
            rules.give_cluster_address(obj)

    def judge_among(self, new: JsonObject, others: Iterable[JsonObject]) -> list[FieldError]:
        """Return an error if another Service, in any namespace, already has one of its node ports."""
        return rules.node_port_errors(new, others)

    def prepare_update(self, new: JsonObject, old: JsonObject) -> None:
        """An update that leaves the address out keeps the present one."""
        spec, before = new.get("spec") or {}, old.get("spec") or {}
        if spec.get("type") == "ExternalName":
            return
        if spec.get("clusterIP") and spec.get("clusterIP") != before.get("clusterIP"):
            spec["clusterIPs"] = [spec["clusterIP"]]
        for key in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
            if not spec.get(key) and key in before:
                spec[key] = before[key]


class ClaimBehaviour(BuiltinBehaviour):
    """Claims: admission adds the finalizer that keeps a claim while a pod uses it (`store/deletion.py`)."""

    def admit(self, obj: JsonObject, old: JsonObject | None) -> None:
        finalizers = obj["metadata"].get("finalizers") or []
        if old is None and CLAIM_FINALIZER not in finalizers:
            obj["metadata"]["finalizers"] = [*finalizers, CLAIM_FINALIZER]


class NamespaceBehaviour(BuiltinBehaviour):
    """Namespaces have their name as a label and empty themselves before they go."""

    def prepare_create(self, obj: JsonObject) -> None:
        obj["spec"] = {"finalizers": ["kubernetes"]}
        obj["status"] = {"phase": "Active"}

    def set_defaults(self, obj: JsonObject) -> None:
        labels = obj["metadata"].setdefault("labels", {})
        labels["kubernetes.io/metadata.name"] = obj["metadata"].get("name", "")

    def prepare_update(self, new: JsonObject, old: JsonObject) -> None:
        new["spec"] = old["spec"]

    def mark_deleted(self, obj: JsonObject) -> JsonObject:
        return {**obj, "status": {**(obj.get("status") or {}), "phase": "Terminating"}}

    def is_held(self, obj: JsonObject) -> bool:
        return bool(field_at(obj, "spec.finalizers"))


class DefinitionBehaviour(BuiltinBehaviour):
    """CustomResourceDefinitions: accepted, established and served in the moment they are stored.

    A definition that cannot be served is refused. Other mistakes that a real API server finds in one are not looked for.
    """

    def validate(self, new: JsonObject, old: JsonObject | None, subresource: str) -> list[FieldError]:  # noqa: ARG002
        try:
            custom_resource_types(new)
        except (ValueError, LookupError, TypeError, AttributeError, StopIteration, re.error) as error:
            return [FieldError("spec", "Invalid value", f"cannot be served: {error!r}")]
        return []

    def set_defaults(self, obj: JsonObject) -> None:
        spec = obj.get("spec") or {}
        names = spec.get("names") or {}
        kind = names.get("kind", "")
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", f"{kind}List")
        spec.setdefault("conversion", {"strategy": "None"})

    def prepare_create(self, obj: JsonObject) -> None:
        self.set_defaults(obj)
        finalizers = obj["metadata"].setdefault("finalizers", [])
        if DEFINITION_FINALIZER not in finalizers:
            finalizers.append(DEFINITION_FINALIZER)
        obj["status"] = {}
        self._accept(obj, obj["metadata"]["creationTimestamp"])

    def prepare_update(self, new: JsonObject, old: JsonObject) -> None:
        self._accept(new, old["metadata"]["creationTimestamp"])

    def _accept(self, obj: JsonObject, since: str) -> None:
        spec = obj.get("spec") or {}
        stored = [version["name"] for version in spec.get("versions") or () if version.get("storage")]
        before = (obj.get("status") or {}).get("storedVersions") or []
        obj["status"] = {
            "acceptedNames": clone(spec.get("names") or {}),
            "conditions": [
                {"lastTransitionTime": since, "type": kind, "status": "True", "reason": reason, "message": message}
                for kind, reason, message in (
                    ("NamesAccepted", "NoConflicts", "no conflicts found"),
                    ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
                )
            ],
            "storedVersions": before + [name for name in stored if name not in before],
        }


def _kind(  # noqa: PLR0913 (the columns of the table)
    api_version: str,
    kind: str,
    short: str = "",
    *,
    behaviour: Behaviour | None = None,
    namespaced: bool = True,
    status: bool = False,
    subresources: str = "",
    fields: str = "",
    category: str = "",
    columns: dict[str, str] | None = None,
) -> ResourceType:
    """`short`, `subresources` and `fields` are words; only `-o wide` prints a column whose name begins with `+`."""
    group, _, version = api_version.rpartition("/")
    age = {"Age": ".metadata.creationTimestamp"}
    return ResourceType(
        group,
        version,
        _plural(kind.lower()),
        kind,
        namespaced=namespaced,
        short_names=tuple(short.split()),
        categories=(category,) if category else (),
        has_status=status,
        other_subresources=tuple(subresources.split()),
        selectable_fields=frozenset(fields.split()),
        columns=printer_columns(
            {
                "name": name.removeprefix("+"),
                "type": "date" if name in ("Age", "Last Seen") else "string",
                "jsonPath": path,
                "priority": int(name.startswith("+")),
            }
            for name, path in ((columns or {}) | age).items()
        ),
        behaviour=behaviour or BuiltinBehaviour(f"V1{kind}"),
    )


def _plural(singular: str) -> str:
    return f"{singular.removesuffix('y')}ies" if singular.endswith("y") else f"{singular}s"


_READY = '.status.conditions[?(@.type=="Ready")].status'
_INVOLVED = " ".join(
    f"involvedObject.{name}"
    for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
)
_NO_PODS = dict.fromkeys(("currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"), 0)

PODS = _kind(
    "v1", "Pod", "po", category="all", status=True, subresources="binding eviction log",
    fields="spec.nodeName spec.restartPolicy spec.schedulerName spec.serviceAccountName spec.hostNetwork"
    " status.phase status.podIP status.nominatedNodeName",
    columns={
        "Ready": _READY, "Status": ".status.phase", "Restarts": ".status.containerStatuses[0].restartCount",
        "+IP": ".status.podIP", "+Node": ".spec.nodeName",
    },
    behaviour=PodBehaviour(
        "V1Pod", defaults=rules.default_pod, rules=rules.pod_errors, counts_generation=True, returns_deleted_object=True,
        new_status={"phase": "Pending"},
    ),
)  # fmt: skip
NAMESPACES = _kind(
    "v1", "Namespace", "ns", namespaced=False, status=True, fields="status.phase", columns={"Status": ".status.phase"},
    behaviour=NamespaceBehaviour("V1Namespace", returns_deleted_object=True, name_rule="label"),
)  # fmt: skip
CLAIMS = _kind(
    "v1", "PersistentVolumeClaim", "pvc", status=True,
    columns={"Status": ".status.phase", "Capacity": ".status.capacity.storage"},
    behaviour=ClaimBehaviour(
        "V1PersistentVolumeClaim", defaults=rules.default_claim, rules=rules.claim_errors, returns_deleted_object=True,
        new_status={"phase": "Pending"},
    ),
)  # fmt: skip
CUSTOM_RESOURCE_DEFINITIONS = _kind(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", "crd crds", namespaced=False, status=True,
    category="api-extensions", behaviour=DefinitionBehaviour("V1CustomResourceDefinition", counts_generation=True),
)  # fmt: skip

_CORE = (
    PODS,
    NAMESPACES,
    _kind(
        "v1", "Event", "ev", fields=f"{_INVOLVED} reason reportingComponent source type",
        behaviour=EventBehaviour("CoreV1Event", defaults=rules.default_event),
        columns={
            "Last Seen": ".lastTimestamp", "Type": ".type", "Reason": ".reason", "Kind": ".involvedObject.kind",
            "Object": ".involvedObject.name", "Message": ".message",
        },
    ),
    _kind(
        "v1", "Service", "svc", category="all", status=True, fields="spec.clusterIP spec.type",
        columns={"Type": ".spec.type", "Cluster-IP": ".spec.clusterIP", "Ports": ".spec.ports[*].port"},
        behaviour=ServiceBehaviour(
            "V1Service", defaults=rules.default_service, rules=rules.service_errors, returns_deleted_object=True,
            name_rule="dns1035", new_status={"loadBalancer": {}},
        ),
    ),
    _kind("v1", "ConfigMap", "cm", behaviour=BuiltinBehaviour("V1ConfigMap", rules=rules.config_map_errors)),
    _kind(
        "v1", "Secret", fields="type", columns={"Type": ".type"},
        behaviour=BuiltinBehaviour("V1Secret", defaults=rules.default_secret, rules=rules.config_map_errors),
    ),
    CLAIMS,
    _kind(
        "v1", "PersistentVolume", "pv", namespaced=False, status=True,
        behaviour=BuiltinBehaviour("V1PersistentVolume", new_status={"phase": "Available"}),
        columns={"Capacity": ".spec.capacity.storage", "Status": ".status.phase", "Claim": ".spec.claimRef.name"},
    ),
    _kind(
        "v1", "Node", "no", namespaced=False, status=True, fields="spec.unschedulable", behaviour=NodeBehaviour("V1Node"),
        columns={"Ready": _READY, "Version": ".status.nodeInfo.kubeletVersion"},
    ),
)  # fmt: skip


_GROUPS = (
    *(
        _kind(
            "apps/v1", kind, short, category="all", status=True,
            behaviour=BuiltinBehaviour(f"V1{kind}", rules=rules.workload_errors, counts_generation=True),
        )
        for kind, short in (("Deployment", "deploy"), ("StatefulSet", "sts"))
    ),
    _kind(
        "coordination.k8s.io/v1", "Lease", columns={"Holder": ".spec.holderIdentity"},
        behaviour=BuiltinBehaviour("V1Lease", rules=rules.lease_errors, unconditional_update=False),
    ),
    _kind(
        "networking.k8s.io/v1", "NetworkPolicy", "netpol",
        behaviour=BuiltinBehaviour("V1NetworkPolicy", counts_generation=True),
    ),
    _kind(
        "policy/v1", "PodDisruptionBudget", "pdb", status=True,
        columns={"Min Available": ".spec.minAvailable", "Allowed": ".status.disruptionsAllowed"},
        behaviour=BuiltinBehaviour("V1PodDisruptionBudget", counts_generation=True, new_status=_NO_PODS),
    ),
    _kind(
        "storage.k8s.io/v1", "VolumeAttachment", namespaced=False, status=True,
        columns={"PV": ".spec.source.persistentVolumeName", "Node": ".spec.nodeName"},
        behaviour=BuiltinBehaviour("V1VolumeAttachment"),
    ),
)  # fmt: skip


def builtin_resources() -> tuple[ResourceType, ...]:
    """Return every resource that is there before any CustomResourceDefinition."""
    return (*_CORE, *_GROUPS, CUSTOM_RESOURCE_DEFINITIONS)

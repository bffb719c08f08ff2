"""What the built-in kinds do differently from a plain stored object: defaults, immutability, graceful deletion.

Each class stands for one kind's `strategy.go` in kubernetes/pkg/registry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kube_sandbox.api_server.custom.definition_rules import definition_errors
from kube_sandbox.api_server.json_values import clone, field_at
from kube_sandbox.api_server.kinds import defaults as builtin_defaults
from kube_sandbox.api_server.kinds import model_schemas
from kube_sandbox.api_server.kinds import rules as builtin_rules
from kube_sandbox.api_server.resource_types import Behaviour

if TYPE_CHECKING:
    from kube_sandbox.api_server.errors import FieldError
    from kube_sandbox.api_server.json_values import JsonObject

DEFINITION_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
CLAIM_FINALIZER = "kubernetes.io/pvc-protection"

Defaults = Callable[["JsonObject"], None]
Rules = Callable[["JsonObject", "JsonObject | None"], "list[FieldError]"]


def _no_defaults(_obj: JsonObject) -> None:
    return None


def _no_rules(_new: JsonObject, _old: JsonObject | None) -> list[FieldError]:
    return []


class BuiltinBehaviour(Behaviour):
    """A built-in kind: its fields are those of the client's model; defaults and rules are given."""

    def __init__(
        self,
        model: str,
        *,
        defaults: Defaults = _no_defaults,
        rules: Rules = _no_rules,
        counts_generation: bool = False,
        unconditional_update: bool = True,
        returns_deleted_object: bool = False,
        name_rule: str = "subdomain",
        new_status: JsonObject | None = None,
    ) -> None:
        self.model = model
        self._defaults = defaults
        self._rules = rules
        self.counts_generation = counts_generation
        self.unconditional_update = unconditional_update
        self.returns_deleted_object = returns_deleted_object
        self.name_rule = name_rule
        self._new_status = new_status

    def prepare_create(self, obj: JsonObject) -> None:
        if self._new_status is not None:
            obj["status"] = clone(self._new_status)

    def drop_unknown_fields(self, obj: JsonObject) -> list[str]:
        return model_schemas.read_as(obj, self.model)

    def set_defaults(self, obj: JsonObject) -> None:
        self._defaults(obj)

    def validate(self, new: JsonObject, old: JsonObject | None, subresource: str) -> list[FieldError]:
        return [] if subresource == "status" else self._rules(new, old)


class PodBehaviour(BuiltinBehaviour):
    """Pods: the only kind that is deleted gracefully, because a kubelet has to stop processes first."""

    marks_deletion = True

    def __init__(self) -> None:
        super().__init__(
            "V1Pod",
            defaults=builtin_defaults.default_pod,
            rules=builtin_rules.pod_errors,
            counts_generation=True,
            returns_deleted_object=True,
        )

    def prepare_create(self, obj: JsonObject) -> None:
        spec = obj.get("spec") or {}
        obj["status"] = {"phase": "Pending", "qosClass": builtin_defaults.quality_of_service(spec)}

    def prepare_status_update(self, new: JsonObject, old: JsonObject) -> None:
        """A kubelet may change labels, annotations and finalizers along with the status, never the spec."""
        for key in [key for key in new if key not in ("metadata", "status")]:
            del new[key]
        new.update({key: value for key, value in old.items() if key not in ("metadata", "status")})
        owners = old["metadata"].get("ownerReferences")
        new["metadata"].pop("ownerReferences", None)
        if owners is not None:
            new["metadata"]["ownerReferences"] = owners
        quality = field_at(old, "status.qosClass")
        if quality and isinstance(new.get("status"), dict):
            new["status"].setdefault("qosClass", quality)

    def admit(self, obj: JsonObject, old: JsonObject | None) -> None:  # noqa: ARG002  pods are admitted alike each time
        builtin_defaults.admit_pod(obj)

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

    def __init__(self) -> None:
        super().__init__("CoreV1Event", defaults=builtin_defaults.default_event, rules=builtin_rules.event_errors)

    def admit(self, obj: JsonObject, old: JsonObject | None) -> None:  # noqa: ARG002  at each write alike
        for name in ("reportingComponent", "reportingInstance"):
            obj.setdefault(name, "")


class NodeBehaviour(BuiltinBehaviour):
    """Nodes: cluster-scoped; their kubelet writes the status and may set labels with it."""

    def prepare_create(self, obj: JsonObject) -> None:
        obj.setdefault("spec", {})

    def prepare_status_update(self, new: JsonObject, old: JsonObject) -> None:
        new["spec"] = old.get("spec", {})


class ServiceBehaviour(BuiltinBehaviour):
    """Services get an address of the cluster and keep it."""

    def __init__(self) -> None:
        super().__init__(
            "V1Service",
            defaults=builtin_defaults.default_service,
            rules=builtin_rules.service_errors,
            returns_deleted_object=True,
            name_rule="dns1035",
            new_status={"loadBalancer": {}},
        )

    def admit(self, obj: JsonObject, old: JsonObject | None) -> None:
        if old is None:
            builtin_defaults.give_cluster_address(obj)

    def judge_among(self, new: JsonObject, others: Iterable[JsonObject]) -> list[FieldError]:
        return builtin_rules.node_port_errors(new, others)

    def prepare_update(self, new: JsonObject, old: JsonObject) -> None:
        """Whoever leaves the address out means the one there is."""
        spec, before = new.get("spec") or {}, old.get("spec") or {}
        if spec.get("type") == "ExternalName":
            return
        if spec.get("clusterIP") and spec.get("clusterIP") != before.get("clusterIP"):
            spec["clusterIPs"] = [spec["clusterIP"]]
        for key in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
            if not spec.get(key) and key in before:
                spec[key] = before[key]


class ClaimBehaviour(BuiltinBehaviour):
    """Claims: admission (StorageObjectInUseProtection) lets none go while a pod uses it (`store/claim_protection.py`)."""

    def __init__(self) -> None:
        super().__init__(
            "V1PersistentVolumeClaim",
            defaults=builtin_defaults.default_claim,
            rules=builtin_rules.claim_errors,
            returns_deleted_object=True,
            new_status={"phase": "Pending"},
        )

    def admit(self, obj: JsonObject, old: JsonObject | None) -> None:
        finalizers = obj["metadata"].get("finalizers") or []
        if old is None and CLAIM_FINALIZER not in finalizers:
            obj["metadata"]["finalizers"] = [*finalizers, CLAIM_FINALIZER]


class NamespaceBehaviour(BuiltinBehaviour):
    """Namespaces carry their name as a label and empty themselves before they go."""

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
        """Its `kubernetes` finalizer, which lives in the spec, falls when the namespace is empty."""
        return bool(field_at(obj, "spec.finalizers"))


class DefinitionBehaviour(BuiltinBehaviour):
    """CustomResourceDefinitions: names completed, accepted and established in the moment they are stored."""

    def __init__(self) -> None:
        super().__init__("V1CustomResourceDefinition", rules=definition_errors, counts_generation=True)

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
        conditions = [
            {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found"},
            {
                "type": "Established",
                "status": "True",
                "reason": "InitialNamesAccepted",
                "message": "the initial names have been accepted",
            },
        ]
        stored = [version["name"] for version in spec.get("versions") or () if version.get("storage")]
        before = (obj.get("status") or {}).get("storedVersions") or []
        obj["status"] = {
            "acceptedNames": clone(spec.get("names") or {}),
            "conditions": [{"lastTransitionTime": since, **condition} for condition in conditions],
            "storedVersions": before + [name for name in stored if name not in before],
        }

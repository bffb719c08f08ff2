"""What the built-in kinds do differently from a plain stored object: defaults, immutability, graceful deletion.

Each class stands for one kind's `strategy.go` in kubernetes/pkg/registry; only rules that a client of this project can
meet are there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.sandbox.api_server.definition_rules import definition_errors
from brokergroup_operator.sandbox.api_server.json_values import clone, field_at
from brokergroup_operator.sandbox.api_server.resource_types import Behaviour

if TYPE_CHECKING:
    from brokergroup_operator.sandbox.api_server.errors import FieldError
    from brokergroup_operator.sandbox.api_server.json_values import JsonObject


DEFINITION_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"


class PodBehaviour(Behaviour):
    """Pods: the only kind that is deleted gracefully, because a kubelet has to stop processes first."""

    counts_generation = True
    returns_deleted_object = True

    def prepare_create(self, obj: JsonObject) -> None:
        obj["status"] = {"phase": "Pending"}

    def prepare_status_update(self, new: JsonObject, old: JsonObject) -> None:
        """A kubelet may change labels, annotations and finalizers along with the status, never the spec."""
        for key in [key for key in new if key not in ("metadata", "status")]:
            del new[key]
        new.update({key: value for key, value in old.items() if key not in ("metadata", "status")})
        owners = old["metadata"].get("ownerReferences")
        new["metadata"].pop("ownerReferences", None)
        if owners is not None:
            new["metadata"]["ownerReferences"] = owners

    def grace_period_seconds(self, obj: JsonObject, asked: int | None) -> int:
        if not field_at(obj, "spec.nodeName") or field_at(obj, "status.phase") in ("Succeeded", "Failed"):
            return 0
        if asked is None:
            asked = field_at(obj, "spec.terminationGracePeriodSeconds")
        if asked is None:
            return 30
        return asked if asked >= 0 else 1


class NodeBehaviour(Behaviour):
    """Nodes: cluster-scoped, status written by their kubelet."""

    def prepare_status_update(self, new: JsonObject, old: JsonObject) -> None:
        new["spec"] = old.get("spec", {})


class ClaimBehaviour(Behaviour):
    """PersistentVolumeClaims wait for a volume."""

    returns_deleted_object = True

    def prepare_create(self, obj: JsonObject) -> None:
        obj["status"] = {"phase": "Pending"}


class ServiceBehaviour(Behaviour):
    """Services."""

    returns_deleted_object = True
    name_rule = "dns1035"


class NamespaceBehaviour(Behaviour):
    """Namespaces carry their name as a label and empty themselves before they go."""

    returns_deleted_object = True
    name_rule = "label"

    def prepare_create(self, obj: JsonObject) -> None:
        obj["spec"] = {"finalizers": ["kubernetes"]}
        obj["status"] = {"phase": "Active"}

    def set_defaults(self, obj: JsonObject) -> None:
        labels = obj["metadata"].setdefault("labels", {})
        labels["kubernetes.io/metadata.name"] = obj["metadata"].get("name", "")

    def mark_deleted(self, obj: JsonObject) -> JsonObject:
        return {**obj, "status": {**(obj.get("status") or {}), "phase": "Terminating"}}

    def is_held(self, obj: JsonObject) -> bool:
        """Its `kubernetes` finalizer, which lives in the spec, falls when the namespace is empty."""
        return bool(field_at(obj, "spec.finalizers"))


class LeaseBehaviour(Behaviour):
    """Leases are never overwritten blindly."""

    unconditional_update = False


class GenerationBehaviour(Behaviour):
    """Kinds of which nothing is special but that they count changes of their spec."""

    counts_generation = True


class DefinitionBehaviour(GenerationBehaviour):
    """CustomResourceDefinitions: names completed, accepted and established in the moment they are stored."""

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

    def validate(self, new: JsonObject, old: JsonObject | None, subresource: str) -> list[FieldError]:  # noqa: ARG002
        return definition_errors(new, old)

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

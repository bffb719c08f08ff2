"""The table of built-in resources: names, scope and subresources as kube-apiserver serves them."""

from __future__ import annotations

from typing import Any

from brokergroup_operator.sandbox.api_server import builtin_behaviours as behaviours
from brokergroup_operator.sandbox.api_server import table_columns as columns
from brokergroup_operator.sandbox.api_server.event_versions import to_core, to_events_group
from brokergroup_operator.sandbox.api_server.resource_types import ResourceType

DEFINITION_FINALIZER = behaviours.DEFINITION_FINALIZER

_ALL = ("all",)
_REFERENCE_FIELDS = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")


def _core(plural: str, kind: str, **options: Any) -> ResourceType:
    return ResourceType("", "v1", plural, kind, **options)


def _references(field: str) -> set[str]:
    return {f"{field}.{name}" for name in _REFERENCE_FIELDS}


PODS = _core(
    "pods",
    "Pod",
    short_names=("po",),
    categories=_ALL,
    has_status=True,
    other_subresources=("binding", "eviction", "log"),
    selectable_fields=frozenset(
        {"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork"}
        | {"status.phase", "status.podIP", "status.nominatedNodeName"}
    ),
    columns=columns.PODS,
    behaviour=behaviours.PodBehaviour(),
)
NAMESPACES = _core(
    "namespaces",
    "Namespace",
    namespaced=False,
    short_names=("ns",),
    has_status=True,
    verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
    selectable_fields=frozenset({"status.phase"}),
    columns=columns.NAMESPACES,
    behaviour=behaviours.NamespaceBehaviour(),
)
EVENTS = _core(
    "events",
    "Event",
    short_names=("ev",),
    selectable_fields=frozenset(_references("involvedObject") | {"reason", "reportingComponent", "source", "type"}),
    columns=columns.EVENTS,
)
EVENTS_IN_THEIR_GROUP = ResourceType(
    "events.k8s.io",
    "v1",
    "events",
    "Event",
    short_names=("ev",),
    selectable_fields=frozenset(_references("regarding") | {"reason", "reportingController", "type"}),
    columns=columns.EVENTS_IN_THEIR_GROUP,
    storage_key=EVENTS.storage_key,
    from_stored=to_events_group,
    to_stored=to_core,
)
CUSTOM_RESOURCE_DEFINITIONS = ResourceType(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    namespaced=False,
    short_names=("crd", "crds"),
    categories=("api-extensions",),
    has_status=True,
    columns=columns.DEFINITIONS,
    behaviour=behaviours.DefinitionBehaviour(),
)


def _other_core_resources() -> list[ResourceType]:
    return [
        _core(
            "services",
            "Service",
            short_names=("svc",),
            categories=_ALL,
            has_status=True,
            selectable_fields=frozenset({"spec.clusterIP", "spec.type"}),
            columns=columns.SERVICES,
            behaviour=behaviours.ServiceBehaviour(),
        ),
        _core("configmaps", "ConfigMap", short_names=("cm",), columns=columns.CONFIG_MAPS),
        _core("secrets", "Secret", selectable_fields=frozenset({"type"}), columns=columns.SECRETS),
        _core(
            "persistentvolumeclaims",
            "PersistentVolumeClaim",
            short_names=("pvc",),
            has_status=True,
            columns=columns.CLAIMS,
            behaviour=behaviours.ClaimBehaviour(),
        ),
        _core(
            "nodes",
            "Node",
            namespaced=False,
            short_names=("no",),
            has_status=True,
            selectable_fields=frozenset({"spec.unschedulable"}),
            columns=columns.NODES,
            behaviour=behaviours.NodeBehaviour(),
        ),
        _core("serviceaccounts", "ServiceAccount", short_names=("sa",), columns=columns.SERVICE_ACCOUNTS),
        _core("endpoints", "Endpoints", short_names=("ep",), columns=columns.ENDPOINTS),
    ]


def _other_groups() -> list[ResourceType]:
    counted = behaviours.GenerationBehaviour()
    workload: dict[str, Any] = {"categories": _ALL, "has_status": True, "behaviour": counted}
    rbac = "rbac.authorization.k8s.io"
    roles: dict[str, Any] = {"columns": columns.ROLES}
    bindings: dict[str, Any] = {"columns": columns.ROLE_BINDINGS}
    return [
        ResourceType(
            "apps", "v1", "deployments", "Deployment", short_names=("deploy",), columns=columns.DEPLOYMENTS, **workload
        ),
        ResourceType(
            "apps", "v1", "statefulsets", "StatefulSet", short_names=("sts",), columns=columns.STATEFUL_SETS, **workload
        ),
        ResourceType(
            "coordination.k8s.io",
            "v1",
            "leases",
            "Lease",
            columns=columns.LEASES,
            behaviour=behaviours.LeaseBehaviour(),
        ),
        ResourceType(
            "policy",
            "v1",
            "poddisruptionbudgets",
            "PodDisruptionBudget",
            short_names=("pdb",),
            has_status=True,
            columns=columns.DISRUPTION_BUDGETS,
            behaviour=counted,
        ),
        ResourceType(
            "networking.k8s.io",
            "v1",
            "networkpolicies",
            "NetworkPolicy",
            short_names=("netpol",),
            columns=columns.NETWORK_POLICIES,
            behaviour=counted,
        ),
        ResourceType(rbac, "v1", "roles", "Role", **roles),
        ResourceType(rbac, "v1", "rolebindings", "RoleBinding", **bindings),
        ResourceType(rbac, "v1", "clusterroles", "ClusterRole", namespaced=False, **roles),
        ResourceType(rbac, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False, **bindings),
    ]


def builtin_resources() -> list[ResourceType]:
    """Every resource that is there before any CustomResourceDefinition."""
    return [
        PODS,
        NAMESPACES,
        EVENTS,
        *_other_core_resources(),
        EVENTS_IN_THEIR_GROUP,
        *_other_groups(),
        CUSTOM_RESOURCE_DEFINITIONS,
    ]

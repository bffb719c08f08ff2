"""The table of built-in resources: names, scope and subresources as kube-apiserver serves them."""

from __future__ import annotations

from typing import Any

from brokergroup_operator.sandbox.api_server import builtin_behaviours as behaviours
from brokergroup_operator.sandbox.api_server import builtin_defaults as defaults
from brokergroup_operator.sandbox.api_server import builtin_rules as rules
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
    behaviour=behaviours.NamespaceBehaviour("V1Namespace", returns_deleted_object=True, name_rule="label"),
)
EVENTS = _core(
    "events",
    "Event",
    short_names=("ev",),
    selectable_fields=frozenset(_references("involvedObject") | {"reason", "reportingComponent", "source", "type"}),
    columns=columns.EVENTS,
    behaviour=behaviours.BuiltinBehaviour("CoreV1Event", defaults=defaults.default_event, rules=rules.event_errors),
)
EVENTS_IN_THEIR_GROUP = ResourceType(
    "events.k8s.io",
    "v1",
    "events",
    "Event",
    short_names=("ev",),
    selectable_fields=frozenset(_references("regarding") | {"reason", "reportingController", "type"}),
    columns=columns.EVENTS_IN_THEIR_GROUP,
    behaviour=behaviours.BuiltinBehaviour("EventsV1Event", defaults=defaults.default_event),
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
            behaviour=behaviours.ServiceBehaviour(
                "V1Service",
                defaults=defaults.default_service,
                rules=rules.service_errors,
                returns_deleted_object=True,
                name_rule="dns1035",
            ),
        ),
        _core(
            "configmaps",
            "ConfigMap",
            short_names=("cm",),
            columns=columns.CONFIG_MAPS,
            behaviour=behaviours.BuiltinBehaviour("V1ConfigMap", rules=rules.config_map_errors),
        ),
        _core(
            "secrets",
            "Secret",
            selectable_fields=frozenset({"type"}),
            columns=columns.SECRETS,
            behaviour=behaviours.BuiltinBehaviour(
                "V1Secret", defaults=defaults.default_secret, rules=rules.config_map_errors
            ),
        ),
        _core(
            "persistentvolumeclaims",
            "PersistentVolumeClaim",
            short_names=("pvc",),
            has_status=True,
            columns=columns.CLAIMS,
            behaviour=behaviours.ClaimBehaviour(
                "V1PersistentVolumeClaim",
                defaults=defaults.default_claim,
                rules=rules.claim_errors,
                returns_deleted_object=True,
            ),
        ),
        _core(
            "nodes",
            "Node",
            namespaced=False,
            short_names=("no",),
            has_status=True,
            selectable_fields=frozenset({"spec.unschedulable"}),
            columns=columns.NODES,
            behaviour=behaviours.NodeBehaviour("V1Node"),
        ),
        _core(
            "serviceaccounts",
            "ServiceAccount",
            short_names=("sa",),
            columns=columns.SERVICE_ACCOUNTS,
            behaviour=behaviours.BuiltinBehaviour("V1ServiceAccount", returns_deleted_object=True),
        ),
        _core(
            "endpoints",
            "Endpoints",
            short_names=("ep",),
            columns=columns.ENDPOINTS,
            behaviour=behaviours.BuiltinBehaviour("V1Endpoints"),
        ),
    ]


def _grouped(group: str, plural: str, kind: str, short_name: str = "", **options: Any) -> ResourceType:
    """A resource of a group other than core; options of the behaviour start with `with_`."""
    behaviour = {key.removeprefix("with_"): options.pop(key) for key in list(options) if key.startswith("with_")}
    return ResourceType(
        group,
        "v1",
        plural,
        kind,
        short_names=(short_name,) if short_name else (),
        behaviour=behaviours.BuiltinBehaviour(f"V1{kind}", **behaviour),
        **options,
    )


def _other_groups() -> list[ResourceType]:
    rbac = "rbac.authorization.k8s.io"
    counted: dict[str, Any] = {"has_status": True, "with_counts_generation": True}
    workload: dict[str, Any] = {**counted, "categories": _ALL}
    roles: dict[str, Any] = {"columns": columns.ROLES, "with_name_rule": "path"}
    bindings: dict[str, Any] = {"columns": columns.ROLE_BINDINGS, "with_name_rule": "path"}
    return [
        _grouped("apps", "deployments", "Deployment", "deploy", columns=columns.DEPLOYMENTS, **workload),
        _grouped("apps", "statefulsets", "StatefulSet", "sts", columns=columns.STATEFUL_SETS, **workload),
        _grouped(
            "coordination.k8s.io",
            "leases",
            "Lease",
            columns=columns.LEASES,
            with_rules=rules.lease_errors,
            with_unconditional_update=False,
        ),
        ResourceType(
            "policy",
            "v1",
            "poddisruptionbudgets",
            "PodDisruptionBudget",
            short_names=("pdb",),
            has_status=True,
            columns=columns.DISRUPTION_BUDGETS,
            behaviour=behaviours.DisruptionBudgetBehaviour(
                "V1PodDisruptionBudget", rules=rules.disruption_budget_errors, counts_generation=True
            ),
        ),
        _grouped(
            "networking.k8s.io",
            "networkpolicies",
            "NetworkPolicy",
            "netpol",
            columns=columns.NETWORK_POLICIES,
            with_defaults=defaults.default_network_policy,
            with_counts_generation=True,
        ),
        _grouped(rbac, "roles", "Role", **roles),
        _grouped(rbac, "rolebindings", "RoleBinding", **bindings),
        _grouped(rbac, "clusterroles", "ClusterRole", namespaced=False, **roles),
        _grouped(rbac, "clusterrolebindings", "ClusterRoleBinding", namespaced=False, **bindings),
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

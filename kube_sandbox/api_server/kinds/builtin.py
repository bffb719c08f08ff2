"""The built-in kinds, one table: names, scope, subresources, selectable fields, columns, and how each behaves.

Columns are printer columns as a definition has them (a JSON path each): what a real server prints by code is not imitated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kube_sandbox.api_server.kinds import defaults, rules
from kube_sandbox.api_server.kinds.behaviours import (
    BuiltinBehaviour,
    ClaimBehaviour,
    DefinitionBehaviour,
    EventBehaviour,
    NamespaceBehaviour,
    NodeBehaviour,
    PodBehaviour,
    ServiceBehaviour,
)
from kube_sandbox.api_server.resource_types import ResourceType
from kube_sandbox.api_server.tables.rows import printer_columns

if TYPE_CHECKING:
    from kube_sandbox.api_server.resource_types import Behaviour

_READY = '.status.conditions[?(@.type=="Ready")].status'
_INVOLVED = " ".join(
    f"involvedObject.{name}"
    for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
)
_NO_PODS = dict.fromkeys(("currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"), 0)


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
    plural: str = "",
    category: str = "",
    columns: dict[str, str] | None = None,
) -> ResourceType:
    """`short`, `subresources` and `fields` are words; a column whose name begins with `+` is printed by `-o wide` only."""
    group, _, version = api_version.rpartition("/")
    age = {"Age": ".metadata.creationTimestamp"}
    return ResourceType(
        group,
        version,
        plural or f"{kind.lower()}s",
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


PODS = _kind(
    "v1", "Pod", "po",
    behaviour=PodBehaviour(),
    category="all",
    status=True,
    subresources="binding eviction log",
    fields="spec.nodeName spec.restartPolicy spec.schedulerName spec.serviceAccountName spec.hostNetwork"
    " status.phase status.podIP status.nominatedNodeName",
    columns={
        "Ready": _READY, "Status": ".status.phase", "Restarts": ".status.containerStatuses[0].restartCount",
        "+IP": ".status.podIP", "+Node": ".spec.nodeName",
    },
)  # fmt: skip
NAMESPACES = _kind(
    "v1", "Namespace", "ns", namespaced=False, status=True, fields="status.phase", columns={"Status": ".status.phase"},
    behaviour=NamespaceBehaviour("V1Namespace", returns_deleted_object=True, name_rule="label"),
)  # fmt: skip
CLAIMS = _kind(
    "v1", "PersistentVolumeClaim", "pvc", status=True, behaviour=ClaimBehaviour(),
    columns={"Status": ".status.phase", "Capacity": ".status.capacity.storage"},
)  # fmt: skip
CUSTOM_RESOURCE_DEFINITIONS = _kind(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", "crd crds", namespaced=False, status=True,
    category="api-extensions", behaviour=DefinitionBehaviour(),
)  # fmt: skip

_CORE = (
    PODS,
    NAMESPACES,
    _kind(
        "v1", "Event", "ev", fields=f"{_INVOLVED} reason reportingComponent source type",
        behaviour=EventBehaviour(),
        columns={
            "Last Seen": ".lastTimestamp", "Type": ".type", "Reason": ".reason", "Kind": ".involvedObject.kind",
            "Object": ".involvedObject.name", "Message": ".message",
        },
    ),
    _kind(
        "v1", "Service", "svc", category="all", status=True, fields="spec.clusterIP spec.type", behaviour=ServiceBehaviour(),
        columns={"Type": ".spec.type", "Cluster-IP": ".spec.clusterIP", "Ports": ".spec.ports[*].port"},
    ),
    _kind("v1", "ConfigMap", "cm", behaviour=BuiltinBehaviour("V1ConfigMap", rules=rules.config_map_errors)),
    _kind(
        "v1", "Secret", fields="type", columns={"Type": ".type"},
        behaviour=BuiltinBehaviour("V1Secret", defaults=defaults.default_secret, rules=rules.config_map_errors),
    ),
    CLAIMS,
    _kind(
        "v1", "Node", "no", namespaced=False, status=True, fields="spec.unschedulable", behaviour=NodeBehaviour("V1Node"),
        columns={"Ready": _READY, "Version": ".status.nodeInfo.kubeletVersion"},
    ),
    _kind("v1", "ServiceAccount", "sa", behaviour=BuiltinBehaviour("V1ServiceAccount", returns_deleted_object=True)),
)  # fmt: skip


def _counted(kind: str) -> BuiltinBehaviour:
    return BuiltinBehaviour(f"V1{kind}", rules=rules.workload_errors, counts_generation=True)


def _role(kind: str, *, namespaced: bool) -> ResourceType:
    behaviour = BuiltinBehaviour(f"V1{kind}", name_rule="path")
    return _kind("rbac.authorization.k8s.io/v1", kind, namespaced=namespaced, behaviour=behaviour)


_GROUPS = (
    _kind("apps/v1", "Deployment", "deploy", category="all", status=True, behaviour=_counted("Deployment")),
    _kind("apps/v1", "StatefulSet", "sts", category="all", status=True, behaviour=_counted("StatefulSet")),
    _kind(
        "coordination.k8s.io/v1", "Lease", columns={"Holder": ".spec.holderIdentity"},
        behaviour=BuiltinBehaviour("V1Lease", rules=rules.lease_errors, unconditional_update=False),
    ),
    _kind(
        "policy/v1", "PodDisruptionBudget", "pdb", status=True,
        columns={"Min Available": ".spec.minAvailable", "Allowed": ".status.disruptionsAllowed"},
        behaviour=BuiltinBehaviour(
            "V1PodDisruptionBudget", rules=rules.disruption_budget_errors, counts_generation=True, new_status=_NO_PODS
        ),
    ),
    _kind(
        "networking.k8s.io/v1", "NetworkPolicy", "netpol", plural="networkpolicies",
        behaviour=BuiltinBehaviour("V1NetworkPolicy", defaults=defaults.default_network_policy, counts_generation=True),
    ),
    _role("Role", namespaced=True),
    _role("RoleBinding", namespaced=True),
    _role("ClusterRole", namespaced=False),
    _role("ClusterRoleBinding", namespaced=False),
)  # fmt: skip


def builtin_resources() -> tuple[ResourceType, ...]:
    """Every resource that is there before any CustomResourceDefinition."""
    return (*_CORE, *_GROUPS, CUSTOM_RESOURCE_DEFINITIONS)

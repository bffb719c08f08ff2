"""The table of built-in resources: names, scope and subresources as kube-apiserver serves them."""

from __future__ import annotations

from brokergroup_operator.sandbox.api_server import table_columns as columns
from brokergroup_operator.sandbox.api_server.builtin_behaviours import (
    ClaimBehaviour,
    DefinitionBehaviour,
    GenerationBehaviour,
    LeaseBehaviour,
    NamespaceBehaviour,
    NodeBehaviour,
    PodBehaviour,
    ServiceBehaviour,
)
from brokergroup_operator.sandbox.api_server.resource_types import Behaviour, ResourceType

NAMESPACES = ResourceType(
    "", "v1", "namespaces", "Namespace",
            columns=columns.NAMESPACES, namespaced=False, short_names=("ns",), has_status=True,
    selectable_fields=frozenset({"status.phase"}), behaviour=NamespaceBehaviour(),
)  # fmt: skip
PODS = ResourceType(
    "", "v1", "pods", "Pod",
            columns=columns.PODS, short_names=("po",), categories=("all",), has_status=True,
    other_subresources=("binding", "eviction", "log"),
    selectable_fields=frozenset(
        {"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
         "status.phase", "status.podIP", "status.nominatedNodeName"}
    ),
    behaviour=PodBehaviour(),
)  # fmt: skip
_EVENT_FIELDS = frozenset(
    {"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
     "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason",
     "reportingComponent", "source", "type"}
)  # fmt: skip
EVENTS = ResourceType(
    "", "v1", "events", "Event", columns=columns.EVENTS, short_names=("ev",), selectable_fields=_EVENT_FIELDS
)
CUSTOM_RESOURCE_DEFINITIONS = ResourceType(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition",
            columns=columns.DEFINITIONS, namespaced=False,
    short_names=("crd", "crds"), categories=("api-extensions",), has_status=True,
    behaviour=DefinitionBehaviour(),
)  # fmt: skip


def builtin_resources() -> list[ResourceType]:
    """Every resource that is there before any CustomResourceDefinition."""
    all_category = ("all",)
    generation = GenerationBehaviour()
    return [
        PODS,
        NAMESPACES,
        EVENTS,
        ResourceType(
            "", "v1", "services", "Service",
            columns=columns.SERVICES, short_names=("svc",), categories=all_category, has_status=True,
            selectable_fields=frozenset({"spec.clusterIP", "spec.type"}), behaviour=ServiceBehaviour(),
        ),
        ResourceType("", "v1", "configmaps", "ConfigMap",
            columns=columns.CONFIG_MAPS, short_names=("cm",)),
        ResourceType("", "v1", "secrets", "Secret",
            columns=columns.SECRETS, selectable_fields=frozenset({"type"})),
        ResourceType(
            "", "v1", "persistentvolumeclaims", "PersistentVolumeClaim",
            columns=columns.CLAIMS, short_names=("pvc",), has_status=True,
            behaviour=ClaimBehaviour(),
        ),
        ResourceType(
            "", "v1", "nodes", "Node",
            columns=columns.NODES, namespaced=False, short_names=("no",), has_status=True,
            selectable_fields=frozenset({"spec.unschedulable"}), behaviour=NodeBehaviour(),
        ),
        ResourceType("", "v1", "serviceaccounts", "ServiceAccount",
            columns=columns.SERVICE_ACCOUNTS, short_names=("sa",)),
        ResourceType("", "v1", "endpoints", "Endpoints",
            columns=columns.ENDPOINTS, short_names=("ep",)),
        ResourceType(
            "apps", "v1", "deployments", "Deployment",
            columns=columns.DEPLOYMENTS, short_names=("deploy",), categories=all_category, has_status=True,
            behaviour=generation,
        ),
        ResourceType(
            "apps", "v1", "statefulsets", "StatefulSet",
            columns=columns.STATEFUL_SETS, short_names=("sts",), categories=all_category, has_status=True,
            behaviour=generation,
        ),
        ResourceType("coordination.k8s.io", "v1", "leases", "Lease",
            columns=columns.LEASES, behaviour=LeaseBehaviour()),
        ResourceType(
            "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget",
            columns=columns.DISRUPTION_BUDGETS, short_names=("pdb",), has_status=True,
            behaviour=generation,
        ),
        ResourceType(
            "networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy",
            columns=columns.NETWORK_POLICIES, short_names=("netpol",), behaviour=generation,
        ),
        ResourceType("rbac.authorization.k8s.io", "v1", "roles", "Role",
            columns=columns.ROLES, behaviour=Behaviour()),
        ResourceType("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", columns=columns.ROLE_BINDINGS),
        ResourceType("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole",
            columns=columns.ROLES, namespaced=False),
        ResourceType("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding",
            columns=columns.ROLE_BINDINGS, namespaced=False),
        CUSTOM_RESOURCE_DEFINITIONS,
    ]  # fmt: skip

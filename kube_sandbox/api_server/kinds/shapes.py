"""Which lists of built-in kinds are keyed, which are sets, which maps are atomic.

The patchMergeKey and x-kubernetes-list-map-keys markers of k8s.io/api, by field name: a name means the same everywhere
except `ports`, which is told apart by where it stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kube_sandbox.api_server.patching.field_walk import Place

_KEYS: dict[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "conditions": ("type",),
    "podIPs": ("ip",),
    "hostIPs": ("ip",),
    "addresses": ("type",),
    "ownerReferences": ("uid",),
    "secrets": ("name",),
    "resourceClaims": ("name",),
    "schedulingGates": ("name",),
    "readinessGates": ("conditionType",),
    "loadBalancer.ingress": ("ip",),
}
_SETS = frozenset(("finalizers", "podCIDRs"))
#: Lists that patch by key but are owned as a whole.
_PATCHED_ONLY = frozenset(("readinessGates", "taints", "loadBalancer.ingress"))
_ATOMIC_MAPS = frozenset(
    ("nodeSelector", "labelSelector", "namespaceSelector", "podSelector", "fieldRef", "resourceFieldRef", "configMapKeyRef",
     "secretKeyRef", "involvedObject", "related", "regarding", "claimRef", "dataSource", "targetRef", "roleRef")
)  # fmt: skip


def list_map_keys(place: Place) -> tuple[str, ...] | None:
    """() for a set, None for an atomic list."""
    name = place[-1] if place else ""
    if name in _SETS:
        return ()
    if name in _PATCHED_ONLY:
        return None
    return merge_keys(place)


def merge_keys(place: Place) -> tuple[str, ...] | None:
    """The keys by which a strategic merge patch matches the items of a list."""
    name = place[-1] if place else ""
    if name == "ports":
        return ("port", "protocol") if len(place) == 2 else ("containerPort", "protocol")
    if name == "addresses" and place[0] != "status":
        return None
    return _KEYS.get(name)


def key_default(place: Place, key: str) -> Any:
    return "TCP" if key == "protocol" and place[-1] == "ports" else None


def is_atomic_map(place: Place) -> bool:
    if not place:
        return False
    return place[-1] in _ATOMIC_MAPS or place == ("spec", "selector")


#: Structs and lists that Go writes even when empty.
_ALWAYS_THERE = frozenset(
    (
        ("metadata",),
        ("spec",),
        ("status",),
        ("spec", "containers"),
        ("spec", "resources"),
        ("source",),
        ("deprecatedSource",),
    )
)


def is_always_there(place: Place) -> bool:
    return place in _ALWAYS_THERE

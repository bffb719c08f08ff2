"""What a deployment leaves on the two nodes: objects that were not there before, claims, and volumes to be used again."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.node.acts import RELEASE
from tests.node.bench import expect
from tests.node.cluster import GROUPS_NAMESPACE, OPERATOR_NAMESPACE, make_storage
from tests.node.kubectl import get, helm, kubectl
from tests.node.places import state_folder

# What stays by intent, by docs/tasks/install.md: claims and records of the groups, Lease and fence key of the operator.
STAYS = re.compile(
    rf"{GROUPS_NAMESPACE}/(persistentvolumeclaim|brokergroupstate\.brokergroup\.dev)/.*"
    rf"|{OPERATOR_NAMESPACE}/(lease\.coordination\.k8s\.io/{RELEASE}|secret/{RELEASE}-fence-key)"
)


def inventory() -> set[str]:
    """Return all objects of both namespaces but Events, and the rights of the whole cluster, as namespace/kind/name."""
    listable = kubectl("api-resources", "--namespaced", "--verbs=list", "--output=name").split()
    listed = ",".join(kind for kind in listable if not kind.startswith("events"))
    rights = kubectl("get", "clusterroles,clusterrolebindings", "--output=name").split()
    return set(rights) | {
        f"{namespace}/{name}"
        for namespace in (GROUPS_NAMESPACE, OPERATOR_NAMESPACE)
        for name in kubectl("get", listed, "--namespace", namespace, "--output=name").split()
    }


def left_over(before: set[str], after: set[str]) -> list[str]:
    """Return what is new, but for what stays by intent."""
    return sorted(name for name in after - before if not STAYS.fullmatch(name))


def claims() -> set[str]:
    """Return the names of the brokers' claims."""
    return {one["metadata"]["name"] for one in get("persistentvolumeclaims")["items"]}


def kinds() -> list[str]:
    """Return the CRDs of the operator, as kind/name."""
    names = kubectl("get", "customresourcedefinitions", "--output=name").split()
    return [name for name in names if name.endswith(".brokergroup.dev")]


def refuse_a_used_cluster() -> None:
    """Raise CheckError unless the cluster has no release, kind or claim: to tidy it would delete another user's groups."""
    there = [*helm("list", "--all-namespaces", "--short").split(), *kinds(), *sorted(claims())]
    expect(not there, f"the cluster has {', '.join(there)}: expected none; make node-down ends it")


def delete_what_stays(names: set[str]) -> None:
    """Delete what stays by intent once both releases are uninstalled: kinds, Lease, fence key, and these claims."""
    # With its kind each record is deleted.
    if there := kinds():
        kubectl("delete", *there, "--timeout=60s", seconds=70)
    stays = (f"lease/{RELEASE}", f"secret/{RELEASE}-fence-key")
    kubectl("delete", *stays, "--namespace", OPERATOR_NAMESPACE, "--ignore-not-found")
    delete_claims(names)


def delete_claims(names: set[str]) -> None:
    """Delete these claims, and make their volumes anew and empty: they are Retained, so that no claim would get them again."""
    if names:
        kubectl("delete", "persistentvolumeclaims", *sorted(names), "--timeout=60s", seconds=70)
    for volume in get("persistentvolumes")["items"]:
        if "local" not in volume["spec"]:
            continue  # a CSI driver's own
        folder = Path(volume["spec"]["local"]["path"])
        if (volume["spec"].get("claimRef") or {}).get("name") in names and folder.is_relative_to(state_folder()):
            kubectl("delete", "persistentvolume", volume["metadata"]["name"], "--timeout=60s", seconds=70)
            shutil.rmtree(folder)
    make_storage()

"""Which parts of a cluster take another version, and when: none if it may not run, and proxies last. Pure.

Every NameServer from 5.0.0 on serves every broker (docs/reference/versions.md), so groups wait for none. A Proxy may ask a broker
for what an older one does not know, so it keeps its image until every group runs what the cluster wants. An image that the
cluster names itself (spec.image) waits for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.api import versions
from brokergroup_operator.api.brokergroup_status import ConditionStatus, ConditionType
from brokergroup_operator.kube.resources import BROKER_GROUPS, DEPLOYMENTS, STATEFUL_SETS
from brokergroup_operator.reconcile.see import observed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.rocketmq_cluster import RocketMQCluster
    from brokergroup_operator.reconcile.settings import ReconcileSettings

    Found = Mapping[tuple[str, str], JsonObject]

# What of a BrokerGroup's spec says what its brokers run.
_RUNS = ("version", "image")


def refusal(cluster: RocketMQCluster, settings: ReconcileSettings) -> str:
    """Field, value and what is expected of a version that the operator's catalogue does not list; empty if it may run."""
    wanted = cluster.spec.version
    if wanted is None or not (why := versions.why_not_listed(wanted, settings.catalogue.choice)):
        return ""
    return f"spec.version is {wanted!r}, expected another: {why}. NameServers, groups and proxies that run go on as they are"


def makes_pods(obj: JsonObject) -> bool:
    """Whether it is the StatefulSet of the NameServers or the Deployment of the proxies."""
    return obj["kind"] in {STATEFUL_SETS.kind, DEPLOYMENTS.kind}


def kept_back(programs: Sequence[JsonObject], found: Found) -> list[JsonObject]:
    """Return the objects of NameServers or proxies with the images that run; what runs nothing yet is left out."""
    kept = (one for one in programs if not makes_pods(one) or _present(one, found) is not None)
    return [_with_present_image(one, found) for one in kept]


def in_turn(
    proxies: Sequence[JsonObject], groups: Sequence[JsonObject], found: Found, *, default_version: str
) -> tuple[list[JsonObject], list[str]]:
    """Return the objects of the proxies, with the present image while a group is behind, and the groups that they wait for."""
    behind = [str(one["metadata"]["name"]) for one in groups if _is_behind(one, found, default_version)]
    held = [_with_present_image(one, found) if behind else one for one in proxies]
    return held, behind if any(after is not before for after, before in zip(held, proxies, strict=True)) else []


def _is_behind(group: JsonObject, found: Found, default_version: str) -> bool:
    """Whether an existing group is asked for another version, runs another, or has not said since that it is up to date.

    A status of before the operator's start may say "up to date" of another default version.
    """
    there = found.get((BROKER_GROUPS.kind, str(group["metadata"]["name"])))
    if there is None:
        return False
    if any(there["spec"].get(field) != group["spec"].get(field) for field in _RUNS):
        return True
    status = there.get("status") or {}
    if status.get("version") not in {None, group["spec"].get("version") or default_version}:
        return True
    is_current = status.get("observedGeneration") == observed.generation(there)
    return (
        not is_current or observed.condition_in(there, ConditionType.UP_TO_DATE).get("status") != ConditionStatus.TRUE
    )


def _present(wanted: JsonObject, found: Found) -> JsonObject | None:
    return found.get((str(wanted["kind"]), str(wanted["metadata"]["name"])))


def _with_present_image(wanted: JsonObject, found: Found) -> JsonObject:
    """Return the StatefulSet or Deployment with the image that it has; the very object where there is no other one."""
    there = _present(wanted, found)
    if there is None or not makes_pods(wanted):
        return wanted
    template = wanted["spec"]["template"]
    (container, *others), (present, *_) = (
        template["spec"]["containers"],
        there["spec"]["template"]["spec"]["containers"],
    )
    if present["image"] == container["image"]:
        return wanted
    containers = [container | {"image": present["image"]}, *others]
    pods = template | {"spec": template["spec"] | {"containers": containers}}
    return wanted | {"spec": wanted["spec"] | {"template": pods}}

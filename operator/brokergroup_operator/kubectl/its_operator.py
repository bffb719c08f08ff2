"""Whether the operator of a group is alive: the group's annotation names a Lease, which the operator renews every second or so.

A status is written only when it changes. So the status of a dead operator looks current; only the renewTime shows its death.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from brokergroup_operator.api import names
from brokergroup_operator.kubectl.command_line import ForbiddenError, NotFoundError
from brokergroup_operator.kubectl.operator_pods import LIST_PODS
from brokergroup_operator.kubectl.printing import age

if TYPE_CHECKING:
    from brokergroup_operator.json_object import JsonObject
    from brokergroup_operator.kubectl.cluster import Cluster

# Beyond the Lease's own duration: the clocks of plugin and operator differ, and a takeover needs a while.
PATIENCE_SECONDS = 30.0


def holder_of(metadata: JsonObject) -> str:
    """Return `namespace/name` of the Lease; empty if no operator has taken the group, or its operator runs without a Lease."""
    return str((metadata.get("annotations") or {}).get(names.ANNOTATION_OPERATOR) or "")


class Presence(Enum):
    """What the Lease proves. UNKNOWN: the group names no Lease, or the user may not read it."""

    HERE = "here"
    AWAY = "away"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Heartbeat:
    """Whether the group's status is current, and the sentence that says so."""

    presence: Presence
    message: str

    @property
    def proves(self) -> bool:
        """Whether the operator is alive."""
        return self.presence is Presence.HERE


def heartbeat(cluster: Cluster, group: JsonObject) -> Heartbeat:
    """Read the Lease that the group names. A Lease that may not be read is no error: the sentence says so."""
    metadata, holder = group["metadata"], holder_of(group["metadata"])
    if not holder:
        if (group.get("status") or {}).get("conditions"):
            unnamed = "no Lease is named on this group (its operator runs without one, or is gone)"
            return Heartbeat(Presence.UNKNOWN, f"{unnamed}, so nothing proves that one is alive: {LIST_PODS}")
        serves = f"does one run that serves namespace {metadata['namespace']}? {LIST_PODS}"
        return Heartbeat(Presence.AWAY, f"no operator has taken this group: {serves}")
    from brokergroup_operator.kubectl.cluster import Lease

    namespace, _, name = holder.partition("/")
    try:
        lease = cluster.get(Lease, name, namespace=namespace)["spec"]
    except NotFoundError:
        silence = "its Lease is gone"
    except ForbiddenError:
        unread = f"you may not read the Lease of operator {holder}, so nothing proves that it is alive"
        return Heartbeat(Presence.UNKNOWN, f"{unread}: kubectl get lease -n {namespace} {name}")
    else:
        silence = silent_for(lease)
        if not silence:
            # An identity is the pod's name, and a suffix that differs between two starts of the pod.
            pod = str(lease["holderIdentity"]).rpartition("_")[0] or str(lease["holderIdentity"])
            renewed = f"renewed its Lease {age(str(lease['renewTime']))} ago"
            return Heartbeat(Presence.HERE, f"operator {holder} {renewed} ({pod})")
    away = f"operator {holder} is away ({silence}), so all of this is as it left it"
    return Heartbeat(Presence.AWAY, f"{away}: {LIST_PODS}; gone for good? {hand_over(metadata)}")


def hand_over(metadata: JsonObject) -> str:
    """Return the command that lets another operator take the group, and the RocketMQCluster that it is a part of.

    A cluster names its operator by itself: without its annotation's end its NameServers and proxies would have none.
    """
    owners = [
        one["name"] for one in metadata.get("ownerReferences") or [] if one["kind"] == names.ROCKETMQ_CLUSTER_KIND
    ]
    which = f"brokergroup {metadata['name']}"
    if owners:
        which = f"rocketmqcluster/{owners[0]} brokergroup/{metadata['name']}"
    return f"kubectl annotate -n {metadata['namespace']} {which} {names.ANNOTATION_OPERATOR}-"


def silent_for(lease: JsonObject) -> str:
    """Return why no operator holds the Lease; empty while one does."""
    renewed = lease.get("renewTime")
    if not lease.get("holderIdentity") or not renewed:
        return "its Lease has no holder"
    seconds = (dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(str(renewed))).total_seconds()
    if seconds <= float(lease.get("leaseDurationSeconds") or 0) + PATIENCE_SECONDS:
        return ""
    return f"its Lease was last renewed {age(str(renewed))} ago, by {lease['holderIdentity']}"

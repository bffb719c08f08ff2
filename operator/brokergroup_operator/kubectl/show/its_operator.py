"""Whether an operator is at work on a group: by its annotation, and by the Lease that this names. All others leave the group alone.

An operator that is gone says nothing any more: status and conditions stay as it left them, and look as if all were well. The one
heartbeat that a person can read is the Lease's renewTime, every second or so; the status itself is written only when it changes.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from brokergroup_operator.api import names
from brokergroup_operator.kubectl.errors import ForbiddenError, NotFoundError
from brokergroup_operator.kubectl.reach.kinds import LEASES
from brokergroup_operator.kubectl.show.printing import age

if TYPE_CHECKING:
    from brokergroup_operator.kubectl.reach.cluster import Cluster

JsonObject = dict[str, Any]
# Beyond the Lease's own duration: our clock is not the operator's, and a takeover takes its time.
PATIENCE_SECONDS = 30.0
ITS_PODS = f"kubectl get pods -A -l {names.LABEL_COMPONENT}={names.COMPONENT_OPERATOR}"


def hand_over(metadata: JsonObject) -> str:
    """The command that lets another operator take the group."""
    return f"kubectl annotate -n {metadata['namespace']} brokergroup {metadata['name']} {names.ANNOTATION_OPERATOR}-"


def holder_of(metadata: JsonObject) -> str:
    """Namespace and name of the Lease; empty where no operator has taken the group, or one without a Lease serves it."""
    return str((metadata.get("annotations") or {}).get(names.ANNOTATION_OPERATOR) or "")


class Presence(Enum):
    """What the Lease proves."""

    HERE = "here"
    AWAY = "away"
    # There is no Lease to look at, or we may not read it.
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Heartbeat:
    """Whether what stands in the group's status is current, and the sentence that says so."""

    presence: Presence
    message: str

    @property
    def proves(self) -> bool:
        return self.presence is Presence.HERE


def heartbeat(cluster: Cluster, group: JsonObject) -> Heartbeat:
    """Asks for the Lease that the group names. Never an error where it may not be read: that is said."""
    metadata, holder = group["metadata"], holder_of(group["metadata"])
    if not holder:
        return _without_a_lease(group)
    namespace, _, name = holder.partition("/")
    try:
        lease = cluster.get(LEASES, name, namespace=namespace)["spec"]
    except NotFoundError:
        silence = "its Lease is gone"
    except ForbiddenError:
        asked = f"kubectl get lease -n {namespace} {name}"
        return Heartbeat(
            Presence.UNKNOWN,
            f"you may not read the Lease of operator {holder}, so nothing proves that it is alive: {asked}",
        )
    else:
        silence = silent_for(lease)
        if not silence:
            renewed = f"renewed its Lease {age(str(lease['renewTime']))} ago"
            return Heartbeat(Presence.HERE, f"operator {holder} {renewed} ({_pod(lease)})")
    away = f"operator {holder} is away ({silence}), so all of this is as it left it"
    return Heartbeat(Presence.AWAY, f"{away}: {ITS_PODS}; gone for good? {hand_over(metadata)}")


def _without_a_lease(group: JsonObject) -> Heartbeat:
    if (group.get("status") or {}).get("conditions"):
        told = "no Lease is named on this group (its operator runs without one, or is gone), so nothing proves that one is alive"
        return Heartbeat(Presence.UNKNOWN, f"{told}: {ITS_PODS}")
    namespace = group["metadata"]["namespace"]
    return Heartbeat(
        Presence.AWAY, f"no operator has taken this group: does one run that serves namespace {namespace}? {ITS_PODS}"
    )


def _pod(lease: JsonObject) -> str:
    """The holder is a pod's name and what tells two starts of it apart."""
    return str(lease["holderIdentity"]).rpartition("_")[0] or str(lease["holderIdentity"])


def status_written(metadata: JsonObject) -> str:
    """When the status was last written, which is when it last changed; empty where the API server does not tell."""
    entries = metadata.get("managedFields") or []
    return max((str(item.get("time") or "") for item in entries if item.get("subresource") == "status"), default="")


def silent_for(lease: JsonObject) -> str:
    """Why no operator holds it; empty while one does."""
    renewed = lease.get("renewTime")
    if not lease.get("holderIdentity") or not renewed:
        return "nobody holds its Lease"
    seconds = (dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(str(renewed))).total_seconds()
    if seconds <= float(lease.get("leaseDurationSeconds") or 0) + PATIENCE_SECONDS:
        return ""
    return f"its Lease was last renewed {age(str(renewed))} ago, by {lease['holderIdentity']}"

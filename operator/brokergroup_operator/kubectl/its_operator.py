"""Whether somebody reconciles a group: by its annotation, and by the Lease that this names. All others leave the group alone.

An operator that is gone says nothing any more: status and conditions stay as it left them, and look as if all were well.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from brokergroup_operator.api import names
from brokergroup_operator.kubectl.errors import ForbiddenError, NotFoundError
from brokergroup_operator.kubectl.kinds import LEASES
from brokergroup_operator.kubectl.printing import age

if TYPE_CHECKING:
    from brokergroup_operator.kubectl.cluster import Cluster

JsonObject = dict[str, Any]
# Beyond the Lease's own duration: our clock is not the operator's, and a takeover takes its time.
PATIENCE_SECONDS = 30.0
ITS_PODS = f"kubectl get pods -A -l {names.LABEL_COMPONENT}={names.COMPONENT_OPERATOR}"


def hand_over(metadata: JsonObject) -> str:
    """The command that lets another operator take the group."""
    return f"kubectl annotate -n {metadata['namespace']} brokergroup {metadata['name']} {names.ANNOTATION_OPERATOR}-"


def holder_of(metadata: JsonObject) -> str:
    """Namespace and name of the Lease; empty where nobody has taken the group, or an operator without a Lease serves it."""
    return str((metadata.get("annotations") or {}).get(names.ANNOTATION_OPERATOR) or "")


def why_nobody_reconciles(cluster: Cluster, group: JsonObject) -> str:
    """Empty while somebody does, or where the Lease is nothing that we may read."""
    metadata, holder = group["metadata"], holder_of(group["metadata"])
    if not holder:
        if (group.get("status") or {}).get("conditions"):
            return ""
        return (
            f"no operator has taken this group: does one run that serves namespace {metadata['namespace']}? {ITS_PODS}"
        )
    namespace, _, name = holder.partition("/")
    try:
        silence = silent_for(cluster.get(LEASES, name, namespace=namespace)["spec"])
    except NotFoundError:
        silence = "its Lease is gone"
    except ForbiddenError:
        return ""
    if not silence:
        return ""
    away = f"operator {holder} is away ({silence}), so all of this is as it left it"
    return f"{away}: {ITS_PODS}; gone for good? {hand_over(metadata)}"


def silent_for(lease: JsonObject) -> str:
    """Why nobody holds it; empty while somebody does."""
    renewed = lease.get("renewTime")
    if not lease.get("holderIdentity") or not renewed:
        return "nobody holds its Lease"
    seconds = (dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(str(renewed))).total_seconds()
    if seconds <= float(lease.get("leaseDurationSeconds") or 0) + PATIENCE_SECONDS:
        return ""
    return f"its Lease was last renewed {age(str(renewed))} ago, by {lease['holderIdentity']}"

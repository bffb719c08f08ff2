"""Claims that are being deleted under a pod. Kubernetes keeps each until its pod has stopped; the data goes with it then. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.see import observed

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed


def going_claims(seen: Observed, pod_name: str) -> list[str]:
    """The claims of this pod that are being deleted; none where the pod is being stopped itself."""
    pod = seen.pods.get(pod_name)
    if pod is None or observed.being_deleted(pod):
        return []
    claims = identity.claim_names(seen.group, pod_name)
    return [name for name in claims if name in seen.claims and observed.being_deleted(seen.claims[name])]


def pods_on_going_claims(seen: Observed) -> dict[str, list[str]]:
    """The pods whose next stop takes their data along, each with its claims."""
    return {pod: claims for pod in sorted(seen.pods) if (claims := going_claims(seen, pod))}


def why_not_stopped(pods: list[str]) -> str:
    """Why the operator stops none of these pods."""
    listed = ", ".join(pods)
    return f"{listed}: a claim is being deleted, and the next stop takes its data along (condition ClaimTerminating)"

"""The version in force: what the spec asks for, or what the group runs where the step to that is refused. Pure.

A refused version rolls no pod. A lost pod is made again with the version that runs, so the group stays whole meanwhile.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from brokergroup_operator.api import names, versions
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.reconcile.see import observed

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.settings import ReconcileSettings


def judged(seen: Observed, settings: ReconcileSettings) -> Observed:
    """Return what was seen, with the version in force in the group's spec, and why that is not the one that was asked for."""
    why, runs = _refusal(seen, settings), running(seen)
    if not why:
        return seen
    if not runs:
        return replace(seen, version_refused=why)
    spec = msgspec.structs.replace(seen.group.spec, version=runs)
    return replace(seen, group=msgspec.structs.replace(seen.group, spec=spec), version_refused=why)


def running(seen: Observed) -> str:
    """Return the newest version of which a pod has started, or was seen before; empty where none is known.

    A pod whose image was never there has written nothing.
    """
    if seen.group.spec.image is not None or seen.group.spec.implementation is not Implementation.JAVA:
        return ""
    started = (observed.labels_of(pod) for pod in seen.pods.values() if _has_started(pod))
    found = [labels[names.LABEL_APP_VERSION] for labels in started if names.LABEL_APP_VERSION in labels]
    before = str((seen.group_object.get("status") or {}).get("version") or "")
    return max(found, key=versions.numbers, default=before)


def _has_started(pod: JsonObject) -> bool:
    return observed.pod_phase(pod) != "Pending"


def _refusal(seen: Observed, settings: ReconcileSettings) -> str:
    """Field, value, what is expected and why; empty for a version that the group may run."""
    spec = seen.group.spec
    if spec.image is not None or spec.implementation is not Implementation.JAVA:
        return ""
    wanted, runs = spec.version or settings.rocketmq_version, running(seen)
    field = "spec.version" if spec.version is not None else "spec.version is absent, and the operator's default version"
    if wanted != runs and (why := versions.why_it_never_runs(wanted)):
        return f"{field} is {wanted!r}, expected {versions.SERVED}: {why}"
    if why := versions.why_not_listed(wanted, settings.catalogue.choice):
        return f"{field} is {wanted!r}, expected another: {why}{_goes_on(runs)}"
    if not runs or _is_accepted(seen, wanted):
        return ""
    if why := versions.why_no_downgrade(runs, wanted, spec.config):
        accept = f"kubectl annotate brokergroup {seen.key.name} {names.ANNOTATION_ACCEPT_VERSION}={wanted}"
        return f"{field} is {wanted!r}, expected no such step back from {runs}: {why}{_goes_on(runs)}. To accept it: {accept}"
    return ""


def _goes_on(runs: str) -> str:
    return f". The group goes on with {runs}" if runs else ""


def _is_accepted(seen: Observed, wanted: str) -> bool:
    return observed.annotations_of(seen.group_object).get(names.ANNOTATION_ACCEPT_VERSION) == wanted

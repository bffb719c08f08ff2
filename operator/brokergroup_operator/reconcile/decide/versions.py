"""The version in force: what the spec asks for, or what the group runs where the step to that is refused. Pure.

A refused version rolls no pod, also in the middle of an update: each pod that has started keeps its own version. A lost pod is made
again with the newest that has run, since that has written the disks last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from brokergroup_operator.api import names, versions
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.members import membership

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.settings import ReconcileSettings


def judged(seen: Observed, settings: ReconcileSettings) -> Observed:
    """Return what was seen, with the version in force in the group's spec, and why that is not the one that was asked for."""
    why, runs = _refusal(seen, settings), running(seen)
    # Which keys the brokers have is not known without their ConfigMaps, so no pod steps back.
    is_blind = bool(seen.config_problem and runs) and versions.numbers(_wanted(seen, settings)) < versions.numbers(runs)
    if not (why or is_blind):
        return seen
    if not runs:
        return replace(seen, version_refused=why)
    spec = msgspec.structs.replace(seen.group.spec, version=runs)
    return replace(seen, group=msgspec.structs.replace(seen.group, spec=spec), version_refused=why)


def with_version_of(seen: Observed, pod: JsonObject, group: BrokerGroup) -> BrokerGroup:
    """Return the group with the version that the pod has, where the one of the spec is refused and the pod has started."""
    if not seen.version_refused or not (own := _version_of(pod)):
        return group
    return msgspec.structs.replace(group, spec=msgspec.structs.replace(group.spec, version=own))


def running(seen: Observed) -> str:
    """Return the newest version of which a pod has started; empty where none is known.

    A pod whose image was never there has written nothing. What the status said before counts until every member has a pod that has
    started: the disk of one that has none may be the newer version's.
    """
    if seen.group.spec.image is not None or seen.group.spec.implementation is not Implementation.JAVA:
        return ""
    found = [version for pod in seen.pods.values() if (version := _version_of(pod))]
    before = str((seen.group_object.get("status") or {}).get("version") or "")
    all_started = all(_version_of(seen.pods.get(member.pod)) for member in membership(seen).members)
    return max(found if found and all_started else [*found, before], key=versions.numbers)


def told(seen: Observed) -> str | None:
    """Return what `status.version` says: None also while a pod runs that may have any version, such as one of `spec.image`."""
    started = [pod for pod in seen.pods.values() if observed.pod_phase(pod) != "Pending"]
    return running(seen) or None if all(map(_version_of, started)) else None


def _version_of(pod: JsonObject | None) -> str:
    """Return the version of a pod that has started; empty for another pod, or where its label says none."""
    if pod is None or observed.pod_phase(pod) == "Pending":
        return ""
    version = observed.labels_of(pod).get(names.LABEL_APP_VERSION, "")
    return version if versions.is_version(version) else ""


def _refusal(seen: Observed, settings: ReconcileSettings) -> str:
    """Field, value, what is expected and why; empty for a version that the group may run."""
    spec = seen.group.spec
    if spec.image is not None or spec.implementation is not Implementation.JAVA:
        return ""
    wanted, runs = _wanted(seen, settings), running(seen)
    field = "spec.version" if spec.version is not None else "spec.version is absent, and the operator's default version"
    if wanted != runs and (why := versions.why_it_never_runs(wanted)):
        return f"{field} is {wanted!r}, expected {versions.SERVED}: {why}"
    if why := versions.why_not_listed(wanted, settings.catalogue.choice):
        return f"{field} is {wanted!r}, expected another: {why}{_goes_on(runs)}"
    if not runs or _is_accepted(seen, wanted):
        return ""
    if why := versions.why_no_downgrade(runs, wanted, spec.config):
        accept = names.how_to_accept_version(seen.key.namespace, seen.key.name, wanted)
        return f"{field} is {wanted!r}, expected no such step back from {runs}: {why}{_goes_on(runs)}. To accept it: {accept}"
    return ""


def _wanted(seen: Observed, settings: ReconcileSettings) -> str:
    return seen.group.spec.version or settings.rocketmq_version


def _goes_on(runs: str) -> str:
    return f". The group goes on with {runs}" if runs else ""


def _is_accepted(seen: Observed, wanted: str) -> bool:
    return observed.annotations_of(seen.group_object).get(names.ANNOTATION_ACCEPT_VERSION) == wanted

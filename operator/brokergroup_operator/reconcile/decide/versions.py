"""The version in force: what the spec asks for, or what the group runs where the step to that is refused. Pure.

A refused version rolls no pod, also in the middle of an update: each pod that has started keeps its own version. A lost pod is made
again with the newest that has run, since that has written the disks last. Which version has written a disk, and with which keys of
broker.conf that an older one does not know, stands on its claim too: pods, status and record may all be lost.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from brokergroup_operator.api import names, versions
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.kube.resources import BROKER_GROUPS, PERSISTENT_VOLUME_CLAIMS
from brokergroup_operator.reconcile.decide.claims import own_claims
from brokergroup_operator.reconcile.plan import Note, PatchMetadata
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.members import membership

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.reconcile.plan import Action
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
    spec = msgspec.structs.replace(seen.group.spec, version=runs, config=_with_kept_features(seen, settings, runs))
    return replace(seen, group=msgspec.structs.replace(seen.group, spec=spec), version_refused=why)


def _with_kept_features(seen: Observed, settings: ReconcileSettings, runs: str) -> dict[str, str]:
    """The keys of spec.config, and those that the refused step would lose: one edit takes away both or none.

    Rolled out by itself, the change of the key would lift the refusal, and lose what the refusal protects.
    """
    config = seen.group.spec.config
    kept = versions.features_lost(runs, _wanted(seen, settings), _features(seen) - versions.features_of(config))
    return config | dict.fromkeys(kept, "true")


def with_version_of(seen: Observed, pod: JsonObject, group: BrokerGroup) -> BrokerGroup:
    """Return the group with the version that the pod has, where the one of the spec is refused and the pod has started."""
    if not seen.version_refused or not (own := _version_of(pod)):
        return group
    return msgspec.structs.replace(group, spec=msgspec.structs.replace(group.spec, version=own))


def running(seen: Observed) -> str:
    """Return the newest version of which a pod has started; empty where none is known.

    A pod whose image was never there has written nothing. For a member without a started pod its claim counts, and what the status
    said before: its last pod may have gone before its claim was noted.
    """
    if not _has_version(seen):
        return ""
    found = [version for version, _ in _writers(seen) if version]
    before = str((seen.group_object.get("status") or {}).get("version") or "")
    all_started = all(_version_of(seen.pods.get(member.pod)) for member in membership(seen).members)
    return max(found if found and all_started else [*found, before], key=versions.numbers)


def _has_version(seen: Observed) -> bool:
    """Whether the group's pods are of a version: what an image of one's own is, and a Python broker, nothing says."""
    return seen.group.spec.image is None and seen.group.spec.implementation is Implementation.JAVA


def _features(seen: Observed) -> frozenset[str]:
    """Return the keys of `versions.FEATURES` with which brokers have written the group's disks."""
    return frozenset(key for _, features in _writers(seen) for key in features)


def _writers(seen: Observed) -> Iterator[tuple[str, frozenset[str]]]:
    """The version and features of each pod that has started; of a disk without one, those that its claim says."""
    for pod in seen.pods.values():
        if version := _version_of(pod):
            yield version, _features_in(pod)
    for name, claim in own_claims(seen).items():
        is_left = names.ANNOTATION_LEAVING in observed.annotations_of(claim)
        version = observed.annotations_of(claim).get(names.ANNOTATION_VERSION, "")
        if versions.is_version(version) and not is_left and not _has_started(seen.pods.get(name)):
            yield version, _features_in(claim)


def _features_in(obj: JsonObject) -> frozenset[str]:
    text = observed.annotations_of(obj).get(names.ANNOTATION_FEATURES, "")
    return frozenset(text.split(",")) & versions.FEATURES.keys()


def noted(seen: Observed, settings: ReconcileSettings) -> Iterator[Action]:
    """Note on each claim which broker has started on it, and take a used acceptance off the group."""
    for name, claim in sorted(own_claims(seen).items()):
        pod = seen.pods.get(name)
        if pod is None or not _has_started(pod) or observed.being_deleted(claim):
            continue
        features = ",".join(sorted(_features_in(pod)))
        wanted = {names.ANNOTATION_VERSION: _version_of(pod) or None, names.ANNOTATION_FEATURES: features or None}
        if seen.group.spec.bootstrap is not None:
            wanted[names.ANNOTATION_GROUP_UID] = observed.uid(seen.group_object)
        if changed := {key: text for key, text in wanted.items() if observed.annotations_of(claim).get(key) != text}:
            yield _annotated(PERSISTENT_VOLUME_CLAIMS, claim, changed, "the broker that has started on it")
    accepted = observed.annotations_of(seen.group_object).get(names.ANNOTATION_ACCEPT_VERSION)
    started = [_version_of(seen.pods.get(member.pod)) for member in membership(seen).members]
    if accepted and _wanted(seen, settings) == accepted and started and set(started) == {accepted}:
        told = f"Every broker runs {accepted}: annotation {names.ANNOTATION_ACCEPT_VERSION} is taken off, and accepts nothing more"
        note = Note(reason="VersionAccepted", message=told)
        change: dict[str, str | None] = {names.ANNOTATION_ACCEPT_VERSION: None}
        yield _annotated(BROKER_GROUPS, seen.group_object, change, "it was used", note)


def _annotated(
    resource: Resource, obj: JsonObject, annotations: Mapping[str, str | None], why: str, note: Note | None = None
) -> Action:
    name, change = str(observed.metadata(obj)["name"]), {"annotations": dict(annotations)}
    return PatchMetadata(reason=why, note=note, resource=resource, name=name, uid=observed.uid(obj), change=change)


def told(seen: Observed) -> str | None:
    """Return what `status.version` says: None also while a pod runs that may have any version, such as one of `spec.image`."""
    started = [pod for pod in seen.pods.values() if _has_started(pod)]
    return running(seen) or None if all(map(_version_of, started)) else None


def _has_started(pod: JsonObject | None) -> bool:
    return pod is not None and observed.pod_phase(pod) != "Pending"


def _version_of(pod: JsonObject | None) -> str:
    """Return the version of a pod that has started; empty for another pod, or where its label says none."""
    if pod is None or not _has_started(pod):
        return ""
    version = observed.labels_of(pod).get(names.LABEL_APP_VERSION, "")
    return version if versions.is_version(version) else ""


def _refusal(seen: Observed, settings: ReconcileSettings) -> str:
    """Field, value, what is expected and why; empty for a version that the group may run."""
    if not _has_version(seen):
        return ""
    spec = seen.group.spec
    wanted, runs = _wanted(seen, settings), running(seen)
    field = "spec.version" if spec.version is not None else "spec.version is absent, and the operator's default version"
    if wanted != runs and (why := versions.why_it_never_runs(wanted)):
        return f"{field} is {wanted!r}, expected {versions.SERVED}: {why}"
    if why := versions.why_not_listed(wanted, settings.catalogue.choice):
        return f"{field} is {wanted!r}, expected another: {why}{_goes_on(runs)}"
    if not runs or _is_accepted(seen, wanted):
        return ""
    if why := versions.why_no_downgrade(runs, wanted, spec.config, _features(seen)):
        accept = names.how_to_accept_version(seen.key.namespace, seen.key.name, wanted)
        return f"{field} is {wanted!r}, expected no such step back from {runs}: {why}{_goes_on(runs)}. To accept it: {accept}"
    return ""


def _wanted(seen: Observed, settings: ReconcileSettings) -> str:
    return seen.group.spec.version or settings.rocketmq_version


def _goes_on(runs: str) -> str:
    return f". The group goes on with {runs}" if runs else ""


def _is_accepted(seen: Observed, wanted: str) -> bool:
    return observed.annotations_of(seen.group_object).get(names.ANNOTATION_ACCEPT_VERSION) == wanted

"""Which pods run something else than they should, and why: the one list of reasons for which a pod is ever restarted. Pure.

What a pod was made from stands in its annotations, so nothing is remembered anywhere else: the revision of its spec, the
hash of the configuration keys that only a start reads, the hot keys that its process was given last, the group's restart
mark, and the operation in whose course it was made. A pod whose fence runs with a shorter heartbeat timeout than the present
one keeps it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_operation import OperationType
from brokergroup_operator.reconcile.render import fence_container, fence_key, hot_config
from brokergroup_operator.reconcile.render.addressing import place_of
from brokergroup_operator.reconcile.render.pods import build_pod
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.learners import wanted_learners

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.reconcile.identity import Member
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.settings import ReconcileSettings


class RestartReason(StrEnum):
    """Why a pod is restarted. They stand in Events and conditions, and in docs/concepts/life.md."""

    POD_CHANGED = "PodChanged"
    CONFIGURATION_CHANGED = "ConfigurationChanged"
    CONFIGURATION_KEY_REMOVED = "ConfigurationKeyRemoved"
    RESTARTED_AT = "RestartedAt"
    RESTART_OPERATION = "RestartOperation"


# A user asked for the restart itself, so it is done whatever updateStrategy.type says.
ASKED_FOR = frozenset({RestartReason.RESTARTED_AT, RestartReason.RESTART_OPERATION})


@dataclass(frozen=True)
class Outdated:
    """A member whose pod must be replaced."""

    member: Member
    why: RestartReason


def outdated_members(seen: Observed, members: Sequence[Member], settings: ReconcileSettings) -> list[Outdated]:
    """In the order of broker ids. A pod that is missing or going will be made right anyway."""
    return _running_something_else(seen, members, settings, going=False)


def outdated_and_going(seen: Observed, members: Sequence[Member], settings: ReconcileSettings) -> list[Outdated]:
    """Members whose pod is being deleted and runs something else than the spec says until it has ended."""
    return _running_something_else(seen, members, settings, going=True)


def _running_something_else(
    seen: Observed, members: Sequence[Member], settings: ReconcileSettings, *, going: bool
) -> list[Outdated]:
    result = []
    for member in members:
        pod = seen.pods.get(member.pod)
        if pod is None or observed.being_deleted(pod) is not going:
            continue
        if (place := place_of(seen.group, member, seen.services)) is not None and place.missing:
            continue  # its Service is being made again: until it has an address, what the pod should run is unknown
        if (why := restart_reason(seen, member, pod, settings)) is not None:
            result.append(Outdated(member, why))
    return result


def restart_reason(
    seen: Observed, member: Member, pod: JsonObject, settings: ReconcileSettings
) -> RestartReason | None:
    """A restart that a user asked for comes first: it is done at once, and whatever updateStrategy.type says."""
    have = observed.annotations_of(pod)
    mark = observed.annotations_of(seen.group_object).get(names.ANNOTATION_RESTARTED_AT)
    if mark is not None and have.get(names.ANNOTATION_RESTARTED_AT) != mark:
        return RestartReason.RESTARTED_AT
    if _named_by_restart(seen, member, pod):
        return RestartReason.RESTART_OPERATION
    as_made = fence_key.with_key_of(fence_container.with_times_of(seen.group, pod), pod)
    as_told = dataclasses.replace(seen, group=as_made)
    wanted = observed.annotations_of(wanted_pod(as_told, member, settings))
    if have.get(names.ANNOTATION_REVISION) != wanted[names.ANNOTATION_REVISION]:
        return RestartReason.POD_CHANGED
    if have.get(names.ANNOTATION_CONFIG_HASH) != wanted[names.ANNOTATION_CONFIG_HASH]:
        return RestartReason.CONFIGURATION_CHANGED
    if hot_config.given_to(pod).keys() - hot_config.wanted(seen, settings).keys():
        return RestartReason.CONFIGURATION_KEY_REMOVED
    return None


def wanted_pod(seen: Observed, member: Member, settings: ReconcileSettings) -> JsonObject:
    """The pod of the member as it would be made now, with the marks that say what it was made from."""
    place, learner = place_of(seen.group, member, seen.services), member.broker_id in wanted_learners(seen)
    pod = build_pod(seen.group, member, settings, place=place, learner=learner)
    annotations = observed.annotations_of(pod)
    annotations[names.ANNOTATION_GROUP_UID] = observed.uid(seen.group_object)
    annotations[names.ANNOTATION_HOT_CONFIG] = json.dumps(hot_config.wanted(seen, settings), sort_keys=True)
    if (mark := observed.annotations_of(seen.group_object).get(names.ANNOTATION_RESTARTED_AT)) is not None:
        annotations[names.ANNOTATION_RESTARTED_AT] = mark
    if seen.operation is not None:
        annotations[names.ANNOTATION_OPERATION] = str(seen.operation.metadata.get("uid", ""))
    return pod | {"metadata": pod["metadata"] | {"annotations": annotations}}


def _named_by_restart(seen: Observed, member: Member, pod: JsonObject) -> bool:
    operation = seen.operation
    if operation is None or operation.spec.type is not OperationType.RESTART or operation.spec.restart is None:
        return False
    named = operation.spec.restart.broker_ids
    return (not named or member.broker_id in named) and made_before(seen, pod)


def made_before(seen: Observed, obj: JsonObject) -> bool:
    """Whether the object is older than the running operation.

    Times of Kubernetes are whole seconds, so an object made in the very second of the start may be either; its mark decides.
    """
    operation = seen.operation
    if operation is None or operation.status is None or operation.status.started_at is None:
        return False
    if observed.annotations_of(obj).get(names.ANNOTATION_OPERATION) == str(operation.metadata.get("uid", "")):
        return False
    created = observed.metadata(obj).get("creationTimestamp")
    return created is None or moment(str(created)) <= moment(operation.status.started_at)


def moment(text: str) -> dt.datetime:
    """An RFC 3339 time."""
    return dt.datetime.fromisoformat(text)

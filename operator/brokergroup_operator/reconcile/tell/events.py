"""Posts Kubernetes Events about groups and clusters, and says which a change of the conditions is worth.

One that cannot be posted is logged and forgotten: nothing waits for it. Those of a transition are posted with the write that shows
it, so that each is posted once, and after a restart none again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import structlog

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_status import ConditionType, Reason
from brokergroup_operator.kube.errors import ApiError
from brokergroup_operator.kube.resources import EVENTS
from brokergroup_operator.observe.events import event_about
from brokergroup_operator.reconcile.plan import Note

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.client import KubernetesApi


log = structlog.get_logger(__name__)
REPORTER = f"{names.GROUP}/operator"
TOLD_AGAIN_AFTER_SECONDS = 3600.0


class EventPoster:
    def __init__(self, api: KubernetesApi, *, instance: str) -> None:
        self._api = api
        self._instance = instance
        self._told: dict[tuple[str, str, str, str], float] = {}

    async def post_once(self, group_object: JsonObject, note: Note) -> bool:
        """Post what passes may find again and again once an hour for each group. Return whether it was posted now."""
        metadata = group_object["metadata"]
        words = (str(metadata.get("namespace")), str(metadata["name"]), note.reason, note.message)
        now_seconds = time.monotonic()
        self._told = {key: at for key, at in self._told.items() if now_seconds - at < TOLD_AGAIN_AFTER_SECONDS}
        if words in self._told:
            return False
        self._told[words] = now_seconds
        await self.post(group_object, note)
        return True

    async def post(self, group_object: JsonObject, note: Note) -> None:
        event = event_about(group_object, note.reason, note.message, warning=note.warning)
        event |= {"action": "Reconcile", "reportingComponent": REPORTER, "reportingInstance": self._instance}
        if note.related:
            namespace = event["metadata"]["namespace"]
            event["related"] = {"apiVersion": "v1", "kind": "Pod", "name": note.related, "namespace": namespace}
        try:
            await self._api.create(EVENTS, event)
        except ApiError as error:
            log.warning("event.not_posted", reason=note.reason, error=str(error))


# The Event when a condition becomes True, and whether it is a warning; below, the one when it ends.
_BECOMES_TRUE = {
    ConditionType.PAUSED: ("Paused", False),
    ConditionType.HIBERNATED: ("Hibernated", False),
    ConditionType.BROKERS_STOPPED: ("BrokersStopped", False),
    ConditionType.METADATA_DIVERGED: ("MetadataDiverged", True),
    ConditionType.DEGRADED_DURABILITY: ("DegradedDurability", True),
    ConditionType.CONFIGURATION_DRIFTED: ("ConfigurationDrifted", True),
    ConditionType.FENCED: ("Fenced", True),
    ConditionType.OBJECTIVE_INVALID: ("ObjectiveInvalid", True),
    ConditionType.TLS_CHANGING: ("TlsChanging", False),
    ConditionType.CLIENT_CERTIFICATE_ENDING: ("ClientCertificateEnding", True),
}
_ENDS = {
    ConditionType.PAUSED: ("Resumed", "The group is reconciled again"),
    ConditionType.BROKERS_STOPPED: ("BrokersStarted", "No broker is held stopped any more"),
    ConditionType.HIBERNATED: ("Woken", "The group wakes: its pods are made again"),
    ConditionType.CONFIGURATION_DRIFTED: ("ConfigurationAsGiven", "Every broker runs with what it was given"),
    ConditionType.VOLUME_RESIZING: ("VolumeResized", "Every volume has the size of the spec"),
    ConditionType.TLS_CHANGING: ("TlsChanged", "Every pod was made with spec.tls"),
    ConditionType.UNFENCED: ("PromiseRestored", "Nothing is unfenced any more: the promise holds again"),
}
# Outdated, and nothing begun in this window; while a person is waited for half of it may be done.
_BEFORE_ROLLING = {
    Reason.WAITING_FOR_MEMBERS,
    Reason.WAITING_FOR_OTHER_GROUPS,
    Reason.CONFIGURATION_DRIFTED,
    Reason.OUTSIDE_WINDOW,
}


def transition_notes(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> Iterator[Note]:
    """In the order of the conditions. `before` is empty for a group that had no status: its first one is no transition."""
    old = {one["type"]: one for one in before}
    new = {one["type"]: one for one in after}
    for kind, (event, warning) in _BECOMES_TRUE.items():
        if _holds(new, kind) and not _holds(old, kind):
            yield Note(reason=event, message=new[kind]["message"], warning=warning)
    for kind, (event, message) in _ENDS.items():
        if _holds(old, kind) and not _holds(new, kind):
            yield Note(reason=event, message=message)
    yield from _claims(old, new)
    yield from _rolling(old, new)
    yield from _stalled(old, new)
    if _holds(old, ConditionType.FAILOVER_SAFE) and _is_worth_a_warning(new):
        yield Note(reason="NotFailoverSafe", message=new[ConditionType.FAILOVER_SAFE]["message"], warning=True)


def _holds(conditions: dict[str, dict[str, Any]], kind: ConditionType) -> bool:
    return (conditions.get(kind) or {}).get("status") == "True"


def _claims(old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]]) -> Iterator[Note]:
    """Each further claim that is deleted is reported too: the message names them."""
    was, now = old.get(ConditionType.CLAIM_TERMINATING) or {}, new.get(ConditionType.CLAIM_TERMINATING) or {}
    if now and now["message"] != was.get("message"):
        yield Note(reason="ClaimBeingDeleted", message=now["message"], warning=True)


def _rolling(old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]]) -> Iterator[Note]:
    was, now = old.get(ConditionType.UP_TO_DATE), new.get(ConditionType.UP_TO_DATE)
    if was is None or now is None:
        return
    if now["status"] == "True" and was["status"] != "True" and was["reason"] != Reason.CONFIGURATION_DRIFTED:
        yield Note(reason="RollingUpdateCompleted", message=now["message"])
    elif now["reason"] == Reason.ROLLING_UPDATE and (was["status"] == "True" or was["reason"] in _BEFORE_ROLLING):
        yield Note(reason="RollingUpdateStarted", message=now["message"])
    elif now["reason"] == Reason.OUTSIDE_WINDOW and was["reason"] != Reason.OUTSIDE_WINDOW:
        yield Note(reason="RollingUpdateWaits", message=now["message"])


def _stalled(old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]]) -> Iterator[Note]:
    """The reason of the condition is the Event's, and another reason is another Event."""
    if not _holds(new, ConditionType.STALLED):
        return
    was, now = old.get(ConditionType.STALLED) or {}, new[ConditionType.STALLED]
    if (was.get("status"), was.get("reason")) != (now["status"], now["reason"]):
        yield Note(reason=now["reason"], message=now["message"], warning=True)


def _is_worth_a_warning(new: dict[str, dict[str, Any]]) -> bool:
    """Not while we ourselves are at work on the group: a rolling update is never safe half-way."""
    if _holds(new, ConditionType.FAILOVER_SAFE) or ConditionType.FAILOVER_SAFE not in new:
        return False
    on_purpose = (ConditionType.RECONCILING, ConditionType.HIBERNATED, ConditionType.BROKERS_STOPPED)
    return not any(_holds(new, kind) for kind in on_purpose)

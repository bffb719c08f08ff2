"""Kubernetes Events of a broker group, as ``kubectl describe brokergroup`` shows them.

The observer turns the plane's reports into sentences and queues them; a task posts one after the other, a moment later: the first
ones come between an election and its role changes (1008). A full queue or an unreachable API loses Events, never time: incident
log and metrics are the record.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import structlog

from brokergroup_operator.api import names
from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.api.versions import NO_IDS, SERVED
from brokergroup_operator.kube.errors import ApiError
from brokergroup_operator.kube.resources import BROKER_GROUPS, EVENTS
from brokergroup_operator.observe.observer import Observer
from brokergroup_operator.observe.timeline import FailoverTimeline, Kind, Outcome

if TYPE_CHECKING:
    from brokergroup_operator.kube.client import JsonObject, KubernetesApi
    from brokergroup_operator.observe.group_view import MetadataDifference
    from brokergroup_operator.records.store import GroupKey
    from controller_core.model import BrokerGroupRecord

QUEUE_LIMIT = 500
# An Event names so many differences in metadata, and counts the others.
NAMED = 8
REPORTER = "brokergroup-operator"
POST_DEADLINE_SECONDS = 3.0
# How long the API is left to a change of master before its first Event is posted.
POST_LATER_SECONDS = 0.1

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """One Event about one group."""

    key: GroupKey
    reason: str
    message: str
    warning: bool = False
    # When it happened, if that was before the Event could be posted.
    at_unix_seconds: float | None = None
    # The change of master that it is about (``FailoverTimeline.incident_id``).
    incident: str = ""


class EventSink(Protocol):
    """Takes Events."""

    def post(self, event: GroupEvent) -> None:
        """Queue one Event; must return at once."""
        ...


class EventObserver(Observer):
    """Makes Events of the plane's reports."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        # Losses of a master without a commit of this plane: other planes see the same loss, and one of them may commit first.
        self._untold: dict[GroupKey, FailoverTimeline] = {}

    def record_changed(
        self, key: GroupKey, before: BrokerGroupRecord | None, after: BrokerGroupRecord, why: str
    ) -> None:
        if before is not None and after.master_epoch != before.master_epoch:
            self._post_loss(key)
        if before is not None and after.unclean_elections > before.unclean_elections:
            elected = f"elected broker {after.master_broker_id} at epoch {after.master_epoch}"
            message = f"{elected} although it may lack acknowledged messages: messages may be lost ({why})"
            self._post(key, "UncleanElection", message, warning=True)
        previous = before.sync_state_set if before is not None else frozenset()
        if before is None or after.master_epoch != before.master_epoch:
            if before is not None and before.granted_master_id == after.granted_master_id is not None:
                return  # the same master at a new epoch: the cause of that has an Event of its own
            if after.master_broker_id is not None and after.master_epoch > 0:
                elected = f"broker {after.master_broker_id} at epoch {after.master_epoch}: {why}"
                self._post(key, "MasterElected", elected)
            return
        joined, left = after.sync_state_set - previous, previous - after.sync_state_set
        if joined:
            self._post(key, "SyncStateSetExpanded", f"{_ids(joined)} joined: {_ids(after.sync_state_set)}")
        if left:
            self._post(key, "SyncStateSetShrunk", f"{_ids(left)} left: {_ids(after.sync_state_set)}", warning=True)

    def master_lost(self, timeline: FailoverTimeline) -> None:
        if timeline.kind is Kind.SWITCHOVER:
            self._post(timeline.group, "SwitchoverStarted", f"away from broker {timeline.from_broker_id}")
        else:
            self._untold[timeline.group] = timeline

    def failover_withdrawn(self, timeline: FailoverTimeline) -> None:
        self._untold.pop(timeline.group, None)

    def _post_loss(self, key: GroupKey) -> None:
        timeline = self._untold.pop(key, None)
        if timeline is None:
            return
        detected = timeline.started_at_unix_seconds
        lost = f"broker {timeline.from_broker_id}: {'; '.join(timeline.evidence)}"
        self._sink.post(GroupEvent(key, "MasterLost", lost, warning=True, at_unix_seconds=detected))
        started = f"from broker {timeline.from_broker_id} ({timeline.trigger.value})"
        self._sink.post(GroupEvent(key, "FailoverStarted", started, at_unix_seconds=detected))

    def master_changed(self, timeline: FailoverTimeline) -> None:
        key, name = timeline.group, timeline.kind.value.capitalize()
        if timeline.unfenced:
            message = f"the death of broker {timeline.from_broker_id} was not confirmed before the election"
            if timeline.unconfirmed_trust:
                message += f"; {timeline.unconfirmed_trust}"
            self._post(key, "Unfenced", message, warning=True)
        if timeline.outcome is Outcome.NO_ELIGIBLE_REPLICA:
            self._post_loss(key)
            self._post(
                key, "NoEligibleReplica", f"no member may replace broker {timeline.from_broker_id}", warning=True
            )
        elif timeline.outcome is Outcome.CANCELLED:
            self._post(key, f"{name}Cancelled", "; ".join(timeline.evidence) or "nothing was changed")
        else:
            duration_seconds = timeline.duration_seconds
            took = f"{round(duration_seconds * 1000)} ms" if duration_seconds is not None else "not confirmed yet"
            message = f"from broker {timeline.from_broker_id} to {timeline.to_broker_id}, epoch {timeline.epoch_after}, {took}"
            self._sink.post(GroupEvent(key, f"{name}Completed", message, incident=timeline.incident_id))

    def seat_lost(self, key: GroupKey, broker_id: int, why: str) -> None:
        self._post(key, "SeatLost", f"broker {broker_id} came back with less log than it had held: {why}", warning=True)

    def epoch_floor_raised(self, key: GroupKey, epoch: int, why: str) -> None:
        self._post(key, "EpochFloorRaised", f"raised the epoch above {epoch}: {why}", warning=True)

    def epoch_jump(self, key: GroupKey, epoch: int) -> None:
        ends = f"until the epoch is accepted ({names.ANNOTATION_ACCEPT_EPOCH}={epoch}) or the broker is gone"
        message = (
            f"a broker reports epoch {epoch}, too far above the record to be followed: no master is elected {ends}"
        )
        self._post(key, "EpochJump", message, warning=True)

    def broker_adopted(self, key: GroupKey, broker_id: int) -> None:
        message = (
            f"added broker {broker_id}: its own disk has this id, the record had lost it; it is not in the SyncStateSet"
        )
        self._post(key, "BrokerAdopted", message)

    def broker_too_old(self, key: GroupKey, host: str) -> None:
        message = f"the broker at {host} gets no role: {NO_IDS}. Name an image of RocketMQ {SERVED}"
        self._post(key, "BrokerTooOld", message, warning=True)

    def metadata_diverged(self, key: GroupKey, differences: tuple[MetadataDifference, ...]) -> None:
        message = f"missing, or not as the master has it: {_named(differences)}"
        self._post(key, "MetadataDiverged", message, warning=True)

    def metadata_copied_again(self, key: GroupKey, lacked: tuple[MetadataDifference, ...]) -> None:
        message = f"made to copy all from the master again, which it did not do by itself: {_named(lacked)}"
        self._post(key, "MetadataCopiedAgain", message)

    def offsets_carried(self, key: GroupKey, broker_id: int) -> None:
        message = f"broker {broker_id} does not copy its master's consumer offsets (as RocketMQ 5.5.0): they are written there"
        self._post(key, "OffsetsCarried", message)

    def members_unlinked(self, key: GroupKey, broker_ids: frozenset[int]) -> None:
        if broker_ids:
            message = f"{_ids(broker_ids)} alive, but the master has no link to them: they do not replicate"
            self._post(key, "MembersUnlinked", message, warning=True)
        else:
            self._post(key, "MembersLinked", "every living member is linked to the master again")

    def members_unheard(self, key: GroupKey, broker_ids: frozenset[int]) -> None:
        if broker_ids:
            message = f"{_ids(broker_ids)} run, but no controller receives their heartbeats: they acknowledge and can't take over"
            self._post(key, "MembersUnheard", message, warning=True)
        else:
            self._post(key, "MembersHeard", "a controller receives the heartbeats of every running member again")

    def member_relinked(self, key: GroupKey, broker_id: int, epoch: int) -> None:
        message = f"the group's epoch was raised to {epoch} to bring broker {broker_id} back to the master"
        self._post(key, "MemberRelinked", message, warning=True)

    def acknowledges_again(self, key: GroupKey, broker_id: int, minimum: int) -> None:
        message = (
            f"set minInSyncReplicas of broker {broker_id} from 99, with which it acknowledges nothing, back to {minimum}:"
            " no change of master is under way"
        )
        self._post(key, "ConfigurationPutBack", message, warning=True)

    def canary_refused(self, key: GroupKey, why: str) -> None:
        if why:
            self._post(key, "CanaryRefused", why, warning=True)
        else:
            self._post(key, "CanaryAcknowledged", "the canary's messages are acknowledged again")

    def _post(self, key: GroupKey, reason: str, message: str, *, warning: bool = False) -> None:
        self._sink.post(GroupEvent(key, reason, message, warning))


class KubernetesEventSink:
    """Posts Events to the API, in order, from a bounded queue."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._queue: asyncio.Queue[tuple[GroupEvent, float] | None] = asyncio.Queue(QUEUE_LIMIT)
        self._poster: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to post."""
        self._poster = asyncio.create_task(self._post_all(), name="rmq:events")

    def post(self, event: GroupEvent) -> None:
        """Queue an Event; a full queue drops it."""
        if event.at_unix_seconds is None:
            event = replace(event, at_unix_seconds=time.time())
        try:
            self._queue.put_nowait((event, asyncio.get_running_loop().time() + POST_LATER_SECONDS))
        except asyncio.QueueFull:
            log.warning("Event dropped", group=str(event.key), reason=event.reason, message=event.message)

    async def stop(self) -> None:
        """Post what is queued, within the deadline of one post, then stop."""
        if self._poster is None:
            return
        try:
            async with asyncio.timeout(POST_DEADLINE_SECONDS):
                await self._queue.put(None)
                await asyncio.shield(self._poster)
        except TimeoutError:
            self._poster.cancel()
            await asyncio.gather(self._poster, return_exceptions=True)
        self._poster = None

    async def _post_all(self) -> None:
        while (queued := await self._queue.get()) is not None:
            event, due_seconds = queued
            await asyncio.sleep(due_seconds - asyncio.get_running_loop().time())
            try:
                group = await self._api.get(
                    BROKER_GROUPS, event.key.name, namespace=event.key.namespace, timeout_seconds=POST_DEADLINE_SECONDS
                )
                await self._api.create(EVENTS, event_object(event, group), timeout_seconds=POST_DEADLINE_SECONDS)
            except ApiError as error:
                log.warning("Event not posted", group=str(event.key), reason=event.reason, error=str(error))


def event_object(event: GroupEvent, group: JsonObject) -> JsonObject:
    """Return the core/v1 Event about this BrokerGroup."""
    named = group | {"metadata": group["metadata"] | {"namespace": event.key.namespace, "name": event.key.name}}
    made = event_about(
        named, event.reason, event.message[:1024], warning=event.warning, at_unix_seconds=event.at_unix_seconds
    )
    if event.incident:
        made["metadata"]["annotations"] = {names.ANNOTATION_INCIDENT: event.incident}
    made["involvedObject"]["resourceVersion"] = group["metadata"].get("resourceVersion", "")
    return made | {"reportingComponent": REPORTER, "reportingInstance": ""}


def event_about(
    obj: JsonObject, reason: str, message: str, *, warning: bool, at_unix_seconds: float | None = None
) -> JsonObject:
    """Return the core/v1 Event about an object of ours; `at_unix_seconds`: None for now."""
    metadata, name = obj["metadata"], obj["metadata"]["name"]
    at = rfc3339(time.time() if at_unix_seconds is None else at_unix_seconds)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": metadata["namespace"], "name": f"{name}.{uuid.uuid4().hex[:16]}"},
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            # An item of a list has no kind: it is a group of ours.
            "kind": obj.get("kind") or names.BROKER_GROUP_KIND,
            "namespace": metadata["namespace"],
            "name": name,
            "uid": metadata.get("uid", ""),
        },
        "reason": reason,
        "message": message,
        "type": "Warning" if warning else "Normal",
        "source": {"component": names.MANAGED_BY},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


def _ids(broker_ids: frozenset[int]) -> str:
    return "{" + ",".join(str(broker_id) for broker_id in sorted(broker_ids)) + "}"


def _named(differences: tuple[MetadataDifference, ...]) -> str:
    named = ", ".join(f"{one.kind.value} {one.name} at broker {one.broker_id}" for one in differences[:NAMED])
    return f"{named} and {len(differences) - NAMED} more" if len(differences) > NAMED else named

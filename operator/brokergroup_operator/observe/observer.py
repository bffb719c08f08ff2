"""What the controller plane tells while it works: one method for each thing worth telling, all of them doing nothing by default.

The plane calls these on its failover path, so an observer must return at once and must not fail: it notes, counts or queues.
Metrics, Kubernetes Events and the incident log are observers; ``ObserverGroup`` puts several in a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brokergroup_operator.observe.group_view import MetadataDifference
    from brokergroup_operator.observe.timeline import FailoverTimeline
    from brokergroup_operator.records.store import GroupKey
    from controller_core.decision import Decision
    from controller_core.model import BrokerGroupRecord


class Observer:
    """Hears everything and does nothing: derive and override."""

    def request_answered(self, request_code: int, response_code: int, duration_seconds: float | None = None) -> None:
        """A broker or tool was answered, and how long that took where it was measured."""

    def election_decided(self, key: GroupKey, decision: Decision) -> None:
        """An ElectMaster was decided, and what it changed is durable."""

    def record_changed(
        self, key: GroupKey, before: BrokerGroupRecord | None, after: BrokerGroupRecord, why: str
    ) -> None:
        """A change of the record became durable by our own hand."""

    def record_conflict(self, key: GroupKey, record: BrokerGroupRecord | None) -> None:
        """A commit was refused because the record had moved."""

    def master_lost(self, timeline: FailoverTimeline) -> None:
        """This plane believes a master lost, perhaps others too: only the one that commits an election tells the world of it."""

    def failover_withdrawn(self, timeline: FailoverTimeline) -> None:
        """What ``master_lost`` began ended without a commit of this plane: there is nothing to tell."""

    def master_committed(self, timeline: FailoverTimeline) -> None:
        """The record names a new master, which the timeline has; nobody has been told yet."""

    def master_changed(self, timeline: FailoverTimeline) -> None:
        """The failover or switchover reached its end as far as the master goes (see its outcome)."""

    def incident_closed(self, timeline: FailoverTimeline) -> None:
        """Nothing more will be added to this timeline."""

    def seat_lost(self, key: GroupKey, broker_id: int, why: str) -> None:
        """A member came back with less than it had held, and counts as out of sync from now on (safety rule 2)."""

    def epoch_floor_raised(self, key: GroupKey, epoch: int, why: str) -> None:
        """Brokers were ahead of the record, so the record had gone back in time; it goes on above them (safety rule 3)."""

    def epoch_jump(self, key: GroupKey, epoch: int) -> None:
        """A replica reports an epoch too far ahead to be believed: elections stop until a human accepts it. Told once."""

    def broker_adopted(self, key: GroupKey, broker_id: int) -> None:
        """A broker whose id the record did not know became a member again (no seat yet)."""

    def metadata_diverged(self, key: GroupKey, differences: tuple[MetadataDifference, ...]) -> None:
        """Members lack what their master has besides the log, or a new master what the old one had. All there is now, on news."""

    def metadata_copied_again(self, key: GroupKey, lacked: tuple[MetadataDifference, ...]) -> None:
        """A slave lacked these for longer than it takes to copy them, and was made to copy all of their kind again."""

    def members_unlinked(self, key: GroupKey, broker_ids: frozenset[int]) -> None:
        """These members are alive, and for longer than it takes the master has no link to them. All there are now, on news."""

    def members_unheard(self, key: GroupKey, broker_ids: frozenset[int]) -> None:
        """These members run, and no controller plane receives their heartbeats. All there are now, on news, by one plane."""

    def member_relinked(self, key: GroupKey, broker_id: int, epoch: int) -> None:
        """A member that would not link to the master was cured by raising the group's epoch to this one."""

    def canary_sent(self, key: GroupKey, acknowledged: bool, duration_seconds: float) -> None:
        """The canary sent a message, which was acknowledged or was not, and that took so long."""

    def acknowledges_again(self, key: GroupKey, broker_id: int, minimum: int) -> None:
        """A broker that no change of master keeps quiet any more (minInSyncReplicas 99) was given this minimum back."""

    def canary_refused(self, key: GroupKey, why: str) -> None:
        """A broker refuses the canary for a right that it lacks: who, whom and what right. Empty: not any more. On news."""


class ObserverGroup(Observer):
    """Tells several observers, in order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def request_answered(self, request_code: int, response_code: int, duration_seconds: float | None = None) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.request_answered(request_code, response_code, duration_seconds)

    def election_decided(self, key: GroupKey, decision: Decision) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.election_decided(key, decision)

    def record_changed(
        self, key: GroupKey, before: BrokerGroupRecord | None, after: BrokerGroupRecord, why: str
    ) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.record_changed(key, before, after, why)

    def record_conflict(self, key: GroupKey, record: BrokerGroupRecord | None) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.record_conflict(key, record)

    def master_lost(self, timeline: FailoverTimeline) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.master_lost(timeline)

    def failover_withdrawn(self, timeline: FailoverTimeline) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.failover_withdrawn(timeline)

    def master_committed(self, timeline: FailoverTimeline) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.master_committed(timeline)

    def master_changed(self, timeline: FailoverTimeline) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.master_changed(timeline)

    def incident_closed(self, timeline: FailoverTimeline) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.incident_closed(timeline)

    def seat_lost(self, key: GroupKey, broker_id: int, why: str) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.seat_lost(key, broker_id, why)

    def epoch_floor_raised(self, key: GroupKey, epoch: int, why: str) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.epoch_floor_raised(key, epoch, why)

    def epoch_jump(self, key: GroupKey, epoch: int) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.epoch_jump(key, epoch)

    def broker_adopted(self, key: GroupKey, broker_id: int) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.broker_adopted(key, broker_id)

    def metadata_diverged(self, key: GroupKey, differences: tuple[MetadataDifference, ...]) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.metadata_diverged(key, differences)

    def metadata_copied_again(self, key: GroupKey, lacked: tuple[MetadataDifference, ...]) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.metadata_copied_again(key, lacked)

    def members_unlinked(self, key: GroupKey, broker_ids: frozenset[int]) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.members_unlinked(key, broker_ids)

    def members_unheard(self, key: GroupKey, broker_ids: frozenset[int]) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.members_unheard(key, broker_ids)

    def member_relinked(self, key: GroupKey, broker_id: int, epoch: int) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.member_relinked(key, broker_id, epoch)

    def canary_sent(self, key: GroupKey, acknowledged: bool, duration_seconds: float) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.canary_sent(key, acknowledged, duration_seconds)

    def acknowledges_again(self, key: GroupKey, broker_id: int, minimum: int) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.acknowledges_again(key, broker_id, minimum)

    def canary_refused(self, key: GroupKey, why: str) -> None:
        """Tell all."""
        for observer in self._observers:
            observer.canary_refused(key, why)

"""What the controller plane reports while it works: one method for each kind of news, each a no-op to override.

The plane calls these on its failover path, so an observer must return at once and must not raise: it notes, counts or queues.
Metrics, Kubernetes Events and the incident log are observers; ``ObserverGroup`` puts several in a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from brokergroup_operator.observe.group_view import MetadataDifference
    from brokergroup_operator.observe.timeline import FailoverTimeline
    from brokergroup_operator.records.store import GroupKey
    from controller_core.decision import Decision
    from controller_core.model import BrokerGroupRecord


class Observer:
    """Receives everything and does nothing."""

    def request_answered(self, request_code: int, response_code: int, duration_seconds: float | None = None) -> None:
        """A request of a broker or a tool was answered; the duration is None where it was not measured."""

    def election_decided(self, key: GroupKey, decision: Decision) -> None:
        """An ElectMaster request was decided, and its changes are durable."""

    def record_changed(
        self, key: GroupKey, before: BrokerGroupRecord | None, after: BrokerGroupRecord, why: str
    ) -> None:
        """This plane committed a change of the record."""

    def record_conflict(self, key: GroupKey, record: BrokerGroupRecord | None) -> None:
        """A commit was refused because another plane had committed first."""

    def master_lost(self, timeline: FailoverTimeline) -> None:
        """This plane considers the master lost, as others may: only the one that commits an election reports it outside."""

    def failover_withdrawn(self, timeline: FailoverTimeline) -> None:
        """A change that ``master_lost`` began ended without a commit of this plane: nothing is reported of it."""

    def master_committed(self, timeline: FailoverTimeline) -> None:
        """The record names the new master, which is in the timeline; no broker has been notified yet."""

    def master_changed(self, timeline: FailoverTimeline) -> None:
        """The failover or switchover has an outcome for the master; later steps may follow."""

    def incident_closed(self, timeline: FailoverTimeline) -> None:
        """The timeline is final."""

    def seat_lost(self, key: GroupKey, broker_id: int, why: str) -> None:
        """A member came back with less log than it had held, and counts as out of sync from now on (safety rule 2)."""

    def epoch_floor_raised(self, key: GroupKey, epoch: int, why: str) -> None:
        """Brokers reported a higher epoch than the record, which had gone back in time; it continues above (safety rule 3)."""

    def epoch_jump(self, key: GroupKey, epoch: int) -> None:
        """A broker reports an epoch too far above the record: elections stop until a person accepts it. Reported once."""

    def broker_adopted(self, key: GroupKey, broker_id: int) -> None:
        """A broker whose id the record did not have became a member again, without a seat."""

    def broker_too_old(self, key: GroupKey, host: str) -> None:
        """A broker at this host registers as those before 5.1.1 do, without an id. Reported once for each connection."""

    def metadata_diverged(self, key: GroupKey, differences: tuple[MetadataDifference, ...]) -> None:
        """Members lack metadata of their master, or a new master metadata of the old one. All current ones, at each change."""

    def metadata_copied_again(self, key: GroupKey, lacked: tuple[MetadataDifference, ...]) -> None:
        """A slave lacked these for longer than a copy takes, and was made to copy all metadata of their kind again."""

    def offsets_carried(self, key: GroupKey, broker_id: int) -> None:
        """This slave copies no consumer offsets from its master: they are written there. Reported once under each master."""

    def members_unlinked(self, key: GroupKey, broker_ids: frozenset[int]) -> None:
        """These members are alive without a link to the master for longer than linking takes. All, at each change."""

    def members_unheard(self, key: GroupKey, broker_ids: frozenset[int]) -> None:
        """These members run, and no controller plane receives their heartbeats. All, at each change; one plane reports it."""

    def member_relinked(self, key: GroupKey, broker_id: int, epoch: int) -> None:
        """The group's epoch was raised to this one, so that a member without a link connects again."""

    def canary_sent(self, key: GroupKey, acknowledged: bool, duration_seconds: float) -> None:
        """The canary sent a message."""

    def acknowledges_again(self, key: GroupKey, broker_id: int, minimum: int) -> None:
        """A broker had minInSyncReplicas 99 although no change of master is under way; it was set to this minimum."""

    def canary_refused(self, key: GroupKey, why: str) -> None:
        """A broker refuses the canary for lack of a right; `why` names it. Empty: it does not refuse any more. At each change."""


class ObserverGroup(Observer):
    """Passes each call on to several observers, in order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)


def _pass_on(name: str) -> Callable[..., None]:
    def call(self: ObserverGroup, *arguments: Any, **named: Any) -> None:
        for observer in self._observers:
            getattr(observer, name)(*arguments, **named)

    return call


for _name in [name for name in vars(Observer) if not name.startswith("_")]:
    setattr(ObserverGroup, _name, _pass_on(_name))

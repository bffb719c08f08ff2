"""The controller plane as the rest of the operator sees it: snapshots of each broker group, and a few requests.

The reconcile plane runs in the same process but may not import the controller: it gets an object with this Protocol. Status,
metrics and decisions about voluntary work rest on snapshots. A snapshot may be out of date, so no role is granted on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from brokergroup_operator.observe.timeline import Cause, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from brokergroup_operator.observe.group_offsets import GroupOffsets
    from brokergroup_operator.observe.timeline import FailoverTimeline
    from brokergroup_operator.records.store import GroupKey
    from controller_core.model import BrokerGroupRecord, LiveReplica
    from rocketmq_remoting.acl_protocol import AccessChange, BrokerAccess
    from rocketmq_remoting.broker_protocol import SubscriptionGroupConfig, TopicConfig
    from rocketmq_remoting.tls import Validity

SWITCHOVER_DEADLINE_SECONDS = 30.0


class GroupViewError(Exception):
    """A request to the controller plane failed; the message says why, the type whether to retry."""


class GroupUnknownError(GroupViewError):
    """The controller plane has no such group (yet)."""


class SwitchoverRefusedError(GroupViewError):
    """No switchover is possible now (no other member is in sync and alive, or another change is under way)."""


class SwitchoverFailedError(GroupViewError):
    """The switchover began and was abandoned; the old master stays master. Retry later."""


class ElectionRefusedError(GroupViewError):
    """Nothing was changed: a master is alive, the requested member may not be elected, or the loss was not accepted."""


class MemberNeededError(GroupViewError):
    """The member was not removed: it is alive, or master, or holds a seat that the group's durability needs."""


class BrokerUnreachableError(GroupViewError):
    """The broker's address is not known, or it did not answer in time, or refused."""


class BrokerRefusedError(BrokerUnreachableError):
    """The broker answered, and refused this request; it may do another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchoverResult:
    """The master after a switchover. `phases` are milliseconds from the start; empty if it was master already.

    `confirmed`: whether the new master confirmed its role; if not, the role change is sent again until it does.
    """

    from_broker_id: int
    to_broker_id: int
    epoch: int
    milliseconds: float = 0.0
    phases: Mapping[str, float] = field(default_factory=dict)
    confirmed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionResult:
    """The elected master. `unclean`: by the record it may lack acknowledged messages."""

    to_broker_id: int
    epoch: int
    unclean: bool
    milliseconds: float
    confirmed: bool


class MetadataKind(StrEnum):
    """What a slave copies from its master besides the log (upstream #9804)."""

    TOPIC = "Topic"
    SUBSCRIPTION_GROUP = "SubscriptionGroup"
    CONSUMER_OFFSET = "ConsumerOffset"


@dataclass(frozen=True, slots=True, order=True)
class MetadataDifference:
    """Metadata that this slave lacks, or has in another version than the master, for longer than a copy takes."""

    broker_id: int
    kind: MetadataKind
    name: str
    master_version: str = ""
    # A consumer offset that is there, and lower than the master's: with this member as master its consumers receive some messages
    # again, and skip none.
    only_older: bool = False

    @property
    def text(self) -> str:
        return f"broker {self.broker_id}: {self.kind.value} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """A registered member whose heartbeats this controller plane does not receive, and what the plane has learned since."""

    # Its last heartbeat here; without one, since when this plane could have received it.
    since_unix_seconds: float
    # By the master's 907 answer during the silence; None: no answer, or several members share the host. Of a master: `answers`.
    linked: bool | None = None
    # Whether its broker answers a 907 request of this plane in the role that it has by the record; None: not sent yet.
    answers: bool | None = None
    # The other controller planes that receive its heartbeats.
    heard_by: tuple[str, ...] = ()
    # How often the answer to its poll (1004) made it register again.
    told_to_register: int = 0

    @property
    def runs(self) -> bool:
        """Whether its process is known to run."""
        return bool(self.linked or self.answers)

    @property
    def is_unheard_by_all(self) -> bool:
        """Whether its process runs, and no controller plane that answers receives its heartbeats."""
        return self.runs and not self.heard_by

    @property
    def acknowledges(self) -> bool:
        """Whether its acknowledgements reach the master. Both are needed: the master lists the link of a cut node for a while."""
        return bool(self.linked and self.answers)


@dataclass(frozen=True, slots=True)
class LostLink:
    """A slave that is heard, was sent its role change (1008) again and again, and does not stay linked."""

    # When it had been without a link for so long that its process is to be replaced.
    since_unix_seconds: float
    # How often it was sent, and answered.
    told: int


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """One group at one moment, as the controller plane knows it."""

    key: GroupKey
    record: BrokerGroupRecord | None
    live: Mapping[int, LiveReplica]
    # A write can be acknowledged: the master has confirmed its role at this epoch, and with it enough members of the SyncStateSet
    # are heard, or are linked and answer (907). `reconcile.decide.failover_safe.why_not_writable` says which of these is missing.
    writable: bool
    # A Retire is about to delete the group: no broker acknowledges, whatever else holds. What is decided goes by `writable`, which
    # says nothing of it; what is shown by `takes_writes`.
    closed: bool = False
    in_progress: FailoverTimeline | None = None
    # The record has an unfinished change of master, of any plane.
    is_changing: bool = False
    last_failover: FailoverTimeline | None = None
    last_switchover: FailoverTimeline | None = None
    # How often a master that was silent here stayed master because other controller planes heard it.
    spared_on_testimony: int = 0
    # An epoch that brokers report, too far above the record to be followed: elections stop until a person accepts it.
    epoch_jump: int | None = None
    heartbeat_age_seconds: Mapping[int, float] = field(default_factory=dict)
    # Alive members without a link to the master, by the master's answer (907).
    unlinked: frozenset[int] = frozenset()
    # Alive members that no role change (1008) links; one of them may be linked at this moment, and lose its link again.
    lost_links: Mapping[int, LostLink] = field(default_factory=dict)
    # Bytes a second over the link from the master to each member, by the master's last answer (907).
    replication_speeds: Mapping[int, int] = field(default_factory=dict)
    # Registered slaves that are not in ``live``.
    silences: Mapping[int, Silence] = field(default_factory=dict)
    # The same of a master that is not in ``live``.
    masters_silence: Silence | None = None
    # For how long this plane has known the group. A plane that is too new shows no silences.
    known_for_seconds: float = math.inf
    # The master's metadata that slaves lack, as of the last comparison.
    metadata_diverged: tuple[MetadataDifference, ...] = ()
    # Each member's facts, by names of ``metric_names.MEMBER_FACTS``.
    member_facts: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    # The configuration that living brokers last reported (26), of the keys in ``api.broker_keys.watched_keys``.
    member_configuration: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    # The times of the client certificate that each living member's connection showed to this plane, if the plane asks for one.
    certificates: Mapping[int, Validity] = field(default_factory=dict)

    @property
    def takes_writes(self) -> bool:
        """Whether a write can be acknowledged now."""
        return self.writable and not self.closed

    @property
    def missing_metadata(self) -> tuple[MetadataDifference, ...]:
        """What a member lacks, without offsets that are only older: by those consumers receive some messages again."""
        return tuple(one for one in self.metadata_diverged if not one.only_older)

    @property
    def incomplete_members(self) -> frozenset[int]:
        """Members that lack a topic, a subscription group or an offset of the master's: with one of them as master it is lost."""
        return frozenset(one.broker_id for one in self.missing_metadata)

    @property
    def moves_master(self) -> bool:
        """Whether a change of master is under way, of this plane or of another one."""
        return self.in_progress is not None or self.is_changing

    @property
    def hears_master(self) -> bool:
        """Whether it is writable, and this plane itself hears the master: nothing voluntary is decided on less."""
        return self.writable and self.record is not None and self.record.granted_master_id in self.live

    @property
    def awaits_confirmation(self) -> bool:
        """Whether this plane elected the present master, and the master has not confirmed its role yet."""
        changes = (self.in_progress, self.last_failover, self.last_switchover)
        epoch = self.record.master_epoch if self.record is not None else 0
        elections = (one for one in changes if one is not None and one.epoch_after == epoch)
        return any(Step.ROLE_CHANGED not in one.steps for one in elections)

    def stands_as(self, other: GroupSnapshot) -> bool:
        """Return whether record, master, changes and the members that live and are linked are as there; ages and speeds aside."""
        return all(
            mine == theirs
            for mine, theirs in (
                (self.record, other.record),
                (self.writable, other.writable),
                (self.closed, other.closed),
                (self.in_progress, other.in_progress),
                (self.is_changing, other.is_changing),
                (self.epoch_jump, other.epoch_jump),
                (self.unlinked, other.unlinked),
                (self.live.keys(), other.live.keys()),
            )
        )


@dataclass(frozen=True, kw_only=True)
class RestoredStore:
    """The disk of `pod_name` has the log of `backup` up to `held_offset`, whose last epoch is `held_epoch`.

    `broker_id` and `master_epoch` are those with which its group goes on: above all that the group of the backup had.
    """

    backup: str
    pod_name: str
    broker_id: int
    master_epoch: int
    held_epoch: int
    held_offset: int


class ShownGroups(Protocol):
    """The read-only part of ``GroupView``, for the metrics and the page."""

    def keys(self) -> list[GroupKey]:
        """Return every group of the plane."""
        ...

    def snapshot(self, key: GroupKey) -> GroupSnapshot | None:
        """Return the group's current snapshot; None for an unknown group."""
        ...

    def subscribe(self, callback: Callable[[GroupKey], None]) -> Callable[[], None]:
        """Call back at every change of a snapshot, until the returned function is called. The callback must return at once."""
        ...


class GroupView(ShownGroups, Protocol):
    """The controller plane's interface inside the process."""

    async def wait_until_master_is_told(self, key: GroupKey, timeout_seconds: float) -> None:
        """Return when this plane does not doubt or change the group's master, and a new one was given a moment (0.1 s) in which its
        set can grow; after this time at the latest.
        """
        ...

    async def reserve_broker_id(self, key: GroupKey, pod_name: str, *, broker_id: int | None = None) -> int:
        """Return the broker id of this pod name; reserve the next one durably if it has none.

        A pod's name contains its id: with `broker_id` this raises ``GroupViewError`` unless the id is, or can be, that one.
        """
        ...

    async def restore_group(self, key: GroupKey, restored: RestoredStore) -> None:
        """Begin the record of a new group with a store that was copied from a backup; a no-op if it began with that one.

        Raises ``GroupViewError`` where the record has begun otherwise.
        """
        ...

    async def switch_master(
        self,
        key: GroupKey,
        *,
        from_broker_id: int | None = None,
        to_broker_id: int | None = None,
        deadline_seconds: float = SWITCHOVER_DEADLINE_SECONDS,
        cause: Cause = Cause.PLANNED_SWITCHOVER,
    ) -> SwitchoverResult:
        """Switch over to this member, or to the best one; `cause` goes into the incident log.

        A no-op if `from_broker_id` is not master, or `to_broker_id` is. Raises ``SwitchoverRefusedError``,
        ``SwitchoverFailedError``, ``GroupUnknownError``, or ``GroupViewError`` if the record cannot be read.
        """
        ...

    async def elect(self, key: GroupKey, *, to_broker_id: int, unclean: bool) -> ElectionResult:
        """Make this member master of a group without a living master; `unclean` accepts lost messages. ``ElectionRefusedError``."""
        ...

    async def check_metadata(self, key: GroupKey, broker_id: int) -> None:
        """Return if this member has every topic and subscription group of the master, after waiting for its next copy.

        Raises ``GroupViewError`` with what it lacks, or if that is not known.
        """
        ...

    async def remove_member(self, key: GroupKey, broker_id: int) -> None:
        """Remove a dead member from SyncStateSet and record; its id is never used again. A no-op for an unknown member.

        Raises ``MemberNeededError`` for the master, for a living member, and for one whose seat is needed.
        """
        ...

    async def broker_config(self, key: GroupKey, broker_id: int) -> dict[str, str]:
        """Return the configuration that a member's broker reports (26). ``BrokerUnreachableError``."""
        ...

    async def set_broker_config(self, key: GroupKey, broker_id: int, values: Mapping[str, str]) -> None:
        """Change a member's configuration, live and in its file (25); not while a change of master is under way.

        ``BrokerUnreachableError``, ``GroupViewError``.
        """
        ...

    async def topic(self, key: GroupKey, name: str) -> TopicConfig | None:
        """Return a topic's configuration at the group's master (351); None if it has no such topic. ``BrokerUnreachableError``."""
        ...

    async def offsets(self, key: GroupKey) -> GroupOffsets:
        """Return how far topics reach at the group's master, and how far they are read; not during a change of master.

        ``BrokerUnreachableError``; ``GroupViewError``, also if the master or its epoch was another one at the end.
        """
        ...

    async def put_topic(self, key: GroupKey, topic: TopicConfig) -> None:
        """Create or change a topic at the group's master, from where slaves copy it (17); not during a change of master.

        Attributes that `topic` does not name stay. ``BrokerUnreachableError``, also if the broker refuses; ``GroupViewError``.
        """
        ...

    async def consumer_groups(self, key: GroupKey, names: Collection[str]) -> dict[str, SubscriptionGroupConfig]:
        """Return those of these consumer groups that the group's master has (201). ``BrokerUnreachableError``."""
        ...

    async def put_consumer_group(self, key: GroupKey, settings: SubscriptionGroupConfig) -> None:
        """Create a consumer group at the group's master, or replace its settings (200); not during a change of master.

        Attributes stay; any other setting that is not named gets RocketMQ's default. ``BrokerUnreachableError``, also if the
        broker refuses; ``GroupViewError``.
        """
        ...

    async def topic_readers(self, key: GroupKey, topic: str) -> frozenset[str]:
        """Return the consumer groups that subscribe to a topic at the group's master, or have an offset of it (300).

        ``BrokerUnreachableError``.
        """
        ...

    async def put_first_offsets(
        self, key: GroupKey, topic: str, queues: range, readers: Collection[str], *, only_empty: bool
    ) -> int:
        """Give each of these consumer groups offset 0 of each of these queues, where it has none (43, 15), at the group's master.

        `only_empty`: not of queues that ever held a message (202). Returns how many it left for another call: one sets a few
        thousand, which takes seconds.
        ``BrokerUnreachableError``, ``GroupViewError``; some may have theirs by then.
        """
        ...

    async def access(self, key: GroupKey, broker_id: int) -> BrokerAccess:
        """Return a member's users and rules, passwords too (3005, 3010). ``BrokerUnreachableError``."""
        ...

    async def change_access(self, key: GroupKey, broker_id: int, changes: Sequence[AccessChange]) -> None:
        """Change a member's users and rules, in this order; not during a change of master.

        ``BrokerUnreachableError``, also if the broker refuses; ``GroupViewError``.
        """
        ...

"""The controller plane as the rest of the operator sees it: what a broker group is like now, and the few things to ask of it.

The reconcile plane runs in the same process but may not import the controller (they are siblings, and may be two processes one
day); it is handed something that keeps this Protocol. A snapshot is a picture for status, metrics and decisions about
voluntary work. It may be old by a moment, so nothing that grants a role is decided on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from brokergroup_operator.observe.timeline import Cause

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from brokergroup_operator.observe.timeline import FailoverTimeline
    from brokergroup_operator.records.store import GroupKey
    from controller_core.model import BrokerGroupRecord, LiveReplica
    from rocketmq_remoting.broker_protocol import TopicConfig

SWITCHOVER_DEADLINE_SECONDS = 30.0


class GroupViewError(Exception):
    """Something asked of the controller plane could not be done; the message says why, the type whether to ask again."""


class GroupUnknownError(GroupViewError):
    """The controller plane knows no such group (yet)."""


class SwitchoverRefusedError(GroupViewError):
    """No switchover is possible now (no other member is in sync and alive, or another change is under way)."""


class SwitchoverFailedError(GroupViewError):
    """The switchover was begun and given up; the old master is master still. Ask again later."""


class ElectionRefusedError(GroupViewError):
    """Nobody was elected: a master lives, the one asked for may not have it, or the loss was not accepted. Nothing was changed."""


class MemberNeededError(GroupViewError):
    """The member is alive, master, or holds a seat that the group's durability needs: it was not removed."""


class BrokerUnreachableError(GroupViewError):
    """The broker could not be asked: it is not alive, or did not answer in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchoverResult:
    """Who is master after a switchover. `phases` are milliseconds from the start; empty if it was so already.

    `confirmed` is whether the new master said that it is; else it is told again until it does.
    """

    from_broker_id: int
    to_broker_id: int
    epoch: int
    milliseconds: float = 0.0
    phases: Mapping[str, float] = field(default_factory=dict)
    confirmed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionResult:
    """Who was elected. `unclean` is whether the record could not say that it holds every acknowledged message."""

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
    """Something that the master has and this slave lacks, or has otherwise, for longer than a copy takes."""

    broker_id: int
    kind: MetadataKind
    name: str
    master_version: str = ""


class AddressSource(StrEnum):
    """Who says where a member is."""

    POD = "Pod"
    REGISTRATION = "Registration"
    HEARTBEAT = "Heartbeat"


@dataclass(frozen=True, slots=True)
class AddressFact:
    """An address of a member, who says so, and for how long that has been so."""

    address: str
    source: AddressSource
    age_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """A registered slave whose heartbeats this controller plane does not receive, and what the plane found out since."""

    # Its last heartbeat here; of one that was never heard, the moment from which this plane could have heard it.
    since_unix_seconds: float
    # By the master's 907, asked during the silence; None: the master did not answer, or several members share the host.
    linked: bool | None = None
    # Whether its broker answers a 907 of this plane; None: not asked yet.
    answers: bool | None = None
    # The other controller planes that receive its heartbeats.
    heard_by: tuple[str, ...] = ()
    # How often its poll (1004) was answered so that it registers again.
    told_to_register: int = 0

    @property
    def runs(self) -> bool:
        """Whether its process is known to be up."""
        return bool(self.linked or self.answers)

    @property
    def is_unheard_by_all(self) -> bool:
        """Whether its process is up, and no controller plane that answers receives its heartbeats."""
        return self.runs and not self.heard_by

    @property
    def acknowledges(self) -> bool:
        """Whether its acknowledgements reach the master: both words count, for a cut node's link stays in the list for a while."""
        return bool(self.linked and self.answers)


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """What the controller plane knows of one group, at one moment."""

    key: GroupKey
    record: BrokerGroupRecord | None
    live: Mapping[int, LiveReplica]
    # The master was told of its role at this epoch, said so, and is alive: writes are served.
    writable: bool
    in_progress: FailoverTimeline | None = None
    # The record has a change of master for which something is left to do, whichever plane carries it out.
    is_changing: bool = False
    last_failover: FailoverTimeline | None = None
    last_switchover: FailoverTimeline | None = None
    # How often a master that was silent here was left alone because other controller planes heard it.
    spared_on_testimony: int = 0
    # An epoch that brokers report and that is too far above the record to be believed: elections stop until a human accepts it.
    epoch_jump: int | None = None
    heartbeat_age_seconds: Mapping[int, float] = field(default_factory=dict)
    # Alive members that have no link to the master, by the master's own word (907).
    unlinked: frozenset[int] = frozenset()
    # Bytes a second over the link from the master to each member, as far as the master's last answer (907) tells it.
    replication_speeds: Mapping[int, int] = field(default_factory=dict)
    # Registered slaves that are not in ``live``.
    silences: Mapping[int, Silence] = field(default_factory=dict)
    # What slaves lack of the master's metadata, as of the last comparison.
    metadata_diverged: tuple[MetadataDifference, ...] = ()
    # Where each member is, by everybody who says so, the youngest fact first.
    member_addresses: Mapping[int, tuple[AddressFact, ...]] = field(default_factory=dict)
    # What is known of each member, by names of ``metric_names.MEMBER_FACTS``.
    member_facts: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    # What the living members' brokers said last that they run with (26), of the keys of ``api.meaning.broker_keys.watched_keys``.
    member_configuration: Mapping[int, Mapping[str, str]] = field(default_factory=dict)


class ShownGroups(Protocol):
    """The part of ``GroupView`` of those who only look: the metrics and the page."""

    def keys(self) -> list[GroupKey]:
        """Every group the plane has met."""
        ...

    def snapshot(self, key: GroupKey) -> GroupSnapshot | None:
        """How the group is now; None for a group the plane has not met."""
        ...

    def subscribe(self, callback: Callable[[GroupKey], None]) -> Callable[[], None]:
        """Be told of every change of a group's snapshot; the call returned ends it. The callback must return at once."""
        ...


class GroupView(ShownGroups, Protocol):
    """What the controller plane offers inside the process."""

    async def reserve_broker_id(self, key: GroupKey, pod_name: str, *, broker_id: int | None = None) -> int:
        """Return the broker id kept for this pod name, reserving the next one durably where it has none.

        A pod carries its id in its name, so the id is known before it is reserved: with `broker_id` this raises
        ``GroupViewError`` unless the id is, or can be, that one.
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
        """Move the mastership in order: to this member, or to the best one; away from this member, if it is master.

        `cause` is what the incident log tells of it.

        Nothing is done, and the result says who is master, if `from_broker_id` is not or `to_broker_id` is. Raises
        ``SwitchoverRefusedError``, ``SwitchoverFailedError``, ``GroupUnknownError``, or ``GroupViewError`` where the record
        cannot be had.
        """
        ...

    async def elect(self, key: GroupKey, *, to_broker_id: int, unclean: bool) -> ElectionResult:
        """Make this member master of a group that has no living one; `unclean` accepts that messages are lost.

        Raises ``ElectionRefusedError``.
        """
        ...

    async def remove_member(self, key: GroupKey, broker_id: int) -> None:
        """Forget a dead member: it leaves the SyncStateSet and the record, and its id stays used. Nothing to do if it is unknown.

        Raises ``MemberNeededError`` for the master, for a living member, and where its seat is needed.
        """
        ...

    async def broker_config(self, key: GroupKey, broker_id: int) -> dict[str, str]:
        """What a living member's broker says that its configuration is (26). ``BrokerUnreachableError``."""
        ...

    async def set_broker_config(self, key: GroupKey, broker_id: int, values: Mapping[str, str]) -> None:
        """Change a living member's configuration, live and in its file (25); not while a change of master is under way.

        ``BrokerUnreachableError``, ``GroupViewError``.
        """
        ...

    async def topic(self, key: GroupKey, name: str) -> TopicConfig | None:
        """What the group's master has of a topic (351); None where it has none. ``BrokerUnreachableError``."""
        ...

    async def put_topic(self, key: GroupKey, topic: TopicConfig) -> None:
        """Make or change a topic at the group's master, from where slaves copy it (17); not during a change of master.

        Attributes that `topic` does not name stay as they are. ``BrokerUnreachableError``, also where the broker refuses;
        ``GroupViewError``.
        """
        ...

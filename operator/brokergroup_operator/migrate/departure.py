"""Judges whether a stopped group may go back to a Java controller or to static roles, and what its brokers then start with. Pure.

Either deployment may make any member its master: RocketMQ's controller elects the broker that asks first, and static roles name
one. So every member's store must be there, and all logs must be one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from brokergroup_operator.migrate.stores import BELOW_EVERY_EPOCH, IDENTITY, RELEASED_IDENTITY, StoreReport

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from brokergroup_operator.migrate.adopt import NamedStore
    from controller_core.model import BrokerGroupRecord

# Under static roles a master acknowledges a message with so many copies of it, if there are so many members.
COPIES = 2


class DepartureError(Exception):
    """The group can't leave as it is; the message says what is in the way."""


class Target(StrEnum):
    """Where the group goes."""

    STATIC_ROLES = "static-roles"
    JAVA_CONTROLLER = "java-controller"


class Obstacle(StrEnum):
    """What keeps a group from leaving."""

    UNREADABLE = "Unreadable"
    OTHER_GROUP = "OtherGroup"
    MEMBER_MISSING = "MemberMissing"
    NO_MEMBER = "NoMember"
    NAMED_TWICE = "NamedTwice"
    NO_SEAT = "NoSeat"
    CHANGING = "ChangeUnderWay"
    SEAT_LOST = "SeatLost"
    LOGS_DIFFER = "LogsDiffer"
    BELOW_MARK = "BelowItsMark"
    TOPICS_DIFFER = "TopicsDiffer"
    BEGINS_LATER = "BeginsLater"
    NOT_STOPPED = "KilledNotStopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """One fact, and what to do about it. If it `blocks`, nothing is released."""

    obstacle: Obstacle
    what: str
    remedy: str
    blocks: bool = True

    def __str__(self) -> str:
        """Return one line."""
        return f"{'BLOCKS' if self.blocks else 'note  '} {self.obstacle}: {self.what}. {self.remedy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaver:
    """A member's store."""

    broker_id: int
    name: str
    report: StoreReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """What would be done, and what is in the way."""

    record: BrokerGroupRecord
    target: Target
    members: tuple[Leaver, ...]
    doubts: tuple[Doubt, ...]
    # `controllerAddr` of the brokers, for a Java controller.
    controllers: str = ""

    @property
    def blocked(self) -> bool:
        return any(doubt.blocks for doubt in self.doubts)

    @property
    def is_released(self) -> bool:
        """Whether every store is ready for the other deployment: only the record is left."""
        return all(self._has_left(one) for one in self.members)

    def _has_left(self, one: Leaver) -> bool:
        """Whether `release` has ended on this store, for this target: its last write is that of the epochs."""
        wanted = () if self.target is Target.STATIC_ROLES else (BELOW_EVERY_EPOCH,)
        return one.report.released is not None and one.report.epochs == wanted

    def lines(self) -> Iterator[str]:
        """Yield the plan, for a person."""
        record = self.record
        yield f"group {record.broker_name} of cluster {record.cluster_name} goes to {self.target}"
        for one in self.members:
            role = "the last master" if one.broker_id == leader_of(record) else "slave"
            state = "released" if self._has_left(one) else "member"
            yield f"  broker {one.broker_id}  {one.name}  log {one.report.begin}..{one.report.end}: {role}, {state}"
        yield f"  1 each store: {IDENTITY} becomes {RELEASED_IDENTITY}, {self._epochs}; no message is changed"
        yield "  2 the record is removed, once every store is released; a broker whose store is released can't go on here"
        yield f"  3 {self._start}"
        yield "  lost: nothing that this group has acknowledged. Afterwards RocketMQ's own rules hold, not this operator's"
        yield from (f"  {doubt}" for doubt in self.doubts)

    @property
    def _epochs(self) -> str:
        if self.target is Target.STATIC_ROLES:
            return "its epochs, which static roles do not read, are moved aside"
        return "its epochs become one below the first that a new controller gives"

    @property
    def _start(self) -> str:
        if self.target is Target.STATIC_ROLES:
            return f"you start broker {leader_of(self.record)} as master, and the others as its slaves"
        return (
            "you start an empty Java controller, then these brokers, and new ones last: the broker that asks first is elected,"
            " under epoch 1, and ids are given anew"
        )

    def properties(self, broker_id: int, *, store: str, further: Mapping[str, str]) -> dict[str, str]:
        """Return what this member's broker.conf must say in the other deployment. `store`: its folder there."""
        count = len(self.members)
        common = {
            **further,
            "brokerClusterName": self.record.cluster_name,
            "brokerName": self.record.broker_name,
            "storePathRootDir": store,
            "storePathCommitLog": f"{store}/commitlog",
            "mappedFileSizeCommitLog": str(self.members[0].report.file_bytes),
        }
        if self.target is Target.JAVA_CONTROLLER:
            return common | {
                "brokerId": "-1",
                "brokerRole": "SLAVE",
                "enableControllerMode": "true",
                "controllerAddr": self.controllers,
                "allAckInSyncStateSet": "true",
                "minInSyncReplicas": str(min(COPIES, count)),
            }
        leader = leader_of(self.record)
        is_master = broker_id == leader
        slaves = [one.broker_id for one in self.members if one.broker_id != leader]
        return common | {
            "brokerId": "0" if is_master else str(slaves.index(broker_id) + 1),
            "brokerRole": "SYNC_MASTER" if is_master else "SLAVE",
            "enableControllerMode": "false",
            "totalReplicas": str(count),
            "inSyncReplicas": str(min(COPIES, count)),
        }


def leader_of(record: BrokerGroupRecord) -> int | None:
    """Return the master, or the first holder of a seat: a master that was stopped last leaves a record without one."""
    return record.master_broker_id if record.master_broker_id is not None else min(record.seats, default=None)


def judge_departure(
    record: BrokerGroupRecord, stores: Sequence[NamedStore], target: Target, *, controllers: str = ""
) -> Departure:
    """Return the plan for these stores of the record's members, in any order."""
    found: list[Leaver] = []
    doubts: list[Doubt] = []
    for store in stores:
        leaver = _leaver(record, store)
        if isinstance(leaver, Doubt):
            doubts.append(leaver)
        else:
            found.append(leaver)
    members = tuple(sorted(found, key=lambda one: one.broker_id))
    doubts += [*_about_record(record), *_about_members(record, members), *_about_logs(record, members)]
    return Departure(record=record, target=target, members=members, doubts=tuple(doubts), controllers=controllers)


def _leaver(record: BrokerGroupRecord, store: NamedStore) -> Leaver | Doubt:
    if isinstance(store.said, str):
        return Doubt(
            obstacle=Obstacle.UNREADABLE, what=f"{store.name}: {store.said}", remedy="Without it nothing is released"
        )
    holder = store.said.identity or store.said.released
    if holder is None:
        return Doubt(
            obstacle=Obstacle.NO_MEMBER,
            what=f"{store.name} has no {IDENTITY}",
            remedy="It is no member's of this group: leave it out",
        )
    if holder.group != (record.cluster_name, record.broker_name):
        return Doubt(
            obstacle=Obstacle.OTHER_GROUP,
            what=f"{store.name} is of {holder.broker_name} in cluster {holder.cluster_name}",
            remedy=f"Expected {record.broker_name} in {record.cluster_name}",
        )
    return Leaver(broker_id=holder.broker_id, name=store.name, report=store.said)


def _about_record(record: BrokerGroupRecord) -> Iterator[Doubt]:
    if not record.seats:
        yield Doubt(
            obstacle=Obstacle.NO_SEAT,
            what="the record names no member that has every acknowledged message",
            remedy="Let the group run until a master is elected, then stop it again",
        )
    if record.change is not None or record.unfenced:
        yield Doubt(
            obstacle=Obstacle.CHANGING,
            what=f"a change of master is under way, or a replaced master was not seen dead ({sorted(record.unfenced)})",
            remedy="Let the group run until it is FailoverSafe, then stop it again",
        )
    if record.lost_seats:
        yield Doubt(
            obstacle=Obstacle.SEAT_LOST,
            what=f"the last holders of acknowledged messages, {sorted(record.lost_seats)}, have lost them",
            remedy="Bring their disks back, or elect a member knowingly, before the group leaves",
        )


def _about_members(record: BrokerGroupRecord, members: tuple[Leaver, ...]) -> Iterator[Doubt]:
    ids = [one.broker_id for one in members]
    expected = {broker_id for broker_id, one in record.replicas.items() if one.claimed}
    for broker_id in sorted({one for one in ids if ids.count(one) > 1}):
        yield Doubt(
            obstacle=Obstacle.NAMED_TWICE,
            what=f"two stores are of broker {broker_id}",
            remedy="Name each member's store once",
        )
    if missing := sorted(expected - set(ids)):
        yield Doubt(
            obstacle=Obstacle.MEMBER_MISSING,
            what=f"brokers {missing} are members, and their stores are not named",
            remedy="Name them; a member without a disk is decommissioned first",
        )
    if others := sorted(set(ids) - expected):
        yield Doubt(
            obstacle=Obstacle.NO_MEMBER, what=f"the record has no brokers {others}", remedy="Leave their stores out"
        )


def _about_logs(record: BrokerGroupRecord, members: tuple[Leaver, ...]) -> Iterator[Doubt]:
    master = next((one for one in members if one.broker_id == leader_of(record)), None)
    for one in members:
        mark = record.replicas[one.broker_id].held_offset if one.broker_id in record.replicas else -1
        if one.report.end < mark:
            yield Doubt(
                obstacle=Obstacle.BELOW_MARK,
                what=f"{one.name} ends at {one.report.end}, and its broker has reported {mark}",
                remedy="Its disk has lost messages: do not make it a master",
            )
        if master is not None and one is not master:
            yield from _beside_master(one, master)
        if not one.report.stopped_cleanly:
            yield Doubt(
                obstacle=Obstacle.NOT_STOPPED,
                what=f"{one.name} has a file abort: its broker was killed",
                remedy="Its log ends as shown; a clean stop would prove that nothing was cut off",
                blocks=False,
            )


def _beside_master(one: Leaver, master: Leaver) -> Iterator[Doubt]:
    mine, its = one.report, master.report
    alike = all(own == other for own, other in zip(mine.tails, its.tails, strict=False))
    if (mine.end, mine.file_bytes) != (its.end, its.file_bytes) or not alike:
        yield Doubt(
            obstacle=Obstacle.LOGS_DIFFER,
            what=f"{one.name} ends at {mine.end}, {master.name} at {its.end}{'' if alike else ', and their last files differ'}",
            remedy="Let the group run until it is FailoverSafe and takes no messages, then stop it again",
        )
    # A Java slave copies topics and groups beside the log, every 10 s: as a master it would not know the topic of its messages.
    if mine.names and its.names and mine.names != its.names:
        yield Doubt(
            obstacle=Obstacle.TOPICS_DIFFER,
            what=f"{one.name} and {master.name} have other topics or subscription groups",
            remedy="Slaves copy them every 10 s: let the group run at rest for half a minute, then stop it again",
        )
    if mine.begin > its.begin:
        yield Doubt(
            obstacle=Obstacle.BEGINS_LATER,
            what=f"{one.name} begins at {mine.begin}, {master.name} at {its.begin}",
            remedy="As a master it would lack what lies before: start the last master first",
            blocks=False,
        )

"""Judges the stores of another deployment, and plans the record of the group that goes on with them. Pure.

The stores are of stopped brokers: of static roles, a master and slaves that copied it, or of a controller, also one of 5.0.0 to
5.1.0, which gave no persistent ids. The first one named is the master's, and it alone has a seat in the record, with the end of
its log as its mark: no other disk is elected before it (rule 2 of docs/concepts/architecture.md). The others join as slaves do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.migrate.stores import EPOCHS, FIRST_EPOCH, REPLACED_EPOCHS, Identity, StoreReport
from controller_core.model import MAX_EPOCH, BrokerGroupRecord, Mark, Replica

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# In place of a register check code, which only a broker that asks for an id has.
TAKEN_OVER: Final = "taken-over"


class Finding(StrEnum):
    """What is wrong with the stores, or worth knowing."""

    UNREADABLE = "Unreadable"
    NAMED_TWICE = "NamedTwice"
    OTHER_GROUP = "OtherGroup"
    TWO_KINDS = "TwoKinds"
    AHEAD = "AheadOfMaster"
    BEHIND = "NotCaughtUp"
    BEGINS_LATER = "BeginsLater"
    DIVERGED = "Diverged"
    OTHER_HISTORY = "OtherHistory"
    MASTERS_DISAGREE = "MastersDisagree"
    CUT_SHORT = "CutShort"
    NO_EPOCH_LEFT = "NoEpochLeft"
    OTHER_FILE_SIZE = "OtherFileSize"
    NO_TOPICS = "NoTopics"
    NOT_STOPPED = "KilledNotStopped"
    NEW_ID = "NewBrokerId"
    # Of the members of a DLedger group.
    NO_MAJORITY = "NoMajority"
    MEMBERS_DISAGREE = "MembersDisagree"
    WAITING_TIMERS = "WaitingTimers"
    COMPACTED_TOPICS = "CompactedTopics"
    EMPTY_LOG = "EmptyLog"
    QUEUES_BEHIND = "QueuesBehind"
    HIDDEN = "HiddenMessages"
    DELETED_TOPICS = "DeletedTopics"
    NO_INDEX = "NoIndex"
    ON_A_MINORITY = "OnAMinority"
    OLDER_OFFSETS = "OlderOffsets"
    CUT_OFF = "CutOff"
    LEFT_OUT = "LeftOut"


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """One fact about one store, and what to do about it. If it `blocks`, nothing is taken over."""

    finding: Finding
    what: str
    remedy: str
    blocks: bool = True

    def __str__(self) -> str:
        """Return one line."""
        return f"{'BLOCKS' if self.blocks else 'note  '} {self.finding}: {self.what}. {self.remedy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedStore:
    """A store as the administrator named it (a claim, a file with a report), and what it says: a report, or why there is none."""

    name: str
    said: StoreReport | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A store, and the broker id that it gets: its position among the stores, from 1."""

    broker_id: int
    name: str
    report: StoreReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """What would be done, and what is in the way."""

    cluster_name: str
    broker_name: str
    members: tuple[Member, ...]
    doubts: tuple[Doubt, ...]

    @property
    def blocked(self) -> bool:
        return any(doubt.blocks for doubt in self.doubts)

    @property
    def renewed_epoch(self) -> int:
        """The epoch, from offset 0, that replaces those of a controller without persistent ids; 0 for stores of another kind.

        No store ever had it: a store that is not named here has no epoch in common with these, so it can't join them unnoticed.
        """
        old = [one.report.epochs_without_ids for one in self.members]
        return max(epochs[-1][0] for epochs in old if epochs) + 1 if set(old) - {(), (FIRST_EPOCH,)} else 0

    @property
    def master_epoch(self) -> int:
        """The epoch that the record begins with: no store has a higher one, so the first election is above all of them."""
        return self.renewed_epoch or max((one.report.last_epoch for one in self.members), default=0) or FIRST_EPOCH[0]

    def identity_of(self, member: Member) -> Identity:
        return Identity(cluster_name=self.cluster_name, broker_name=self.broker_name, broker_id=member.broker_id)

    def spec_of_group(self, *, size: str, storage_class: str) -> str:
        """Return the fields of a BrokerGroup's spec that the stores and their volumes dictate, in YAML."""
        fields = [
            "spec:",
            f"  brokerClusterName: {self.cluster_name}",
            f"  brokerName: {self.broker_name}",
            f"  replicas: {len(self.members)}  # or more",
            "  storage:",
            f"    size: {size}  # or less",
            f"    storageClassName: {storage_class}"
            if storage_class
            else "    # no storageClassName: the volumes have none",
            "  config:",
            f'    mappedFileSizeCommitLog: "{self.members[0].report.file_bytes}"',
        ]
        return "\n".join(fields)

    def lines(self) -> Iterator[str]:
        """Yield the plan, for a person."""
        yield f"group {self.broker_name} of cluster {self.cluster_name}: the first election is above epoch {self.master_epoch}"
        yield from self._renewal()
        for one in self.members:
            role = "begins as master" if one is self.members[0] else "joins as slave"
            last = (one.report.epochs_without_ids or one.report.epochs or ((0, 0),))[-1][0]
            kind = f"epoch {last}" if last else "no epochs (static roles)"
            yield f"  broker {one.broker_id}  {one.name}  log {one.report.begin}..{one.report.end}, {kind}: {role}"
        yield from (f"  {doubt}" for doubt in self.doubts)

    def _renewal(self) -> Iterator[str]:
        """Yield RocketMQ's steps of the upgrade to persistent ids, as they are done here, and what they cost."""
        if not self.renewed_epoch:
            return
        end = self.members[0].report.end
        yield "  upgrade to persistent ids, of brokers before 5.1.1:"
        yield "  1 stopped, and not to be started again: every controller of theirs, then the slaves, then the master"
        yield (
            f"  2 each store: {EPOCHS} becomes epoch {self.renewed_epoch} from offset 0 (the old one stays as {REPLACED_EPOCHS}),"
            f" and the id is written; outside Kubernetes: prepare STORE --broker-id ID --renew-epoch {self.renewed_epoch} --yes"
        )
        yield "  3 the record: only the former master's disk may be elected first"
        yield "  4 brokers 5.1.1 or later start on the stores, in any order: the former master leads, the others follow it"
        yield f"  kept: all that broker 1 has, to offset {end}, with its topics, groups and consumers' offsets"
        yield "  lost: what no store named here has; a store that is left out is not read, and a new member copies the master's log"


def judge(stores: Sequence[NamedStore], *, cluster_name: str, broker_name: str) -> Adoption:
    """Return the plan for these stores, the master's first."""
    members = tuple(
        Member(broker_id=number, name=one.name, report=one.said)
        for number, one in enumerate(stores, start=1)
        if isinstance(one.said, StoreReport)
    )
    doubts = [
        *_about_reading(stores),
        *(doubt for one in members for doubt in _about_one(one, cluster_name, broker_name)),
    ]
    adoption = Adoption(cluster_name=cluster_name, broker_name=broker_name, members=members, doubts=())
    if members and members[0].broker_id == 1:
        beside = _beside_master_without_ids if adoption.renewed_epoch else _beside_master
        doubts += [
            doubt for one in members[1:] for doubt in (*_about_file_size(one, members[0]), *beside(one, members[0]))
        ]
    return replace(adoption, doubts=tuple(doubts))


def _about_reading(stores: Sequence[NamedStore]) -> Iterator[Doubt]:
    if not stores:
        yield Doubt(finding=Finding.UNREADABLE, what="no store is named", remedy="Name the master's first")
    for one in stores:
        if isinstance(one.said, str):
            yield Doubt(
                finding=Finding.UNREADABLE, what=f"{one.name}: {one.said}", remedy="Without it nothing is begun"
            )
    names = [one.name for one in stores]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Doubt(finding=Finding.NAMED_TWICE, what=f"{name} is named twice", remedy="Name each store once")


def _about_one(one: Member, cluster_name: str, broker_name: str) -> Iterator[Doubt]:
    report, identity = one.report, one.report.identity
    if identity is not None and (identity.cluster_name, identity.broker_name) != (cluster_name, broker_name):
        yield Doubt(
            finding=Finding.OTHER_GROUP,
            what=f"{one.name} is of {identity.broker_name} in cluster {identity.cluster_name}",
            remedy=f"Expected {broker_name} in {cluster_name}",
        )
    elif identity is not None and identity.broker_id != one.broker_id:
        yield Doubt(
            finding=Finding.NEW_ID,
            what=f"{one.name} was broker {identity.broker_id} and becomes broker {one.broker_id}",
            remedy="Ids follow the order in which the stores are named",
            blocks=False,
        )
    old = report.epochs_without_ids
    if max(report.last_epoch, old[-1][0] + 1 if old else 0) >= MAX_EPOCH - 1:
        yield Doubt(
            finding=Finding.NO_EPOCH_LEFT,
            what=f"{one.name} has epoch {report.last_epoch}",
            remedy="There are none left above it",
        )
    if old and report.end < old[-1][1]:
        yield Doubt(
            finding=Finding.CUT_SHORT,
            what=f"{one.name} ends at {report.end}, and its last epoch, {old[-1][0]}, began at {old[-1][1]}",
            remedy="Its disk has lost the end of its log: leave it out, and name a store that has more",
        )
    if not report.has_topics:
        yield Doubt(
            finding=Finding.NO_TOPICS,
            what=f"{one.name} has no config/topics.json",
            remedy="Topics and groups come from the master's store. If it keeps them in RocksDB, nothing is to be done",
            blocks=False,
        )
    if not report.stopped_cleanly:
        yield Doubt(
            finding=Finding.NOT_STOPPED,
            what=f"{one.name} has a file abort: its broker was killed",
            remedy="Its log ends as shown; a clean stop would prove that nothing was cut off",
            blocks=False,
        )


def _about_file_size(one: Member, master: Member) -> Iterator[Doubt]:
    mine, its = one.report, master.report
    if mine.file_bytes != its.file_bytes:
        yield Doubt(
            finding=Finding.OTHER_FILE_SIZE,
            what=f"the files of {one.name} have {mine.file_bytes} bytes, those of {master.name} {its.file_bytes}",
            remedy="A group has one mappedFileSizeCommitLog: leave this store out, a new one copies the master's",
        )


def _beside_master(one: Member, master: Member) -> Iterator[Doubt]:
    """What keeps this store from following that one."""
    mine, its = one.report, master.report
    if bool(mine.epochs) != bool(its.epochs) and (mine.epochs or its.epochs) != (FIRST_EPOCH,):
        yield Doubt(
            finding=Finding.TWO_KINDS,
            what=f"{one.name} has {'epochs' if mine.epochs else 'no epochs'}, unlike {master.name}",
            remedy="One of them is of another deployment: leave it out",
        )
    elif (mine.last_epoch or FIRST_EPOCH[0], mine.end) > (its.last_epoch or FIRST_EPOCH[0], its.end):
        yield _ahead(one, master, mine.last_epoch, its.last_epoch)
    elif mine.epochs and its.epochs:
        yield from _beside_controllers_master(one, master)
    else:
        yield from _beside_static_master(one, master)


def _ahead(one: Member, master: Member, its_epoch: int, masters_epoch: int) -> Doubt:
    return Doubt(
        finding=Finding.AHEAD,
        what=f"{one.name} ends at epoch {its_epoch}, {one.report.end}; {master.name} at epoch {masters_epoch}, {master.report.end}",
        remedy="It has messages that the master lacks, so it may have been a master itself: find out which one clients used,"
        " name that first, and leave the other one out",
    )


def _beside_master_without_ids(one: Member, master: Member) -> Iterator[Doubt]:
    """RocketMQ deletes these epochs, and a slave without epochs cuts nothing: its log must be the master's already.

    Nor do they prove where two logs part: a master of no message wrote no epoch, so two masters' messages may lie under one.
    """
    mine, its = one.report.epochs_without_ids, master.report.epochs_without_ids
    if not mine or not its:
        yield Doubt(
            finding=Finding.TWO_KINDS,
            what=f"{one.name if not mine else master.name} has no epochs of a controller without persistent ids, unlike the other",
            remedy="One of them is of another deployment: leave it out",
        )
        return
    yield from _about_begin(one, master, blocks=False)
    began = dict(its)
    apart = [(epoch, start) for epoch, start in mine if began.get(epoch, start) != start]
    if apart:
        epoch, start = apart[-1]
        yield Doubt(
            finding=Finding.MASTERS_DISAGREE,
            what=f"epoch {epoch} begins at {start} in {one.name}, and at {began[epoch]} in {master.name}",
            remedy="Two brokers were master in one epoch, so their epochs do not say which one was last: find out which one clients"
            " used, and leave the other one out",
        )
    elif (mine[-1][0], one.report.end) > (its[-1][0], master.report.end):
        yield _ahead(one, master, mine[-1][0], its[-1][0])
    elif one.report.end > master.report.end:
        yield Doubt(
            finding=Finding.DIVERGED,
            what=f"{one.name} ends at {one.report.end} in epoch {mine[-1][0]}, {master.name} at {master.report.end} in the later"
            f" epoch {its[-1][0]}",
            remedy="Its end was never copied by a later master: leave it out, a new one copies the master's",
        )
    else:
        yield from _about_end(one, master)


def _beside_static_master(one: Member, master: Member) -> Iterator[Doubt]:
    """Nothing in a log without epochs says where two of them part, so only equal ones are taken."""
    yield from _about_begin(one, master, blocks=True)
    yield from _about_end(one, master)


def _about_end(one: Member, master: Member) -> Iterator[Doubt]:
    """A store that does not end before the master's is taken only if its last files are the master's."""
    if one.report.end < master.report.end:
        yield Doubt(
            finding=Finding.BEHIND,
            what=f"{one.name} ends at {one.report.end}, {master.name} at {master.report.end}",
            remedy="Start both again, with brokerPermission=4 on the master, until they end alike (brokergroup adopt quiet); or"
            " leave this store out, a new one copies the master's",
        )
    else:
        yield from _about_tails(one, master)


def _about_begin(one: Member, master: Member, *, blocks: bool) -> Iterator[Doubt]:
    """A static slave that was new began with its master's last file. Elected later, it would lack what lies before."""
    if one.report.begin > master.report.begin:
        yield Doubt(
            finding=Finding.BEGINS_LATER,
            what=f"{one.name} begins at {one.report.begin}, {master.name} at {master.report.begin}",
            remedy="As a master it would lack the messages before: leave it out, a new one copies the master's whole log",
            blocks=blocks,
        )


def _about_tails(one: Member, master: Member) -> Iterator[Doubt]:
    if any(mine != its for mine, its in zip(one.report.tails, master.report.tails, strict=False)):
        yield Doubt(
            finding=Finding.DIVERGED,
            what=f"{one.name} and {master.name} end alike, and their last files differ",
            remedy="One of them has lost and replaced messages, or both were masters: leave the one out that clients did not use",
        )


def _beside_controllers_master(one: Member, master: Member) -> Iterator[Doubt]:
    """Epochs say where two logs part, and the slave cuts its own there; but they must have one in common."""
    yield from _about_begin(one, master, blocks=False)
    if (one.report.last_epoch, one.report.end) == (master.report.last_epoch, master.report.end):
        yield from _about_tails(one, master)
    if not set(one.report.epochs) & set(master.report.epochs):
        yield Doubt(
            finding=Finding.OTHER_HISTORY,
            what=f"{one.name} has no epoch in common with {master.name}",
            remedy="It would cut its whole log: leave it out, a new one copies the master's",
        )


def record_of(adoption: Adoption, *, group: str = "") -> BrokerGroupRecord:
    """Return the record to begin with. `group`: the BrokerGroup whose pods will have the stores; empty: brokers outside pods."""
    master = adoption.members[0]
    seat = Mark(
        master.broker_id, adoption.renewed_epoch or master.report.last_epoch or FIRST_EPOCH[0], master.report.end
    )
    # A disk knows each id: without that disk it is lost, and no empty one takes its place.
    replicas = {
        one.broker_id: Replica(
            one.broker_id,
            register_check_code=TAKEN_OVER,
            reserved_for=names.pod_name(group, one.broker_id) if group else "",
            registered=True,
            held_epoch=seat.epoch if one is master else -1,
            held_offset=seat.offset if one is master else -1,
        )
        for one in adoption.members
    }
    return BrokerGroupRecord(
        cluster_name=adoption.cluster_name,
        broker_name=adoption.broker_name,
        next_broker_id=max(replicas) + 1,
        replicas=replicas,
        master_epoch=adoption.master_epoch,
        sync_state_set=frozenset({master.broker_id}),
        sync_state_set_epoch=1,
    )

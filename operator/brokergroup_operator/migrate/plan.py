"""Plans the record of each group from what was read, names every doubt about it, and writes it.

The write replaces a stored record only if that is an older state of the same group.

A doubt that *blocks* means that the record could grant something wrongly, or that the cut-over could not be verified; its remedy
stands beside it. The others are for information.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any

from brokergroup_operator.api.versions import FIRST_WITH_IDS
from brokergroup_operator.migrate.java import BrokerSaid, JavaGroup, Reading, record_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokergroup_operator.records.store import GroupKey, RecordStore
    from controller_core.model import BrokerGroupRecord


_VERSION = re.compile(r"V(\d+)_(\d+)_(\d+)")


class Kind(StrEnum):
    """The subject of a doubt."""

    NO_MASTER = "NoMaster"
    NOT_STEADY = "ElectionUnderWay"
    UNREACHABLE = "Unreachable"
    NOT_ALIVE = "NotAlive"
    WRONG_BROKER = "WrongBroker"
    WRONG_MASTER = "WrongMaster"
    EPOCH_AHEAD = "EpochAhead"
    SET_DISAGREES = "SetDisagrees"
    SMALL_SET = "NotInSync"
    UNKNOWN_CHECK_CODE = "UnknownCheckCode"
    HOLES = "HolesInIds"
    TWO_CLUSTERS = "TwoClusters"
    NO_CLUSTER = "UnknownCluster"
    OLD_BROKER = "OldBroker"
    UNKNOWN_VERSION = "UnknownVersion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """One fact that is wrong or unknown, with its ``remedy``."""

    kind: Kind
    what: str
    remedy: str
    blocks: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """One group: the record to write, and the doubts about it."""

    record: BrokerGroupRecord
    doubts: tuple[Doubt, ...]

    @property
    def blocked(self) -> bool:
        """Whether a doubt blocks the write."""
        return any(doubt.blocks for doubt in self.doubts)

    def as_json(self) -> dict[str, Any]:
        """Return the plan for ``-o json``."""
        record = self.record
        return {
            "clusterName": record.cluster_name,
            "brokerName": record.broker_name,
            "nextBrokerId": record.next_broker_id,
            "replicas": {str(one.broker_id): one.address for one in record.replicas.values()},
            "masterBrokerId": record.master_broker_id,
            "masterEpoch": record.master_epoch,
            "syncStateSet": sorted(record.sync_state_set),
            "syncStateSetEpoch": record.sync_state_set_epoch,
            "blocked": self.blocked,
            "doubts": [
                {"kind": one.kind.value, "blocks": one.blocks, "what": one.what, "remedy": one.remedy}
                for one in self.doubts
            ],
        }

    def as_text(self) -> str:
        """Return the plan as text: the record, then the doubts."""
        doubts = (
            f"  {'BLOCKS' if doubt.blocks else 'note'} {doubt.kind.value}: {doubt.what}; {doubt.remedy}"
            for doubt in self.doubts
        )
        return "\n".join([self.record.describe(), *doubts])


class Standing(Enum):
    """The relation of a stored record to a planned one."""

    ABSENT = "absent"
    SAME = "same"
    BEHIND = "behind"
    DIFFERENT = "different"


def make_plan(reading: Reading) -> tuple[GroupPlan, ...]:
    """Return a plan for each group that the controller knows."""
    return tuple(plan_group(group) for group in reading.groups)


def plan_group(group: JavaGroup) -> GroupPlan:
    """Return the record of one group, and every doubt about it."""
    record = record_of(group.state, cluster_name=group.cluster_name, next_broker_id=group.next_broker_id)
    doubts = (
        *_about_names(group),
        *_about_the_state(group, record),
        *verify_brokers(group),
        *_about_versions(group),
        *_to_know(group, record),
    )
    return GroupPlan(record=record, doubts=doubts)


def compare(stored: BrokerGroupRecord | None, planned: BrokerGroupRecord) -> Standing:
    """Return the stored record's relation to the planned one: whether the write would lose anything."""
    if stored is None:
        return Standing.ABSENT
    if stored == planned and stored.cluster_name == planned.cluster_name:
        return Standing.SAME
    behind = (
        (stored.cluster_name, stored.broker_name) == (planned.cluster_name, planned.broker_name)
        and stored.master_epoch <= planned.master_epoch
        and stored.sync_state_set_epoch <= planned.sync_state_set_epoch
        and stored.next_broker_id <= planned.next_broker_id
        and set(stored.replicas) <= set(planned.replicas)
        and not (stored.master_epoch == planned.master_epoch and stored.master_broker_id != planned.master_broker_id)
    )
    return Standing.BEHIND if behind else Standing.DIFFERENT


def verify_brokers(group: JavaGroup) -> Iterator[Doubt]:
    """Compare the controller's state with its brokers. Also the last check of a cut-over, with the Java controller stopped."""
    state = group.state
    for broker_id in sorted(state.addresses):
        said = group.brokers.get(broker_id, "it was not asked")
        needed = broker_id in state.sync_state_set or broker_id == state.master_broker_id
        if isinstance(said, str):
            yield Doubt(
                kind=Kind.UNREACHABLE,
                what=f"broker {broker_id} at {state.addresses[broker_id]} did not answer: {said}",
                remedy="start it, or wait until the master has dropped it from the SyncStateSet"
                if needed
                else "it keeps its old controllerAddr: change it in its file before it is started again",
                blocks=needed,
            )
        else:
            yield from _about_broker(group, broker_id, said)


def _about_broker(group: JavaGroup, broker_id: int, said: BrokerSaid) -> Iterator[Doubt]:
    state = group.state
    broker = f"broker {broker_id} at {said.address}"
    is_master = broker_id == state.master_broker_id
    if said.broker_name != state.broker_name or said.slave_id not in (None, broker_id):
        yield Doubt(
            kind=Kind.WRONG_BROKER,
            what=f"{broker} says it is {said.broker_name} id {said.slave_id}",
            remedy="another broker has taken this address: let it register, or clean the id (mqadmin cleanBrokerMetadata)",
        )
        return
    if said.acts_as_master != is_master:
        yield Doubt(
            kind=Kind.WRONG_MASTER,
            what=f"{broker} {'acts as master' if said.acts_as_master else 'does not act as master'}, "
            f"the controller's master is {state.master_broker_id}",
            remedy="wait until the brokers have heard of the last election (10 s), and read again",
        )
    if said.last_epoch > state.master_epoch:
        yield Doubt(
            kind=Kind.EPOCH_AHEAD,
            what=f"{broker} has master epoch {said.last_epoch}, the controller {state.master_epoch}",
            remedy="this controller has lost state: do not migrate from it",
        )
    if is_master and said.acts_as_master and said.in_sync_slaves != len(state.sync_state_set) - 1:
        yield Doubt(
            kind=Kind.SET_DISAGREES,
            what=f"{broker} counts {said.in_sync_slaves} slaves in sync, the controller's set has "
            f"{len(state.sync_state_set) - 1} besides the master",
            remedy="wait until the SyncStateSet stands still, and read again",
        )


def _about_names(group: JavaGroup) -> Iterator[Doubt]:
    said = {one.cluster_name for one in group.brokers.values() if isinstance(one, BrokerSaid)} | group.cluster_names
    if len(said) > 1:
        yield Doubt(
            kind=Kind.TWO_CLUSTERS,
            what=f"{group.state.broker_name} is a brokerName in the clusters {', '.join(sorted(said))}: "
            "a Java controller keeps one state for all of them",
            remedy="give each group a brokerName of its own before migrating",
        )
    elif not group.cluster_name:
        yield Doubt(
            kind=Kind.NO_CLUSTER,
            what=f"no NameServer and no broker says which cluster {group.state.broker_name} belongs to",
            remedy="name a NameServer that knows it, or start one of its brokers",
        )


def _about_the_state(group: JavaGroup, record: BrokerGroupRecord) -> Iterator[Doubt]:
    state = group.state
    if not group.steady:
        yield Doubt(
            kind=Kind.NOT_STEADY,
            what="the controller's state changed while it was read",
            remedy="wait until the group stands still, and read again",
        )
    if state.master_broker_id is None:
        yield Doubt(
            kind=Kind.NO_MASTER,
            what=f"the group has no master (epoch {state.master_epoch}, set {sorted(state.sync_state_set)})",
            remedy="start a broker of the SyncStateSet and wait until it is elected",
        )
    silent = sorted(state.sync_state_set - state.alive)
    if silent:
        yield Doubt(
            kind=Kind.NOT_ALIVE,
            what=f"the controller does not hear {silent} of the SyncStateSet",
            remedy="start them, or wait until the master has dropped them",
        )
    outside = sorted(set(record.replicas) - state.sync_state_set)
    if outside and state.master_broker_id is not None:
        yield Doubt(
            kind=Kind.SMALL_SET,
            what=f"{outside} are not in the SyncStateSet",
            remedy="they cannot take over until they have caught up; migrating does not change that",
            blocks=False,
        )


def _about_versions(group: JavaGroup) -> Iterator[Doubt]:
    for broker_id, said in sorted(group.brokers.items()):
        if isinstance(said, str):
            continue
        match = _VERSION.match(said.version)
        if match is None:
            yield Doubt(
                kind=Kind.UNKNOWN_VERSION,
                what=f"broker {broker_id} does not say its version ({said.version!r})",
                remedy="it must be 5.1.1 or later",
                blocks=False,
            )
        elif tuple(map(int, match.groups())) < FIRST_WITH_IDS:
            yield Doubt(
                kind=Kind.OLD_BROKER,
                what=f"broker {broker_id} is {said.version}",
                remedy="brokers before 5.1.1 have no persistent ids: upgrade them first",
            )


def _to_know(group: JavaGroup, record: BrokerGroupRecord) -> Iterator[Doubt]:
    if record.replicas:
        yield Doubt(
            kind=Kind.UNKNOWN_CHECK_CODE,
            what="the controller shows no register check codes: the record has '<address>;migrated' in their place",
            remedy="nothing: a broker that has stored its id does not send its code again",
            blocks=False,
        )
    holes = [one for one in range(1, group.next_broker_id) if one not in record.replicas]
    beyond = [one for one in record.replicas if one >= group.next_broker_id]
    if holes or beyond:
        yield Doubt(
            kind=Kind.HOLES,
            what=f"ids {holes} are held by no broker"
            + (f", and {beyond} lie beyond the controller's next id {group.next_broker_id}" if beyond else ""),
            remedy=f"nothing: the next id will be {record.next_broker_id}, above every id ever seen",
            blocks=False,
        )


class RecordInTheWayError(Exception):
    """The store holds a record that is not just an older state of the one to write."""


async def write_record(
    store: RecordStore, key: GroupKey, planned: BrokerGroupRecord, *, replace_older: bool
) -> Standing:
    """Write the planned record; return the stored record's relation to it. Raises ``RecordStoreError``."""
    stored = await store.read(key)
    standing = check_record(key, stored.record if stored is not None else None, planned, replace_older=replace_older)
    if standing is not Standing.SAME:
        await store.commit(key, planned, stored)
    return standing


def check_record(
    key: GroupKey, stored: BrokerGroupRecord | None, planned: BrokerGroupRecord, *, replace_older: bool
) -> Standing:
    """Return the stored record's relation to the planned one. Raises ``RecordInTheWayError`` if it must not be replaced."""
    standing = compare(stored, planned)
    if standing is Standing.DIFFERENT or (standing is Standing.BEHIND and not replace_older):
        assert stored is not None
        remedy = (
            "it is an older state of the same group: `migrate apply --replace` writes over it"
            if standing is Standing.BEHIND
            else "it is ahead, or another group's: find out which, and delete it by hand if it is no longer needed"
        )
        raise RecordInTheWayError(
            f"the store holds another record of {key} (epoch {stored.master_epoch}, set epoch "
            f"{stored.sync_state_set_epoch}, next id {stored.next_broker_id}; planned {planned.master_epoch}, "
            f"{planned.sync_state_set_epoch}, {planned.next_broker_id}); {remedy}"
        )
    return standing

"""A small world around one broker group: all possible next events, and all invariants after each.

Three tests walk in it: hypothesis chooses the steps (and shrinks a failing walk), a seeded walk counts the states it reaches,
and an explorer takes every walk within bounds. They share the list of events and the
list of invariants, so that no test has a poorer one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations

from controller_core.decision import Decision, MasterElected
from controller_core.holdings import demand_of
from controller_core.model import BrokerGroupRecord, LiveReplica, Mark, Replica
from controller_core.requests import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokerData,
    ElectMaster,
    GetNextBrokerId,
    GetReplicaInfo,
    GetSyncStateData,
    Holding,
    RegisterBroker,
    RemoveMember,
    RenewMaster,
    ReportHoldings,
    Request,
    ReserveBrokerId,
)
from controller_core.settings import ControllerSettings
from controller_core.step import step
from tests.core.invariants import check_decision

PODS = ("bn-1", "bn-2")


@dataclass(frozen=True)
class Beat:
    """A heartbeat, or (None) a replica's silence."""

    broker_id: int
    told: tuple[int, int] | None


Command = Request | Beat


@dataclass(frozen=True)
class Scope:
    """The size of the world."""

    largest_id: int = 3
    largest_epoch: int = 1_000_000
    addresses: tuple[str, ...] = ("a:1", "b:1", "c:1")
    codes: tuple[str, ...] = ("a:1;1", "b:1;2", "c:1;3", "a:1;4")
    told: tuple[tuple[int, int], ...] = ((-1, -1), (0, 0), (1, 9), (2, 5))
    identity_requests: bool = True
    # Unfenced masters: no decision depends on them, and they would triple the worlds to visit.
    unfenced: bool = False


@dataclass(frozen=True)
class World:
    """One state: the record and the heartbeats."""

    record: BrokerGroupRecord | None = None
    live: tuple[LiveReplica, ...] = ()

    @property
    def heard(self) -> dict[int, LiveReplica]:
        return {replica.broker_id: replica for replica in self.live}

    def after_beat(self, beat: Beat) -> "World":
        heard = self.heard
        heard.pop(beat.broker_id, None)
        if beat.told is not None:
            heard[beat.broker_id] = LiveReplica(beat.broker_id, epoch=beat.told[0], max_offset=beat.told[1])
        return replace(self, live=tuple(heard[broker_id] for broker_id in sorted(heard)))


def commands(world: World, scope: Scope) -> list[Command]:
    """Return all possible next events, good and bad, in a fixed order."""
    record = world.record
    ids = sorted(record.replicas) if record is not None else []
    found: list[Command] = list(_beats(world, ids, scope))
    if scope.identity_requests:
        found += _identity_requests(record, ids, scope)
        found += _cleanings(ids)
        found += _adoptions(ids, scope)
    found += _registrations(ids, scope)
    found += _elections(record, ids, scope)
    found += _reports(world)
    if record is not None:
        found += _alterations(record, ids)
    found += [GetReplicaInfo(broker_name="bn"), GetSyncStateData(broker_name="bn")]
    return found


def _beats(world: World, ids: list[int], scope: Scope) -> Iterator[Command]:
    for broker_id in ids:
        yield from (Beat(broker_id, told) for told in scope.told)
        if broker_id in world.heard:
            yield Beat(broker_id, None)


def _identity_requests(record: BrokerGroupRecord | None, ids: list[int], scope: Scope) -> Iterator[Command]:
    next_broker_id = record.next_broker_id if record is not None else 1
    for pod in (None, *PODS):
        yield GetNextBrokerId(cluster_name="cl", broker_name="bn", requester=pod)
    wanted = {*range(1, next_broker_id), 0, next_broker_id + 5}
    if next_broker_id <= scope.largest_id:
        wanted.add(next_broker_id)
        for pod in PODS:
            yield ReserveBrokerId(cluster_name="cl", broker_name="bn", reserved_for=pod)
    for broker_id in sorted(wanted | set(ids)):
        for code in scope.codes:
            for pod in (None, *PODS):
                yield ApplyBrokerId(
                    cluster_name="cl",
                    broker_name="bn",
                    applied_broker_id=broker_id,
                    register_check_code=code,
                    requester=pod,
                )


def _cleanings(ids: list[int]) -> Iterator[Command]:
    for living in (False, True):
        yield CleanBrokerData(broker_name="bn", is_clean_living_broker=living)
        for broker_id in ids:
            yield CleanBrokerData(
                broker_name="bn", is_clean_living_broker=living, broker_controller_ids_to_clean=str(broker_id)
            )
    for broker_id in [*ids, 99]:
        yield RemoveMember(broker_id=broker_id)


def _registrations(ids: list[int], scope: Scope) -> Iterator[Command]:
    for broker_id in [*ids, 99]:
        for address in scope.addresses:
            yield RegisterBroker(cluster_name="cl", broker_name="bn", broker_id=broker_id, broker_address=address)


def _elections(record: BrokerGroupRecord | None, ids: list[int], scope: Scope) -> Iterator[Command]:
    yield ElectMaster()
    if scope.unfenced:
        yield ElectMaster(unfenced=True)
    for broker_id in [*ids, 99]:
        yield ElectMaster(broker_id=broker_id)
        yield ElectMaster(broker_id=broker_id, designate_elect=True)
        yield ElectMaster(broker_id=broker_id, designate_elect=True, unclean=True)
    if record is not None and record.master_broker_id is not None:
        yield ElectMaster(passed_over=frozenset({record.master_broker_id}))
        for late in (0, 1):
            yield RenewMaster(broker_id=record.master_broker_id, master_epoch=record.master_epoch - late)
        for one in sorted(record.sync_state_set):
            renewed = RenewMaster(broker_id=record.master_broker_id, master_epoch=record.master_epoch)
            yield replace(renewed, without=frozenset({one}))


def _reports(world: World) -> Iterator[Command]:
    """Return the plane's reports from heartbeats: each alone, and all together."""
    holdings = tuple(
        Holding(
            broker_id=one.broker_id,
            epoch=one.epoch,
            max_offset=one.max_offset,
            known=Mark(one.broker_id),
            sure=Mark(one.broker_id),
            seen=demand_of(world.record, one.broker_id),
        )
        for one in world.live
        if one.has_reported
    )
    for holding in holdings:
        sure = holding._replace(sure=Mark(holding.broker_id, holding.epoch, holding.max_offset))
        yield ReportHoldings(holdings=(sure,))
    if holdings:
        yield ReportHoldings(holdings=holdings)


def _adoptions(ids: list[int], scope: Scope) -> Iterator[Command]:
    for broker_id in [*ids, scope.largest_id]:
        for pod in PODS:
            yield RegisterBroker(
                cluster_name="cl", broker_name="bn", broker_id=broker_id, broker_address="a:1", requester=pod
            )


def _alterations(record: BrokerGroupRecord, ids: list[int]) -> Iterator[Command]:
    sets = [frozenset(members) for size in range(len(ids) + 1) for members in combinations(ids, size)]
    for members in [*sets, frozenset({99})]:
        for sender in (record.master_broker_id, 99):
            for late in (0, 1):
                yield AlterSyncStateSet(
                    master_broker_id=sender,
                    master_epoch=record.master_epoch - late,
                    sync_state_set=members,
                    sync_state_set_epoch=record.sync_state_set_epoch,
                )
    yield AlterSyncStateSet(
        master_broker_id=record.master_broker_id,
        master_epoch=record.master_epoch,
        sync_state_set=frozenset(ids),
        sync_state_set_epoch=record.sync_state_set_epoch - 1,
    )


def record_of_three(**changes: object) -> BrokerGroupRecord:
    """Return a record of three registered replicas: 1 is master of epoch 5, 2 is in sync."""
    replicas = {one: Replica(one, f"{one}:1;1", f"{one}:1", registered=True) for one in (1, 2, 3)}
    record = BrokerGroupRecord("cl", "bn", 4, replicas, 1, 5, frozenset({1, 2}), 9)
    return replace(record, **changes)  # type: ignore[arg-type]


def warm_world() -> World:
    """Return three registered, live replicas in sync with 1 as master: the usual state of a group."""
    settings, world = ControllerSettings(), World()
    requests: list[Command] = []
    for broker_id, address in ((1, "a:1"), (2, "b:1"), (3, "c:1")):
        requests += [
            ApplyBrokerId(
                cluster_name="cl",
                broker_name="bn",
                applied_broker_id=broker_id,
                register_check_code=f"{address};{broker_id}",
            ),
            RegisterBroker(cluster_name="cl", broker_name="bn", broker_id=broker_id, broker_address=address),
            Beat(broker_id, (0, 0)),
        ]
    requests += [
        ElectMaster(broker_id=1),
        AlterSyncStateSet(
            master_broker_id=1,
            master_epoch=1,
            sync_state_set=frozenset({1, 2, 3}),
            sync_state_set_epoch=1,
        ),
    ]
    for request in requests:
        world = world.after_beat(request) if isinstance(request, Beat) else take_step(world, request, settings)[1]
    return world


@dataclass
class History:
    """Facts about past decisions that the record no longer holds."""

    ids_ever: set[int] = field(default_factory=set)
    registered_as: dict[int, str] = field(default_factory=dict)
    granted: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, world: World) -> "History":
        """Return a history that starts with the world's record."""
        history = cls()
        if world.record is not None:
            history.note_record(world.record)
        return history

    def note(self, decision: Decision) -> None:
        """Add a decision, and check the invariants over many decisions."""
        for event in decision.events:
            if isinstance(event, MasterElected):
                assert decision.record is not None
                epoch = decision.record.master_epoch
                assert epoch not in self.granted, "an epoch is granted once, to one replica (I1)"
                self.granted[epoch] = event.broker_id
        if decision.record is not None:
            self.note_record(decision.record)

    def note_record(self, record: BrokerGroupRecord) -> None:
        """Check each id's holder against all earlier holders."""
        for replica in record.replicas.values():
            self.ids_ever.add(replica.broker_id)
            if replica.registered:
                held = self.registered_as.setdefault(replica.broker_id, replica.register_check_code)
                assert held == replica.register_check_code, "no id is ever used by two check codes (I11)"


def take_step(world: World, request: Request, settings: ControllerSettings) -> tuple[Decision, World]:
    """Take a step and check all invariants."""
    heard = world.heard
    hash_before = hash(world.record)
    decision = step(world.record, request, heard, settings)
    assert decision == step(world.record, request, dict(reversed(heard.items())), settings), (
        "the decision is deterministic"
    )
    assert heard == world.heard, "the heartbeats are unchanged"
    assert hash_before == hash(world.record), "the input record is unchanged"
    check_decision(world.record, request, world.heard, settings, decision)
    return decision, replace(world, record=decision.record)

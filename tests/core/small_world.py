"""A small world around one broker group: everything that can happen next, and everything that must hold after it did.

Three tests walk in it: hypothesis chooses the way (and shrinks it when something breaks), a seeded walk counts what is reached,
and an explorer takes every way there is within bounds. They share the list of what can happen and the list of invariants
(`reliability-security.md` §2.1), so that neither is richer in one test than in another.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

from controller_core.codes import ControllerCode
from controller_core.decision import Decision, ElectMasterAnswer, GetReplicaInfoAnswer, RegisterBrokerAnswer
from controller_core.events import (
    BrokerAdopted,
    BrokersCleaned,
    EpochFloorRaised,
    MasterElected,
    MasterLost,
    SeatsLost,
    SyncStateSetAltered,
    apply_events,
)
from controller_core.holdings import usable_eligible
from controller_core.model import BrokerGroupRecord, LiveReplica
from controller_core.requests import (
    AdoptBroker,
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokerData,
    ElectMaster,
    GetNextBrokerId,
    GetReplicaInfo,
    GetSyncStateData,
    Holding,
    RegisterBroker,
    ReportHoldings,
    Request,
    ReserveBrokerId,
)
from controller_core.settings import ControllerSettings
from controller_core.step import step

PODS = ("bn-1", "bn-2")


@dataclass(frozen=True)
class Beat:
    """A heartbeat, or (None) the end of a replica's life as far as we hear."""

    broker_id: int
    told: tuple[int, int] | None


Command = Request | Beat


@dataclass(frozen=True)
class Scope:
    """How large the world is."""

    largest_id: int = 3
    largest_epoch: int = 1_000_000
    addresses: tuple[str, ...] = ("a:1", "b:1", "c:1")
    codes: tuple[str, ...] = ("a:1;1", "b:1;2", "c:1;3", "a:1;4")
    told: tuple[tuple[int, int], ...] = ((-1, -1), (0, 0), (1, 9), (2, 5))
    identity_requests: bool = True


@dataclass(frozen=True)
class World:
    """One state: what is recorded and what is heard."""

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
    """Everything that can happen next, good and bad, in a fixed order."""
    record = world.record
    ids = sorted(record.replicas) if record is not None else []
    found: list[Command] = list(_beats(world, ids, scope))
    if scope.identity_requests:
        found += _identity_requests(record, ids, scope)
        found += _cleanings(ids)
        found += _adoptions(ids, scope)
    found += _registrations(ids, scope)
    found += _elections(record, ids)
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


def _registrations(ids: list[int], scope: Scope) -> Iterator[Command]:
    for broker_id in [*ids, 99]:
        for address in scope.addresses:
            yield RegisterBroker(cluster_name="cl", broker_name="bn", broker_id=broker_id, broker_address=address)


def _elections(record: BrokerGroupRecord | None, ids: list[int]) -> Iterator[Command]:
    yield ElectMaster(broker_name="bn")
    for broker_id in [*ids, 99]:
        yield ElectMaster(broker_name="bn", broker_id=broker_id)
        yield ElectMaster(broker_name="bn", broker_id=broker_id, designate_elect=True)
    if record is not None and record.master_broker_id is not None:
        yield ElectMaster(broker_name="bn", passed_over=frozenset({record.master_broker_id}))


def _reports(world: World) -> Iterator[Command]:
    """What the plane makes of heartbeats: each alone, and all together."""
    holdings = tuple(
        Holding(broker_id=one.broker_id, epoch=one.epoch, max_offset=one.max_offset)
        for one in world.live
        if one.has_reported
    )
    for holding in holdings:
        sure = replace(holding, sure_epoch=holding.epoch, sure_offset=holding.max_offset)
        yield ReportHoldings(broker_name="bn", holdings=(sure,))
    if holdings:
        yield ReportHoldings(broker_name="bn", holdings=holdings)


def _adoptions(ids: list[int], scope: Scope) -> Iterator[Command]:
    for broker_id in [*ids, scope.largest_id]:
        for pod in (None, *PODS):
            yield AdoptBroker(
                cluster_name="cl", broker_name="bn", broker_id=broker_id, broker_address="a:1", requester=pod
            )


def _alterations(record: BrokerGroupRecord, ids: list[int]) -> Iterator[Command]:
    sets = [frozenset(members) for size in range(len(ids) + 1) for members in combinations(ids, size)]
    for members in [*sets, frozenset({99})]:
        for sender in (record.master_broker_id, 99):
            for late in (0, 1):
                yield AlterSyncStateSet(
                    broker_name="bn",
                    master_broker_id=sender,
                    master_epoch=record.master_epoch - late,
                    sync_state_set=members,
                    sync_state_set_epoch=record.sync_state_set_epoch,
                )
    yield AlterSyncStateSet(
        broker_name="bn",
        master_broker_id=record.master_broker_id,
        master_epoch=record.master_epoch,
        sync_state_set=frozenset(ids),
        sync_state_set_epoch=record.sync_state_set_epoch - 1,
    )


def warm_world() -> World:
    """Three replicas, registered, alive and in sync, with 1 as master: where most of a group's life happens."""
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
        ElectMaster(broker_name="bn", broker_id=1),
        AlterSyncStateSet(
            broker_name="bn",
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
    """What only a longer memory than the record's can tell."""

    ids_ever: set[int] = field(default_factory=set)
    registered_as: dict[int, str] = field(default_factory=dict)
    granted: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, world: World) -> "History":
        """Begin with what the world's record can tell."""
        history = cls()
        if world.record is not None:
            history.note_record(world.record)
        return history

    def note(self, decision: Decision) -> None:
        """Take a decision into account, and check what spans many of them."""
        for event in decision.events:
            if isinstance(event, MasterElected):
                assert decision.record is not None
                epoch = decision.record.master_epoch
                assert epoch not in self.granted, "an epoch is granted once, to one replica (I1)"
                self.granted[epoch] = event.broker_id
        if decision.record is not None:
            self.note_record(decision.record)

    def note_record(self, record: BrokerGroupRecord) -> None:
        """Check every id's holder against all its earlier ones."""
        for replica in record.replicas.values():
            self.ids_ever.add(replica.broker_id)
            if replica.registered:
                held = self.registered_as.setdefault(replica.broker_id, replica.register_check_code)
                assert held == replica.register_check_code, "no id is ever used by two check codes (I11)"


def take_step(world: World, request: Request, settings: ControllerSettings) -> tuple[Decision, World]:
    """Take a step and check everything that must hold after any step."""
    heard = world.heard
    hash_before = hash(world.record)
    decision = step(world.record, request, heard, settings)
    assert decision == step(world.record, request, dict(reversed(heard.items())), settings), "the same, however asked"
    assert heard == world.heard, "what is heard is not changed"
    assert hash_before == hash(world.record), "the record is not changed"
    check_decision(world.record, request, world.heard, settings, decision)
    return decision, replace(world, record=decision.record)


def check_decision(
    before: BrokerGroupRecord | None,
    request: Request,
    heard: Mapping[int, LiveReplica],
    settings: ControllerSettings,
    decision: Decision,
) -> None:
    """Check one decision against every invariant."""
    after = decision.record
    assert apply_events(before, decision.events) == after
    assert decision.changed == (before != after), "an event changes something, and nothing else does"
    assert decision.why, "every decision has a reason"
    floor = [event for event in decision.events if isinstance(event, EpochFloorRaised)]
    allowed = {ControllerCode.SUCCESS, ControllerCode.CONTROLLER_MASTER_NOT_AVAILABLE}
    assert not decision.changed or decision.code in allowed or floor, "a refusal changes nothing, but what rule 3 sees"
    if isinstance(request, GetNextBrokerId | GetReplicaInfo | GetSyncStateData):
        assert not decision.changed, "reading changes nothing"
    if after is not None:
        _check_record(after)
        if before is not None:
            _check_progress(before, after, decision)
    else:
        assert before is None, "a group that was ever known is never forgotten (rule 4)"
    for event in decision.events:
        assert after is not None
        if isinstance(event, MasterElected):
            _check_grant(before, event, heard, settings, request)
        if isinstance(event, SyncStateSetAltered):
            _check_alteration(before, event, heard, settings)
        if isinstance(event, MasterLost):
            assert before is not None
            assert before.master_broker_id is not None, "one epoch per lost master (rule 6)"
        if isinstance(event, BrokersCleaned):
            _check_clean(event, heard, request)
        if isinstance(event, SeatsLost):
            _check_loss(before, event, after, request)
    _check_answer(before, after, decision)


def _check_record(record: BrokerGroupRecord) -> None:
    claimed = {replica.broker_id for replica in record.replicas.values() if replica.claimed}
    assert record.master_broker_id is None or record.master_broker_id in record.sync_state_set
    assert record.sync_state_set <= claimed
    assert all(record.replicas[broker_id].registered for broker_id in record.sync_state_set), (
        "who holds data stays known"
    )
    assert record.master_broker_id is not None or not record.master_process_lost
    assert all(1 <= broker_id < record.next_broker_id for broker_id in record.replicas), "next is above all ids (I13)"
    assert record.eligible | record.lost_seats <= claimed
    assert not record.eligible & record.sync_state_set, "a member needs not be eligible"
    assert record.master_broker_id is None or not record.lost_seats, (
        "an election ends the memory of lost seats (rule 2)"
    )
    assert not record.lost_seats & record.seats
    for replica in record.replicas.values():
        if replica.broker_id not in record.seats | record.lost_seats:
            assert (replica.held_epoch, replica.held_offset) == (-1, -1), "only a seat has a mark"
    addresses = [replica.address for replica in record.replicas.values() if replica.address]
    assert len(addresses) == len(set(addresses)), "an address belongs to one replica (rule 8)"


def _check_progress(before: BrokerGroupRecord, after: BrokerGroupRecord, decision: Decision) -> None:
    floors = [event for event in decision.events if isinstance(event, EpochFloorRaised)]
    start = max([before.master_epoch, *(event.epoch for event in floors)])
    set_start = max([before.sync_state_set_epoch, *(event.sync_state_set_epoch for event in floors)])
    assert 0 <= after.master_epoch - start <= 1, "epochs never fall, and rise one at a time (I2)"
    assert 0 <= after.sync_state_set_epoch - set_start <= 2, (
        "one for each change: a loss and a return may come together"
    )
    assert after.next_broker_id >= before.next_broker_id
    assert after.unclean_elections - before.unclean_elections == sum(
        isinstance(event, MasterElected) and event.unclean for event in decision.events
    )
    if after.master_broker_id != before.master_broker_id:
        assert after.master_epoch > before.master_epoch, "every change of master has its own epoch"
    if after.sync_state_set != before.sync_state_set:
        assert after.sync_state_set_epoch > before.sync_state_set_epoch, "every change of the set has its own epoch"
    if before.master_process_lost and after.granted_master_id is not None:
        assert after.master_epoch > before.master_epoch, "a new process needs a new epoch (rule 6)"
    for broker_id, replica in after.replicas.items():
        if broker_id not in before.replicas:
            adopted = any(isinstance(event, BrokerAdopted) for event in decision.events)
            assert broker_id == before.next_broker_id or (adopted and broker_id > before.next_broker_id), (
                "only the next id is given, and none is adopted that was given (rule 4)"
            )
        elif before.replicas[broker_id].registered:
            assert replica.register_check_code == before.replicas[broker_id].register_check_code
            assert replica.registered


def _check_grant(
    before: BrokerGroupRecord | None,
    event: MasterElected,
    heard: Mapping[int, LiveReplica],
    settings: ControllerSettings,
    request: Request,
) -> None:
    assert before is not None
    assert isinstance(request, ElectMaster)
    winner = event.broker_id
    assert before.claimed_replica(winner) is not None, "an unregistered id is never elected (rule 5)"
    assert before.address_of(winner), "nobody is elected whose address is unknown (rule 8)"
    assert settings.may_be_master(winner)
    assert winner not in request.passed_over
    assert event.unclean or not event.eligible or settings.shrink_floor
    lowered = {mark.broker_id: mark for mark in event.marks}
    assert lowered.keys() == {winner} | event.eligible
    told = heard.get(winner, LiveReplica(winner))
    if any(one.epoch > before.master_epoch for key, one in heard.items() if before.claimed_replica(key)):
        return  # rule 3: what was recorded does not count, see the floor's own tests
    assert winner != before.granted_master_id, "a master that holds its epoch is kept, not granted again"
    if before.is_first_election:
        _check_first_grant(before, event, heard, settings, request)
    elif before.seats:
        assert winner in heard
        assert told.has_reported, "who has not told what it holds is no candidate (rule 2)"
        mark = before.replicas[winner]
        if winner in before.seats:
            assert told.epoch >= mark.held_epoch, "nobody is elected that is below its mark (rule 2)"
            assert told.max_offset >= mark.held_offset
        clean = before.sync_state_set | usable_eligible(before, settings)
        assert event.unclean == (winner not in clean), "clean means from the set, or eligible (I3)"
        assert settings.unclean_election_allowed or not event.unclean
        if not request.designate_elect:
            pool = set(before.replicas) if event.unclean else before.sync_state_set
            pool = pool if winner in pool else usable_eligible(before, settings)
            _check_best(before, winner, _electable(before, heard, settings, request) & pool, heard)
    else:
        empty = not any(one.has_data for key, one in heard.items() if key in before.replicas)
        assert event.unclean or empty, "after all seats are lost: uncleanly, or on empty disks (rule 2)"
        assert settings.unclean_election_allowed or not event.unclean


def _electable(
    before: BrokerGroupRecord, heard: Mapping[int, LiveReplica], settings: ControllerSettings, request: ElectMaster
) -> set[int]:
    return {
        key
        for key, one in heard.items()
        if one.has_reported
        and settings.may_be_master(key)
        and key not in request.passed_over
        and key in before.replicas
        and not (
            key in before.seats
            and (one.epoch < before.replicas[key].held_epoch or one.max_offset < before.replicas[key].held_offset)
        )
    }


def _check_loss(
    before: BrokerGroupRecord | None, event: SeatsLost, after: BrokerGroupRecord | None, request: Request
) -> None:
    assert before is not None
    assert after is not None
    assert not after.seats & event.broker_ids
    if before.master_broker_id in event.broker_ids:
        assert after.master_epoch > before.master_epoch, "mastership goes with the seat, under a new epoch (rule 2)"
    if isinstance(request, ReportHoldings):
        for holding in request.holdings:
            recorded = before.replicas.get(holding.broker_id)
            if holding.broker_id in event.broker_ids and recorded is not None:
                below_offset = holding.max_offset < max(recorded.held_offset, holding.known_offset)
                assert below_offset or holding.epoch < max(recorded.held_epoch, holding.known_epoch)


def _check_best(before: BrokerGroupRecord, winner: int, electable: set[int], heard: Mapping[int, LiveReplica]) -> None:
    for broker_id in electable:
        if before.address_of(broker_id):
            best, other = heard[winner], heard[broker_id]
            assert (best.epoch, best.max_offset) >= (other.epoch, other.max_offset), "the best data wins"


def _check_clean(event: BrokersCleaned, heard: Mapping[int, LiveReplica], request: Request) -> None:
    assert isinstance(request, CleanBrokerData)
    if request.broker_controller_ids_to_clean and not request.is_clean_living_broker:
        assert not event.broker_ids & heard.keys(), "the living are not cleaned by name"


def _check_first_grant(
    before: BrokerGroupRecord,
    event: MasterElected,
    heard: Mapping[int, LiveReplica],
    settings: ControllerSettings,
    request: ElectMaster,
) -> None:
    known = set(before.replicas)
    if any(heard[broker_id].has_data for broker_id in known & heard.keys()) and not settings.unclean_election_allowed:
        assert known <= heard.keys(), "where there is data, everybody known must be heard (rule 5)"
        best = max(
            (heard[broker_id].epoch, heard[broker_id].max_offset)
            for broker_id in _electable(before, heard, settings, request)
            if before.address_of(broker_id)
        )
        winner = heard[event.broker_id]
        assert (winner.epoch, winner.max_offset) == best, "the best data wins (rule 5)"


def _check_alteration(
    before: BrokerGroupRecord | None,
    event: SyncStateSetAltered,
    heard: Mapping[int, LiveReplica],
    settings: ControllerSettings,
) -> None:
    assert before is not None
    assert not before.master_process_lost
    assert event.sync_state_set <= heard.keys(), "members are alive (I8)"
    assert not event.eligible or len(event.sync_state_set) < settings.min_in_sync_replicas
    for mark in event.marks:
        told = heard[mark.broker_id]
        assert mark.epoch <= told.epoch, "a mark is never above what was reported"
        assert mark.offset <= told.max_offset


def _check_answer(before: BrokerGroupRecord | None, after: BrokerGroupRecord | None, decision: Decision) -> None:
    answer = decision.answer
    if not isinstance(answer, ElectMasterAnswer | RegisterBrokerAnswer | GetReplicaInfoAnswer):
        return
    assert (answer.master_broker_id is None) == (answer.master_address is None), "an id with its address, or neither"
    if answer.master_broker_id is None:
        return
    assert after is not None
    assert answer.master_broker_id == after.granted_master_id, "only a granted master is named (rule 6)"
    assert answer.master_epoch == after.master_epoch
    if decision.code == ControllerCode.CONTROLLER_MASTER_STILL_EXIST:
        assert before == after

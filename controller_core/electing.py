"""ElectMaster (1002): from the policy's choice to a decision, in Java's order of checks (docs/controller.md).

Before anything else the record itself is doubted (safety rule 3): a living replica with an epoch above the record's
proves that it went back in time. Then the floor is raised in the same decision, and it is a first election. An epoch too
far above to be followed stops all elections of the group until a human accepts it; a master that lives stays.
"""

from collections.abc import Mapping
from dataclasses import replace

from controller_core.codes import ControllerCode
from controller_core.decision import Decision, ElectMasterAnswer
from controller_core.election import carried_over, choose_master
from controller_core.electorate import Choice, Electorate
from controller_core.events import Event, MasterElected, MasterLost, apply_events
from controller_core.first_election import choose_after_lost_seats, choose_first_master
from controller_core.holdings import election_marks
from controller_core.model import MAX_EPOCH, BrokerGroupRecord, LiveReplica
from controller_core.recovery import epoch_floor, epoch_seen_above, waiting_jump
from controller_core.requests import ElectMaster
from controller_core.settings import ControllerSettings


def elect_master(
    record: BrokerGroupRecord | None,
    request: ElectMaster,
    live: Mapping[int, LiveReplica],
    settings: ControllerSettings,
) -> Decision:
    """Keep the master (2011), grant a new epoch (0), or say that nobody can have it (2012 to a broker, 2004 to the controller)."""
    if record is None or not record.is_known:
        return _not_registered(record, why=f"no broker of {request.broker_name} holds an id")
    caller = None if request.by_controller else request.broker_id
    jump = waiting_jump(record, live, settings)
    seen = epoch_seen_above(record, live) if jump is None else None
    before: tuple[Event, ...] = () if seen is None else (epoch_floor(record, settings, seen_epoch=seen),)
    base = apply_events(record, before) or record
    is_broker = caller is not None and not request.designate_elect
    if base.is_first_election and is_broker and base.claimed_replica(caller) is None:
        return _not_registered(record, why=f"rule 5: {caller} wants to be the first master, but holds no id")
    if request.unclean:
        settings = replace(settings, unclean_election_allowed=True)
    electorate = Electorate(record=base, live=live, settings=settings, passed_over=request.passed_over)
    choice = _choose(electorate, request, caller)
    if choice.broker_id is not None and choice.broker_id == base.granted_master_id:
        return _keep(base, choice)
    if jump is not None:
        why = f"rule 3: a replica reports epoch {jump}, the record has {record.master_epoch}: nobody is elected until accepted"
        return _nobody(record, (), request, live, Choice(broker_id=None, why=why), stopped=True)
    if choice.broker_id is None or base.master_epoch >= MAX_EPOCH:
        return _nobody(record, before, request, live, choice)
    return _grant(base, before, electorate, request, choice.broker_id, choice)


def _choose(electorate: Electorate, request: ElectMaster, caller: int | None) -> Choice:
    record = electorate.record
    prefer = caller if request.designate_elect else None
    if record.is_first_election:
        return choose_first_master(
            electorate, caller=caller, designated=request.designate_elect, incumbent=request.incumbent
        )
    if record.lost_seats and not record.seats:
        return choose_after_lost_seats(electorate, caller=caller, prefer=prefer)
    return choose_master(electorate, prefer=prefer)


def _not_registered(record: BrokerGroupRecord | None, *, why: str) -> Decision:
    return Decision(
        code=ControllerCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
        remark="Broker hasn't been registered",
        answer=ElectMasterAnswer(),
        record=record,
        why=why,
    )


def _keep(record: BrokerGroupRecord, choice: Choice) -> Decision:
    return Decision(
        code=ControllerCode.CONTROLLER_MASTER_STILL_EXIST,
        remark=(
            f"The old master {record.master_broker_id} is still alive, "
            f"not need to elect new master for broker {record.broker_name}"
        ),
        answer=_describe_master(record, with_members=False),
        record=record,
        why=choice.why,
    )


def _grant(
    base: BrokerGroupRecord,
    before: tuple[Event, ...],
    electorate: Electorate,
    request: ElectMaster,
    broker_id: int,
    choice: Choice,
) -> Decision:
    eligible = frozenset[int]() if choice.unclean or base.is_first_election else carried_over(electorate, broker_id)
    winner = electorate.live.get(broker_id, LiveReplica(broker_id))
    event = MasterElected(
        broker_id=broker_id,
        unclean=choice.unclean,
        eligible=eligible,
        marks=election_marks(base, winner, eligible),
        unfenced=request.unfenced,
    )
    after = apply_events(base, (event,)) or base
    return Decision(
        code=ControllerCode.SUCCESS,
        answer=_describe_master(after, with_members=True),
        events=(*before, event),
        record=after,
        why=f"{choice.why}: granted epoch {after.master_epoch}",
    )


def _nobody(
    record: BrokerGroupRecord,
    before: tuple[Event, ...],
    request: ElectMaster,
    live: Mapping[int, LiveReplica],
    choice: Choice,
    *,
    stopped: bool = False,
) -> Decision:
    if not request.by_controller:
        return Decision(
            code=ControllerCode.CONTROLLER_ELECT_MASTER_FAILED,
            remark="Failed to elect a new master",
            answer=ElectMasterAnswer(),
            record=record,
            why=choice.why,
        )
    # One epoch per lost master: a retry finds no master to lose. A living master that was only to be moved away stays.
    only_passed_over = record.granted_master_id in live and record.granted_master_id in request.passed_over
    nobody_to_lose = record.master_broker_id is None or record.master_epoch >= MAX_EPOCH
    events = before or (
        () if nobody_to_lose or only_passed_over or stopped else (MasterLost(unfenced=request.unfenced),)
    )
    return Decision(
        code=ControllerCode.CONTROLLER_MASTER_NOT_AVAILABLE,
        remark="Old master has down and failed to elect a new broker master",
        answer=ElectMasterAnswer(),
        events=events,
        record=apply_events(record, events),
        why=choice.why,
    )


def _describe_master(record: BrokerGroupRecord, *, with_members: bool) -> ElectMasterAnswer:
    addresses = {
        replica.broker_id: replica.address
        for replica in record.replicas.values()
        if replica.claimed and replica.address
    }
    return ElectMasterAnswer(
        master_broker_id=record.master_broker_id,
        master_address=record.address_of(record.master_broker_id),
        master_epoch=record.master_epoch,
        sync_state_set_epoch=record.sync_state_set_epoch,
        sync_state_set=record.sync_state_set,
        cluster_name=record.cluster_name if with_members else None,
        broker_name=record.broker_name if with_members else None,
        broker_addresses=addresses if with_members else None,
    )

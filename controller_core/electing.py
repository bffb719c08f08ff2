"""ElectMaster (1002): from the policy's choice to a decision, in Java's order of checks (`controller-protocol.md` §5.2)."""

from collections.abc import Mapping

from controller_core.codes import ControllerCode
from controller_core.decision import Decision, ElectMasterAnswer
from controller_core.election import Choice, Electorate, choose_first_master, choose_master
from controller_core.events import MasterElected, MasterLost, apply_event
from controller_core.model import BrokerGroupRecord, LiveReplica
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
    electorate = Electorate(record=record, live=live, settings=settings, passed_over=request.passed_over)
    if record.is_first_election:
        if caller is not None and record.claimed_replica(caller) is None and not request.designate_elect:
            return _not_registered(record, why=f"rule 5: {caller} wants to be the first master, but holds no id")
        choice = choose_first_master(electorate, caller=caller, designated=request.designate_elect)
    else:
        choice = choose_master(electorate, prefer=caller if request.designate_elect else None)
    if choice.broker_id is None:
        return _nobody(record, request, live, choice)
    if choice.broker_id == record.granted_master_id:
        return _keep(record, choice)
    return _grant(record, choice.broker_id, choice)


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


def _grant(record: BrokerGroupRecord, broker_id: int, choice: Choice) -> Decision:
    event = MasterElected(broker_id=broker_id, unclean=choice.unclean)
    after = apply_event(record, event)
    return Decision(
        code=ControllerCode.SUCCESS,
        answer=_describe_master(after, with_members=True),
        events=(event,),
        record=after,
        why=f"{choice.why}: granted epoch {after.master_epoch}",
    )


def _nobody(
    record: BrokerGroupRecord, request: ElectMaster, live: Mapping[int, LiveReplica], choice: Choice
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
    events = () if record.master_broker_id is None or only_passed_over else (MasterLost(),)
    return Decision(
        code=ControllerCode.CONTROLLER_MASTER_NOT_AVAILABLE,
        remark="Old master has down and failed to elect a new broker master",
        answer=ElectMasterAnswer(),
        events=events,
        record=apply_event(record, events[0]) if events else record,
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

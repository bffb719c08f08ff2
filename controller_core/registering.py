"""RegisterBroker (1003): a process of a replica has started. Source: docs/controller.md.

A broker sends this once at its start (and again only if it is told that the group is unknown). So the current master's
own registration means that the process which was granted the epoch is gone. Java hands the same epoch to the new
process, which then writes different bytes under the same (epoch, offset) as the old one.
Here the loss is recorded, the answer names no master, and the next election grants a new epoch, to the same replica or
another (safety rule 6).

A broker with an identity file never applies again, and loops for ever where its id is unknown. So an unknown id is
adopted first, if the settings allow (`adopting.py`).
"""

from collections.abc import Mapping

from controller_core.adopting import adoption_of
from controller_core.codes import ControllerCode
from controller_core.decision import Decision, RegisterBrokerAnswer, SyncStateSetBody
from controller_core.events import BrokerRegistered, Event, MasterProcessLost, apply_events
from controller_core.model import BrokerGroupRecord, LiveReplica, Replica
from controller_core.requests import AdoptBroker, RegisterBroker
from controller_core.settings import ControllerSettings


def register_broker(
    record: BrokerGroupRecord | None,
    request: RegisterBroker,
    live: Mapping[int, LiveReplica],
    settings: ControllerSettings,
) -> Decision:
    """Note where the replica is, and tell it who is master, if a master is alive."""
    adopted, refusal = _adopted(record, request, settings)
    known = apply_events(record, adopted)
    replica = known.claimed_replica(request.broker_id) if known is not None else None
    if known is None or replica is None:
        return _refuse_unknown(record, request, refusal)
    if not request.broker_address:
        return _refuse(
            record,
            request,
            code=ControllerCode.SYSTEM_ERROR,
            remark=f"brokerAddress is {request.broker_address!r}, expected <host>:<port>",
            why="a replica without an address can not be told anything",
        )
    events = (*adopted, *_events(known, replica, request.broker_address))
    after = apply_events(record, events) or known
    lost = after.master_process_lost and not known.master_process_lost
    return Decision(
        code=ControllerCode.SUCCESS,
        answer=_answer(after, request, live),
        events=events,
        record=after,
        why=f"{replica.broker_id} is at {request.broker_address}"
        + (", and was adopted: the record did not know it" if adopted else "")
        + (", and the process that was master is gone: nobody is, until an election" if lost else ""),
    )


def _adopted(
    record: BrokerGroupRecord | None, request: RegisterBroker, settings: ControllerSettings
) -> tuple[tuple[Event, ...], str]:
    """Return the adoption of an unknown id, or why it is none."""
    if request.broker_id is None or not request.broker_address:
        return (), ""
    wanted = AdoptBroker(
        cluster_name=request.cluster_name,
        broker_name=request.broker_name,
        broker_id=request.broker_id,
        broker_address=request.broker_address,
        requester=request.requester,
    )
    event, why = adoption_of(record, wanted, settings)
    return ((event,) if event is not None else ()), why


def _refuse_unknown(record: BrokerGroupRecord | None, request: RegisterBroker, refusal: str) -> Decision:
    """Refuse in Java's words; to a pod of ours with the reason, for a human who reads its log."""
    because = f" ({refusal})" if refusal and request.requester else ""
    if record is None or not record.is_known:
        remark = f"Broker-set: {request.broker_name} hasn't been registered in controller"
        return _refuse(record, request, remark=remark + because, why=f"no broker of {request.broker_name} holds an id")
    shown = "null" if request.broker_id is None else request.broker_id
    remark = f"BrokerId: {shown} hasn't been registered in broker-set: {request.broker_name}"
    return _refuse(record, request, remark=remark + because, why=f"nobody holds the id {shown}" + because)


def _events(record: BrokerGroupRecord, replica: Replica, address: str) -> list[Event]:
    events: list[Event] = []
    shared = any(other.address == address for other in record.replicas.values() if other.broker_id != replica.broker_id)
    if replica.address != address or not replica.registered or shared:
        events.append(BrokerRegistered(broker_id=replica.broker_id, address=address))
    if record.granted_master_id == replica.broker_id:
        events.append(MasterProcessLost())
    return events


def _answer(
    record: BrokerGroupRecord, request: RegisterBroker, live: Mapping[int, LiveReplica]
) -> RegisterBrokerAnswer:
    body = SyncStateSetBody(sync_state_set=record.sync_state_set, sync_state_set_epoch=record.sync_state_set_epoch)
    master = record.granted_master_id
    address = record.address_of(master)
    if master is None or master not in live or address is None:
        return RegisterBrokerAnswer(cluster_name=request.cluster_name, broker_name=request.broker_name, body=body)
    return RegisterBrokerAnswer(
        cluster_name=request.cluster_name,
        broker_name=request.broker_name,
        master_broker_id=master,
        master_address=address,
        master_epoch=record.master_epoch,
        sync_state_set_epoch=record.sync_state_set_epoch,
        body=body,
    )


def _refuse(
    record: BrokerGroupRecord | None,
    request: RegisterBroker,
    *,
    code: ControllerCode = ControllerCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
    remark: str,
    why: str,
) -> Decision:
    return Decision(
        code=code,
        remark=remark,
        answer=RegisterBrokerAnswer(cluster_name=request.cluster_name, broker_name=request.broker_name),
        record=record,
        why=why,
    )

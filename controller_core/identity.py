"""Broker ids: promised (ours), asked for (1012), taken (1013) and used (1003). Source: docs/reference/controller.md.

An id is the name of a disk. Handing one out twice makes two disks one replica, so safety rule 4 is stricter than Java:
the next id is a high-water mark, only the next id can be taken, and an id that was cleaned is gone for good. Ids may
have holes: a broker whose answer to ApplyBrokerId was lost comes back for another one.

A caller that is known by its pod's name finds the id that was reserved for the pod, as long as no process has
registered with it: until then no disk can know that id, so a pod that died between taking and storing it takes it
again, with a new check code. A pod that comes for a new id although a disk of its had one has lost that disk: whatever
seat the old id has is withdrawn with the same commit (safety rule 2).
"""

from controller_core.codes import ControllerCode
from controller_core.decision import (
    ApplyBrokerIdAnswer,
    Decision,
    GetNextBrokerIdAnswer,
    ReserveBrokerIdAnswer,
)
from controller_core.events import (
    BrokerIdApplied,
    BrokerIdReserved,
    Event,
    SeatsLost,
    apply_event,
    apply_events,
)
from controller_core.model import BrokerGroupRecord, Replica, draw_ids
from controller_core.requests import ApplyBrokerId, GetNextBrokerId, ReserveBrokerId


def get_next_broker_id(record: BrokerGroupRecord | None, request: GetNextBrokerId) -> Decision:
    """Name the id that ApplyBrokerId would accept from this caller. Nothing is reserved by asking."""
    if not request.broker_name:
        return Decision(
            code=ControllerCode.SYSTEM_ERROR,
            remark="brokerName is missing, expected the name of a broker group",
            answer=GetNextBrokerIdAnswer(cluster_name=request.cluster_name, broker_name=request.broker_name),
            record=record,
            why="nobody can be named without a broker name",
        )
    reserved = _open_reservation(record, request.requester)
    next_broker_id = reserved.broker_id if reserved is not None else _next_broker_id(record)
    why = (
        f"{next_broker_id} is reserved for {request.requester}" if reserved is not None else f"{next_broker_id} is next"
    )
    return Decision(
        code=ControllerCode.SUCCESS,
        answer=GetNextBrokerIdAnswer(
            cluster_name=request.cluster_name, broker_name=request.broker_name, next_broker_id=next_broker_id
        ),
        record=record,
        why=why,
    )


def apply_broker_id(record: BrokerGroupRecord | None, request: ApplyBrokerId) -> Decision:
    """Give the id to the check code if it is next, promised to this caller, or already theirs."""
    code, broker_id = request.register_check_code, request.applied_broker_id
    if not code or not code.split(";", maxsplit=1)[0]:
        return _refuse_apply(
            record,
            request,
            ControllerCode.SYSTEM_ERROR,
            f"registerCheckCode is {code!r}, expected <address>;<milliseconds>",
            why="an id without a check code could never be claimed again by its holder",
        )
    taken = record.replicas.get(broker_id) if record is not None and broker_id is not None else None
    if record is not None and taken is not None and taken.register_check_code == code:
        return Decision(
            code=ControllerCode.SUCCESS,
            answer=ApplyBrokerIdAnswer(cluster_name=request.cluster_name, broker_name=request.broker_name),
            record=record,
            why=f"{broker_id} is already held by this check code",
        )
    reserved = _open_reservation(record, request.requester)
    allowed = reserved.broker_id if reserved is not None else _next_broker_id(record)
    if broker_id != allowed:
        return _refuse_taken(
            record, request, why=f"rule 4: only {allowed} can be taken by this caller, not {broker_id}"
        )
    event = BrokerIdApplied(
        cluster_name=request.cluster_name,
        broker_name=request.broker_name,
        broker_id=allowed,
        register_check_code=code,
        address=request.address or code.split(";", maxsplit=1)[0],
        reserved_for=request.requester or "",
    )
    left = _seats_left_behind(record, request.requester)
    events: tuple[Event, ...] = (event, SeatsLost(broker_ids=left)) if left else (event,)
    return Decision(
        code=ControllerCode.SUCCESS,
        answer=ApplyBrokerIdAnswer(cluster_name=request.cluster_name, broker_name=request.broker_name),
        events=events,
        record=apply_events(record, events),
        why=(f"{allowed} was reserved for {request.requester}" if reserved is not None else f"{allowed} was next")
        + (f"; rule 2: it lost the disk of {draw_ids(left)}, and the seat with it" if left else ""),
    )


def reserve_broker_id(record: BrokerGroupRecord | None, request: ReserveBrokerId) -> Decision:
    """Promise the next id to a pod, once: asked again, the promise is repeated."""
    if not request.reserved_for:
        return _refuse_reservation(record, "reservedFor is empty, expected a pod name", why="a promise needs a name")
    held = _latest_of(record, request.reserved_for)
    if held is not None and request.broker_id in (None, held.broker_id):
        return Decision(
            code=ControllerCode.SUCCESS,
            answer=ReserveBrokerIdAnswer(broker_id=held.broker_id),
            record=record,
            why=f"{held.broker_id} is already reserved for {request.reserved_for}",
        )
    next_broker_id = _next_broker_id(record)
    if request.broker_id not in (None, next_broker_id):
        remark = f"Broker id {request.broker_id} can not be reserved for {request.reserved_for}: the next one is {next_broker_id}"
        return _refuse_reservation(record, remark, why="rule 4: ids are given in ascending order and never again")
    event = BrokerIdReserved(
        cluster_name=request.cluster_name,
        broker_name=request.broker_name,
        broker_id=next_broker_id,
        reserved_for=request.reserved_for,
    )
    return Decision(
        code=ControllerCode.SUCCESS,
        answer=ReserveBrokerIdAnswer(broker_id=next_broker_id),
        events=(event,),
        record=apply_event(record, event),
        why=f"{next_broker_id} was next, and is now reserved for {request.reserved_for}",
    )


def _next_broker_id(record: BrokerGroupRecord | None) -> int:
    return record.next_broker_id if record is not None else 1


def _latest_of(record: BrokerGroupRecord | None, requester: str | None) -> Replica | None:
    """Return the highest id of a pod. It has several if it lost its disk and came back for a new id."""
    if record is None or not requester:
        return None
    held = [replica for replica in record.replicas.values() if replica.reserved_for == requester]
    return held[-1] if held else None


def _seats_left_behind(record: BrokerGroupRecord | None, requester: str | None) -> frozenset[int]:
    """Return the seats of ids that this pod held before."""
    if record is None or not requester:
        return frozenset()
    own = {replica.broker_id for replica in record.replicas.values() if replica.reserved_for == requester}
    return frozenset(own & record.seats)


def _open_reservation(record: BrokerGroupRecord | None, requester: str | None) -> Replica | None:
    latest = _latest_of(record, requester)
    return latest if latest is not None and not latest.registered else None


def _refuse_taken(record: BrokerGroupRecord | None, request: ApplyBrokerId, *, why: str) -> Decision:
    if record is None or not record.is_known:
        remark = (
            f"Broker-set: {request.broker_name} hasn't been registered in controller, "
            f"but broker try to apply brokerId: {_java(request.applied_broker_id)}"
        )
    else:
        remark = f"Fail to apply brokerId: {_java(request.applied_broker_id)} in broker-set: {request.broker_name}"
    return _refuse_apply(record, request, ControllerCode.CONTROLLER_BROKER_ID_INVALID, remark, why=why)


def _refuse_apply(
    record: BrokerGroupRecord | None, request: ApplyBrokerId, code: ControllerCode, remark: str, *, why: str
) -> Decision:
    return Decision(
        code=code,
        remark=remark,
        answer=ApplyBrokerIdAnswer(cluster_name=request.cluster_name, broker_name=request.broker_name),
        record=record,
        why=why,
    )


def _refuse_reservation(record: BrokerGroupRecord | None, remark: str, *, why: str) -> Decision:
    return Decision(
        code=ControllerCode.CONTROLLER_BROKER_ID_INVALID,
        remark=remark,
        answer=ReserveBrokerIdAnswer(),
        record=record,
        why=why,
    )


def _java(value: int | None) -> str:
    return "null" if value is None else str(value)

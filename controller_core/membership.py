"""Which replicas a group has: ids promised and taken, then registered, adopted, cleaned, removed. In this order below.

An id is the name of a disk; an id given twice makes two disks one replica (safety rule 4; docs/reference/controller.md).
"""

from dataclasses import replace
from typing import TypeGuard

from controller_core import decision, requests
from controller_core.decision import ControllerCode, Decision, decided, refused, without_a_name
from controller_core.holdings import usable_eligible
from controller_core.model import ADOPTED, MAX_EPOCH, BrokerGroupRecord, Live, Replica, draw_id, draw_ids
from controller_core.settings import ControllerSettings

# How many ids one pod may bring: it has one disk, perhaps the wrong one before. A hostile pod would fill the record.
MAX_ADOPTED_BY_ONE = 3


# Ids: promised (ours), asked for (1012), taken (1013). A caller known by its pod's name gets the id that is reserved for the pod,
# until a process has registered with it: no disk can know that id yet. A pod that takes a new id has lost the disk of its old one,
# so the same commit withdraws the old id's seat (safety rule 2).


def get_next_broker_id(record: BrokerGroupRecord, request: requests.GetNextBrokerId) -> Decision:
    """Name the id that ApplyBrokerId would accept from this caller. Asking reserves nothing."""
    answer = decision.GetNextBrokerIdAnswer(cluster_name=request.cluster_name, broker_name=request.broker_name)
    if not request.broker_name:
        return without_a_name(record, answer)
    next_broker_id, known_as = _id_for(record, request.requester)
    return decided(record, replace(answer, next_broker_id=next_broker_id), f"{next_broker_id} is {known_as}")


def apply_broker_id(record: BrokerGroupRecord, request: requests.ApplyBrokerId) -> Decision:
    """Give the id to the holder of the check code, if the id is next, promised to this caller, or its own already."""
    code, broker_id = request.register_check_code, request.applied_broker_id
    answer = decision.ApplyBrokerIdAnswer(cluster_name=request.cluster_name, broker_name=request.broker_name)
    if not code or not code.split(";", maxsplit=1)[0]:
        why = "an id without a check code could never be claimed again by its holder"
        remark = f"registerCheckCode is {code!r}, expected <address>;<milliseconds>"
        return refused(record, ControllerCode.SYSTEM_ERROR, answer, why, remark)
    taken = record.claimed_replica(broker_id)
    if taken is not None and taken.register_check_code == code:
        return decided(record, answer, f"{broker_id} is already held by this check code")
    allowed, known_as = _id_for(record, request.requester)
    if broker_id != allowed:
        why = f"rule 4: only {allowed} can be taken by this caller, not {broker_id}"
        remark = f"Fail to apply brokerId: {draw_id(broker_id)} in broker-set: {request.broker_name}"
        if not record.is_known:
            remark = f"Broker-set: {request.broker_name} hasn't been registered in controller, "
            remark += f"but broker try to apply brokerId: {draw_id(broker_id)}"
        return refused(record, ControllerCode.CONTROLLER_BROKER_ID_INVALID, answer, why, remark)
    address = request.address or code.split(";", maxsplit=1)[0]
    # What is promised keeps its mark: the first disk of a restored group must reach it.
    promised = record.replicas.get(allowed, Replica(allowed))
    holder = replace(
        promised, register_check_code=code, address=address, reserved_for=request.requester or "", registered=False
    )
    event = decision.BrokerIdHeld(replica=holder)
    older = (one.broker_id for one in _held_by(record, request.requester) if one.broker_id != allowed)
    left = record.seats.intersection(older)
    why = f"{allowed} was {known_as}"
    if not left:
        return decided(record, answer, why, event)
    why += f"; rule 2: it lost the disk of {draw_ids(left)}, and the seat with it"
    return decided(record, answer, why, event, decision.SeatsLost(broker_ids=left))


def reserve_broker_id(record: BrokerGroupRecord, request: requests.ReserveBrokerId) -> Decision:
    """Promise the next id to a pod, once: asked again, the promise is repeated."""
    invalid = ControllerCode.CONTROLLER_BROKER_ID_INVALID
    if not request.reserved_for:
        remark = "reservedFor is empty, expected a pod name"
        return refused(record, invalid, decision.ReserveBrokerIdAnswer(), "a promise needs a name", remark)
    held = _held_by(record, request.reserved_for)
    if held and request.broker_id in (None, held[-1].broker_id):
        why = f"{held[-1].broker_id} is already reserved for {request.reserved_for}"
        return decided(record, decision.ReserveBrokerIdAnswer(broker_id=held[-1].broker_id), why)
    next_broker_id = record.next_broker_id
    if request.broker_id not in (None, next_broker_id):
        remark = f"Broker id {request.broker_id} can not be reserved for {request.reserved_for}: the next one is {next_broker_id}"
        why = "rule 4: ids are given in ascending order and never again"
        return refused(record, invalid, decision.ReserveBrokerIdAnswer(), why, remark)
    event = decision.BrokerIdHeld(replica=Replica(next_broker_id, reserved_for=request.reserved_for))
    why = f"{next_broker_id} was next, and is now reserved for {request.reserved_for}"
    return decided(record, decision.ReserveBrokerIdAnswer(broker_id=next_broker_id), why, event)


def restore_group(record: BrokerGroupRecord, request: requests.RestoreGroup) -> Decision:
    """Begin a new record with the one replica whose disk has the backup's messages; asked again, it is done already.

    That replica alone has a seat, with the backup's end as its mark: no empty disk is elected before it, nor a disk that lacks
    a part (rules 2 and 5). Ids and epochs go on above those of the backup (rule 4).
    """
    invalid, answer = ControllerCode.CONTROLLER_BROKER_ID_INVALID, decision.ReserveBrokerIdAnswer()
    if record.restored_from == request.backup:
        held = _held_by(record, request.reserved_for)
        again = replace(answer, broker_id=held[0].broker_id if held else request.broker_id)
        return decided(record, again, f"the record began with {request.backup} already")
    if record.replicas or record.next_broker_id > 1 or record.master_epoch > 0:
        remark = f"the record of {record.broker_name} has begun: a backup is restored into a new group only"
        return refused(record, invalid, answer, "ids or epochs of its own would fall or be used twice", remark)
    if not request.reserved_for or request.broker_id < 1 or not 0 <= request.master_epoch < MAX_EPOCH:
        remark = f"brokerId is {request.broker_id} and masterEpoch {request.master_epoch}, expected numbers of a backup"
        return refused(record, invalid, answer, "the backup's manifest can not be right", remark)
    mark = request.mark
    replica = Replica(
        request.broker_id, reserved_for=request.reserved_for, held_epoch=mark.epoch, held_offset=mark.offset
    )
    event = decision.GroupRestored(replica=replica, backup=request.backup, master_epoch=request.master_epoch)
    why = f"{request.broker_id} has the log of {request.backup} up to {mark.offset}, and is the only seat"
    return decided(record, replace(answer, broker_id=request.broker_id), why, event)


def _held_by(record: BrokerGroupRecord, pod: str | None) -> list[Replica]:
    """Return a pod's ids in ascending order: several if it lost its disk and came back for a new id."""
    return [replica for replica in record.replicas.values() if pod and replica.reserved_for == pod]


def _id_for(record: BrokerGroupRecord, requester: str | None) -> tuple[int, str]:
    """Return the id that this caller may take, and why: reserved for its pod and not registered yet, or the next one."""
    held = _held_by(record, requester)
    if held and not held[-1].registered:
        return held[-1].broker_id, f"reserved for {requester}"
    return record.next_broker_id, "next"


# Registration (1003). A broker registers once at its start, and again only if a poll (1004) was answered 2008. So a registration
# of the current master means that the process which was granted the epoch is gone; its new process would write other bytes under
# the same (epoch, offset). The loss is recorded, and the answer names no master (safety rule 6).


def ids_ahead(record: BrokerGroupRecord | None, settings: ControllerSettings) -> int:
    """Return how far above the record's next id a replica may be that the record does not know."""
    if record is not None and record.restored_from:
        return settings.max_ids_ahead
    return max(settings.max_ids_ahead, settings.max_ids_of_restored)


def register_broker(
    record: BrokerGroupRecord, request: requests.RegisterBroker, live: Live, settings: ControllerSettings
) -> Decision:
    """Note where the replica is, and answer the master, if one is alive."""
    answer = decision.RegisterBrokerAnswer(cluster_name=request.cluster_name, broker_name=request.broker_name)
    adoption, refusal = _adoption_of(record, request, ids_ahead(record, settings))
    adopted = (adoption,) if adoption is not None else ()
    known = decision.apply_events(record, adopted)
    replica = known.claimed_replica(request.broker_id)
    if replica is None:
        return _refuse_unknown(record, request, answer, refusal)
    if not _can_be_dialled(request.broker_address):
        why = "no broker is notified at such an address, and a switchover could not drain it"
        remark = f"brokerAddress is {request.broker_address!r}, expected <host>:<port>"
        return refused(record, ControllerCode.SYSTEM_ERROR, answer, why, remark)
    happened = (*adopted, *_registration_events(known, replica, request.broker_address))
    after = decision.apply_events(record, happened)
    lost = after.master_process_lost and not known.master_process_lost
    why = f"{replica.broker_id} is at {request.broker_address}"
    why += ", and was adopted: the record did not know it" if adopted else ""
    why += ", and the process that was master is gone: there is no master until an election" if lost else ""
    answer = replace(answer, body=decision.SyncStateSetBody.of(after))
    master, address = after.granted_master_id, after.address_of(after.granted_master_id)
    if master in live and address is not None:
        answer = replace(
            answer,
            master_broker_id=master,
            master_address=address,
            master_epoch=after.master_epoch,
            sync_state_set_epoch=after.sync_state_set_epoch,
        )
    return decided(record, answer, why, *happened)


def _can_be_dialled(address: str | None) -> TypeGuard[str]:
    """Whether the address is `<host>:<port>`; Java's controller takes any text, and names it to every broker."""
    host, _, port = (address or "").rpartition(":")
    odd = any(character.isspace() or character in ";,=" for character in host)
    return bool(host) and not odd and port.isascii() and port.isdecimal() and 1 <= int(port[:6]) < 2**16


def _registration_events(record: BrokerGroupRecord, replica: Replica, address: str) -> list[decision.Event]:
    happened: list[decision.Event] = []
    shared = any(other.address == address for other in record.replicas.values() if other.broker_id != replica.broker_id)
    if replica.address != address or not replica.registered or shared:
        happened.append(decision.BrokerIdHeld(replica=replace(replica, address=address, registered=True)))
    if record.granted_master_id == replica.broker_id:
        happened.append(decision.MasterProcessLost())
    return happened


def _refuse_unknown(
    record: BrokerGroupRecord, request: requests.RegisterBroker, answer: decision.RegisterBrokerAnswer, refusal: str
) -> Decision:
    """Refuse in Java's words; to a pod of ours with the reason, for the reader of its log."""
    because = f" ({refusal})" if refusal else ""
    shown = draw_id(request.broker_id)
    why = f"no replica holds the id {shown}{because}"
    remark = f"BrokerId: {shown} hasn't been registered in broker-set: {request.broker_name}{because}"
    if not record.is_known:
        why = f"no broker of {request.broker_name} holds an id{because}"
        remark = f"Broker-set: {request.broker_name} hasn't been registered in controller{because}"
    return refused(record, ControllerCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, answer, why, remark)


# Adoption (ours): a disk knows an id that the record does not, for the record was lost, or is older than the id. Java brokers with
# an identity file never apply again: refused, they loop on 2010.


def _adoption_of(  # noqa: PLR0911 - each return is one reason
    record: BrokerGroupRecord, request: requests.RegisterBroker, max_ids_ahead: int
) -> tuple[decision.BrokerAdopted | None, str]:
    """Return the adoption of an id that no replica holds; or None, and why not, for a pod of the group."""
    broker_id, requester, address = request.broker_id, request.requester, request.broker_address
    is_known = record.claimed_replica(broker_id) is not None
    if broker_id is None or is_known or not requester or not _can_be_dialled(address):
        return None, ""
    if broker_id < 1:
        return None, f"{broker_id} is no broker id, expected 1 or more"
    next_broker_id, reserved = record.next_broker_id, record.replicas.get(broker_id)
    if reserved is not None and reserved.reserved_for != requester:
        return None, f"{broker_id} is reserved for {reserved.reserved_for}"
    adopted = [one for one in record.replicas.values() if one.was_adopted]
    # With a higher id adopted, the record was made again from its brokers: it knows of no cleaning, and may have skipped this one.
    if reserved is None and broker_id < next_broker_id and all(one.broker_id < broker_id for one in adopted):
        return None, f"{broker_id} is below the next id {next_broker_id} and was cleaned: ids are not given again"
    if sum(one.reserved_for == requester for one in adopted) >= MAX_ADOPTED_BY_ONE:
        return None, f"{requester} has brought {MAX_ADOPTED_BY_ONE} ids before, and has one disk"
    if broker_id > next_broker_id + max_ids_ahead:
        return None, f"{broker_id} is more than {max_ids_ahead} above the next id {next_broker_id}"
    replica = Replica(broker_id, f"{address};{ADOPTED}", address, requester, registered=True)
    return decision.BrokerAdopted(replica=replica), ""


# Cleaning (1011, an administrator's). Ids and epochs survive every clean (rule 4): the next broker would get a used id, and an
# epoch that running brokers ignore. Promises to pods that have not started yet survive the cleaning of a whole group.
#
# Removal (ours), for scaling in, decommissioning and replacing a lost disk. An administrator may be wrong on purpose, the operator
# may not: `_needed_for` lists what protects a member. A superseded replica (its pod came back without the disk) can tell nothing
# any more, but its seat still counts.


def clean_broker_data(record: BrokerGroupRecord, request: requests.CleanBrokerData, live: Live) -> Decision:
    named = (request.broker_controller_ids_to_clean or "").strip()
    if not named and not request.is_clean_living_broker and record.master_broker_id is not None:
        remark = f"Broker {request.broker_name} is still alive, clean up failure"
        return _refuse_cleaning(record, remark, why=f"{record.master_broker_id} is recorded as master")
    parts = named.rstrip(";").split(";") if named else []  # trailing separators are allowed, as in Java
    malformed = next((part for part in parts if not (part.isascii() and part.isdigit())), None)
    if malformed is not None:
        remark = "Please set the option <brokerControllerIdsToClean> according to the format, exception: "
        remark += f"{malformed!r} is not a broker id"
        return _refuse_cleaning(record, remark, why=f"expected ids separated by ';', got {named!r}")
    broker_ids = {int(part) for part in parts}
    alive = min(broker_ids & live.keys(), default=None)
    if alive is not None and not request.is_clean_living_broker:
        remark = f"Broker [{request.broker_name},  {alive}] is still alive, clean up failure"
        return _refuse_cleaning(record, remark, why=f"{alive} is alive")
    if not record.is_known and not broker_ids & record.replicas.keys():
        remark = f"Broker {request.broker_name} is not existed,clean broker data failure."
        return _refuse_cleaning(record, remark, why=f"no broker of {request.broker_name} holds an id")
    claimed = {replica.broker_id for replica in record.replicas.values() if replica.claimed}
    return _clean(record, frozenset(broker_ids & record.replicas.keys() if named else claimed))


def remove_member(
    record: BrokerGroupRecord, request: requests.RemoveMember, live: Live, settings: ControllerSettings
) -> Decision:
    """Forget a dead member, or say what it is still needed for. Asked again, it is done already."""
    if request.broker_id not in record.replicas:
        return decided(record, None, f"{request.broker_id} is no member")
    needed = _needed_for(record, request.broker_id, live, settings)
    if needed is not None:
        return _refuse_cleaning(record, f"Broker {request.broker_id} is not removed: {needed}", why=needed)
    return _clean(record, frozenset({request.broker_id}))


def _needed_for(  # noqa: PLR0911 - one return per reason
    record: BrokerGroupRecord, broker_id: int, live: Live, settings: ControllerSettings
) -> str | None:
    """Return why a member may not be forgotten; None if it may."""
    if broker_id == record.master_broker_id:
        return "it is master"
    if broker_id in live:
        return "it is alive"
    if not record.replicas[broker_id].registered and broker_id not in record.seats:
        return None  # no disk ever knew this id; the first of a restored group has a seat before that
    if record.lost_seats:
        return f"rule 2: {draw_ids(record.lost_seats)} lost the last seats, so every disk must be heard"
    eligible = usable_eligible(record, settings)
    if eligible:
        return f"rule 1: {draw_ids(eligible)} are eligible while the set is below the floor, and it may hold more than they"
    if record.is_first_election:
        return None if broker_id in record.superseded else "no seat says whose data counts, so it must be heard"
    return _seat_needed_for(record, broker_id, settings)


def _seat_needed_for(record: BrokerGroupRecord, broker_id: int, settings: ControllerSettings) -> str | None:
    """Return why the SyncStateSet needs this member, or this disk beside it; None if it does not."""
    left = record.sync_state_set - {broker_id}
    floor = max(settings.floor, 1)
    if broker_id not in record.sync_state_set:
        if settings.masters_shrink_first and len(left) < floor and broker_id not in record.superseded:
            return f"rule 1: the set is {draw_ids(left)}, below the least of {floor}, and more disks may be needed"
        return None
    if record.master_broker_id is None:
        return f"there is no master, and the next one comes from the set {draw_ids(record.sync_state_set)}"
    if len(left) < floor:
        return f"rule 1: the set would be {draw_ids(left)}, the least is {floor}"
    return None


def _clean(record: BrokerGroupRecord, broker_ids: frozenset[int]) -> Decision:
    why = f"{draw_ids(broker_ids)} forgotten; the next id stays {record.next_broker_id}"
    return decided(record, None, why, *([decision.BrokersCleaned(broker_ids=broker_ids)] if broker_ids else []))


def _refuse_cleaning(record: BrokerGroupRecord, remark: str, *, why: str) -> Decision:
    return refused(record, ControllerCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, None, why, remark)

"""CleanBrokerData (1011): an administrator forgets replicas. Java's checks in Java's order (docs/controller.md).
And RemoveMember, ours: the operator forgets one member, and only where nothing that was acknowledged can depend on it.

Java forgets too much: cleaning the last in-sync member drops the epochs and the id counter, so the next broker gets a
used id and an epoch that running brokers ignore; cleaning the master leaves its id as master; `isCleanLivingBroker`
ignores the list of ids and drops the whole group. Here ids and epochs survive every clean (safety rule 4), a cleaned
master is no master, and ids that were named are the only ones cleaned. Promises to pods that have not started yet
survive the cleaning of a whole group: they hold no data, and the pod would else be born under another id than its
name.

`remove_member` is what scaling in, decommissioning and replacing a lost disk need. An administrator may be wrong on purpose,
the operator may not: it removes only the dead, never the master (an election comes first), never a seat without which the
set would be below the floor (safety rule 1), nor, where masters shrink first, anybody else's disk while the set is below it,
and nobody at all while a replica is eligible under the floor or while no seat says whose data counts: there the elections wait
for everybody who could hold more, and to forget one of those would be to elect without asking it. Who is superseded (its pod
came back without the disk) can tell nothing any more, but its seat still counts.
"""

from collections.abc import Mapping

from controller_core.codes import ControllerCode
from controller_core.decision import CleanBrokerDataAnswer, Decision
from controller_core.electorate import draw_ids
from controller_core.events import BrokersCleaned, apply_event
from controller_core.holdings import usable_eligible
from controller_core.model import BrokerGroupRecord, LiveReplica
from controller_core.requests import CleanBrokerData, RemoveMember
from controller_core.settings import ControllerSettings


def clean_broker_data(
    record: BrokerGroupRecord | None, request: CleanBrokerData, live: Mapping[int, LiveReplica]
) -> Decision:
    """Forget the named replicas, or all of them."""
    named = (request.broker_controller_ids_to_clean or "").strip()
    if not named and not request.is_clean_living_broker and record is not None and record.master_broker_id is not None:
        remark = f"Broker {request.broker_name} is still alive, clean up failure"
        return _refuse(record, remark, why=f"{record.master_broker_id} is recorded as master")
    broker_ids, malformed = _parse_ids(named)
    if malformed is not None:
        remark = (
            "Please set the option <brokerControllerIdsToClean> according to the format, exception: "
            f"{malformed!r} is not a broker id"
        )
        return _refuse(record, remark, why=f"expected ids separated by ';', got {named!r}")
    for broker_id in sorted(broker_ids):
        if broker_id in live and not request.is_clean_living_broker:
            remark = f"Broker [{request.broker_name},  {broker_id}] is still alive, clean up failure"
            return _refuse(record, remark, why=f"{broker_id} is alive")
    if record is None or not (record.is_known or broker_ids & record.replicas.keys()):
        remark = f"Broker {request.broker_name} is not existed,clean broker data failure."
        return _refuse(record, remark, why=f"no broker of {request.broker_name} holds an id")
    claimed = {replica.broker_id for replica in record.replicas.values() if replica.claimed}
    return _clean(record, frozenset(broker_ids & record.replicas.keys() if named else claimed))


def remove_member(
    record: BrokerGroupRecord | None,
    request: RemoveMember,
    live: Mapping[int, LiveReplica],
    settings: ControllerSettings,
) -> Decision:
    """Forget a dead member, or say what it is still needed for. Asked again, it is done already."""
    if record is None or request.broker_id not in record.replicas:
        return Decision(
            code=ControllerCode.SUCCESS,
            answer=CleanBrokerDataAnswer(),
            record=record,
            why=f"{request.broker_id} is no member",
        )
    needed = _needed_for(record, request.broker_id, live, settings)
    if needed is not None:
        return _refuse(record, f"Broker {request.broker_id} is not removed: {needed}", why=needed)
    return _clean(record, frozenset({request.broker_id}))


def _needed_for(  # noqa: PLR0911 - one return per reason
    record: BrokerGroupRecord, broker_id: int, live: Mapping[int, LiveReplica], settings: ControllerSettings
) -> str | None:
    """Return why a member may not be forgotten; None if it may."""
    if broker_id == record.master_broker_id:
        return "it is master"
    if broker_id in live:
        return "it is alive"
    if not record.replicas[broker_id].registered:
        return None  # no disk ever knew this id
    if record.lost_seats:
        return f"rule 2: {draw_ids(record.lost_seats)} lost the last seats, so every disk must be heard"
    eligible = usable_eligible(record, settings)
    if eligible:
        return f"rule 1: {draw_ids(eligible)} are eligible while the set is below the floor, and it may hold more than they"
    if record.is_first_election:
        return None if broker_id in record.superseded else "no seat says whose data counts, so it must be heard"
    return _seat_needed_for(record, broker_id, settings)


def _seat_needed_for(record: BrokerGroupRecord, broker_id: int, settings: ControllerSettings) -> str | None:
    left = record.sync_state_set - {broker_id}
    floor = settings.min_in_sync_replicas if settings.shrink_floor else 1
    if broker_id not in record.sync_state_set:
        if settings.masters_shrink_first and len(left) < floor and broker_id not in record.superseded:
            return f"rule 1: the set is {draw_ids(left)}, below the least of {floor}, and more disks may be needed"
        return None
    if record.master_broker_id is None:
        return f"nobody is master, and the next one comes from the set {draw_ids(record.sync_state_set)}"
    if len(left) < floor:
        return f"rule 1: the set would be {draw_ids(left)}, the least is {floor}"
    return None


def _clean(record: BrokerGroupRecord, broker_ids: frozenset[int]) -> Decision:
    events = (BrokersCleaned(broker_ids=broker_ids),) if broker_ids else ()
    return Decision(
        code=ControllerCode.SUCCESS,
        answer=CleanBrokerDataAnswer(),
        events=events,
        record=apply_event(record, events[0]) if events else record,
        why=f"{draw_ids(broker_ids)} forgotten; the next id stays {record.next_broker_id}",
    )


def _parse_ids(named: str) -> tuple[set[int], str | None]:
    """Return the ids, and the first part that is none. Trailing separators are allowed, as in Java."""
    broker_ids: set[int] = set()
    for part in named.rstrip(";").split(";") if named else ():
        if not (part.isascii() and part.isdigit()):
            return set(), part
        broker_ids.add(int(part))
    return broker_ids, None


def _refuse(record: BrokerGroupRecord | None, remark: str, *, why: str) -> Decision:
    return Decision(
        code=ControllerCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA,
        remark=remark,
        answer=CleanBrokerDataAnswer(),
        record=record,
        why=why,
    )

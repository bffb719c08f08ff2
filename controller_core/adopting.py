"""Re-adoption: a replica whose disk knows an id that the record does not.

The record was lost, the group re-created, or etcd restored to before the id was given. Java brokers with an identity file
never apply again: refused, they loop for ever on 2010. Here the id is taken back into the record, without a seat: what
the disk holds counts only in a first election on data (safety rules 3 and 5).

Whose id? A pod's, if the id is promised to that very pod, or is not below the next one, so that nobody else can have got
it from this record. An id below the next one that nobody holds was cleaned on purpose and stays gone (safety rule 4);
except where a higher one was adopted: that record was made again from the brokers, in the order in which they were heard,
so it knows of no cleaning, and a pod of the group may still come with an id that was jumped over (ids that a record has
once passed are never handed out, so nobody else has it). An id far above the next is nobody's: it would burn all between
(`MAX_IDS_AHEAD`).
"""

from controller_core.codes import ControllerCode
from controller_core.decision import AdoptBrokerAnswer, Decision
from controller_core.events import ADOPTED, BrokerAdopted, apply_events
from controller_core.model import BrokerGroupRecord
from controller_core.requests import AdoptBroker
from controller_core.settings import Adoption, ControllerSettings

MAX_IDS_AHEAD = 1000
"""How far above the next id an adopted one may lie."""
MAX_ADOPTED_BY_ONE = 3
"""How many ids one pod may bring: it has one disk, perhaps the wrong one before. A hostile pod would fill the record."""


def adopt_broker(record: BrokerGroupRecord | None, request: AdoptBroker, settings: ControllerSettings) -> Decision:
    """Take an unknown id back into the record, or say why not."""
    if record is not None and record.claimed_replica(request.broker_id) is not None:
        return Decision(
            code=ControllerCode.SUCCESS,
            answer=AdoptBrokerAnswer(adopted=True),
            record=record,
            why=f"{request.broker_id} is known",
        )
    event, why = adoption_of(record, request, settings)
    if event is None:
        return Decision(
            code=ControllerCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            remark=f"BrokerId: {request.broker_id} is not adopted in broker-set: {request.broker_name} ({why})",
            answer=AdoptBrokerAnswer(),
            record=record,
            why=why,
        )
    return Decision(
        code=ControllerCode.SUCCESS,
        answer=AdoptBrokerAnswer(adopted=True),
        events=(event,),
        record=apply_events(record, (event,)),
        why=why,
    )


def adoption_of(  # noqa: PLR0911 - each return is one reason
    record: BrokerGroupRecord | None, request: AdoptBroker, settings: ControllerSettings
) -> tuple[BrokerAdopted | None, str]:
    """Return the adoption of an id that nobody holds, and why; or None, and why not."""
    broker_id, requester = request.broker_id, request.requester
    if record is not None and record.claimed_replica(broker_id) is not None:
        return None, f"{broker_id} is known"
    if settings.adoption is Adoption.NEVER:
        return None, "adoption is switched off"
    if settings.adoption is Adoption.KNOWN_REQUESTERS and not requester:
        return None, "only a pod of the group is adopted"
    if not request.broker_address:
        return None, "a replica without an address can not be told anything"
    if broker_id < 1:
        return None, f"{broker_id} is no broker id, expected 1 or more"
    next_broker_id = record.next_broker_id if record is not None else 1
    reserved = record.replicas.get(broker_id) if record is not None else None
    if reserved is not None and (not requester or reserved.reserved_for != requester):
        return None, f"{broker_id} is reserved for {reserved.reserved_for}"
    if reserved is None and broker_id < next_broker_id and not (requester and _was_made_again(record, broker_id)):
        return None, f"{broker_id} is below the next id {next_broker_id} and was cleaned: ids are not given again"
    if _adopted_from(record, requester) >= MAX_ADOPTED_BY_ONE:
        return None, f"{requester} has brought {MAX_ADOPTED_BY_ONE} ids before, and has one disk"
    if broker_id > next_broker_id + MAX_IDS_AHEAD:
        return None, f"{broker_id} is more than {MAX_IDS_AHEAD} above the next id {next_broker_id}"
    event = BrokerAdopted(
        cluster_name=request.cluster_name,
        broker_name=request.broker_name,
        broker_id=broker_id,
        address=request.broker_address,
        reserved_for=requester or "",
    )
    return event, f"{broker_id} at {request.broker_address} is adopted: its disk knows the id, the record did not"


def _adopted_from(record: BrokerGroupRecord | None, requester: str | None) -> int:
    """How many ids of this pod were adopted."""
    replicas = record.replicas.values() if record is not None and requester else ()
    return sum(one.reserved_for == requester and one.register_check_code.endswith(f";{ADOPTED}") for one in replicas)


def _was_made_again(record: BrokerGroupRecord | None, broker_id: int) -> bool:
    """Whether a higher id was adopted: the record was made again from its brokers, and may have jumped over this one."""
    replicas = record.replicas.values() if record is not None else ()
    return any(one.broker_id > broker_id and one.register_check_code.endswith(f";{ADOPTED}") for one in replicas)

"""Who should be master where no seat says whose data counts (safety rule 5, and the end of rules 2 and 3).

Nobody was elected yet, or the last member was cleaned, or the record went back in time. On empty disks the caller wins,
as in Java. Where there is data, or was a master before, every registered replica (and as many as are expected) must be
heard first, and the one with the most data wins, whoever called: Java elects whoever calls first, registered or not, and
everybody else truncates to it. An id whose pod came back without its disk, under a higher id, is not waited for: that disk is
gone, and the id would stand for it for ever. If it is heard after all, it counts.

Where a replica in fact acts as master (`ElectMaster.incumbent`: the record forgot it, its slaves did not) it is elected,
unless somebody has a higher epoch: what it acknowledged a moment ago is in its own log, and in nobody's last heartbeat.
"""

from collections.abc import Mapping

from controller_core.electorate import Choice, Electorate, draw_ids, draw_replica
from controller_core.model import BrokerGroupRecord, LiveReplica


def choose_first_master(
    electorate: Electorate, *, caller: int | None, designated: bool, incumbent: int | None = None
) -> Choice:
    """Choose where no SyncStateSet says whose data counts: nobody was elected yet, or the last member was cleaned."""
    record, live = electorate.record, electorate.live
    electable = electorate.electable(record.replicas)
    if _is_barred(electorate, caller):
        return Choice(broker_id=None, why=f"first election: {caller} may not be elected")
    with_data = [broker_id for broker_id in record.replicas if broker_id in live and live[broker_id].has_data]
    if not with_data and record.master_epoch == 0:
        return _choose_on_empty_disks(electorate, electable, caller=caller)
    reason = (
        f"there is data on {draw_ids(with_data)}"
        if with_data
        else f"the group had masters up to epoch {record.master_epoch}"
    )
    missing = _missing(electorate)
    if missing and not electorate.settings.unclean_election_allowed:
        return Choice(broker_id=None, why=f"first election: {reason}, so {missing} must be heard first")
    return _choose_by_data(
        electorate,
        electable,
        prefer=caller if designated else None,
        incumbent=incumbent,
        unclean=bool(missing),
        reason=reason,
    )


def choose_after_lost_seats(electorate: Electorate, *, caller: int | None, prefer: int | None) -> Choice:
    """Choose where the last holders of seats lost them (rule 2): nobody, but on disks that are all empty, or uncleanly."""
    record, live = electorate.record, electorate.live
    lost = draw_ids(record.lost_seats)
    electable = electorate.electable(record.replicas)
    if _is_barred(electorate, caller):
        return Choice(broker_id=None, why=f"{lost} lost what they held; {caller} may not be elected")
    with_data = [one for one in record.replicas if one in live and live[one].has_data]
    if not electorate.unheard(_to_be_heard(record)) and not with_data:
        choice = _choose_on_empty_disks(electorate, electable, caller=prefer if prefer is not None else caller)
        return Choice(broker_id=choice.broker_id, why=f"{lost} lost what they held, and nobody has data; {choice.why}")
    if not electorate.settings.unclean_election_allowed:
        why = f"rule 2: {lost} lost what they held, and nobody else holds every acknowledged message"
        return Choice(broker_id=None, why=why)
    best = electable.get(prefer) if prefer is not None else electorate.most_data(electable)
    if best is None:
        return Choice(broker_id=None, why=f"{lost} lost what they held, and nobody electable is alive")
    return Choice(
        broker_id=best.broker_id, why=f"{lost} lost what they held; {draw_replica(best)} is best", unclean=True
    )


def _is_barred(electorate: Electorate, caller: int | None) -> bool:
    return caller is not None and (not electorate.settings.may_be_master(caller) or caller in electorate.passed_over)


def _to_be_heard(record: BrokerGroupRecord) -> list[int]:
    """Whose disks exist, as far as the record knows."""
    return [
        one.broker_id for one in record.replicas.values() if one.registered and one.broker_id not in record.superseded
    ]


def _missing(electorate: Electorate) -> str:
    """Draw who must still be heard, or how many; empty if nobody."""
    record, settings = electorate.record, electorate.settings
    if not settings.expected_replicas:
        unheard = electorate.unheard(record.replicas.keys() - record.superseded)
        return draw_ids(unheard) if unheard else ""
    unheard = electorate.unheard(_to_be_heard(record))
    if unheard:
        return draw_ids(unheard)
    heard = len(record.replicas) - len(electorate.unheard(record.replicas))
    too_few = settings.expected_replicas - heard
    return f"{too_few} more of {settings.expected_replicas}" if too_few > 0 else ""


def _choose_by_data(
    electorate: Electorate,
    electable: Mapping[int, LiveReplica],
    *,
    prefer: int | None,
    incumbent: int | None,
    unclean: bool,
    reason: str,
) -> Choice:
    best = electorate.most_data(electable)
    if best is None:
        return Choice(broker_id=None, why=f"first election: {reason}, but nobody electable is alive")
    acting = electable.get(incumbent) if incumbent is not None else None
    if acting is not None and acting.epoch >= best.epoch:
        best = acting
        reason = f"{reason}, and {incumbent} acts as master"
    if prefer is None:
        return Choice(
            broker_id=best.broker_id, why=f"first election: {reason}; {draw_replica(best)} is best", unclean=unclean
        )
    wanted = electable.get(prefer)
    if wanted is None:
        return Choice(broker_id=None, why=f"first election: {reason}; {prefer} was designated, but is not alive")
    loses_data = (wanted.epoch, wanted.max_offset) < (best.epoch, best.max_offset) or best is acting is not wanted
    if loses_data and not electorate.settings.unclean_election_allowed:
        return Choice(
            broker_id=None,
            why=f"first election: {reason}; {draw_replica(wanted)} was designated, {draw_replica(best)} has more",
        )
    return Choice(
        broker_id=prefer, why=f"first election: {reason}; {prefer} was designated", unclean=unclean or loses_data
    )


def _choose_on_empty_disks(
    electorate: Electorate, electable: Mapping[int, LiveReplica], *, caller: int | None
) -> Choice:
    record, live = electorate.record, electorate.live
    if caller is None:
        best = electorate.most_data(electable)
        if best is None:
            return Choice(broker_id=None, why="first election: no electable replica was heard")
        return Choice(broker_id=best.broker_id, why=f"first election on empty disks: {best.broker_id} was heard")
    if not record.address_of(caller):
        return Choice(broker_id=None, why=f"first election: nobody knows the address of {caller}")
    if caller in live and live[caller].has_reported:
        return Choice(broker_id=caller, why=f"first election on empty disks: {caller} called first")
    # A starting broker's request may overtake its heartbeat. What its disk holds is
    # then unknown, which matters only if somebody else could hold more.
    unheard = electorate.unheard(one for one in _to_be_heard(record) if one != caller)
    if unheard:
        return Choice(
            broker_id=None, why=f"first election: neither {caller} nor {draw_ids(unheard)} told what they hold yet"
        )
    return Choice(broker_id=caller, why=f"first election: {caller} called first, and nobody else holds data")

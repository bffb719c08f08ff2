"""Who should be master where seats say whose data counts: pure functions over what is recorded and what is alive.

Java's `DefaultElectPolicy` (docs/controller.md) orders the live members of the SyncStateSet by epoch, then
by offset, then by priority, and keeps a living master. That is kept (`policies/most_data.py`). What differs, and why:

* A master whose process was lost competes like everybody else and wins among equals: its new process may have come
  back with less than its followers have (safety rule 6).
* Who has not told what it holds, or holds less than its mark, is no candidate (safety rule 2).
* A replica whose address is unknown is no candidate: nobody could be told where the master is (safety rule 8).
* Async learners never win (issue 10013). They cannot be told apart on the wire, so the settings name them.
* Where the set can give nobody, a replica that an election left *eligible* can, cleanly (safety rule 1, below).

**Eligible.** Under the shrink floor nothing is acknowledged while the set is smaller than the minimum, so whoever held a
seat when a master was elected still holds every acknowledged message while that master is alone (KIP-966's "eligible
leader replicas"). It ends when a master that shrinks first drops somebody, for that one may have answered alone what was under
way (`sync_state.py`). One thing stands against it: a Java master counts members it has only *asked* for (1001 under way)
towards its minimum, and acknowledges what those have. So a message may be acknowledged by the set and replicas that the
record does not count yet; at least one of them is registered and outside the set. Therefore an eligible replica is
elected only if all registered replicas outside the set are heard, by reports made after the last loss in the group
(`LiveReplica.fresh`), and only one that holds as much as each of them.
"""

from collections.abc import Iterable

from controller_core.electorate import Choice, Electorate, draw_ids, draw_replica
from controller_core.holdings import usable_eligible
from controller_core.model import LiveReplica


def choose_master(electorate: Electorate, *, prefer: int | None) -> Choice:
    """Choose among the SyncStateSet, then the eligible; where unclean election is allowed and nobody can, among all replicas."""
    record = electorate.record
    clean = _choose_among(electorate, record.sync_state_set, name="SyncStateSet", prefer=prefer)
    eligible = usable_eligible(record, electorate.settings)
    if clean.broker_id is None and eligible:
        left = _choose_eligible(electorate, eligible, prefer=prefer)
        clean = Choice(broker_id=left.broker_id, why=f"{clean.why}; {left.why}")
    if clean.broker_id is not None or not electorate.settings.unclean_election_allowed:
        return clean
    everybody = _choose_unclean(electorate, prefer=prefer)
    unclean = everybody.broker_id is not None and everybody.broker_id not in record.sync_state_set | eligible
    return Choice(broker_id=everybody.broker_id, why=f"{clean.why}; {everybody.why}", unclean=unclean)


def carried_over(electorate: Electorate, winner: int) -> frozenset[int]:
    """Return who is eligible after this replica's clean election (rule 1).

    Out of a set at or above the minimum: everybody else in it, for they hold all it acknowledged. Out of a smaller one: besides
    its members those of the eligible that hold as much as the winner now; others may lack what it acknowledged with replicas
    it had only asked for. Nobody, where the brokers are not known to keep the minimum (they read it when they start): there the
    winner may acknowledge alone what those lack.
    """
    record, settings = electorate.record, electorate.settings
    if not settings.shrink_floor or not settings.floor_kept or settings.min_in_sync_replicas <= 1:
        return frozenset()
    kept = {one for one in usable_eligible(record, settings) if _holds_as_much(electorate, one, winner)}
    return (record.sync_state_set | kept) - {winner}


def _holds_as_much(electorate: Electorate, broker_id: int, winner: int) -> bool:
    replica, best = electorate.live.get(broker_id), electorate.live.get(winner)
    if replica is None or best is None or not replica.fresh:
        return False
    return (replica.epoch, replica.max_offset) >= (best.epoch, best.max_offset)


def _choose_among(electorate: Electorate, broker_ids: Iterable[int], *, name: str, prefer: int | None) -> Choice:
    candidates = electorate.candidates(broker_ids)
    if not candidates:
        return Choice(broker_id=None, why=f"no member of the {name} {draw_ids(broker_ids)} is alive")
    master = electorate.record.granted_master_id
    if master in candidates and prefer in (None, master):
        return Choice(broker_id=master, why=f"the master {master} is alive and in the {name}")
    electable = electorate.electable(broker_ids)
    if prefer is not None:
        return _choose_designated(electable, prefer=prefer, name=name)
    best = electorate.best(electable)
    if best is None:
        return Choice(
            broker_id=None, why=f"the living members {draw_ids(candidates)} of the {name} may not be elected now"
        )
    return Choice(broker_id=best.broker_id, why=_why_best(best, electable, name=name))


def _choose_designated(electable: dict[int, LiveReplica], *, prefer: int, name: str) -> Choice:
    if prefer in electable:
        return Choice(broker_id=prefer, why=f"{prefer} was designated, is alive and in the {name}")
    return Choice(broker_id=None, why=f"{prefer} was designated, but is not among {draw_ids(electable)} of the {name}")


def _choose_eligible(electorate: Electorate, eligible: frozenset[int], *, prefer: int | None) -> Choice:
    record, live = electorate.record, electorate.live
    others = [one for one in record.replicas.values() if one.registered and one.broker_id not in record.sync_state_set]
    heard = {
        one.broker_id: live[one.broker_id]
        for one in others
        if one.broker_id in live and live[one.broker_id].has_reported and live[one.broker_id].fresh
    }
    unheard = [one.broker_id for one in others if one.broker_id not in heard]
    if unheard:
        return Choice(
            broker_id=None,
            why=f"rule 1: {draw_ids(unheard)} must be heard before one of the eligible {draw_ids(eligible)}",
        )
    most = max((one.epoch, one.max_offset) for one in heard.values()) if heard else (-1, -1)
    electable = {
        broker_id: replica
        for broker_id, replica in electorate.electable(eligible).items()
        if broker_id in heard and (replica.epoch, replica.max_offset) >= most
    }
    if prefer is not None:
        return _choose_designated(electable, prefer=prefer, name="eligible")
    best = electorate.most_data(electable)
    if best is None:
        return Choice(
            broker_id=None,
            why=f"rule 1: none of the eligible {draw_ids(eligible)} holds as much as all that were heard",
        )
    return Choice(broker_id=best.broker_id, why=_why_best(best, electable, name="eligible"))


def _choose_unclean(electorate: Electorate, *, prefer: int | None) -> Choice:
    name = "group (unclean election)"
    electable = electorate.electable(electorate.record.replicas)
    if prefer is not None:
        return _choose_designated(electable, prefer=prefer, name=name)
    best = electorate.most_data(electable)
    if best is None:
        return Choice(broker_id=None, why=f"nobody of the {name} {draw_ids(electorate.record.replicas)} may be elected")
    return Choice(broker_id=best.broker_id, why=_why_best(best, electable, name=name))


def _why_best(best: LiveReplica, among: Iterable[int], *, name: str) -> str:
    return f"{draw_replica(best)} is the best of {draw_ids(among)} in the {name}"

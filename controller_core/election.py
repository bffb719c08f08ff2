"""Who should be master: the election policy, as pure functions over what is recorded and what is alive.

Java's `DefaultElectPolicy` (`controller-protocol.md` §5.3) orders the live members of the SyncStateSet by epoch, then
by offset, then by priority, and keeps a living master. That is kept. What differs, and why:

* Offsets are compared exactly. Java casts their difference to int and elects the *shorter* log beyond 2 GiB (issue
  10578).
* Ties go to the lowest broker id, so that two operators that decide at once decide the same.
* A master whose process was lost competes like everybody else and wins among equals: its new process may have come
  back with less than its followers have (safety rule 6).
* A first election is not a race where data exists (safety rule 5): Java elects whoever calls first, registered or not,
  and everybody else truncates to it.
* A replica whose address is unknown is no candidate: nobody could be told where the master is (safety rule 8).
* Async learners never win (issue 10013). They cannot be told apart on the wire, so the settings name them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller_core.model import BrokerGroupRecord, LiveReplica
from controller_core.settings import ControllerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The policy's result: a broker id, or nobody, and the facts that led to it."""

    broker_id: int | None
    why: str
    unclean: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Electorate:
    """All that the policy looks at."""

    record: BrokerGroupRecord
    live: Mapping[int, LiveReplica]
    settings: ControllerSettings
    passed_over: frozenset[int] = frozenset()

    def candidates(self, broker_ids: Iterable[int]) -> dict[int, LiveReplica]:
        """Return those that are alive, reachable and not passed over."""
        return {
            broker_id: self.live[broker_id]
            for broker_id in sorted(broker_ids)
            if broker_id in self.live and broker_id not in self.passed_over and self.record.address_of(broker_id)
        }

    def electable(self, broker_ids: Iterable[int]) -> dict[int, LiveReplica]:
        """Return the candidates that may become master, if they are not already."""
        never = self.settings.never_elect
        return {
            broker_id: replica for broker_id, replica in self.candidates(broker_ids).items() if broker_id not in never
        }

    def rank(self, replica: LiveReplica) -> tuple[int, int, bool, int, int]:
        """Return a key that sorts the best replica first."""
        priority = self.settings.election_priorities.get(replica.broker_id, replica.election_priority)
        not_master = replica.broker_id != self.record.master_broker_id
        return (-replica.epoch, -replica.max_offset, not_master, priority, replica.broker_id)

    def best(self, replicas: Mapping[int, LiveReplica]) -> LiveReplica | None:
        """Return the replica with the most data."""
        return min(replicas.values(), key=self.rank, default=None)


def choose_master(electorate: Electorate, *, prefer: int | None) -> Choice:
    """Choose among the SyncStateSet; where unclean election is allowed and nobody there can, among all replicas."""
    record = electorate.record
    clean = _choose_among(electorate, record.sync_state_set, name="SyncStateSet", prefer=prefer)
    if clean.broker_id is not None or not electorate.settings.unclean_election_allowed:
        return clean
    everybody = _choose_among(electorate, record.replicas, name="group (unclean election)", prefer=prefer)
    unclean = everybody.broker_id is not None and everybody.broker_id not in record.sync_state_set
    return Choice(broker_id=everybody.broker_id, why=f"{clean.why}; {everybody.why}", unclean=unclean)


def _choose_among(electorate: Electorate, broker_ids: Iterable[int], *, name: str, prefer: int | None) -> Choice:
    candidates = electorate.candidates(broker_ids)
    if not candidates:
        return Choice(broker_id=None, why=f"no member of the {name} {draw_ids(broker_ids)} is alive")
    master = electorate.record.granted_master_id
    if master in candidates and prefer in (None, master):
        return Choice(broker_id=master, why=f"the master {master} is alive and in the {name}")
    electable = electorate.electable(broker_ids)
    if prefer is not None:
        if prefer in electable:
            return Choice(broker_id=prefer, why=f"{prefer} was designated, is alive and in the {name}")
        return Choice(
            broker_id=None, why=f"{prefer} was designated, but is not among {draw_ids(electable)} of the {name}"
        )
    best = electorate.best(electable)
    if best is None:
        return Choice(
            broker_id=None, why=f"the living members {draw_ids(candidates)} of the {name} may never be elected"
        )
    return Choice(broker_id=best.broker_id, why=f"{_draw(best)} is the best of {draw_ids(electable)} in the {name}")


def choose_first_master(electorate: Electorate, *, caller: int | None, designated: bool) -> Choice:
    """Choose where no SyncStateSet says whose data counts: nobody was elected yet, or the last member was cleaned.

    On empty disks the caller wins, as in Java. Where there is data, or was a master before, every known replica must be
    heard first, and the one with the most data wins, whoever called.
    """
    record, live = electorate.record, electorate.live
    electable = electorate.electable(record.replicas)
    if caller is not None and caller in electorate.settings.never_elect | electorate.passed_over:
        return Choice(broker_id=None, why=f"first election: {caller} may not be elected")
    with_data = [broker_id for broker_id in record.replicas if broker_id in live and live[broker_id].has_data]
    if not with_data and record.master_epoch == 0:
        return _choose_on_empty_disks(electorate, electable, caller=caller)
    unheard = [broker_id for broker_id in record.replicas if broker_id not in live or not live[broker_id].has_reported]
    reason = (
        f"there is data on {draw_ids(with_data)}"
        if with_data
        else f"the group had masters up to epoch {record.master_epoch}"
    )
    if unheard and not electorate.settings.unclean_election_allowed:
        return Choice(broker_id=None, why=f"first election: {reason}, so {draw_ids(unheard)} must be heard first")
    return _choose_by_data(
        electorate, electable, prefer=caller if designated else None, unclean=bool(unheard), reason=reason
    )


def _choose_by_data(
    electorate: Electorate, electable: Mapping[int, LiveReplica], *, prefer: int | None, unclean: bool, reason: str
) -> Choice:
    best = electorate.best(electable)
    if best is None:
        return Choice(broker_id=None, why=f"first election: {reason}, but nobody electable is alive")
    if prefer is None:
        return Choice(broker_id=best.broker_id, why=f"first election: {reason}; {_draw(best)} is best", unclean=unclean)
    wanted = electable.get(prefer)
    if wanted is None:
        return Choice(broker_id=None, why=f"first election: {reason}; {prefer} was designated, but is not alive")
    loses_data = (wanted.epoch, wanted.max_offset) < (best.epoch, best.max_offset)
    if loses_data and not electorate.settings.unclean_election_allowed:
        return Choice(
            broker_id=None, why=f"first election: {reason}; {_draw(wanted)} was designated, {_draw(best)} has more"
        )
    return Choice(
        broker_id=prefer, why=f"first election: {reason}; {prefer} was designated", unclean=unclean or loses_data
    )


def _choose_on_empty_disks(
    electorate: Electorate, electable: Mapping[int, LiveReplica], *, caller: int | None
) -> Choice:
    record, live = electorate.record, electorate.live
    if caller is None:
        best = electorate.best({key: replica for key, replica in electable.items() if replica.has_reported})
        if best is None:
            return Choice(broker_id=None, why="first election: no electable replica was heard")
        return Choice(broker_id=best.broker_id, why=f"first election on empty disks: {best.broker_id} was heard")
    if not record.address_of(caller):
        return Choice(broker_id=None, why=f"first election: nobody knows the address of {caller}")
    if caller in live and live[caller].has_reported:
        return Choice(broker_id=caller, why=f"first election on empty disks: {caller} called first")
    # A starting broker's request may overtake its heartbeat (controller-protocol.md §7.2 step 8). What its disk holds is
    # then unknown, which matters only if somebody else could hold more.
    others = [
        replica.broker_id for replica in record.replicas.values() if replica.registered and replica.broker_id != caller
    ]
    unheard = [broker_id for broker_id in others if broker_id not in live or not live[broker_id].has_reported]
    if unheard:
        return Choice(
            broker_id=None, why=f"first election: neither {caller} nor {draw_ids(unheard)} told what they hold yet"
        )
    return Choice(broker_id=caller, why=f"first election: {caller} called first, and nobody else holds data")


def draw_ids(broker_ids: Iterable[int]) -> str:
    """Draw a set of ids in ascending order."""
    return "{" + ",".join(str(broker_id) for broker_id in sorted(broker_ids)) + "}"


def _draw(replica: LiveReplica) -> str:
    return f"{replica.broker_id} (epoch {replica.epoch}, offset {replica.max_offset})"

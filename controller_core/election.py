"""ElectMaster (1002): which replica becomes master, in Java's order of checks.

docs/reference/controller.md has each answer beside Java's, docs/concepts/architecture.md the safety rules, and why an eligible
replica (rule 1, KIP-966) must hold as much as all others. By the same conditions it is preferred to a member whose mark is nothing
(`traces/mark_of_nothing.txt`). The set is *in doubt* if its master was silent before it was lost: a member may lack what a replica
outside the set has (`traces/set_in_doubt.txt`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from controller_core import decision, holdings
from controller_core.decision import ControllerCode, Decision, Event, apply_events, decided, refused
from controller_core.holdings import draw_report
from controller_core.model import MAX_EPOCH, BrokerGroupRecord, Live, LiveReplica, Phase, draw_ids
from controller_core.requests import ElectMaster
from controller_core.settings import POLICIES, ControllerSettings, Policy, most_data


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An election's result: a broker id or None, and the facts that led to it."""

    broker_id: int | None = None
    why: str
    unclean: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Electorate:
    """What an election decides on: `record` as it is after an epoch was raised (rule 3)."""

    record: BrokerGroupRecord
    live: Live
    settings: ControllerSettings
    request: ElectMaster = field(default_factory=ElectMaster)

    def candidates(self, broker_ids: Iterable[int]) -> Live:
        """Return those that are alive, reachable, not passed over, and not known to have lost what they held (rule 2)."""
        here = self.live.keys() - self.request.passed_over
        return {
            broker_id: self.live[broker_id]
            for broker_id in sorted(here.intersection(broker_ids))
            if self.record.address_of(broker_id) and not holdings.below_its_mark(self.record, self.live[broker_id])
        }

    def with_data(self) -> list[int]:
        return [one for one in self.record.replicas if one in self.live and self.live[one].has_data]

    def electable(self, broker_ids: Iterable[int]) -> Live:
        """Return the candidates that may become master: they have reported what they hold."""
        return {
            broker_id: replica
            for broker_id, replica in self.candidates(broker_ids).items()
            if replica.has_reported and self.settings.may_be_master(broker_id)
        }

    def most_data(self, replicas: Live) -> LiveReplica | None:
        # Where data is at stake no policy decides.
        return most_data(list(replicas.values()), self.record, self.settings) if replicas else None

    @property
    def set_in_doubt(self) -> bool:
        """Whether the last master may have counted on another set than the record's: it was fenced, silent, or is long gone."""
        change = self.record.change
        is_fenced = change is not None and change.phase is Phase.FENCING
        return is_fenced or self.record.master_broker_id is None or self.request.set_in_doubt

    def unheard(self, broker_ids: Iterable[int]) -> list[int]:
        return [one for one in sorted(broker_ids) if one not in self.live or not self.live[one].has_reported]


def elect_master(record: BrokerGroupRecord, request: ElectMaster, live: Live, settings: ControllerSettings) -> Decision:
    """Keep the master (2011), grant a new epoch (0), or elect none (2012 to a broker, 2004 to the controller)."""
    if not record.is_known:
        return _not_registered(record, why="no broker of the group holds an id")
    jump = holdings.waiting_jump(record, live, settings)
    seen = holdings.epoch_seen_above(record, live) if jump is None else None
    before: tuple[Event, ...] = () if seen is None else (holdings.epoch_floor(record, settings, seen_epoch=seen),)
    base = apply_events(record, before)
    caller = request.caller
    is_broker = caller is not None and not request.designate_elect
    if base.is_first_election and is_broker and base.claimed_replica(caller) is None:
        return _not_registered(record, why=f"rule 5: {caller} wants to be the first master, but holds no id")
    if request.unclean:
        settings = replace(settings, unclean_election_allowed=True)
    electorate = Electorate(record=base, live=live, settings=settings, request=request)
    choice = _choose(electorate)
    if choice.broker_id is not None and choice.broker_id == base.granted_master_id:
        remark = f"The old master {choice.broker_id} is still alive, "
        remark += f"not need to elect new master for broker {record.broker_name}"
        code = ControllerCode.CONTROLLER_MASTER_STILL_EXIST
        return refused(base, code, _describe_master(base), choice.why, remark)
    if jump is not None:
        why = f"rule 3: a replica reports epoch {jump}, the record has {record.master_epoch}: no election until it is accepted"
        return _no_master(record, request, (), why)
    if choice.broker_id is None or base.master_epoch >= MAX_EPOCH:
        return _no_master(record, request, before or _loss_of_master(electorate), choice.why)
    return _grant(record, before, electorate, choice, choice.broker_id)


def _choose(electorate: Electorate) -> Choice:
    if why := _without_its_backup(electorate):
        return Choice(why=why)
    if electorate.record.is_first_election:
        return choose_first_master(electorate)
    if electorate.record.lost_seats and not electorate.record.seats:
        return choose_after_lost_seats(electorate)
    return choose_master(electorate)


def _without_its_backup(electorate: Electorate) -> str:
    """Why a group that began with a backup does not begin anew on empty disks: a person says so, or restores it once more."""
    record = electorate.record
    if not record.restored_from or record.seats or electorate.with_data() or electorate.request.unclean:
        return ""
    return f"the group began with {record.restored_from}, and no disk that was heard has data of it"


def choose_master(electorate: Electorate) -> Choice:
    """Choose among the SyncStateSet, then the eligible; if none of them can, and the spec allows it, among all replicas."""
    record = electorate.record
    eligible = holdings.usable_eligible(record, electorate.settings)
    clean = _choose_with_seat(electorate, eligible)
    if electorate.set_in_doubt and clean.broker_id not in (None, record.granted_master_id):
        return _most_of_all_logs(electorate, clean)
    # The disk with the backup is only late: an empty one in its place would have all others truncate to nothing.
    is_allowed = electorate.settings.unclean_election_allowed and (
        electorate.request.unclean or not record.awaits_restored_disk
    )
    if clean.broker_id is not None or not is_allowed:
        return clean
    electable, name = electorate.electable(record.replicas), "group (unclean election)"
    otherwise = f"no member of the {name} {draw_ids(record.replicas)} may be elected"
    found = _designated_or_best(electorate, electable, name=name, otherwise=otherwise)
    unclean = found.broker_id is not None and found.broker_id not in record.sync_state_set | eligible
    return replace(found, why=f"{clean.why}; {found.why}", unclean=unclean)


def _choose_with_seat(electorate: Electorate, eligible: frozenset[int]) -> Choice:
    """Choose a member of the SyncStateSet; else, or if the best one may be empty, by the rule for the eligible."""
    record = electorate.record
    member = _choose_member(electorate)
    if not eligible:
        return member
    if member.broker_id is None:
        among, why = eligible, member.why
    elif _may_be_empty(record, member.broker_id):
        # A dead member need not be heard: what it acknowledged as master is with this one, or with those it had asked for.
        among = eligible | (record.sync_state_set & electorate.live.keys())
        why = f"rule 2: {member.broker_id} may have come back empty, its mark is nothing"
    else:
        return member
    left = _choose_eligible(electorate, among)
    return replace(left, why=f"{why}; {left.why}")


def _choose_member(electorate: Electorate) -> Choice:
    members, master = electorate.record.sync_state_set, electorate.record.granted_master_id
    candidates = electorate.candidates(members)
    if not candidates:
        return Choice(why=f"no member of the SyncStateSet {draw_ids(members)} is alive")
    if master in candidates and electorate.request.designated in (None, master):
        return Choice(broker_id=master, why=f"the master {master} is alive and in the SyncStateSet")
    electable = electorate.electable(members)
    otherwise = f"the living members {draw_ids(candidates)} of the SyncStateSet may not be elected now"
    # Each of them holds every acknowledged message: only here the policy of the group chooses.
    policy = POLICIES[electorate.settings.election_policy]
    return _designated_or_best(electorate, electable, name="SyncStateSet", otherwise=otherwise, policy=policy)


def _may_be_empty(record: BrokerGroupRecord, broker_id: int) -> bool:
    """Whether a member may have lost its disk unnoticed: its mark is nothing, so no report falls short of it. Not the master whose
    process holds the epoch: one elected before the first message may have died, and its new process report an empty disk.
    """
    replica = record.claimed_replica(broker_id)
    return broker_id != record.granted_master_id and replica is not None and replica.held_offset <= 0


def _choose_eligible(electorate: Electorate, eligible: frozenset[int]) -> Choice:
    """Choose one of these that holds as much as every registered replica outside the set, once all of those were heard: a Java
    master counts members that it has only asked for (`tests/core/test_no_loss.py` loses a message without either condition).
    """
    record, live = electorate.record, electorate.live
    members = record.sync_state_set - eligible
    others = [one for one, it in record.replicas.items() if it.registered and one not in members]
    heard = {one: live[one] for one in others if one in live and live[one].has_reported and live[one].fresh}
    unheard = [one for one in others if one not in heard]
    if unheard:
        return Choice(why=f"rule 1: {draw_ids(unheard)} must be heard before one of the eligible {draw_ids(eligible)}")
    candidates = {one: it for one, it in electorate.electable(eligible).items() if one in heard}
    electable = _with_most(candidates, heard)
    otherwise = f"rule 1: none of the eligible {draw_ids(eligible)} holds as much as all that were heard"
    return _designated_or_best(electorate, electable, name="eligible", otherwise=otherwise)


def _most_of_all_logs(electorate: Electorate, clean: Choice) -> Choice:
    """Choose the most data of all living replicas, also against this member: it may have been dropped by the silent master."""
    record, live, request = electorate.record, electorate.live, electorate.request
    voters = [one for one, it in record.replicas.items() if it.registered and electorate.settings.may_be_master(one)]
    unheard = [one for one in voters if one in live and not (live[one].has_reported and live[one].fresh)]
    if unheard and not request.heard_out:
        return Choice(
            why=f"rule 1: the set is in doubt, {draw_ids(unheard)} must be heard after the loss of the master"
        )
    # One that is only passed over counts too, because its data would be lost.
    everyone = replace(electorate, request=replace(request, passed_over=frozenset()))
    candidates = electorate.electable(voters)
    electable = _with_most(candidates, everyone.electable(voters))
    late = f"; {draw_ids(unheard)} did not report in time" if unheard else ""
    if clean.broker_id in electable and request.designated is None:
        return replace(clean, why=f"{clean.why}{late}")
    otherwise = f"rule 1: the set is in doubt, and the most data is on none of {draw_ids(candidates)}"
    found = _designated_or_best(electorate, electable, name="group (set in doubt)", otherwise=otherwise)
    return replace(found, why=f"{found.why}{late}")


def _with_most(candidates: Live, rivals: Live) -> Live:
    most = max((one.end for one in rivals.values()), default=(-1, -1))
    return {broker_id: replica for broker_id, replica in candidates.items() if replica.end >= most}


def _designated_or_best(
    electorate: Electorate, electable: Live, *, name: str, otherwise: str, policy: Policy = most_data
) -> Choice:
    """Choose the designated broker, or none; if no broker was designated, the best one."""
    designated = electorate.request.designated
    if designated is not None and designated in electable:
        return Choice(broker_id=designated, why=f"{designated} was designated, is alive and in the {name}")
    if designated is not None:
        return Choice(why=f"{designated} was designated, but is not among {draw_ids(electable)} of the {name}")
    if not electable:
        return Choice(why=otherwise)
    best = policy(list(electable.values()), electorate.record, electorate.settings)
    why = f"{draw_report(best)} is the best of {draw_ids(electable)} in the {name}"
    return Choice(broker_id=best.broker_id, why=why)


def choose_first_master(electorate: Electorate) -> Choice:
    """Choose where no seat says whose data counts; if there is data, all registered replicas are heard first (rule 5)."""
    record = electorate.record
    if _is_barred(electorate):
        return Choice(why=f"first election: {electorate.request.caller} may not be elected")
    reason = f"the group had masters up to epoch {record.master_epoch}"
    if with_data := electorate.with_data():
        reason = f"there is data on {draw_ids(with_data)}"
    elif record.master_epoch == 0:
        return _choose_on_empty_disks(electorate)
    missing = _missing(electorate)
    if missing and not electorate.settings.unclean_election_allowed:
        return Choice(why=f"first election: {reason}, so {missing} must be heard first")
    return _choose_by_data(electorate, unclean=bool(missing), reason=reason)


def _missing(electorate: Electorate) -> str:
    """Return which replicas must still be heard, or how many; empty if none."""
    record, expected = electorate.record, electorate.settings.expected_replicas
    unheard = electorate.unheard(_to_be_heard(record) if expected else record.replicas.keys() - record.superseded)
    if unheard:
        return draw_ids(unheard)
    heard = len(record.replicas) - len(electorate.unheard(record.replicas))
    return f"{expected - heard} more of {expected}" if heard < expected else ""


def _choose_on_empty_disks(electorate: Electorate) -> Choice:
    """Choose if no disk that was heard holds anything: the caller, once every other registered replica was heard.

    Its request may overtake its first heartbeat: the others' disks are empty, so whatever its disk holds is the most there is.
    """
    caller = electorate.request.caller
    if caller is not None and not electorate.record.address_of(caller):
        return Choice(why=f"first election: no address is known of {caller}")
    unheard = electorate.unheard(one for one in _to_be_heard(electorate.record) if one != caller)
    if unheard and not electorate.settings.unclean_election_allowed:
        return Choice(why=f"first election: {draw_ids(unheard)} must be heard first, their disks may hold data")
    winner, fact = caller, f"{caller} called first"
    if caller is None:
        best = electorate.most_data(electorate.electable(electorate.record.replicas))
        if best is None:
            return Choice(why="first election: no electable replica was heard")
        winner, fact = best.broker_id, f"{best.broker_id} was heard"
    risk = f"; {draw_ids(unheard)} were not heard" if unheard else ""
    return Choice(broker_id=winner, why=f"first election on empty disks: {fact}{risk}", unclean=bool(unheard))


def _choose_by_data(electorate: Electorate, *, unclean: bool, reason: str) -> Choice:
    electable = electorate.electable(electorate.record.replicas)
    incumbent, designated = electorate.request.incumbent, electorate.request.designated
    best = electorate.most_data(electable)
    if best is None:
        return Choice(why=f"first election: {reason}, but no electable replica is alive")
    # One that acts as master in fact goes on, unless another has a higher epoch.
    acting = electable.get(incumbent) if incumbent is not None else None
    if acting is not None and acting.epoch >= best.epoch:
        best = acting
        reason = f"{reason}, and {incumbent} acts as master"
    if designated is None:
        why = f"first election: {reason}; {draw_report(best)} is best"
        return Choice(broker_id=best.broker_id, why=why, unclean=unclean)
    wanted = electable.get(designated)
    if wanted is None:
        return Choice(why=f"first election: {reason}; {designated} was designated, but is not alive")
    loses_data = wanted.end < best.end or best is acting is not wanted
    if loses_data and not electorate.settings.unclean_election_allowed:
        why = f"first election: {reason}; {draw_report(wanted)} was designated, {draw_report(best)} has more"
        return Choice(why=why)
    why = f"first election: {reason}; {designated} was designated"
    return Choice(broker_id=designated, why=why, unclean=unclean or loses_data)


def choose_after_lost_seats(electorate: Electorate) -> Choice:
    """The last holders of seats came back with less than they had: choose none (rule 2), but on empty disks, or uncleanly."""
    record, request = electorate.record, electorate.request
    lost = draw_ids(record.lost_seats)
    if _is_barred(electorate):
        return Choice(why=f"{lost} lost what they held; {request.caller} may not be elected")
    if not electorate.unheard(_to_be_heard(record)) and not electorate.with_data():
        choice = _choose_on_empty_disks(electorate)
        return replace(choice, why=f"{lost} lost what they held, and no replica has data; {choice.why}")
    if not electorate.settings.unclean_election_allowed:
        return Choice(why=f"rule 2: {lost} lost what they held, and no other replica holds every acknowledged message")
    electable = electorate.electable(record.replicas)
    wanted = request.designated
    best = electable.get(wanted) if wanted is not None else electorate.most_data(electable)
    if best is None:
        return Choice(why=f"{lost} lost what they held, and no electable replica is alive")
    why = f"{lost} lost what they held; {draw_report(best)} is best"
    return Choice(broker_id=best.broker_id, why=why, unclean=True)


def _is_barred(electorate: Electorate) -> bool:
    """Whether the broker that asks, or is designated, may not win this election."""
    caller, barred = electorate.request.caller, electorate.request.passed_over
    return caller is not None and (caller in barred or not electorate.settings.may_be_master(caller))


def _to_be_heard(record: BrokerGroupRecord) -> list[int]:
    """Return the replicas whose disks exist, as far as the record knows."""
    return sorted({one for one, replica in record.replicas.items() if replica.registered} - record.superseded)


def _grant(
    record: BrokerGroupRecord, before: tuple[Event, ...], electorate: Electorate, choice: Choice, broker_id: int
) -> Decision:
    base, request = electorate.record, electorate.request
    # Without seats there is nothing to carry over, and the winner need not have been heard.
    eligible = carried_over(electorate, broker_id) if base.seats and not choice.unclean else frozenset[int]()
    winner = electorate.live.get(broker_id, LiveReplica(broker_id))
    event = decision.MasterElected(
        broker_id=broker_id,
        unclean=choice.unclean,
        eligible=eligible,
        marks=holdings.election_marks(base, winner, eligible),
        unfenced=request.unfenced,
        plan=request.plan and replace(request.plan, before=record.as_before, unfenced=request.unfenced),
    )
    after = apply_events(base, [event])
    why = f"{choice.why}: granted epoch {after.master_epoch}"
    hosts = {one.broker_id: one.address for one in after.replicas.values() if one.claimed and one.address}
    answer = replace(
        _describe_master(after), cluster_name=after.cluster_name, broker_name=after.broker_name, broker_addresses=hosts
    )
    return decided(record, answer, why, *before, event)


def carried_over(electorate: Electorate, winner: int) -> frozenset[int]:
    """Return which replicas are eligible after this one's clean election (rule 1): the set's other members, and of the eligible
    those that hold as much as the winner; others may lack what it acknowledged with replicas it had only asked for. None if it is
    not known to keep the minimum: it may acknowledge alone.
    """
    record, live, settings = electorate.record, electorate.live, electorate.settings
    if winner in settings.keep_no_floor or settings.floor <= 1:
        return frozenset()
    with_as_much = {one for one, replica in live.items() if replica.end >= live[winner].end}
    kept = {one for one in holdings.usable_eligible(record, settings) & with_as_much if live[one].fresh}
    members = record.sync_state_set
    if winner not in members:
        # A living member that lacks data of a winner from outside lacks what a silent master acknowledged.
        members -= live.keys() - with_as_much
        members = frozenset(one for one in members if not _may_be_empty(record, one))
    return (members | kept) - {winner}


def _loss_of_master(electorate: Electorate) -> tuple[Event, ...]:
    """Return the event that the master is lost; none where the record names no master, so that a retry costs no epoch."""
    record, request = electorate.record, electorate.request
    # A living master that was only to be moved away stays.
    only_passed_over = record.granted_master_id in electorate.live.keys() & request.passed_over
    none_to_lose = record.master_broker_id is None or record.master_epoch >= MAX_EPOCH
    return () if none_to_lose or only_passed_over else (decision.MasterLost(unfenced=request.unfenced),)


def _no_master(record: BrokerGroupRecord, request: ElectMaster, happened: tuple[Event, ...], why: str) -> Decision:
    if request.caller is not None:
        code, remark = ControllerCode.CONTROLLER_ELECT_MASTER_FAILED, "Failed to elect a new master"
        return refused(record, code, decision.ElectMasterAnswer(), why, remark)
    code = ControllerCode.CONTROLLER_MASTER_NOT_AVAILABLE
    remark = "Old master has down and failed to elect a new broker master"
    return replace(decided(record, decision.ElectMasterAnswer(), why, *happened), code=code, remark=remark)


def _not_registered(record: BrokerGroupRecord, *, why: str) -> Decision:
    code, remark = ControllerCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "Broker hasn't been registered"
    return refused(record, code, decision.ElectMasterAnswer(), why, remark)


def _describe_master(record: BrokerGroupRecord) -> decision.ElectMasterAnswer:
    return decision.ElectMasterAnswer(
        master_broker_id=record.master_broker_id,
        master_address=record.address_of(record.master_broker_id),
        master_epoch=record.master_epoch,
        sync_state_set_epoch=record.sync_state_set_epoch,
        sync_state_set=record.sync_state_set,
    )

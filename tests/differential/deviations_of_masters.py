"""Deviations of 1002, 1003 and closed connections: the first master, lost ones, the best candidate (rules 2-6)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.differential.deviations import OURS, After, Family
from tests.differential.deviations_of_ids import besides_master, can_be_dialled

if TYPE_CHECKING:
    from tests.differential.canonical import Answer, GroupState
    from tests.differential.cases import Case
    from tests.differential.memory import Report

INT_MAX = 2**31 - 1
MASTERS = Family()


# ---- the first master


@MASTERS.entry("an-unregistered-id-is-never-elected", "1002", (0, 2010), (0, 2012), unchanged=OURS)
def _unregistered_first(case: Case) -> bool:
    return (
        is_first(case)
        and case.broker_id is not None
        and case.broker_id not in case.before.members
        and case.java.state.master == case.broker_id
        and (case.codes[1] == 2010) is not case.step.designates
    )


def is_first(case: Case) -> bool:
    """Whether the first election is still to come, which Java knows by masterEpoch 0."""
    return case.before.known and case.before.epoch == 0 and case.before.master is None


@MASTERS.entry("a-first-election-waits-for-those-with-data", "1002", (0, 2012), unchanged=OURS)
def _first_waits(case: Case) -> bool:
    """A replica that may have data has not reported: one other than the caller, or any if data is known."""
    members, reports = case.before.members, case.memory.our_reports
    data = any(_holds_data(report) for one, report in reports.items() if one in members)
    unheard = members.keys() - reports.keys()
    return (
        is_first(case)
        and case.broker_id in members
        and case.java.state.master == case.broker_id
        and bool(unheard if data else unheard - {case.broker_id})
    )


def _holds_data(report: Report) -> bool:
    return report.max_offset > 0 or report.epoch > 0


@MASTERS.entry("a-first-election-finds-the-most-data", "1002", (0, 0), (0, 2012))
def _first_has_most(case: Case) -> bool:
    """If data exists, the replica with most of it is elected, whichever called; a designated one with less is refused."""
    caller, before = case.broker_id, case.before
    logs = {one: log for one, log in case.memory.logs.items() if one in before.members and log.says_something}
    if not is_first(case) or caller not in logs or len(logs) < len(before.members):
        return False
    if not any(_holds_data(log) for log in logs.values()) or case.java.state.master != caller:
        return False
    most, elected = max(log.end for log in logs.values()), case.ours.state.master
    if case.codes == (0, 2012):
        return case.step.designates and logs[caller].end < most and case.ours.state == before
    return (
        not case.step.designates
        and elected in logs
        and elected != caller
        and logs[elected].end == most
        and as_elected(before, case.ours.state, elected)
        and as_elected(before, case.java.state, caller)
    )


def as_elected(before: GroupState, after: GroupState, master: int | None) -> bool:
    return (
        master is not None
        and after.master == master
        and after.epoch == before.epoch + 1
        and after.set_epoch == before.set_epoch + 1
        and after.sync_state_set == {master}
        and after.members.keys() == before.members.keys()
    )


@MASTERS.entry("no-epoch-before-the-first-election", "1002", (2004, 2004), (2004, 0))
def _controller_before_the_first(case: Case) -> bool:
    """Java takes an epoch, after which no election is the first: without a SyncStateSet no replica is electable any more."""
    if not (by_controller(case) and is_first(case) and case.java.state == replace(case.before, epoch=1)):
        return False
    elected = case.ours.state.master
    if case.codes == (2004, 2004):
        return case.ours.state == case.before
    return elected in case.memory.our_reports and as_elected(case.before, case.ours.state, elected)


def by_controller(case: Case) -> bool:
    """Whether a 1002 comes without an id."""
    return case.broker_id in (None, -1)


# ---- lost masters


@MASTERS.entry("one-epoch-for-one-lost-master", "close", after=After.SHIFT)
def _one_epoch(case: Case) -> bool:
    master = closed_master(case)
    if master is None:
        return False
    epochs = case.java.state.epoch - case.before.epoch  # an attempt of Java's sometimes fails, and takes no epoch
    return (
        1 < epochs <= 3
        and equal_but_alive(case.java.state, without_master(case.before, epochs), master)
        and equal_but_alive(case.ours.state, without_master(case.before), master)
    )


def closed_master(case: Case) -> int | None:
    """Return the master if the step ends the connection of its heartbeats."""
    return case.broker_id if case.step.verb == "close" and case.before.master == case.broker_id else None


def without_master(before: GroupState, epochs: int = 1) -> GroupState:
    """Return the group without its master, under the next epoch, or so many later."""
    return replace(before, master=None, master_address=None, epoch=before.epoch + epochs)


def equal_but_alive(after: GroupState, expected: GroupState, dead: int) -> bool:
    standing = expected.members[dead]
    return after == replace(expected, members={**expected.members, dead: replace(standing, alive=False)})


@MASTERS.entry("a-lost-master-is-always-replaced", "close", special=True)
def _java_elects_too_early(case: Case) -> bool:
    """Java elected before it had dropped the dead master, so its group is unchanged; ours changed."""
    master, elected = closed_master(case), case.ours.state.master
    if master is None or not equal_but_alive(case.java.state, case.before, master):
        return False
    return equal_but_alive(case.ours.state, without_master(case.before), master) or (
        elected in _candidates(case) and as_elected(case.before, case.ours.state, elected)
    )


def _candidates(case: Case) -> frozenset[int]:
    gone = {case.broker_id} if case.step.verb == "close" else set()
    return case.before.sync_state_set - gone


@MASTERS.entry("a-lost-master-is-lost-once", "1002", (2004, 2004), unchanged=OURS, after=After.SHIFT)
def _already_lost(case: Case) -> bool:
    return (
        by_controller(case)
        and not is_first(case)
        and case.before.master is None
        and case.java.state == replace(case.before, epoch=case.before.epoch + 1)
    )


@MASTERS.entry("nobody-designated-is-no-reason-to-lose-a-master", "1002", (2004, 2011), unchanged=OURS)
def _designates_nobody(case: Case) -> bool:
    return (
        by_controller(case)
        and case.step.designates
        and case.before.is_alive(case.before.master)
        and case.java.state == without_master(case.before)
    )


@MASTERS.entry("a-new-process-of-the-master-needs-a-new-epoch", "1003", (0, 0))
def _new_process(case: Case) -> bool:
    """The master registers: ours names no master until the next election (which may already be over)."""
    java, ours, master = case.java.answer, case.ours.answer, case.before.master
    return (
        java is not None
        and ours is not None
        and master is not None
        and case.broker_id == master
        and ours.fields == besides_master(java)
        and case.java.state.master == master
        and (case.ours.state.master is None or case.ours.state.epoch == case.before.epoch + 1)
    )


# ---- the best candidate


@MASTERS.entry("offsets-are-compared-exactly", "1002, close")
def _overflow(case: Case) -> bool:
    """Java elected the one with less data: the difference overflows an int."""
    masters, reports = _elected(case), case.memory.java_reports
    if masters is None or not reports.keys() >= set(masters) or case.memory.our_reports.keys() < set(masters):
        return False
    java, ours = (reports[one] for one in masters)
    return (
        java.epoch == ours.epoch
        and ours.max_offset - java.max_offset > INT_MAX
        and masters[1] in _policy(_candidates(case), case.memory.our_reports)
    )


def _elected(case: Case) -> tuple[int, int] | None:
    """Return the two different masters of one election: by a broker, by the controller, or after a closed connection."""
    if closed_master(case) is None and not (case.step.verb == "1002" and case.codes in ((0, 0), (0, None))):
        return None
    java, ours = case.java.state, case.ours.state
    if java.master is None or ours.master is None or java.master == ours.master:
        return None
    if not (as_elected(case.before, java, java.master) and as_elected(case.before, ours, ours.master)):
        return None
    return java.master, ours.master


def _policy(members: frozenset[int], reports: dict[int, Report]) -> frozenset[int]:
    """Return the best of these by epoch, offset and priority; several if they are equal."""
    keys = {
        one: (-reports[one].epoch, -reports[one].max_offset, reports[one].priority) for one in members & reports.keys()
    }
    return frozenset(one for one, key in keys.items() if key == min(keys.values()))


@MASTERS.entry("who-crashes-again-and-again-loses-its-preference", "1002, close")
def _crash_loop(case: Case) -> bool:
    """Java elects a master that was already lost twice; ours elects the best of the others."""
    masters, master = _elected(case), case.before.master or 0
    if masters is None:
        return False
    penalised = {one for one, count in case.memory.losses.items() if count >= 2}
    if case.step.verb == "close" and case.memory.losses.get(master, 0) >= 1:
        penalised.add(master)
    best = _policy(_candidates(case) - penalised, case.memory.our_reports)
    return masters[0] in penalised and masters[1] in best


@MASTERS.entry("a-successor-has-told", "close, 1002")
def _successor_has_not_told(case: Case) -> bool:
    """The master died; the candidate registered again, and its present process has not reported its data."""
    masters, before, heir = _elected(case), case.before, case.java.state.master
    told = frozenset(one for one in _candidates(case) if case.memory.may_lead(one))
    if masters is not None:
        return masters[0] not in told and masters[1] in _policy(told, case.memory.our_reports)
    if heir is None or not as_elected(before, case.java.state, heir) or told & before.alive:
        return False
    if case.step.verb == "1002":
        waits = case.codes == (0, 2012) and case.ours.state == before
        return waits and not is_first(case) and before.master is None
    lost = closed_master(case)
    return (
        lost is not None
        and not case.memory.may_lead(heir)
        and equal_but_alive(case.ours.state, without_master(before), lost)
    )


@MASTERS.entry("after-silence-the-most-data-wins", "1002, heartbeat")
def _most_of_all_logs(case: Case) -> bool:
    """The set of a group without a master is in doubt: Java elects of it, ours waits for all, or elects the most data."""
    heir, elected, members = case.java.state.master, case.ours.state.master, case.before.sync_state_set
    if case.step.verb != "1002" or is_first(case) or case.before.master is not None:
        return False
    alive = (case.before.alive | case.alive_by_request(case.step.name or "")) & case.before.members.keys()
    heard = {one: log for one, log in case.memory.logs.items() if one in alive and log.says_something}
    if case.codes[0] == 0:
        java_as_ever = heir in members and as_elected(case.before, case.java.state, heir)
    else:  # for ours a member of the set lives, by its own request: see a-member-that-asks-can-lead
        asked = heard.keys() & members - case.before.alive
        java_as_ever = case.codes[0] == 2012 and case.java.state == case.before and bool(asked)
    if case.codes in ((0, 2004), (0, 2012)):
        return java_as_ever and case.ours.state == case.before and bool(alive - heard.keys())
    return (
        java_as_ever
        and case.codes in ((0, None), (2012, None), (2012, 0), (2012, 2011))
        and alive == heard.keys()
        and elected in heard.keys() - members
        and all(log.end < heard[elected].end for one, log in heard.items() if one in members)
        and all(log.end <= heard[elected].end for log in heard.values())
        and names_as_master(case.ours.answer, elected)
        and as_elected(case.before, case.ours.state, elected)
    )


def names_as_master(answer: Answer | None, master: int | None) -> bool:
    """Whether our answer names this master; there is none if the plane elected without a request."""
    return answer is None or (answer.fields or {}).get("masterBrokerId") == str(master)


@MASTERS.entry("a-designated-one-has-told", "1002", (0, 2012), (2011, 2012), unchanged=OURS)
def _designated_has_not_told(case: Case) -> bool:
    """A member of the set registered again, and its present process has not reported its data."""
    elects, java = case.codes[0] == 0, case.java.state
    return (
        case.step.designates
        and case.broker_id is not None
        and case.broker_id in case.before.sync_state_set & case.before.alive
        and not case.memory.may_lead(case.broker_id)
        and (as_elected(case.before, java, case.broker_id) if elects else java == case.before)
    )


@MASTERS.entry("a-master-that-cannot-be-dialled-stays", "1002", (0, 1), unchanged=OURS)
def _cannot_be_drained(case: Case) -> bool:
    """A member of the set is designated while a master lives to which nothing can be sent: it would go on acknowledging."""
    before = case.before
    return (
        case.step.designates
        and before.is_alive(before.master)
        and not can_be_dialled(before.master_address)
        and case.broker_id in before.sync_state_set - {before.master}
        and as_elected(before, case.java.state, case.broker_id)
    )

"""Deviations of 1001, 1002, 1003, closed connections and heartbeats: masters, liveness, data (rules 2-6)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.differential.deviations import BOTH, JAVA, OURS, After, Family
from tests.differential.deviations_of_ids import MASTER_FIELDS, besides_master, can_be_dialled
from tests.differential.memory import Report

if TYPE_CHECKING:
    from tests.differential.canonical import Answer, GroupState
    from tests.differential.cases import Case

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
        and _as_elected(before, case.ours.state, elected)
        and _as_elected(before, case.java.state, caller)
    )


def _as_elected(before: GroupState, after: GroupState, master: int | None) -> bool:
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
    return elected in case.memory.our_reports and _as_elected(case.before, case.ours.state, elected)


def by_controller(case: Case) -> bool:
    """Whether a 1002 comes without an id."""
    return case.broker_id in (None, -1)


# ---- lost masters


@MASTERS.entry("one-epoch-for-one-lost-master", "close", after=After.SHIFT)
def _one_epoch(case: Case) -> bool:
    master = _closed_master(case)
    if master is None:
        return False
    epochs = case.java.state.epoch - case.before.epoch  # an attempt of Java's sometimes fails, and takes no epoch
    return (
        1 < epochs <= 3
        and _equal_but_alive(case.java.state, _without_master(case.before, epochs), master)
        and _equal_but_alive(case.ours.state, _without_master(case.before), master)
    )


def _closed_master(case: Case) -> int | None:
    """Return the master if the step ends the connection of its heartbeats."""
    return case.broker_id if case.step.verb == "close" and case.before.master == case.broker_id else None


def _without_master(before: GroupState, epochs: int = 1) -> GroupState:
    """Return the group without its master, under the next epoch, or so many later."""
    return replace(before, master=None, master_address=None, epoch=before.epoch + epochs)


def _equal_but_alive(after: GroupState, expected: GroupState, dead: int) -> bool:
    standing = expected.members[dead]
    return after == replace(expected, members={**expected.members, dead: replace(standing, alive=False)})


@MASTERS.entry("a-lost-master-is-always-replaced", "close", special=True)
def _java_elects_too_early(case: Case) -> bool:
    """Java elected before it had dropped the dead master, so its group is unchanged; ours changed."""
    master, elected = _closed_master(case), case.ours.state.master
    if master is None or not _equal_but_alive(case.java.state, case.before, master):
        return False
    return _equal_but_alive(case.ours.state, _without_master(case.before), master) or (
        elected in _candidates(case) and _as_elected(case.before, case.ours.state, elected)
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
        and case.java.state == _without_master(case.before)
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
    if _closed_master(case) is None and not (case.step.verb == "1002" and case.codes in ((0, 0), (0, None))):
        return None
    java, ours = case.java.state, case.ours.state
    if java.master is None or ours.master is None or java.master == ours.master:
        return None
    if not (_as_elected(case.before, java, java.master) and _as_elected(case.before, ours, ours.master)):
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
    if heir is None or not _as_elected(before, case.java.state, heir) or told & before.alive:
        return False
    if case.step.verb == "1002":
        waits = case.codes == (0, 2012) and case.ours.state == before
        return waits and not is_first(case) and before.master is None
    lost = _closed_master(case)
    return (
        lost is not None
        and not case.memory.may_lead(heir)
        and _equal_but_alive(case.ours.state, _without_master(before), lost)
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
        java_as_ever = heir in members and _as_elected(case.before, case.java.state, heir)
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
        and _names(case.ours.answer, elected)
        and _as_elected(case.before, case.ours.state, elected)
    )


def _names(answer: Answer | None, master: int | None) -> bool:
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
        and (_as_elected(case.before, java, case.broker_id) if elects else java == case.before)
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
        and _as_elected(before, case.java.state, case.broker_id)
    )


# ---- liveness


@MASTERS.entry("a-master-that-asks-is-alive", "1002", (0, 2011), (2012, 2011), (2004, 2011), unchanged=OURS)
def _master_by_request(case: Case) -> bool:
    """The master itself sends 1002 before its heartbeat arrived: ours keeps it as master, for Java no member is alive."""
    before, java = case.before, case.java.state
    java_as_ever = {
        0: _as_elected(before, java, java.master),
        2012: java == before,
        2004: java == _without_master(before),
    }
    return (
        only_by_request(case, before.master)
        and before.master in before.sync_state_set
        and java_as_ever[case.codes[0] or 0]
    )


def only_by_request(case: Case, broker_id: int | None) -> bool:
    """Alive at ours by its own request, not alive at Java."""
    return (
        broker_id is not None
        and broker_id in case.alive_by_request(case.step.name or "")
        and broker_id not in case.before.alive
    )


@MASTERS.entry("a-death-is-established", "1002", (2004, 2012), unchanged=OURS)
def _never_heard(case: Case) -> bool:
    """A designated master has not sent a heartbeat since: Java takes silence for death."""
    master = case.before.master
    return (
        by_controller(case)
        and master is not None
        and not case.before.is_alive(master)
        and master not in case.memory.our_connection
        and case.java.state == _without_master(case.before)
    )


@MASTERS.entry("a-member-that-asks-can-lead", "1002, close")
def _elected_by_request(case: Case) -> bool:
    """A member of the set whose connection closed sends 1002 as the same process: ours elects it, if need be once all are heard."""
    elected, lost, before = case.ours.state.master, _closed_master(case), case.before
    if elected not in before.sync_state_set or not _as_elected(before, case.ours.state, elected):
        return False
    if lost is not None:
        return (
            only_by_request(case, elected)
            and case.memory.logs.get(elected, Report()).says_something
            and _java_replaced(case, lost)
        )
    return (
        case.step.verb == "1002"
        and case.codes in ((2012, 0), (2012, 2011), (2012, None))
        and _names(case.ours.answer, elected)
        and (only_by_request(case, elected) or elected == case.broker_id)
        and elected not in before.alive
        and case.java.state == before
    )


def _java_replaced(case: Case, master: int) -> bool:
    """Whether Java has elected another living member of the set for this dead master, or none (one to three epochs)."""
    java, before = case.java.state, case.before
    if java.master is not None:
        return java.master in before.sync_state_set & before.alive - {master} and _as_elected(before, java, java.master)
    epochs = java.epoch - before.epoch
    return 1 <= epochs <= 3 and _equal_but_alive(java, _without_master(before, epochs), master)


@MASTERS.entry("a-member-that-asked-is-alive", "1001", (2006, 0), unchanged=JAVA)
def _added_by_request(case: Case) -> bool:
    """Java refuses a member that has not sent a heartbeat yet."""
    members = frozenset(case.step.members())
    return (
        any(only_by_request(case, one) for one in members)
        and case.ours.state.sync_state_set == members
        and case.ours.state.set_epoch == case.before.set_epoch + 1
    )


@MASTERS.entry("a-master-that-asked-is-named", "1003", (0, 0), after=After.GO_ON)
def _named_by_request(case: Case) -> bool:
    """1003 names a live master: at ours also one that has not sent a heartbeat since its own request."""
    master = case.before.master
    return only_by_request(case, master) and case.broker_id != master and _ours_alone_names_the_master(case)


def _ours_alone_names_the_master(case: Case) -> bool:
    """Whether nothing else differs."""
    java, ours = case.java.answer, case.ours.answer
    return (
        java is not None
        and ours is not None
        and set(MASTER_FIELDS) <= set(ours.fields or {})
        and java.fields == besides_master(ours)
        and java.body == ours.body
        and case.same_state
    )


@MASTERS.entry("the-latest-connection-counts", "close")
def _latest_connection(case: Case) -> bool:
    """An old connection closed while the replica heartbeats on another one: Java takes the replica for dead."""
    broker_id, connection = case.broker_id, case.step.get("conn") or "a"
    bound_to, members = case.memory.our_connection.get(broker_id or 0), case.before.members
    if broker_id not in members or bound_to == connection:
        return False
    kept = replace(case.before, members={**members, broker_id: case.ours.state.members[broker_id]})
    return (
        case.memory.java_connection.get(broker_id) == connection
        and (bound_to is not None or broker_id in case.memory.alive_by_request)
        and not case.java.state.is_alive(broker_id)
        and case.ours.state == kept
    )


@MASTERS.entry("the-latest-connection-is-its-life", "close", unchanged=JAVA)
def _bound_anew(case: Case) -> bool:
    """The reverse of `_latest_connection`: the latest connection closed, and Java still waits for the old one."""
    broker_id, connection = case.broker_id, case.step.get("conn") or "a"
    return (
        broker_id is not None
        and case.memory.our_connection.get(broker_id) == connection
        and case.memory.java_connection.get(broker_id) not in (None, connection)
        and not case.ours.state.is_alive(broker_id)
    )


@MASTERS.entry("a-heartbeat-finds-its-group-by-name", "heartbeat, 1013", (0, 0), (None, None))
def _beats_in_another_cluster(case: Case) -> bool:
    """A replica heartbeats, or is claimed after a heartbeat, under another cluster name than its group's."""
    broker_id, step, java = case.broker_id, case.step, case.java.state
    own = case.memory.cluster if case.before.known else step.cluster
    if broker_id is None or broker_id not in java.members or java.is_alive(broker_id):
        return False
    alive = {**java.members, broker_id: replace(java.members[broker_id], alive=True)}
    if case.ours.state != replace(java, members=alive):
        return False
    if step.verb == "heartbeat":
        return step.cluster != own and java == case.before
    beaten = case.memory.beat_cluster
    return case.codes == (0, 0) and broker_id in beaten and beaten[broker_id] != own


@MASTERS.entry("a-registration-finds-the-master-by-group", "1003", (0, 0), after=After.GO_ON)
def _registers_in_another_cluster(case: Case) -> bool:
    elsewhere = case.step.cluster != case.memory.cluster
    return elsewhere and case.before.is_alive(case.before.master) and _ours_alone_names_the_master(case)


# ---- data on disks (rules 2 and 3)


@MASTERS.entry("an-epoch-from-the-future-raises-the-floor", "heartbeat, 1001, close")
def _epoch_from_the_future(case: Case) -> bool:
    """A replica of the group knows an epoch that the record has not granted: ours continues above it."""
    before, ours = case.before, case.ours.state
    if (lost := _closed_master(case)) is not None:  # a lower offset made the heartbeat doubtful: its 1007 says the same
        others = before.alive - {lost}
        known = max((log.epoch for one, log in case.memory.logs.items() if one in others), default=-1)
        return known > before.epoch and _java_replaced(case, lost) and ours.epoch > known
    number = case.step.number("master" if case.step.verb == "1001" else "id")
    epoch, set_epoch = case.step.number("epoch"), case.step.number("setEpoch") or 0
    if number not in before.members or epoch is None or not _as_before_but_alive(case, case.java.state):
        return False
    refused = case.step.verb == "1001" and case.codes[0] == case.codes[1] != 0
    heard = case.step.verb == "heartbeat" and case.codes in ((0, 0), (None, None))
    if refused and epoch == before.epoch and number == before.master and set_epoch > before.set_epoch:
        return ours.epoch > before.epoch and ours.set_epoch > set_epoch
    return (refused or heard) and epoch > before.epoch and ours.epoch > epoch


def _as_before_but_alive(case: Case, state: GroupState) -> bool:
    """Whether the only change is that the step's own replica is alive."""
    broker_id, members = case.broker_id, case.before.members
    heard = case.step.cluster == case.memory.cluster or state != case.before  # Java ignores other clusters
    if broker_id in members and case.step.verb == "heartbeat" and heard:
        members = {**members, broker_id: replace(members[broker_id], alive=True)}
    return state == replace(case.before, members=members)


@MASTERS.entry("a-lost-log-loses-its-seat", "heartbeat", (0, 0), (None, None))
def _seat_lost(case: Case) -> bool:
    """A member of the set reports less data than before: it lost data, and so loses its seat."""
    broker_id, before, ours = case.broker_id, case.before, case.ours.state
    if broker_id not in before.sync_state_set or not _as_before_but_alive(case, case.java.state):
        return False
    epoch, offset = case.step.number("epoch"), case.step.number("maxOffset")
    report = Report(-1 if epoch is None else epoch, -1 if offset is None else offset)
    lost = broker_id not in ours.sync_state_set and ours.set_epoch > before.set_epoch
    # No other member had a seat, and all have reported their data: a new election among the disks, under a second epoch.
    elected_anew = before.sync_state_set == {broker_id} and ours.epoch >= before.epoch + 2 and ours.master is not None
    return case.memory.tells_less(broker_id, report) and (lost or elected_anew)


# ---- order


@MASTERS.entry("a-set-adds-or-drops", "1001", (0, 2001))
def _adds_and_drops(case: Case) -> bool:
    """Java accepts a set that both adds and drops members; ours keeps its own."""
    members, before = frozenset(case.step.members()), case.before
    return (
        bool(members - before.sync_state_set)
        and bool(before.sync_state_set - members)
        and case.java.state.sync_state_set == members
        and case.ours.state.sync_state_set == before.sync_state_set
        and case.ours.state.epoch == before.epoch
    )


@MASTERS.entry("members-are-checked-in-order", "1001", unchanged=BOTH, after=After.GO_ON)
def _checked_in_order(case: Case) -> bool:
    """Several members of a proposed set are wrong: each controller names the first in its own order."""
    members = case.step.members()
    java, ours = case.java.answer, case.ours.answer
    alive = case.before.alive | case.alive_by_request(case.step.name or "")
    return (
        java is not None
        and ours is not None
        and java.code == _first_refusal(case, java_order(members), case.before.alive)
        and ours.code == _first_refusal(case, sorted(set(members)), alive)
        and _named_member(java) != _named_member(ours)
        and java.fields == ours.fields
        and java.body == ours.body
    )


def java_order(given: tuple[int, ...]) -> list[int]:
    """Return Java's iteration order of a HashSet of longs: by bucket, then by insertion."""
    ids, capacity = list(dict.fromkeys(given)), 16
    while len(ids) > capacity * 3 // 4:
        capacity *= 2

    def bucket(value: int) -> int:
        unsigned = value & (2**64 - 1)
        folded = (unsigned ^ unsigned >> 32) & 0xFFFFFFFF
        return (folded ^ folded >> 16) & (capacity - 1)

    return sorted(ids, key=bucket)


def _first_refusal(case: Case, order: list[int], alive: frozenset[int]) -> int | None:
    for one in order:
        if one not in case.before.members:
            return 2003
        if one not in alive:
            return 2006
    return None


def _named_member(answer: Answer) -> str:
    return (answer.remark or "").partition("{")[2].partition("}")[0]

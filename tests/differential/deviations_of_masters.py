"""Deviations of 1001, 1002, 1003, closed connections and heartbeats: masters, liveness, data (rules 2-6)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.differential.deviations import After, Deviation
from tests.differential.deviations_of_ids import MASTER_FIELDS, can_be_dialled
from tests.differential.memory import Report

if TYPE_CHECKING:
    from tests.differential.canonical import Answer, GroupState
    from tests.differential.cases import Case

INT_MAX = 2**31 - 1


def by_controller(case: Case) -> bool:
    return case.step.verb == "1002" and case.step.number("id") in (None, -1)


def by_broker(case: Case) -> bool:
    return case.step.verb == "1002" and not by_controller(case) and not designates(case)


def designates(case: Case) -> bool:
    return case.step.verb == "1002" and case.step.designates


def is_first(case: Case) -> bool:
    """Whether the first election is still to come, which Java knows by masterEpoch 0."""
    return case.before.known and case.before.epoch == 0 and case.before.master is None


def only_by_request(case: Case, broker_id: int | None) -> bool:
    """Alive at ours by its own request, not alive at Java."""
    return (
        broker_id is not None
        and broker_id in case.alive_by_request(case.step.name or "")
        and broker_id not in case.before.alive
    )


# ---- the first master


def _unregistered_first(case: Case) -> bool:
    broker_id = case.step.number("id")
    return (
        case.step.verb == "1002"
        and is_first(case)
        and case.codes in ((0, 2010), (0, 2012))
        and broker_id is not None
        and broker_id not in case.before.members
        and case.java.state.master == broker_id
        and case.ours.state == case.before
        and (case.codes[1] == 2010) is not designates(case)
    )


def _first_waits(case: Case) -> bool:
    """A replica that may have data has not reported: one other than the caller, or any if data is known."""
    broker_id, reports = case.step.number("id"), case.memory.our_reports
    data = any(
        report.max_offset > 0 or report.epoch > 0 for one, report in reports.items() if one in case.before.members
    )
    unheard = case.before.members.keys() - reports.keys()
    return (
        case.step.verb == "1002"
        and is_first(case)
        and case.codes == (0, 2012)
        and broker_id in case.before.members
        and case.java.state.master == broker_id
        and case.ours.state == case.before
        and bool(unheard if data else unheard - {broker_id})
    )


def _first_has_most(case: Case) -> bool:
    """If data exists, the replica with most of it is elected, whichever called; a designated one with less is refused."""
    broker_id, reports = case.step.number("id"), case.memory.logs
    members = {one: log for one, log in reports.items() if one in case.before.members and log.says_something}
    if (
        case.step.verb != "1002"
        or not is_first(case)
        or broker_id not in members
        or len(members) < len(case.before.members)
    ):
        return False
    most = max((report.epoch, report.max_offset) for report in members.values())
    mine = (members[broker_id].epoch, members[broker_id].max_offset)
    holds_data = any(report.epoch > 0 or report.max_offset > 0 for report in members.values())
    if not holds_data or case.java.state.master != broker_id:
        return False
    if case.codes == (0, 2012):
        return designates(case) and mine < most and case.ours.state == case.before
    elected = case.ours.state.master
    return (
        case.codes == (0, 0)
        and not designates(case)
        and elected in members
        and elected != broker_id
        and (members[elected].epoch, members[elected].max_offset) == most
        and _as_elected(case.before, case.ours.state, elected)
        and _as_elected(case.before, case.java.state, broker_id)
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


def _controller_before_the_first(case: Case) -> bool:
    """Java takes an epoch, after which no election is the first: without a SyncStateSet no replica is electable any more."""
    if not (by_controller(case) and is_first(case) and case.java.state == replace(case.before, epoch=1)):
        return False
    if case.codes == (2004, 2004):
        return case.ours.state == case.before
    reports = case.memory.our_reports
    return (
        case.codes == (2004, 0)
        and case.ours.state.master in reports
        and _as_elected(case.before, case.ours.state, case.ours.state.master)
    )


# ---- lost masters


def _one_epoch(case: Case) -> bool:
    lost = replace(case.before, master=None, master_address=None)
    broker_id = _closed_master(case)
    if broker_id is None:
        return False
    epochs = case.java.state.epoch - case.before.epoch  # an attempt of Java's sometimes fails, and takes no epoch
    return (
        1 < epochs <= 3
        and _equal_but_alive(case.java.state, replace(lost, epoch=case.before.epoch + epochs), broker_id)
        and _equal_but_alive(case.ours.state, replace(lost, epoch=case.before.epoch + 1), broker_id)
    )


def _java_elects_too_early(case: Case) -> bool:
    """Java elected before it had dropped the dead master, so its group is unchanged; ours changed."""
    broker_id = _closed_master(case)
    if broker_id is None or not _equal_but_alive(case.java.state, case.before, broker_id):
        return False
    lost = _without_master(case.before)
    elected = case.ours.state.master
    return _equal_but_alive(case.ours.state, lost, broker_id) or (
        elected in _candidates(case) and _as_elected(case.before, case.ours.state, elected)
    )


def _closed_master(case: Case) -> int | None:
    """Return the master if the step ends the connection of its heartbeats."""
    broker_id = case.step.number("id")
    return broker_id if case.step.verb == "close" and case.before.master == broker_id else None


def _java_replaced(case: Case, master: int) -> bool:
    """Whether Java has elected another living member of the set for this dead master, or none (one to three epochs)."""
    java, before = case.java.state, case.before
    if java.master is not None:
        return java.master in before.sync_state_set & before.alive - {master} and _as_elected(before, java, java.master)
    lost = replace(before, master=None, master_address=None, epoch=java.epoch)
    return 1 <= java.epoch - before.epoch <= 3 and _equal_but_alive(java, lost, master)


def _without_master(before: GroupState) -> GroupState:
    """Return the group without its master, under the next epoch."""
    return replace(before, master=None, master_address=None, epoch=before.epoch + 1)


def _equal_but_alive(after: GroupState, expected: GroupState, dead: int) -> bool:
    standing = expected.members[dead]
    return after == replace(expected, members={**expected.members, dead: replace(standing, alive=False)})


def _already_lost(case: Case) -> bool:
    return (
        by_controller(case)
        and case.codes == (2004, 2004)
        and not is_first(case)
        and case.before.master is None
        and case.java.state == replace(case.before, epoch=case.before.epoch + 1)
        and case.ours.state == case.before
    )


def _never_heard(case: Case) -> bool:
    """A designated master has not sent a heartbeat since: Java takes silence for death."""
    memory, master = case.memory, case.before.master
    return (
        by_controller(case)
        and case.codes == (2004, 2012)
        and master is not None
        and not case.before.is_alive(master)
        and master not in memory.our_connection
        and case.java.state == _without_master(case.before)
        and case.ours.state == case.before
    )


def _designates_nobody(case: Case) -> bool:
    lost = _without_master(case.before)
    return (
        by_controller(case)
        and designates(case)
        and case.codes == (2004, 2011)
        and case.before.is_alive(case.before.master)
        and case.java.state == lost
        and case.ours.state == case.before
    )


def _new_process(case: Case) -> bool:
    """The master registers: ours names no master until the next election (which may already be over)."""
    java, ours = case.java.answer, case.ours.answer
    return (
        case.step.verb == "1003"
        and case.codes == (0, 0)
        and java is not None
        and ours is not None
        and case.before.master is not None
        and case.step.number("id") == case.before.master
        and not set(MASTER_FIELDS) & set(ours.fields or {})
        and ours.fields == {key: value for key, value in (java.fields or {}).items() if key not in MASTER_FIELDS}
        and case.java.state.master == case.before.master
        and (case.ours.state.master is None or case.ours.state.epoch == case.before.epoch + 1)
    )


# ---- the best candidate


def _policy(members: frozenset[int], reports: dict[int, Report]) -> frozenset[int]:
    """Return the best of these by epoch, offset and priority; several if they are equal."""
    keys = {
        one: (-reports[one].epoch, -reports[one].max_offset, reports[one].priority) for one in members & reports.keys()
    }
    return frozenset(one for one, key in keys.items() if key == min(keys.values()))


def _elected(case: Case) -> tuple[int, int] | None:
    """Return the two different masters of one election: by a broker, by the controller, or after a closed connection."""
    closed = case.step.verb == "close" and case.step.number("id") == case.before.master
    if not closed and not (case.step.verb == "1002" and case.codes in ((0, 0), (0, None))):
        return None
    java, ours = case.java.state, case.ours.state
    if java.master is None or ours.master is None or java.master == ours.master:
        return None
    if not (_as_elected(case.before, java, java.master) and _as_elected(case.before, ours, ours.master)):
        return None
    return java.master, ours.master


def _candidates(case: Case) -> frozenset[int]:
    gone = {case.step.number("id")} if case.step.verb == "close" else set()
    return case.before.sync_state_set - gone


def _overflow(case: Case) -> bool:
    """Java elected the one with less data: the difference overflows an int."""
    masters = _elected(case)
    if (
        masters is None
        or case.memory.java_reports.keys() < set(masters)
        or case.memory.our_reports.keys() < set(masters)
    ):
        return False
    java, ours = (case.memory.java_reports[one] for one in masters)
    return (
        java.epoch == ours.epoch
        and ours.max_offset - java.max_offset > INT_MAX
        and masters[1] in _policy(_candidates(case), case.memory.our_reports)
    )


def _crash_loop(case: Case) -> bool:
    """Java elects a master that was already lost twice; ours elects the best of the others."""
    masters = _elected(case)
    if masters is None:
        return False
    penalised = {one for one, count in case.memory.losses.items() if count >= 2}
    if case.step.verb == "close" and case.memory.losses.get(case.before.master or 0, 0) >= 1:
        penalised.add(case.before.master or 0)
    return masters[0] in penalised and masters[1] in _policy(
        _candidates(case) - frozenset(penalised), case.memory.our_reports
    )


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


# ---- liveness


def _successor_has_not_told(case: Case) -> bool:
    """The master died; the candidate registered again, and its present process has not reported its data."""
    masters = _elected(case)
    if masters is not None:
        told = frozenset(one for one in _candidates(case) if case.memory.may_lead(one))
        return masters[0] not in told and masters[1] in _policy(told, case.memory.our_reports)
    lost = _without_master(case.before)
    heir, broker_id = case.java.state.master, case.step.number("id")
    if case.step.verb == "1002" and case.codes == (0, 2012):
        return (
            not is_first(case)
            and case.before.master is None
            and heir is not None
            and _as_elected(case.before, case.java.state, heir)
            and case.ours.state == case.before
            and not any(case.memory.may_lead(one) for one in _candidates(case) & case.before.alive)
        )
    return (
        broker_id is not None
        and broker_id == _closed_master(case)
        and heir is not None
        and not case.memory.may_lead(heir)
        and _as_elected(case.before, case.java.state, heir)
        and _equal_but_alive(case.ours.state, lost, broker_id)
        and not any(case.memory.may_lead(one) for one in _candidates(case) & case.before.alive)
    )


def _designated_has_not_told(case: Case) -> bool:
    """A member of the set registered again, and its present process has not reported its data."""
    broker_id = case.step.number("id")
    return (
        designates(case)
        and case.codes in ((0, 2012), (2011, 2012))
        and broker_id in case.before.sync_state_set & case.before.alive
        and broker_id is not None
        and not case.memory.may_lead(broker_id)
        and case.ours.state == case.before
        and (
            _as_elected(case.before, case.java.state, broker_id)
            if case.codes[0] == 0
            else case.java.state == case.before
        )
    )


def _cannot_be_drained(case: Case) -> bool:
    """A member of the set is designated while a master lives to which nothing can be sent: it would go on acknowledging."""
    broker_id, before = case.step.number("id"), case.before
    return (
        designates(case)
        and case.codes == (0, 1)
        and before.is_alive(before.master)
        and not can_be_dialled(before.master_address)
        and broker_id in before.sync_state_set - {before.master}
        and _as_elected(before, case.java.state, broker_id)
        and case.ours.state == before
    )


def _master_by_request(case: Case) -> bool:
    """The master itself sends 1002 before its heartbeat arrived: ours keeps it as master, for Java no member is alive."""
    lost = _without_master(case.before)
    code, java = case.codes[0], case.java.state
    moved = code == 0 and _as_elected(case.before, java, java.master)
    return (
        case.step.verb == "1002"
        and case.codes[1] == 2011
        and only_by_request(case, case.before.master)
        and case.before.master in case.before.sync_state_set
        and case.ours.state == case.before
        and (moved or (code == 2012 and java == case.before) or (code == 2004 and java == lost))
    )


def _elected_by_request(case: Case) -> bool:
    """A member of the set whose connection closed sends 1002 as the same process: ours elects it, if need be once all are heard."""
    elected, lost = case.ours.state.master, _closed_master(case)
    if lost is not None:
        return (
            elected in case.before.sync_state_set
            and only_by_request(case, elected)
            and case.memory.logs.get(elected or 0, Report()).says_something
            and _java_replaced(case, lost)
            and _as_elected(case.before, case.ours.state, elected)
        )
    return (
        case.step.verb == "1002"
        and case.codes in ((2012, 0), (2012, 2011), (2012, None))
        and elected in case.before.sync_state_set
        and _names(case.ours.answer, elected)
        and (only_by_request(case, elected) or elected == case.step.number("id"))
        and elected not in case.before.alive
        and case.java.state == case.before
        and _as_elected(case.before, case.ours.state, elected)
    )


def _added_by_request(case: Case) -> bool:
    """Java refuses a member that has not sent a heartbeat yet."""
    members = frozenset(case.step.members())
    return (
        case.step.verb == "1001"
        and case.codes == (2006, 0)
        and any(only_by_request(case, one) for one in members)
        and case.java.state == case.before
        and case.ours.state.sync_state_set == members
        and case.ours.state.set_epoch == case.before.set_epoch + 1
    )


def _named_by_request(case: Case) -> bool:
    """1003 names a live master: at ours also one that has not sent a heartbeat since its own request."""
    java, ours = case.java.answer, case.ours.answer
    if case.step.verb != "1003" or case.codes != (0, 0) or java is None or ours is None:
        return False
    rest = {key: value for key, value in (ours.fields or {}).items() if key not in MASTER_FIELDS}
    return (
        only_by_request(case, case.before.master)
        and case.step.number("id") != case.before.master
        and set(MASTER_FIELDS) <= set(ours.fields or {})
        and java.fields == rest
        and java.body == ours.body
        and case.same_state
    )


def _latest_connection(case: Case) -> bool:
    """An old connection closed while the replica heartbeats on another one: Java takes the replica for dead."""
    if case.step.verb != "close":
        return False
    broker_id, connection = case.step.number("id"), case.step.get("conn") or "a"
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


def _bound_anew(case: Case) -> bool:
    """The reverse of `_latest_connection`: the latest connection closed, and Java still waits for the old one."""
    if case.step.verb != "close":
        return False
    broker_id, connection = case.step.number("id"), case.step.get("conn") or "a"
    return (
        broker_id is not None
        and case.memory.our_connection.get(broker_id) == connection
        and case.memory.java_connection.get(broker_id) not in (None, connection)
        and case.java.state == case.before
        and not case.ours.state.is_alive(broker_id)
    )


def _beats_in_another_cluster(case: Case) -> bool:
    """A replica heartbeats, or is claimed after a heartbeat, under another cluster name than its group's."""
    broker_id, step = case.step.number("id"), case.step
    own = case.memory.cluster if case.before.known else step.cluster
    if broker_id is None or broker_id not in case.java.state.members:
        return False
    alive = {**case.java.state.members, broker_id: replace(case.java.state.members[broker_id], alive=True)}
    if case.java.state.is_alive(broker_id) or case.ours.state != replace(case.java.state, members=alive):
        return False
    if step.verb == "heartbeat":
        return case.codes in ((0, 0), (None, None)) and step.cluster != own and case.java.state == case.before
    beaten = case.memory.beat_cluster
    return step.verb == "1013" and case.codes == (0, 0) and broker_id in beaten and beaten[broker_id] != own


def _registers_in_another_cluster(case: Case) -> bool:
    java, ours = case.java.answer, case.ours.answer
    if case.step.verb != "1003" or case.codes != (0, 0) or java is None or ours is None:
        return False
    rest = {key: value for key, value in (ours.fields or {}).items() if key not in MASTER_FIELDS}
    return (
        case.step.cluster != case.memory.cluster
        and case.before.is_alive(case.before.master)
        and set(MASTER_FIELDS) <= set(ours.fields or {})
        and (java.fields or {}) == rest
        and java.body == ours.body
        and case.same_state
    )


# ---- data on disks (rules 2 and 3)


def _as_before_but_alive(case: Case, state: GroupState) -> bool:
    """Whether the only change is that the step's own replica is alive."""
    broker_id = case.step.number("id")
    members = case.before.members
    heard = case.step.cluster == case.memory.cluster or state != case.before  # Java ignores other clusters
    if broker_id in members and case.step.verb == "heartbeat" and heard:
        members = {**members, broker_id: replace(members[broker_id], alive=True)}
    return state == replace(case.before, members=members)


def _epoch_from_the_future(case: Case) -> bool:
    """A replica of the group knows an epoch that the record has not granted: ours continues above it."""
    if (lost := _closed_master(case)) is not None:  # a lower offset made the heartbeat doubtful: its 1007 says the same
        others = case.before.alive - {lost}
        known = max((log.epoch for one, log in case.memory.logs.items() if one in others), default=-1)
        return known > case.before.epoch and _java_replaced(case, lost) and case.ours.state.epoch > known
    number = case.step.number("master" if case.step.verb == "1001" else "id")
    epoch = case.step.number("epoch")
    if number not in case.before.members or epoch is None or not _as_before_but_alive(case, case.java.state):
        return False
    refused = case.step.verb == "1001" and case.codes[0] == case.codes[1] != 0
    heard = case.step.verb == "heartbeat" and case.codes in ((0, 0), (None, None))
    set_epoch = case.step.number("setEpoch") or 0
    if refused and epoch == case.before.epoch and number == case.before.master and set_epoch > case.before.set_epoch:
        return case.ours.state.epoch > case.before.epoch and case.ours.state.set_epoch > set_epoch
    return (refused or heard) and epoch > case.before.epoch and case.ours.state.epoch > epoch


def _seat_lost(case: Case) -> bool:
    """A member of the set reports less data than before: it lost data, and so loses its seat."""
    broker_id = case.step.number("id")
    if case.step.verb != "heartbeat" or broker_id not in case.before.sync_state_set:
        return False
    if case.codes not in ((0, 0), (None, None)) or not _as_before_but_alive(case, case.java.state):
        return False
    epoch, offset = case.step.number("epoch"), case.step.number("maxOffset")
    report = Report(-1 if epoch is None else epoch, -1 if offset is None else offset)
    tells_less = case.memory.tells_less(broker_id, report)
    before, ours = case.before, case.ours.state
    lost = broker_id not in ours.sync_state_set and ours.set_epoch > before.set_epoch
    # No other member had a seat, and all have reported their data: a new election among the disks, under a second epoch.
    elected_anew = before.sync_state_set == {broker_id} and ours.epoch >= before.epoch + 2 and ours.master is not None
    return tells_less and (lost or elected_anew)


# ---- order


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


def _adds_and_drops(case: Case) -> bool:
    """Java accepts a set that both adds and drops members; ours keeps its own."""
    members, before = frozenset(case.step.members()), case.before
    return (
        case.step.verb == "1001"
        and case.codes == (0, 2001)
        and bool(members - before.sync_state_set)
        and bool(before.sync_state_set - members)
        and case.java.state.sync_state_set == members
        and case.ours.state.sync_state_set == before.sync_state_set
        and case.ours.state.epoch == before.epoch
    )


def _checked_in_order(case: Case) -> bool:
    """Several members of a proposed set are wrong: each controller names the first in its own order."""
    members = frozenset(case.step.members())
    java, ours = case.java.answer, case.ours.answer
    alive = case.before.alive | case.alive_by_request(case.step.name or "")
    return (
        case.step.verb == "1001"
        and case.unchanged
        and java is not None
        and ours is not None
        and java.code == _first_refusal(case, java_order(case.step.members()), case.before.alive)
        and ours.code == _first_refusal(case, sorted(members), alive)
        and _named_member(java) != _named_member(ours)
        and java.fields == ours.fields
        and java.body == ours.body
    )


def _named_member(answer: Answer) -> str:
    return (answer.remark or "").partition("{")[2].partition("}")[0]


MASTERS: tuple[Deviation, ...] = (
    Deviation(
        "an-unregistered-id-is-never-elected",
        "1002",
        "elects any id in a first election, even an unassigned one: a master without an address",
        "2010; 2012 if it was designated",
        "rule 5",
        "tests/core/traces/first_election.txt",
        _unregistered_first,
        After.END,
    ),
    Deviation(
        "a-first-election-waits-for-those-with-data",
        "1002",
        "elects the first caller",
        "2012 until every registered replica has reported its log (except the caller, if all others are empty)",
        "rule 5: all others truncate to the master's log",
        "tests/core/traces/first_election.txt",
        _first_waits,
        After.END,
    ),
    Deviation(
        "a-first-election-finds-the-most-data",
        "1002",
        "elects the first caller",
        "elects the replica with the most data; a designated one with less is refused",
        "rule 5",
        "tests/core/traces/first_election.txt",
        _first_has_most,
        After.END,
    ),
    Deviation(
        "no-epoch-before-the-first-election",
        "1002",
        "for a call without an id: raises the epoch of a group that never had a master. Then it is no longer a first "
        "election, and the SyncStateSet is empty: no replica can ever be elected",
        "2004 without a change; or elects a replica that has sent heartbeats",
        "rule 6: the epoch rises once for a lost master",
        "tests/core/traces/first_election.txt",
        _controller_before_the_first,
        After.END,
    ),
    Deviation(
        "one-epoch-for-one-lost-master",
        "close",
        "tries three times, and raises the epoch each time",
        "raises it once",
        "rule 6; a bug of Java's (one failed trigger = three masterEpoch bumps)",
        "tests/core/traces/golden_failover.txt",
        _one_epoch,
        After.SHIFT,
    ),
    Deviation(
        "a-lost-master-is-always-replaced",
        "close",
        "submits the election before it removes the dead master from its table: where the election runs first, it finds the "
        "master alive, fails three times at once, and the group has no master until the next scan",
        "counts the master as dead first, then elects",
        "a bug of Java's (DefaultBrokerHeartbeatManager.onBrokerChannelClose); seen once in 6,000 sequences under load",
        "tests/differential/test_differential.py",
        _java_elects_too_early,
        After.END,
        special=True,
    ),
    Deviation(
        "a-lost-master-is-lost-once",
        "1002",
        "for a call without an id, when the master is lost already: raises the epoch each time",
        "2004, and the epoch stays",
        "rule 6",
        "tests/core/traces/golden_failover.txt",
        _already_lost,
        After.SHIFT,
    ),
    Deviation(
        "nobody-designated-is-no-reason-to-lose-a-master",
        "1002",
        "with designateElect and no id: finds the missing id outside the set, and deposes a living master (2004)",
        "2011: the master lives",
        "the master is not lost; an administrator's mistake must not stop the group",
        "tests/core/traces/election_policy.txt",
        _designates_nobody,
        After.END,
    ),
    Deviation(
        "a-new-process-of-the-master-needs-a-new-epoch",
        "1003",
        "gives the new process of the master the old epoch",
        "names no master, and elects under a new epoch",
        "rule 6: else two processes write different bytes under the same (epoch, offset)",
        "tests/core/traces/master_restart.txt",
        _new_process,
        After.END,
    ),
    Deviation(
        "offsets-are-compared-exactly",
        "1002, close",
        "casts the difference of two offsets to int: beyond 2 GiB it elects the replica with less",
        "elects the replica with more",
        "issue 10578 (fixed in 5.5.1)",
        "tests/core/traces/election_policy.txt",
        _overflow,
        After.END,
    ),
    Deviation(
        "who-crashes-again-and-again-loses-its-preference",
        "1002, close",
        "elects the best, however often it was lost as a master",
        "passes over a replica that was lost as a master twice within minutes, while another can lead",
        "else each election is soon followed by the next",
        "tests/controller/test_incidents.py",
        _crash_loop,
        After.END,
    ),
    Deviation(
        "a-successor-has-told",
        "close, 1002",
        "elects the best member of the set by reports of its earlier processes too",
        "elects the best of those whose present process has reported its log; none until then, and then without a "
        "request",
        "rule 2: a replica that has just registered may have come back with less",
        "tests/core/traces/seat_loss.txt",
        _successor_has_not_told,
        After.END,
    ),
    Deviation(
        "after-silence-the-most-data-wins",
        "1002, heartbeat",
        "after a silent master, and whenever a group has no master, elects the best member of the SyncStateSet by its last "
        "heartbeat",
        "asks every living member what it holds (1007), and elects the one with the most, also from outside the set; none until "
        "all of them are heard, or had the heartbeat timeout for it (2012; 2004 for a call without an id)",
        "rule 1: a silent master may have acknowledged with another set than its last 1001 said",
        "tests/core/traces/set_in_doubt.txt",
        _most_of_all_logs,
        After.END,
    ),
    Deviation(
        "a-designated-one-has-told",
        "1002",
        "elects a designated member of the set that is alive, with any log of its present process",
        "2012 until its present process has reported its log",
        "rule 2: a replica that has just registered may have come back with less",
        "tests/core/traces/seat_loss.txt",
        _designated_has_not_told,
        After.END,
    ),
    Deviation(
        "a-master-that-cannot-be-dialled-stays",
        "1002",
        "replaces a living master with an address such as `x` by the designated member",
        "1: the master cannot be stopped first",
        "as a-designated-master-drains-first: its messages since the last confirmed one would be lost",
        "tests/differential/traces/master_without_host.txt",
        _cannot_be_drained,
        After.END,
    ),
    Deviation(
        "a-master-that-asks-is-alive",
        "1002",
        "ignores a master that was elected before its first heartbeat: no replica is alive (2012), or another one wins",
        "2011: the request came from the master, so it lives",
        "as above",
        "tests/core/test_liveness.py",
        _master_by_request,
        After.END,
    ),
    Deviation(
        "a-death-is-established",
        "1002",
        "for a call without an id: counts a master without a heartbeat as dead, and raises the epoch",
        "2012 while it is not established that the master is dead",
        "rule 7: a controller that has just started has received no heartbeats yet",
        "tests/core/traces/golden_failover.txt",
        _never_heard,
        After.END,
    ),
    Deviation(
        "a-member-that-asks-can-lead",
        "1002, close",
        "2012 to a member of the set whose connection closed, until its next heartbeat; passes it over when the master dies",
        "elects it: its process has reported its log, and sends this request (2011 if the plane itself was faster than the answer)",
        "a request is a sign of life; a new process registers first, and has to report anew",
        "tests/core/test_liveness.py",
        _elected_by_request,
        After.END,
    ),
    Deviation(
        "a-member-that-asked-is-alive",
        "1001",
        "2006 for a replica that registered but has not sent a heartbeat yet",
        "takes it into the set",
        "it is connected and catches up; its master reports it as caught up",
        "tests/core/test_liveness.py",
        _added_by_request,
        After.END,
    ),
    Deviation(
        "a-master-that-asked-is-named",
        "1003",
        "does not name a master whose heartbeat has not arrived yet",
        "names it",
        "as above",
        "tests/core/test_liveness.py",
        _named_by_request,
    ),
    Deviation(
        "the-latest-connection-counts",
        "close",
        "binds a replica to the connection of its first heartbeat: the late end of an old connection evicts a healthy"
        " master",
        "binds it to the latest",
        "issue 11045",
        "tests/core/test_liveness.py",
        _latest_connection,
        After.END,
    ),
    Deviation(
        "the-latest-connection-is-its-life",
        "close",
        "does not notice the end of a later connection: waits for the timeout",
        "notices it at once",
        "issue 11045",
        "tests/core/test_liveness.py",
        _bound_anew,
        After.END,
    ),
    Deviation(
        "a-heartbeat-finds-its-group-by-name",
        "heartbeat, 1013",
        "keeps heartbeats by clusterName and brokerName, all other state by brokerName: under another clusterName "
        "heartbeats have no effect",
        "knows the group by its name",
        "state is keyed by brokerName alone; in Kubernetes a BrokerGroup has one cluster name",
        "tests/differential/test_special.py",
        _beats_in_another_cluster,
        After.END,
    ),
    Deviation(
        "a-registration-finds-the-master-by-group",
        "1003",
        "looks for the master's heartbeats under the clusterName of the request: under another one it names no master",
        "names the master of the group",
        "as above",
        "tests/differential/test_special.py",
        _registers_in_another_cluster,
    ),
    Deviation(
        "an-epoch-from-the-future-raises-the-floor",
        "heartbeat, 1001, close",
        "ignores that a replica knows a higher epoch than the controller ever granted",
        "continues above that epoch, without a master and a set until all have reported their logs",
        "rule 3: the record was restored; brokers ignore every epoch not above their own",
        "tests/core/traces/epoch_floor.txt",
        _epoch_from_the_future,
        After.END,
    ),
    Deviation(
        "a-lost-log-loses-its-seat",
        "heartbeat",
        "keeps a replica in the SyncStateSet that came back with a shorter log",
        "removes it from the set; a master loses its mastership too",
        "rule 2: an election from that set would lose acknowledged messages",
        "tests/core/traces/seat_loss.txt",
        _seat_lost,
        After.END,
    ),
    Deviation(
        "a-set-adds-or-drops",
        "1001",
        "accepts a set that adds one member and drops another",
        "2001: computed from an older set",
        "a master queues a set and sends it under the set epoch of the moment: the new member had caught up with "
        "another set",
        "tests/core/traces/shrink_floor.txt",
        _adds_and_drops,
        After.END,
    ),
    Deviation(
        "members-are-checked-in-order",
        "1001",
        "names the first wrong member in the order of its hash set",
        "in ascending order",
        "the same refusal either way; a predictable order",
        "tests/differential/test_special.py",
        _checked_in_order,
    ),
)

"""Deviations of 1001, 1002, 1003, closed connections and heartbeats: signs of life, data on disks, order (rules 2-6)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.differential.deviations import BOTH, JAVA, OURS, After, Family
from tests.differential.deviations_of_ids import MASTER_FIELDS, besides_master
from tests.differential.deviations_of_masters import (
    as_elected,
    by_controller,
    closed_master,
    equal_but_alive,
    names_as_master,
    without_master,
)
from tests.differential.memory import Report

if TYPE_CHECKING:
    from tests.differential.canonical import Answer, GroupState
    from tests.differential.cases import Case

LIVES = Family()


# ---- liveness


@LIVES.entry("a-master-that-asks-is-alive", "1002", (0, 2011), (2012, 2011), (2004, 2011), unchanged=OURS)
def _master_by_request(case: Case) -> bool:
    """The master itself sends 1002 before its heartbeat arrived: ours keeps it as master, for Java no member is alive."""
    before, java = case.before, case.java.state
    java_as_ever = {
        0: as_elected(before, java, java.master),
        2012: java == before,
        2004: java == without_master(before),
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


@LIVES.entry("a-death-is-established", "1002", (2004, 2012), unchanged=OURS)
def _never_heard(case: Case) -> bool:
    """A designated master has not sent a heartbeat since: Java takes silence for death."""
    master = case.before.master
    return (
        by_controller(case)
        and master is not None
        and not case.before.is_alive(master)
        and master not in case.memory.our_connection
        and case.java.state == without_master(case.before)
    )


@LIVES.entry("a-member-that-asks-can-lead", "1002, close")
def _elected_by_request(case: Case) -> bool:
    """A member of the set whose connection closed sends 1002 as the same process: ours elects it, if need be once all are heard."""
    elected, lost, before = case.ours.state.master, closed_master(case), case.before
    if elected not in before.sync_state_set or not as_elected(before, case.ours.state, elected):
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
        and names_as_master(case.ours.answer, elected)
        and (only_by_request(case, elected) or elected == case.broker_id)
        and elected not in before.alive
        and case.java.state == before
    )


def _java_replaced(case: Case, master: int) -> bool:
    """Whether Java has elected another living member of the set for this dead master, or none (one to three epochs)."""
    java, before = case.java.state, case.before
    if java.master is not None:
        return java.master in before.sync_state_set & before.alive - {master} and as_elected(before, java, java.master)
    epochs = java.epoch - before.epoch
    return 1 <= epochs <= 3 and equal_but_alive(java, without_master(before, epochs), master)


@LIVES.entry("a-member-that-asked-is-alive", "1001", (2006, 0), unchanged=JAVA)
def _added_by_request(case: Case) -> bool:
    """Java refuses a member that has not sent a heartbeat yet."""
    members = frozenset(case.step.members())
    return (
        any(only_by_request(case, one) for one in members)
        and case.ours.state.sync_state_set == members
        and case.ours.state.set_epoch == case.before.set_epoch + 1
    )


@LIVES.entry("a-master-that-asked-is-named", "1003", (0, 0), after=After.GO_ON)
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


@LIVES.entry("the-latest-connection-counts", "close")
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


@LIVES.entry("the-latest-connection-is-its-life", "close", unchanged=JAVA)
def _bound_anew(case: Case) -> bool:
    """The reverse of `_latest_connection`: the latest connection closed, and Java still waits for the old one."""
    broker_id, connection = case.broker_id, case.step.get("conn") or "a"
    return (
        broker_id is not None
        and case.memory.our_connection.get(broker_id) == connection
        and case.memory.java_connection.get(broker_id) not in (None, connection)
        and not case.ours.state.is_alive(broker_id)
    )


@LIVES.entry("a-heartbeat-finds-its-group-by-name", "heartbeat, 1013", (0, 0), (None, None))
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


@LIVES.entry("a-registration-finds-the-master-by-group", "1003", (0, 0), after=After.GO_ON)
def _registers_in_another_cluster(case: Case) -> bool:
    elsewhere = case.step.cluster != case.memory.cluster
    return elsewhere and case.before.is_alive(case.before.master) and _ours_alone_names_the_master(case)


# ---- data on disks (rules 2 and 3)


@LIVES.entry("an-epoch-from-the-future-raises-the-floor", "heartbeat, 1001, close")
def _epoch_from_the_future(case: Case) -> bool:
    """A replica of the group knows an epoch that the record has not granted: ours continues above it."""
    before, ours = case.before, case.ours.state
    if (lost := closed_master(case)) is not None:  # a lower offset made the heartbeat doubtful: its 1007 says the same
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


@LIVES.entry("a-lost-log-loses-its-seat", "heartbeat", (0, 0), (None, None))
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


@LIVES.entry("a-set-adds-or-drops", "1001", (0, 2001))
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


@LIVES.entry("members-are-checked-in-order", "1001", unchanged=BOTH, after=After.GO_ON)
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

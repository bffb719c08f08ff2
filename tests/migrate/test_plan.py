"""From Java's state to records, named doubts, the lesson for Java, and the shadow's decisions."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokergroup_operator.migrate.java import BrokerSaid, JavaGroup, JavaState, parse_peers, record_of
from brokergroup_operator.migrate.plan import Kind, Standing, compare, plan_group
from brokergroup_operator.migrate.shadow import Judgement, Shadow, heard_before
from brokergroup_operator.migrate.teach import LessonError, make_lesson
from controller_core.model import BrokerGroupRecord, LiveReplica, Replica
from controller_core.settings import ControllerSettings
from tests.reconcile.cases import table

STATE = JavaState(
    broker_name="bn",
    addresses={1: "h:1", 2: "h:2", 3: "h:3"},
    master_broker_id=1,
    master_epoch=4,
    sync_state_set=frozenset({1, 2, 3}),
    sync_state_set_epoch=9,
    alive=frozenset({1, 2, 3}),
)


def said(broker_id: int, **changes: object) -> BrokerSaid:
    master = broker_id == 1
    usual = BrokerSaid(
        address=f"h:{broker_id}",
        cluster_name="cl",
        broker_name="bn",
        slave_id=None if master else broker_id,
        version="V5_5_0",
        last_epoch=4,
        acts_as_master=master,
        in_sync_slaves=2 if master else 0,
    )
    return replace(usual, **changes)  # type: ignore[arg-type]


HEALTHY = JavaGroup(
    state=STATE,
    next_broker_id=4,
    cluster_names=frozenset({"cl"}),
    brokers={broker_id: said(broker_id) for broker_id in (1, 2, 3)},
)


def with_broker(broker_id: int, what: BrokerSaid | str) -> JavaGroup:
    return replace(HEALTHY, brokers={**HEALTHY.brokers, broker_id: what})


def test_a_healthy_group_becomes_a_record_with_nothing_in_the_way() -> None:
    plan = plan_group(HEALTHY)
    assert not plan.blocked
    record = plan.record
    assert (record.cluster_name, record.broker_name, record.next_broker_id) == ("cl", "bn", 4)
    assert (record.master_broker_id, record.master_epoch) == (1, 4)
    assert record.sync_state_set == {1, 2, 3}
    assert record.sync_state_set_epoch == 9
    assert {one.broker_id: one.address for one in record.replicas.values()} == STATE.addresses
    assert all(one.registered for one in record.replicas.values())
    assert record.replicas[2].register_check_code == "h:2;migrated"


CASES = {
    "no master": (replace(HEALTHY, state=replace(STATE, master_broker_id=None)), Kind.NO_MASTER, True),
    "not steady": (replace(HEALTHY, steady=False), Kind.NOT_STEADY, True),
    "a silent member": (replace(HEALTHY, state=replace(STATE, alive=frozenset({1, 2}))), Kind.NOT_ALIVE, True),
    "a member that does not answer": (with_broker(2, "refused"), Kind.UNREACHABLE, True),
    "another broker at the address": (with_broker(2, said(2, slave_id=7)), Kind.WRONG_BROKER, True),
    "another name at the address": (with_broker(2, said(2, broker_name="other")), Kind.WRONG_BROKER, True),
    "a slave that acts as master": (with_broker(2, said(2, acts_as_master=True)), Kind.WRONG_MASTER, True),
    "a master that does not": (with_broker(1, said(1, acts_as_master=False)), Kind.WRONG_MASTER, True),
    "a broker ahead of the controller": (with_broker(3, said(3, last_epoch=5)), Kind.EPOCH_AHEAD, True),
    "a master with another set": (with_broker(1, said(1, in_sync_slaves=1)), Kind.SET_DISAGREES, True),
    "an old broker": (with_broker(3, said(3, version="V5_1_0")), Kind.OLD_BROKER, True),
    "an older broker": (with_broker(3, said(3, version="V4_9_8")), Kind.OLD_BROKER, True),
    "a broker without a version": (with_broker(3, said(3, version="")), Kind.UNKNOWN_VERSION, False),
    "the name in two clusters": (replace(HEALTHY, cluster_names=frozenset({"cl", "other"})), Kind.TWO_CLUSTERS, True),
    "a broker of another cluster": (with_broker(3, said(3, cluster_name="other")), Kind.TWO_CLUSTERS, True),
    "an unknown cluster": (
        replace(HEALTHY, cluster_names=frozenset(), brokers=dict.fromkeys((1, 2, 3), "refused")),
        Kind.NO_CLUSTER,
        True,
    ),
    "an id without a broker": (replace(HEALTHY, next_broker_id=6), Kind.HOLES, False),
    "an id beyond the next one": (replace(HEALTHY, next_broker_id=3), Kind.HOLES, False),
    "a replica out of sync": (
        replace(
            HEALTHY,
            state=replace(STATE, sync_state_set=frozenset({1, 2})),
            brokers={**HEALTHY.brokers, 1: said(1, in_sync_slaves=1)},
        ),
        Kind.SMALL_SET,
        False,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_doubt_has_a_name_and_says_what_to_do(name: str) -> None:
    group, kind, blocks = CASES[name]
    plan = plan_group(group)
    found = [doubt for doubt in plan.doubts if doubt.kind is kind]
    assert found, plan.doubts
    assert all(doubt.blocks == blocks and doubt.what and doubt.remedy for doubt in found)
    assert plan.blocked == blocks
    assert kind.value in plan.as_text()
    assert kind.value in [doubt["kind"] for doubt in plan.as_json()["doubts"]]


def test_a_replica_out_of_sync_that_does_not_answer_does_not_block() -> None:
    group = replace(
        HEALTHY,
        state=replace(STATE, sync_state_set=frozenset({1, 2})),
        brokers={1: said(1, in_sync_slaves=1), 2: said(2), 3: "refused"},
    )
    assert not plan_group(group).blocked


def test_the_next_id_is_above_every_id_ever_seen() -> None:
    assert plan_group(replace(HEALTHY, next_broker_id=3)).record.next_broker_id == 4
    assert plan_group(replace(HEALTHY, next_broker_id=9)).record.next_broker_id == 9


def planned() -> BrokerGroupRecord:
    return record_of(STATE, cluster_name="cl", next_broker_id=4)


@pytest.mark.parametrize(
    ("stored", "standing"),
    [
        (None, Standing.ABSENT),
        (planned(), Standing.SAME),
        (replace(planned(), master_epoch=3, sync_state_set_epoch=8), Standing.BEHIND),
        (replace(planned(), sync_state_set_epoch=8), Standing.BEHIND),
        (replace(planned(), master_epoch=5), Standing.DIFFERENT),
        (replace(planned(), sync_state_set_epoch=10), Standing.DIFFERENT),
        (replace(planned(), next_broker_id=5), Standing.DIFFERENT),
        (replace(planned(), cluster_name="other"), Standing.DIFFERENT),
        (replace(planned(), master_broker_id=2), Standing.DIFFERENT),
    ],
)
def test_a_stored_record_is_overwritten_only_if_nothing_is_lost(
    stored: BrokerGroupRecord | None, standing: Standing
) -> None:
    assert compare(stored, planned()) is standing


@pytest.mark.parametrize(
    ("text", "peers"),
    [
        ("n0:127.0.0.1:29878;", ("127.0.0.1:29878",)),
        ("n0:host-a:9878;n1:host-b:9878;", ("host-a:9878", "host-b:9878")),
        ("localhost:9770;localhost:9771;", ("localhost:9770", "localhost:9771")),
        ("n0:[::1]:9878;", ("[::1]:9878",)),
        ("", ()),
    ],
)
def test_members_of_both_kinds_of_controller(text: str, peers: tuple[str, ...]) -> None:
    assert parse_peers(text) == peers


# ---- The numbers a Java controller is taught, for every record that can be handed over.


def record(
    ids: frozenset[int], next_id: int, master: int, epoch: int, members: frozenset[int], at: int
) -> BrokerGroupRecord:
    return BrokerGroupRecord(
        "cl",
        "bn",
        next_broker_id=next_id,
        replicas={one: Replica(one, f"h:{one};1", f"h:{one}", registered=True) for one in ids},
        master_broker_id=master,
        master_epoch=epoch,
        sync_state_set=members,
        sync_state_set_epoch=at,
    )


@st.composite
def records(draw: st.DrawFn) -> BrokerGroupRecord:
    ids = draw(st.frozensets(st.integers(1, 6), min_size=1, max_size=4))
    master = draw(st.sampled_from(sorted(ids)))
    members = draw(st.frozensets(st.sampled_from(sorted(ids)))) | {master}
    next_id = max(ids) + 1 + draw(st.integers(0, 2))
    return record(ids, next_id, master, draw(st.integers(1, 40)), members, draw(st.integers(1, 60)))


@given(records())
def test_elections_add_up_to_the_present_epoch(one: BrokerGroupRecord) -> None:
    lesson = make_lesson(one)
    elections = (1 if lesson.elects_stand_in else 0) + lesson.lost_elections + 1
    assert elections == one.master_epoch
    assert lesson.epoch_while_waiting < one.master_epoch


@given(records())
def test_ids_are_applied_for_without_a_gap_and_only_real_ones_stay(one: BrokerGroupRecord) -> None:
    lesson = make_lesson(one)
    assert [seat.broker_id for seat in lesson.seats] == list(range(1, len(lesson.seats) + 1))
    assert {seat.broker_id for seat in lesson.seats if seat.held} == set(one.replicas)
    assert lesson.stand_in not in one.replicas
    assert lesson.stand_in in lesson.ids_to_clean
    holes = set(range(1, one.next_broker_id)) - set(one.replicas)
    assert len(lesson.seats) + 1 == one.next_broker_id + (0 if holes else 1)


@given(records(), st.integers(0, 60))
def test_the_set_ends_as_it_is_and_not_below_the_brokers_epoch(one: BrokerGroupRecord, now_epoch: int) -> None:
    lesson = make_lesson(one)
    alone = frozenset({lesson.master})
    proposals = lesson.alterations(alone, now_epoch)
    sets = [alone, *proposals]
    assert sets[-1] == one.sync_state_set
    assert all(before != after for before, after in itertools.pairwise(sets)), "Java refuses an equal set"
    assert all(lesson.master in each for each in sets)
    reached = now_epoch + len(proposals)
    assert reached >= one.sync_state_set_epoch
    assert reached <= max(one.sync_state_set_epoch, now_epoch + 1) + 1
    # At an epoch above theirs brokers can see only the final set.
    assert all(
        each == one.sync_state_set
        for number, each in enumerate(sets)
        if now_epoch + number > max(one.sync_state_set_epoch, now_epoch)
    )


def test_a_member_that_is_not_heard_is_left_out_of_the_final_set() -> None:
    lesson = make_lesson(record(frozenset({1, 2, 3}), 4, 1, 3, frozenset({1, 2, 3}), 7))
    assert lesson.alterations({1}, 2, frozenset({1, 3}))[-1] == {1, 3}


@pytest.mark.parametrize("lost", [{"master_broker_id": None}, {"master_process_lost": True}], ids=str)
def test_a_group_without_a_master_has_no_lesson(lost: dict[str, Any]) -> None:
    broken = replace(record(frozenset({1}), 2, 1, 3, frozenset({1}), 1), **lost)
    with pytest.raises(LessonError, match="no master"):
        make_lesson(broken)


def test_a_reserved_id_counts_as_a_hole() -> None:
    one = record(frozenset({1, 2}), 4, 1, 2, frozenset({1}), 2)
    reserved = replace(one, replicas={**one.replicas, 3: Replica(3, reserved_for="pod-3")})
    assert make_lesson(reserved).stand_in == 3


# ---- Shadow: what ours would have decided beside what Java did.

LIVE = {
    1: LiveReplica(1, epoch=4, max_offset=100),
    2: LiveReplica(2, epoch=4, max_offset=90),
    3: LiveReplica(3, epoch=4, max_offset=95),
}
SHADOW = Shadow(cluster_name="cl", next_broker_id=4)


def elected(master: int | None, *, raised: int = 1) -> JavaState:
    members = frozenset({master}) if master is not None else STATE.sync_state_set
    return replace(
        STATE,
        master_broker_id=master,
        master_epoch=STATE.master_epoch + raised,
        sync_state_set=members,
        sync_state_set_epoch=STATE.sync_state_set_epoch + (1 if master is not None else 0),
    )


def only(judgements: tuple[Judgement, ...]) -> Judgement:
    [judgement] = judgements
    return judgement


def test_nothing_is_judged_where_nothing_changed() -> None:
    assert SHADOW.judge(STATE, replace(STATE, alive=frozenset({1})), LIVE) == ()
    assert SHADOW.judge(None, STATE, LIVE) == ()


FAR = 2**31 + 200
OF_ONE = replace(STATE, sync_state_set=frozenset({1}), sync_state_set_epoch=10)
OF_TWO = replace(STATE, sync_state_set=frozenset({1, 2}))
STRICT = replace(SHADOW, settings=ControllerSettings(shrink_floor=True, min_in_sync_replicas=2))
# Who judges, before and after, who is heard; whether ours agrees, what Java did, ours, and words of the reason.
JUDGED: list[tuple[str, Shadow, JavaState, JavaState, dict[int, LiveReplica], bool, str, str, list[str]]] = [
    ("the same new master", SHADOW, STATE, elected(3), LIVE, True, "master 3, epoch +1", "master 3", []),
    # Java 5.5.0 elects the one with less data when the gap is above 2 GiB (issue 10578).
    (
        "a master with less data", SHADOW, STATE, elected(2), LIVE | {3: LiveReplica(3, epoch=4, max_offset=FAR)}, False,
        "master 2, epoch +1", "master 3", ["heard here", str(FAR)],
    ),
    ("no member to elect", SHADOW, STATE, elected(None, raised=3), {1: LIVE[1]}, True, "no master, epoch +3", "", []),
    ("Java gave up", SHADOW, STATE, elected(None, raised=3), LIVE, False, "no master, epoch +3", "master 3", []),
    ("a shrunken set", SHADOW, STATE, OF_ONE, LIVE, True, "", "", []),
    ("a set below the floor", STRICT, STATE, OF_ONE, LIVE, False, "", "refused (2013)", ["minInSyncReplicas"]),
    (
        "a grown set with a member not heard here", SHADOW, OF_TWO, replace(STATE, sync_state_set_epoch=10),
        {1: LIVE[1], 2: LIVE[2]}, False, "", "refused (2006)", [],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("shadow", "before", "after", "live", "agrees", "java", "ours", "why"), table(JUDGED))
def test_what_ours_would_have_decided(
    shadow: Shadow, before: JavaState, after: JavaState, live: dict[int, LiveReplica], agrees: bool, java: str, ours: str,
    why: list[str],
) -> None:  # fmt: skip
    judgement = only(shadow.judge(before, after, live))
    assert judgement.agrees is agrees
    assert java in ("", judgement.java)
    assert ours in ("", judgement.ours)
    assert [word for word in why if word not in judgement.why] == []


def test_new_ids_moves_and_cleanings_are_judged_each() -> None:
    more = replace(STATE, addresses={**STATE.addresses, 4: "h:4"})
    assert only(SHADOW.judge(STATE, more, LIVE)).agrees
    beyond = replace(STATE, addresses={**STATE.addresses, 9: "h:9"})
    refused = only(SHADOW.judge(STATE, beyond, LIVE))
    assert refused.ours == "refused (2014)"
    moved = replace(STATE, addresses={**STATE.addresses, 2: "h:22"})
    assert only(SHADOW.judge(STATE, moved, LIVE)).what == "broker 2 registered at h:22"
    gone = replace(STATE, addresses={1: "h:1", 2: "h:2"}, sync_state_set=frozenset({1, 2}))
    before = replace(STATE, sync_state_set=frozenset({1, 2}))
    assert only(SHADOW.judge(before, gone, {1: LIVE[1], 2: LIVE[2]})).agrees


def test_a_judgement_is_one_line_of_json() -> None:
    document = only(SHADOW.judge(STATE, elected(3), LIVE)).as_json()
    assert set(document) == {"group", "what", "java", "ours", "why", "agrees"}


def test_what_brokers_say_after_the_decision_is_not_held_against_it() -> None:
    """They may have followed it before it was seen here: an epoch of Java's own making is no jump of theirs."""
    now = {2: LiveReplica(2, epoch=5, max_offset=95), 3: LiveReplica(3, epoch=5, max_offset=96)}
    then = heard_before(LIVE, now, master_epoch=4)
    assert then == {2: LIVE[2], 3: LIVE[3]}
    assert only(SHADOW.judge(STATE, elected(3), then)).agrees


def test_who_came_since_counts_unless_it_speaks_of_the_new_epoch() -> None:
    late = LiveReplica(4, epoch=4, max_offset=10)
    assert heard_before({}, {4: late}, master_epoch=4) == {4: late}
    assert heard_before({}, {4: late}, master_epoch=3) == {}

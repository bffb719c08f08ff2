"""What we would have decided beside what Java did."""

from __future__ import annotations

from dataclasses import replace

from brokergroup_operator.migrate.java import JavaState
from brokergroup_operator.migrate.shadow import Judgement, Shadow, heard_before
from controller_core.model import LiveReplica
from controller_core.settings import ControllerSettings

BEFORE = JavaState(
    broker_name="bn",
    addresses={1: "h:1", 2: "h:2", 3: "h:3"},
    master_broker_id=1,
    master_epoch=4,
    sync_state_set=frozenset({1, 2, 3}),
    sync_state_set_epoch=9,
    alive=frozenset({1, 2, 3}),
)
LIVE = {
    1: LiveReplica(1, epoch=4, max_offset=100),
    2: LiveReplica(2, epoch=4, max_offset=90),
    3: LiveReplica(3, epoch=4, max_offset=95),
}
SHADOW = Shadow(cluster_name="cl", next_broker_id=4)


def elected(master: int | None, *, raised: int = 1) -> JavaState:
    members = frozenset({master}) if master is not None else BEFORE.sync_state_set
    return replace(
        BEFORE,
        master_broker_id=master,
        master_epoch=BEFORE.master_epoch + raised,
        sync_state_set=members,
        sync_state_set_epoch=BEFORE.sync_state_set_epoch + (1 if master is not None else 0),
    )


def only(judgements: tuple[Judgement, ...]) -> Judgement:
    [judgement] = judgements
    return judgement


def test_nothing_is_judged_where_nothing_changed() -> None:
    assert SHADOW.judge(BEFORE, replace(BEFORE, alive=frozenset({1})), LIVE) == ()
    assert SHADOW.judge(None, BEFORE, LIVE) == ()


def test_the_same_new_master_agrees() -> None:
    judgement = only(SHADOW.judge(BEFORE, elected(3), LIVE))
    assert judgement.agrees
    assert (judgement.java, judgement.ours) == ("master 3, epoch +1", "master 3")


def test_a_master_with_less_data_is_a_difference_with_both_reasons() -> None:
    """Java 5.5.0 elects the one with less data when the gap is above 2 GiB (issue 10578)."""
    live = {**LIVE, 3: LiveReplica(3, epoch=4, max_offset=2**31 + 200)}
    judgement = only(SHADOW.judge(BEFORE, elected(2), live))
    assert not judgement.agrees
    assert judgement.java.startswith("master 2")
    assert judgement.ours == "master 3"
    assert "heard here" in judgement.why
    assert str(2**31 + 200) in judgement.why


def test_nobody_to_elect_agrees_and_shows_how_far_java_raised_the_epoch() -> None:
    judgement = only(SHADOW.judge(BEFORE, elected(None, raised=3), {1: LIVE[1]}))
    assert judgement.agrees
    assert judgement.java == "no master, epoch +3"


def test_java_gave_up_where_we_would_have_elected() -> None:
    judgement = only(SHADOW.judge(BEFORE, elected(None, raised=3), LIVE))
    assert not judgement.agrees
    assert judgement.ours == "master 3"


def test_a_shrunken_set_agrees_and_below_the_floor_differs() -> None:
    after = replace(BEFORE, sync_state_set=frozenset({1}), sync_state_set_epoch=10)
    assert only(SHADOW.judge(BEFORE, after, LIVE)).agrees
    strict = replace(SHADOW, settings=ControllerSettings(shrink_floor=True, min_in_sync_replicas=2))
    judgement = only(strict.judge(BEFORE, after, LIVE))
    assert not judgement.agrees
    assert judgement.ours == "refused (2013)"
    assert "minInSyncReplicas" in judgement.why


def test_a_grown_set_with_a_member_not_heard_here_differs() -> None:
    before = replace(BEFORE, sync_state_set=frozenset({1, 2}))
    after = replace(BEFORE, sync_state_set_epoch=10)
    judgement = only(SHADOW.judge(before, after, {1: LIVE[1], 2: LIVE[2]}))
    assert judgement.ours == "refused (2006)"


def test_new_ids_moves_and_cleanings_are_judged_each() -> None:
    more = replace(BEFORE, addresses={**BEFORE.addresses, 4: "h:4"})
    assert only(SHADOW.judge(BEFORE, more, LIVE)).agrees
    beyond = replace(BEFORE, addresses={**BEFORE.addresses, 9: "h:9"})
    refused = only(SHADOW.judge(BEFORE, beyond, LIVE))
    assert refused.ours == "refused (2014)"
    moved = replace(BEFORE, addresses={**BEFORE.addresses, 2: "h:22"})
    assert only(SHADOW.judge(BEFORE, moved, LIVE)).what == "broker 2 registered at h:22"
    gone = replace(BEFORE, addresses={1: "h:1", 2: "h:2"}, sync_state_set=frozenset({1, 2}))
    before = replace(BEFORE, sync_state_set=frozenset({1, 2}))
    assert only(SHADOW.judge(before, gone, {1: LIVE[1], 2: LIVE[2]})).agrees


def test_a_judgement_is_one_line_of_json() -> None:
    document = only(SHADOW.judge(BEFORE, elected(3), LIVE)).as_json()
    assert set(document) == {"group", "what", "java", "ours", "why", "agrees"}


def test_what_brokers_say_after_the_decision_is_not_held_against_it() -> None:
    """They may have followed it before it was seen here: an epoch of Java's own making is no jump of theirs."""
    now = {2: LiveReplica(2, epoch=5, max_offset=95), 3: LiveReplica(3, epoch=5, max_offset=96)}
    then = heard_before(LIVE, now, master_epoch=4)
    assert then == {2: LIVE[2], 3: LIVE[3]}
    assert only(SHADOW.judge(BEFORE, elected(3), then)).agrees


def test_who_came_since_counts_unless_it_speaks_of_the_new_epoch() -> None:
    late = LiveReplica(4, epoch=4, max_offset=10)
    assert heard_before({}, {4: late}, master_epoch=4) == {4: late}
    assert heard_before({}, {4: late}, master_epoch=3) == {}

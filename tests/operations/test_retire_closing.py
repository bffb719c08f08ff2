"""A Retire that closes the group and deletes it: each look, members that are away, and the last look. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.reconcile.decide.retiring import pods_not_configured
from brokergroup_operator.reconcile.decide.unread import look_at
from brokergroup_operator.reconcile.operations.plan import (
    NOTHING_ASKED,
    DeleteDrained,
    Fail,
    GoOn,
    Outcome,
    ReadOffsets,
)
from brokergroup_operator.reconcile.operations.procedures.retire import CLOSE_SECONDS, hindrance_of
from controller_core.model import Change, ChangeKind, Phase
from tests.operations.retiring import (
    CLOSED,
    DAY,
    DELETED,
    FIXED,
    READ_ONLY,
    RENEWED,
    SHUT,
    UNREAD,
    WANTED,
    effect_of,
    judged,
    noted,
    offsets,
    pods,
    retiring,
    said,
    seen_by,
    seen_since,
    step_of,
    with_metadata,
)
from tests.operations.world import NOW, expect, group, operation, record, timeline
from tests.reconcile.cases import table

if TYPE_CHECKING:
    from brokergroup_operator.observe.group_offsets import GroupOffsets
    from brokergroup_operator.reconcile.see.observed import Operation

UNDER_WAY = Change(
    id=3, kind=ChangeKind.SWITCHOVER, phase=Phase.QUIETING, carried_out_by="another plane", from_broker_id=1
)
FRESH: dict[str, Any] = {"epoch": 5, "since": rfc3339(NOW - 5)}
AWAY: dict[str, Any] = {"pods": pods(CLOSED, missing=(3,))}


# ---- its steps


@pytest.mark.parametrize(
    ("fields", "outcome", "changes", "step", "effect"),
    [
        pytest.param(FRESH, NOTHING_ASKED, {}, "", ReadOffsets, id="the first look"),
        pytest.param(FRESH, Outcome(running=True), {}, "", None, id="the look is under way"),
        pytest.param(FRESH, Outcome(failed="no answer"), {}, "", ReadOffsets, id="no answer"),
        pytest.param(FRESH, said(), {}, "", ReadOffsets, id="a look from before it was closed"),
        pytest.param(FRESH | {"since": rfc3339(NOW - CLOSE_SECONDS)}, said(), {}, "Draining", None, id="it stays open"),
        pytest.param(FRESH | {"since": rfc3339(NOW - 100)}, said(read_at_unix_seconds=NOW - 101), {}, "", ReadOffsets,
            id="a look from before it was closed, and a seat's holder was away since"),
        pytest.param(FIXED, said(), {}, "Draining", None, id="it acknowledges again"),
        pytest.param(FRESH, said(**SHUT), {}, "Closing", ReadOffsets, id="the end is fixed"),
        pytest.param(FRESH, said(**SHUT, steady=False), {}, "Closing", ReadOffsets, id="a slave lacks some of it"),
        pytest.param(FIXED, said(**SHUT | {"log_end": 1001}), {}, "Closing", ReadOffsets, id="the end has moved"),
        pytest.param(FIXED, said(**SHUT, topics=UNREAD), {}, "Draining", None, id="a message came after the last look"),
        pytest.param(FIXED, said(**SHUT, read_at_unix_seconds=NOW - 9), {}, "", ReadOffsets, id="too soon"),
        pytest.param(FIXED, said(**SHUT), {}, "Deleting", DeleteDrained, id="the same once more"),
        pytest.param(FIXED, said(**SHUT), {"record": record(master=2, epoch=6)}, "Draining", None, id="a failover"),
        pytest.param(FIXED, said(**SHUT, epoch=6, master_id=2), {"record": record(master=2, epoch=6)}, "Draining", None,
            id="a failover that the look knows of"),
        pytest.param(FIXED, said(**SHUT), {"pods": pods(CLOSED, orders_2=READ_ONLY)}, "Closing", None, id="one is not closed yet"),
        pytest.param(FIXED, said(**SHUT), {"pods": pods(CLOSED, missing=(3,))}, "Closing", None, id="a seat's holder is away"),
        pytest.param(
            FIXED, said(**SHUT), {"pods": pods(CLOSED, missing=(3,)), "record": record(in_sync=(1, 2))}, "Deleting", DeleteDrained,
            id="away, and without a seat",
        ),
        pytest.param(FIXED, said(**SHUT), {"group": group(maintenance={"paused": True})}, "Draining", None, id="paused"),
        pytest.param(FIXED, said(**SHUT), {"record": record(master=None, epoch=6)}, "Draining", None, id="no master"),
    ],
)  # fmt: skip
def test_closing(
    fields: dict[str, Any], outcome: Outcome, changes: dict[str, Any], step: str, effect: type | None
) -> None:
    verdict = judged(retiring("Closing", **fields), outcome, **changes)
    assert (step_of(verdict), effect_of(verdict)) == (step, effect)


DELETING: list[tuple[str, Outcome, str, type | None]] = [
    ("the operator died before the deletion: it looks once more", NOTHING_ASKED, "", DeleteDrained),
    ("under way", Outcome(running=True), "", None),
    ("not yet seen to be deleted", said(**SHUT), "Deleting", DeleteDrained),
    ("the last look found a message", said(**SHUT, topics=UNREAD), "Draining", None),
    ("the last look found another end", said(**SHUT | {"log_end": 1001}), "Closing", ReadOffsets),
]


@pytest.mark.parametrize(("outcome", "step", "effect"), table(DELETING))
def test_deleting(outcome: Outcome, step: str, effect: type | None) -> None:
    verdict = judged(retiring("Deleting", **FIXED), outcome)
    assert (step_of(verdict), effect_of(verdict)) == (step, effect)


def test_a_java_broker_must_refuse_all_sends_for_weeks_yet() -> None:
    """It acknowledges a send with WAIT=false whatever minInSyncReplicas is."""
    java = group(implementation="Java")
    refuses = {"startAcceptSendRequestTimeStamp": str(int(NOW + 28 * DAY) * 1000)}
    late = {"startAcceptSendRequestTimeStamp": str(int(NOW + 28 * DAY - 1) * 1000)}
    for given, missing in ((CLOSED | refuses, []), (CLOSED | late, ["orders-1", "orders-2", "orders-3"])):
        assert pods_not_configured(seen_by(retiring("Closing", **FIXED), given=given, group=java)) == missing


# ---- a member that is away


@pytest.mark.parametrize(("waited", "ends"), [(599, False), (600, True)])
def test_a_closed_group_does_not_wait_for_ever_for_a_member_that_holds_a_seat(waited: int, ends: bool) -> None:
    """Its disk is lost: no Rebuild begins before the Retire is over."""
    verdict = judged(retiring("Closing", epoch=5, since=rfc3339(NOW - waited)), said(**SHUT), **AWAY)
    assert isinstance(verdict, Fail if ends else GoOn)
    assert "orders-3" in verdict.message
    assert ("rebuild it, and retire the group again" in verdict.message) is ends


@pytest.mark.parametrize(
    "outcome", [said(**SHUT, steady=False), Outcome(failed="no answer")], ids=["behind", "no answer"]
)
def test_a_wait_for_something_else_is_no_wait_for_a_member(outcome: Outcome) -> None:
    """Closed for long without a missing member: one that is not ready for a moment does not end the Retire at once."""
    closing = retiring("Closing", epoch=5, since=rfc3339(NOW - 9_000))
    before = noted(judged(closing, outcome))
    assert before.since == rfc3339(NOW)
    expect(GoOn, judged(retiring("Closing", epoch=5, since=before.since), said(**SHUT), **AWAY))
    soon = expect(GoOn, judged(retiring("Closing", epoch=5, since=rfc3339(NOW - CLOSE_SECONDS + 1)), outcome))
    assert soon.retirement is None or soon.retirement.since == rfc3339(NOW - CLOSE_SECONDS + 1), "a write at each look"


def test_the_wait_for_a_member_begins_when_it_is_missed() -> None:
    verdict = judged(retiring("Deleting", **FIXED | {"since": rfc3339(NOW - 9_000)}), said(**SHUT), **AWAY)
    assert noted(verdict).since == rfc3339(NOW)


# ---- another operator's clock


@pytest.mark.parametrize(("asks_for", "step"), [(3, ""), (4, "Deleting")])
@pytest.mark.parametrize("clock", [-7_000, -5, 7_000])
def test_a_time_of_an_earlier_operator_proves_nothing(clock: int, asks_for: float, step: str) -> None:
    """It wrote it by the clock of another machine: hours behind this one's, or ahead of it."""
    fixed = FIXED | {"since": rfc3339(NOW + clock)}
    assert step_of(judged(retiring("Closing", **fixed), seen_since(said(**SHUT), asks_for))) == step


# ---- right before the deletion


def closed_by(operation_uid: str = "uid-of-retire-1", **spec: Any) -> dict[str, Any]:
    return with_metadata(group(**spec), annotations={names.ANNOTATION_CLOSED_BY: operation_uid})


LAST: list[tuple[str, dict[str, Any], str]] = [
    ("nothing", {}, ""),
    ("not marked", {"group": group()}, "the annotation brokergroup.dev/closed-by is not of this"),
    ("marked by another", {"group": closed_by("another")}, "is not of this operation"),
    ("a switchover", {"in_progress": timeline()}, "a change of master is under way"),
    (
        "of another plane, which this plane has not heard of", {"record": replace(record(), change=UNDER_WAY)},
        "a change of master is under way",
    ),
    ("a switchover whose brokers all know their roles", {"record": replace(record(), change=replace(UNDER_WAY, epoch=5).told)}, ""),
    ("not known", {"snapshot": None}, "the controller plane does not know the group"),
    ("a new process", {"look": offsets(**SHUT, booted_at_unix_seconds=NOW - 119)}, "broker 1 has just started"),
    ("unread", {"look": offsets(**SHUT, topics=UNREAD)}, "unread again: topic t: 5 messages"),
    ("open", {"look": offsets()}, "acknowledges again"),
    ("takes sends", {"look": offsets(**SHUT, takes_sends=True)}, "acknowledges again"),
    ("moved", {"look": offsets(**SHUT | {"log_end": 1001})}, "the end of the master's log has moved"),
    ("unsteady", {"look": offsets(**SHUT, steady=False)}, "a slave lacks some of it"),
    ("failover", {"record": record(master=2, epoch=6)}, "the master is broker 2 in epoch 6 now"),
    ("another group", {"group": RENEWED}, "another group has its name"),
    ("going", {"group": DELETED}, "it is being deleted"),
    ("wanted", {"wanted_by_cluster": WANTED}, WANTED),
    ("paused", {"group": closed_by(maintenance={"paused": True})}, "is paused"),
    ("a slave came back", {"pods": pods(CLOSED, orders_3=READ_ONLY)}, "orders-3 may acknowledge"),
    ("went back", {"item": retiring("Draining", **FIXED)}, "the operation went back to reading"),
    ("aborted", {"item": operation("Retire", name="another")}, "the operation was deleted or is over"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "why"), table(LAST))
def test_what_is_read_last_decides(changes: dict[str, Any], why: str) -> None:
    item: Operation = changes.get("item", retiring("Deleting", **FIXED))
    look: GroupOffsets = changes.get("look", offsets(**SHUT))
    seen = {key: value for key, value in changes.items() if key not in {"item", "look"}}
    found = hindrance_of(seen_by(item, **{"group": closed_by(), **seen}), "uid-of-retire-1", look_at(look))
    assert why in found
    assert bool(why) is bool(found)


def test_one_that_is_being_deleted_retires_nothing() -> None:
    """A finalizer of another controller may hold it for long."""
    item = retiring("Deleting", **FIXED)
    item.raw["metadata"]["deletionTimestamp"] = rfc3339(NOW)
    seen = seen_by(item, group=closed_by())
    assert seen.operation is None
    assert hindrance_of(seen, item.uid, look_at(offsets(**SHUT))) == "the operation was deleted or is over"

"""Retire, step by step: what is judged by what the pods were given and what the master says. Pure."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_operation import Retirement, RetirementStep
from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.observe.group_view import MetadataDifference, MetadataKind
from brokergroup_operator.reconcile.decide.retiring import pods_not_configured
from brokergroup_operator.reconcile.decide.unread import look_at
from brokergroup_operator.reconcile.operations.evaluate import PROCEDURES, evaluate, next_status
from brokergroup_operator.reconcile.operations.plan import (
    NOTHING_ASKED,
    DeleteDrained,
    Done,
    Fail,
    GoOn,
    Outcome,
    ReadOffsets,
    Reject,
    Start,
    Wait,
)
from brokergroup_operator.reconcile.operations.procedures.premises import Case
from brokergroup_operator.reconcile.operations.procedures.retire import CLOSE_SECONDS, hindrance_of
from controller_core.model import Change, ChangeKind, Phase
from tests.operations.test_unread import offsets, topic
from tests.operations.world import (
    GROUP_UID,
    NOW,
    begun,
    expect,
    group,
    operation,
    record,
    running,
    scene,
    thing,
    timeline,
)
from tests.reconcile.cases import table

if TYPE_CHECKING:
    from brokergroup_operator.observe.group_offsets import GroupOffsets
    from brokergroup_operator.reconcile.operations.plan import Verdict
    from brokergroup_operator.reconcile.see.observed import Observed, Operation

DAY = 86_400
OPEN, READ_ONLY, CLOSED = (
    {"brokerPermission": "6"},
    {"brokerPermission": "4"},
    {
        "brokerPermission": "4",
        "minInSyncReplicas": "99",
        "startAcceptSendRequestTimeStamp": str(int(NOW + 30 * DAY) * 1000),
    },
)
WANTED = "RocketMQCluster shop wants it"
UNDER_WAY = Change(
    id=3, kind=ChangeKind.SWITCHOVER, phase=Phase.QUIETING, carried_out_by="another plane", from_broker_id=1
)


def pods(given: dict[str, str], *, missing: tuple[int, ...] = (), **of_one: dict[str, str]) -> dict[str, Any]:
    """Return the pods with what each broker was given last; by pod name where it differs."""
    found = {f"orders-{number}": thing(f"orders-{number}") for number in (1, 2, 3) if number not in missing}
    for name, pod in found.items():
        values = of_one.get(name.replace("-", "_"), given)
        pod["metadata"]["annotations"] = {names.ANNOTATION_HOT_CONFIG: json.dumps(values)}
    return found


def retiring(step: str, *, section: dict[str, Any] | None = None, uid: str = GROUP_UID, **fields: Any) -> Operation:
    item = running("Retire", **(section or {}))
    assert item.raw["status"]
    status = item.raw["status"] | {"retirement": {"step": step, "groupUid": uid, **fields}}
    found = operation("Retire", status=status, **(section or {}))
    del found.raw["metadata"]["ownerReferences"]
    return found


def judged(
    item: Operation, outcome: Outcome = NOTHING_ASKED, *, given: dict[str, str] = CLOSED, **changes: Any
) -> Verdict:
    case = Case(seen=seen_by(item, given=given, **changes), operation=item, outcome=outcome)
    return PROCEDURES[item.asked.spec.type].judge(case)


def seen_by(item: Operation, *, given: dict[str, str] = CLOSED, **changes: Any) -> Observed:
    return scene(item, **{"pods": pods(given), **changes})


def step_of(verdict: Verdict) -> str:
    """Return the step that it goes on to; the empty text: it stays where it is."""
    found = expect(GoOn, verdict).retirement
    return "" if found is None else found.step.value


def noted(verdict: Verdict) -> Retirement:
    """Return what the status notes of a Retire that goes on."""
    return expect(Retirement, expect(GoOn, verdict).retirement)


def effect_of(verdict: Verdict) -> type | None:
    effect = expect(GoOn, verdict).effect
    return None if effect is None else type(effect)


def with_metadata(made: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    made = made or group()
    return made | {"metadata": made["metadata"] | fields}


def said(*, abandoned: tuple[str, ...] = (), **changes: Any) -> Outcome:
    return Outcome(look=look_at(offsets(**changes), abandoned=abandoned))


UNREAD = {"t": topic((0, 5), readers=("a",))}


# ---- its beginning


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"group": group(maintenance={"paused": True})}, "orders is paused"),
        ({"record": record(master=None)}, "orders has no master now"),
        ({"wanted_by_cluster": WANTED}, WANTED),
    ],
)
def test_what_stands_against_its_beginning(changes: dict[str, Any], why: str) -> None:
    assert why in expect(Reject, begun("Retire", **changes)).message


def test_a_group_that_is_not_failover_safe_can_be_retired() -> None:
    """It restarts no broker, and what its master acknowledged is read whatever a slave lacks."""
    verdict = expect(Start, begun("Retire", group=group(safe=False)))
    assert verdict.retirement == Retirement(step=RetirementStep.READ_ONLY, group_uid=GROUP_UID)
    assert verdict.steps[-1] == "delete BrokerGroup orders: its claims stay (spec.storage.retention.whenDeleted)"


def test_it_is_not_owned_by_the_group_that_it_deletes() -> None:
    asked = operation("Retire")
    asked.raw["metadata"]["ownerReferences"] = []
    assert [type(step).__name__ for step in evaluate(scene(asked), {}).steps] == ["WriteStatus"]


# ---- its steps


def test_every_running_broker_is_read_only_before_anything_is_looked_at() -> None:
    item = retiring("ReadOnly")
    verdict = judged(item, given=READ_ONLY, pods=pods(READ_ONLY, orders_2=OPEN))
    assert verdict == GoOn(message="waits until orders-2 takes no sends")
    assert step_of(judged(item, given=READ_ONLY)) == "Draining"
    away = judged(item, pods=pods(READ_ONLY, missing=(3,)))
    assert step_of(away) == "Draining", "a broker that starts reads it from its file"


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (said(topics=UNREAD), "waits for topic t: 5 messages in 1 queue, unread by a (5)"),
        (said(takes_sends=True), "waits: broker 1, the master, takes sends (brokerPermission)"),
        (Outcome(failed="BrokerUnreachableError: no answer"), "waits: BrokerUnreachableError: no answer"),
    ],
)
def test_while_it_drains_it_looks_again(outcome: Outcome, message: str) -> None:
    verdict = judged(retiring("Draining", since=rfc3339(NOW - 100), position=0), outcome, given=READ_ONLY)
    assert (expect(GoOn, verdict).message, step_of(verdict)) == (message, "Draining")
    assert noted(verdict).since is None, "what was read before does not count"
    assert effect_of(verdict) is ReadOffsets


def test_what_is_unread_is_in_the_status_and_in_a_condition() -> None:
    item = retiring("Draining")
    verdict = judged(item, said(topics=UNREAD), given=READ_ONLY)
    case = Case(seen=seen_by(item), operation=item)
    status = next_status(case, verdict)
    assert status.retirement is not None
    assert status.retirement.unread_topics == 1
    unread = status.retirement.unread[0]
    assert (unread.topic, unread.queues, unread.messages, unread.consumer_groups[0].name) == ("t", 1, 5, "a")
    assert status.conditions is not None
    told = {one.type: (one.status.value, one.reason, one.message) for one in status.conditions}
    assert told == {"Drained": ("False", "UnreadMessages", verdict.message)}


def test_everything_must_stay_read_for_a_while() -> None:
    section: dict[str, Any] = {"abandonTopics": ["t"]}

    def looked(fields: dict[str, Any], end: int = 5, **look: Any) -> Verdict:
        outcome = said(topics={"t": topic((0, end))}, abandoned=("t",), **look)
        return judged(retiring("Draining", section=section, **fields), outcome, given=READ_ONLY)

    first = noted(looked({}))
    assert (first.position, first.since) == (5, rfc3339(NOW))
    begun_at: dict[str, Any] = {"position": 5, "since": rfc3339(NOW)}
    assert step_of(looked(begun_at, read_at_unix_seconds=NOW + 3.9)) == ""
    assert step_of(looked(begun_at, read_at_unix_seconds=NOW + 4.0)) == "Closing"
    moved = noted(looked(begun_at, end=6, read_at_unix_seconds=NOW + 9))
    assert (moved.position, moved.since) == (6, rfc3339(NOW + 9)), "a message came in between"


def test_an_old_look_proves_nothing() -> None:
    """The status was written and its effect was not carried out: the same answer is judged again, however late."""
    later = retiring("Draining", position=0, since=rfc3339(NOW - 1000))
    verdict = judged(later, said(read_at_unix_seconds=NOW - 1000), given=READ_ONLY)
    assert step_of(verdict) == ""


SHUT: dict[str, Any] = {"acknowledges": False, "log_end": 1000}
FIXED: dict[str, Any] = {"epoch": 5, "position": 1000, "since": rfc3339(NOW - 10)}
FRESH: dict[str, Any] = {"epoch": 5, "since": rfc3339(NOW - 5)}


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
        pytest.param(FIXED, said(**SHUT), {"pods": pods(CLOSED, orders_2=READ_ONLY)}, "Closing", None, id="one was not told"),
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


AWAY: dict[str, Any] = {"pods": pods(CLOSED, missing=(3,))}


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


def seen_since(outcome: Outcome, seconds_ago: float) -> Outcome:
    """The same of a process that has asked for so long."""
    return structs.replace(outcome, asks_since_unix_seconds=NOW - seconds_ago)


@pytest.mark.parametrize(("asks_for", "step"), [(3, ""), (4, "Deleting")])
@pytest.mark.parametrize("clock", [-7_000, -5, 7_000])
def test_a_time_of_an_earlier_operator_proves_nothing(clock: int, asks_for: float, step: str) -> None:
    """It wrote it by the clock of another machine: hours behind this one's, or ahead of it."""
    fixed = FIXED | {"since": rfc3339(NOW + clock)}
    assert step_of(judged(retiring("Closing", **fixed), seen_since(said(**SHUT), asks_for))) == step


@pytest.mark.parametrize(("asks_for", "appears"), [(119, True), (120, False)])
@pytest.mark.parametrize("clock", [-7_000, 7_000])
def test_consumers_have_time_to_appear_by_the_clock_of_this_operator(
    clock: int, asks_for: float, appears: bool
) -> None:
    watched: dict[str, Any] = {"watchedEpoch": 6, "watchedSince": rfc3339(NOW + clock)}
    outcome = seen_since(said(epoch=6, master_id=2), asks_for)
    verdict = judged(retiring("Draining", **watched), outcome, given=READ_ONLY, record=record(epoch=6, master=2))
    assert ("consumers have 120 s to appear" in expect(GoOn, verdict).message) is appears


DELETED, RENEWED = with_metadata(deletionTimestamp=rfc3339(NOW)), with_metadata(uid="another")
NOT_BY_THIS = "orders is being deleted, and not by this operation: not everything was read"
GONE = "BrokerGroup orders was deleted, and not by this operation"


@pytest.mark.parametrize(
    ("step", "changes", "end", "message"),
    [
        ("Sent", {"group": DELETED}, GoOn, "orders is being deleted: 3 pods are still there"),
        ("Sent", {"group": None}, Done, "orders was deleted: everything was read in epoch 5"),
        ("Sent", {"group": RENEWED}, Done, "orders was deleted: everything was read in epoch 5"),
        ("Deleting", {"group": DELETED}, Fail, NOT_BY_THIS),
        ("Deleting", {"group": None}, Fail, GONE),
        ("Deleting", {"group": RENEWED}, Fail, GONE),
        ("Draining", {"group": DELETED}, Fail, NOT_BY_THIS),
        ("Draining", {"group": None}, Fail, GONE),
        ("Draining", {"group": RENEWED}, Fail, GONE),
        ("Closing", {"wanted_by_cluster": WANTED}, Fail, f"given up: {WANTED}"),
        ("Deleting", {"wanted_by_cluster": WANTED}, Fail, f"given up: {WANTED}"),
    ],
)  # fmt: skip
def test_its_end(step: str, changes: dict[str, Any], end: type, message: str) -> None:
    item = retiring("Deleting", deleteSent=True, **FIXED) if step == "Sent" else retiring(step, **FIXED)
    seen = seen_by(item, **changes)
    written = next(iter(evaluate(seen, {}).steps))
    verdict = judged(item, **changes) if changes.get("group", 1) is not None else None
    assert (verdict is None) or type(verdict) is end
    assert written.status.result.message == message  # type: ignore[union-attr]
    phases: dict[type, str] = {GoOn: "Running", Done: "Succeeded", Fail: "Failed"}
    assert written.status.phase.value == phases[end]  # type: ignore[union-attr]


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
    ("all are told", {"record": replace(record(), change=replace(UNDER_WAY, epoch=5).told)}, ""),
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


# ---- readers that a new master, or a new process, has not heard yet


@pytest.mark.parametrize(
    ("fields", "changes", "look", "message"),
    [
        pytest.param({}, {}, {}, "everything is read; waits 3 s for more", id="the master of the start"),
        pytest.param({}, {}, {"booted_at_unix_seconds": NOW - 119}, "waits: broker 1 has just started: its consumers have 120 s"
            " to appear", id="its process is new"),
        pytest.param({}, {}, {"booted_at_unix_seconds": NOW - 120}, "everything is read; waits 3 s for more", id="and is no more"),
        pytest.param({}, {"epoch": 6, "master": 2}, {}, "waits: broker 2 is a new master: its consumers have 120 s to appear",
            id="a new master"),
        pytest.param({"watchedEpoch": 6, "watchedSince": rfc3339(NOW - 119)}, {"epoch": 6, "master": 2}, {},
            "waits: broker 2 is a new master: its consumers have 120 s to appear", id="since a moment"),
        pytest.param({"watchedEpoch": 6, "watchedSince": rfc3339(NOW - 120)}, {"epoch": 6, "master": 2}, {},
            "everything is read; waits 3 s for more", id="and is no more new"),
    ],
)  # fmt: skip
def test_consumers_have_time_to_appear(
    fields: dict[str, Any], changes: dict[str, Any], look: dict[str, Any], message: str
) -> None:
    looked = {"epoch": changes.get("epoch", 5), "master_id": changes.get("master", 1), **look}
    verdict = judged(retiring("Draining", **fields), said(**looked), given=READ_ONLY, record=record(**changes))
    assert expect(GoOn, verdict).message == message
    assert noted(verdict).watched_epoch == looked["epoch"]


def test_readers_are_kept_in_the_status() -> None:
    """Also one that subscribed while the group was closed, and may be away again at the next look."""
    assert noted(judged(retiring("Draining"), said(topics=UNREAD), given=READ_ONLY)).readers == ["t@a"]
    late = judged(retiring("Closing", **FIXED), said(**SHUT, topics=UNREAD))
    assert (step_of(late), noted(late).readers) == ("Draining", ["t@a"])


def test_a_long_wait_looks_seldom() -> None:
    """A look asks for every topic, and consumers may take days."""
    pauses = []
    for seconds in (0, 100, 10_000):
        item = retiring("Draining")
        seen = seen_by(item, given=READ_ONLY, now=rfc3339(NOW - 10 + seconds))
        verdict = PROCEDURES[item.asked.spec.type].judge(Case(seen=seen, operation=item, outcome=said(topics=UNREAD)))
        pauses.append(expect(ReadOffsets, expect(GoOn, verdict).effect).pause_seconds)
    assert pauses == [2.0, 5.0, 30.0]


# ---- only the group that it was created for


def test_one_that_waits_names_its_group_and_retires_no_later_one() -> None:
    first = operation("Retire")
    waits = next_status(Case(seen=scene(first), operation=first), Wait(message="waits for another"))
    assert waits.group_uid == GROUP_UID
    later = operation("Retire", status={"phase": "Pending", "groupUid": GROUP_UID})
    verdict = PROCEDURES[later.asked.spec.type].begin(Case(seen=scene(later, group=RENEWED), operation=later))
    assert "for an earlier group of this name" in expect(Reject, verdict).message


def test_a_group_that_is_younger_than_the_operation_is_not_retired() -> None:
    """The operator was away while the group was deleted and made again."""
    young = with_metadata(creationTimestamp=rfc3339(NOW))
    assert "for an earlier group of this name" in expect(Reject, begun("Retire", group=young)).message


def diverged() -> dict[str, Any]:
    """Return the group with this condition in its status."""
    made, kind = group(), "MetadataDiverged"
    made["status"]["conditions"].append(
        {"type": kind, "status": "True", "reason": kind, "message": "broker 2: topic t"}
    )
    return made


OLDER = MetadataDifference(2, MetadataKind.CONSUMER_OFFSET, "payments@billing", only_older=True)
MISSING_OFFSET = MetadataDifference(2, MetadataKind.CONSUMER_OFFSET, "payments@audit")
MISSING_TOPIC = MetadataDifference(3, MetadataKind.TOPIC, "refunds")
OF_THE_MASTER = MetadataDifference(1, MetadataKind.CONSUMER_OFFSET, "payments@audit")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"metadata_diverged": (MISSING_TOPIC,)}, "broker 3: Topic refunds", id="a topic"),
        pytest.param({"metadata_diverged": (MISSING_TOPIC, OLDER)}, "broker 3: Topic refunds", id="a topic, and older offsets"),
        pytest.param({"metadata_diverged": (MISSING_OFFSET,)}, "broker 2: ConsumerOffset payments@audit", id="an offset"),
        pytest.param({"metadata_diverged": (OF_THE_MASTER,)}, "broker 1: ConsumerOffset payments@audit",
            id="an offset of a former master, which the present one lacks"),
        pytest.param({"group": diverged(), "metadata_diverged": (MISSING_TOPIC,)}, "broker 3: Topic refunds",
            id="what the plane knows now"),
        pytest.param({"group": diverged()}, "broker 2: topic t", id="by the status: a new plane has compared nothing yet"),
        pytest.param({"group": diverged(), "snapshot": None}, "broker 2: topic t", id="by the status: no plane knows the group"),
    ],
)  # fmt: skip
def test_it_does_not_begin_while_a_member_lacks_metadata(changes: dict[str, Any], message: str) -> None:
    assert expect(Wait, begun("Retire", **changes)).message == f"waits: orders is MetadataDiverged: {message}"


@pytest.mark.parametrize("made", [group(), diverged()], ids=["before the next pass", "MetadataDiverged by its status"])
def test_older_offsets_of_a_member_hold_no_retire_up(made: dict[str, Any]) -> None:
    """A 5.5.0 slave that the operator cannot write offsets at would hold it up for ever (apache/rocketmq #10284)."""
    expect(Start, begun("Retire", group=made, metadata_diverged=(OLDER,)))


def test_one_that_is_being_deleted_retires_nothing() -> None:
    """A finalizer of another controller may hold it for long."""
    item = retiring("Deleting", **FIXED)
    item.raw["metadata"]["deletionTimestamp"] = rfc3339(NOW)
    seen = seen_by(item, group=closed_by())
    assert seen.operation is None
    assert hindrance_of(seen, item.uid, look_at(offsets(**SHUT))) == "the operation was deleted or is over"


# ---- a closed Java group


def test_a_java_broker_must_refuse_all_sends_for_weeks_yet() -> None:
    """It acknowledges a send with WAIT=false whatever minInSyncReplicas is."""
    java = group(implementation="Java")
    refuses = {"startAcceptSendRequestTimeStamp": str(int(NOW + 28 * DAY) * 1000)}
    late = {"startAcceptSendRequestTimeStamp": str(int(NOW + 28 * DAY - 1) * 1000)}
    for given, missing in ((CLOSED | refuses, []), (CLOSED | late, ["orders-1", "orders-2", "orders-3"])):
        assert pods_not_configured(seen_by(retiring("Closing", **FIXED), given=given, group=java)) == missing

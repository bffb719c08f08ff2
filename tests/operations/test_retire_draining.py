"""A Retire whose brokers are read-only: it looks until everything stays read, and consumers had time to appear. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.reconcile.operations.evaluate import PROCEDURES, next_status
from brokergroup_operator.reconcile.operations.plan import GoOn, Outcome, ReadOffsets
from brokergroup_operator.reconcile.operations.procedures.premises import Case
from tests.operations.retiring import (
    FIXED,
    OPEN,
    READ_ONLY,
    SHUT,
    UNREAD,
    effect_of,
    judged,
    noted,
    pods,
    retiring,
    said,
    seen_by,
    seen_since,
    step_of,
    topic,
)
from tests.operations.world import NOW, expect, record

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.operations.plan import Verdict


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


def test_a_long_wait_looks_seldom() -> None:
    """A look asks for every topic, and consumers may take days."""
    pauses = []
    for seconds in (0, 100, 10_000):
        item = retiring("Draining")
        seen = seen_by(item, given=READ_ONLY, now=rfc3339(NOW - 10 + seconds))
        verdict = PROCEDURES[item.asked.spec.type].judge(Case(seen=seen, operation=item, outcome=said(topics=UNREAD)))
        pauses.append(expect(ReadOffsets, expect(GoOn, verdict).effect).pause_seconds)
    assert pauses == [2.0, 5.0, 30.0]


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


@pytest.mark.parametrize(("asks_for", "appears"), [(119, True), (120, False)])
@pytest.mark.parametrize("clock", [-7_000, 7_000])
def test_consumers_have_time_to_appear_by_the_clock_of_this_operator(
    clock: int, asks_for: float, appears: bool
) -> None:
    watched: dict[str, Any] = {"watchedEpoch": 6, "watchedSince": rfc3339(NOW + clock)}
    outcome = seen_since(said(epoch=6, master_id=2), asks_for)
    verdict = judged(retiring("Draining", **watched), outcome, given=READ_ONLY, record=record(epoch=6, master=2))
    assert ("consumers have 120 s to appear" in expect(GoOn, verdict).message) is appears


def test_readers_are_kept_in_the_status() -> None:
    """Also one that subscribed while the group was closed, and may be away again at the next look."""
    assert noted(judged(retiring("Draining"), said(topics=UNREAD), given=READ_ONLY)).readers == ["t@a"]
    late = judged(retiring("Closing", **FIXED), said(**SHUT, topics=UNREAD))
    assert (step_of(late), noted(late).readers) == ("Draining", ["t@a"])

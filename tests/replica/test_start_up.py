"""A start and a search for the master, question by question, without sockets or clock."""

from __future__ import annotations

import pytest

from rocketmq_remoting.codes import ResponseCode
from rocketmq_replica.controller.start_up import Question, StartUp, Verdict, judge_poll
from rocketmq_replica.ha.links import DIVERGED_PAUSE_SECONDS, FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS, ReconnectBackoff
from rocketmq_replica.role_change import BrokerIdentity, GroupInfo, MasterSeen

CONFIRMED = BrokerIdentity("C", "B", 3)
APPLIED = BrokerIdentity("C", "B", 3, "127.0.0.1:1;5")


def start(confirmed: BrokerIdentity | None = None, applied: BrokerIdentity | None = None) -> StartUp:
    return StartUp(
        cluster_name="C", broker_name="B", broker_address="127.0.0.1:1", confirmed=confirmed, applied=applied
    )


def info(epoch: int = 1, master: int | None = 3) -> GroupInfo:
    return GroupInfo(epoch, master, "" if master is None else "127.0.0.1:1", frozenset({3}), 1)


def question_of(each: StartUp) -> Question:
    """A call of its own: mypy takes an attribute that one assertion compared for unchanged until the next."""
    return each.question


def test_a_new_replica_asks_everything_once() -> None:
    each = start()
    assert question_of(each) is Question.NEXT_BROKER_ID
    assert each.offered(3, now_ms=5) == APPLIED
    assert question_of(each) is Question.APPLY_BROKER_ID
    assert each.accepted() == APPLIED
    assert question_of(each) is Question.REGISTER
    each.registered(info(master=None))
    assert (each.question, each.info) == (Question.ELECT, None)
    each.elected(info())
    assert each.info == info()


def test_an_application_is_repeated_until_its_outcome_is_known() -> None:
    each = start(applied=APPLIED)
    for _ in range(3):
        assert (each.question, each.application) == (Question.APPLY_BROKER_ID, APPLIED)
        each.failed()
        assert not each.refused(ResponseCode.SYSTEM_ERROR)
    assert each.refused(ResponseCode.CONTROLLER_BROKER_ID_INVALID)
    assert question_of(each) is Question.NEXT_BROKER_ID


def test_a_known_replica_registers_and_leaves_an_old_application_alone() -> None:
    each = start(CONFIRMED, APPLIED)
    assert (each.question, each.application) == (Question.REGISTER, None)
    each.registered(info())
    assert each.info == info()


def test_a_failed_election_begins_with_the_registration_again() -> None:
    each = start(CONFIRMED)
    each.registered(info(master=None))
    each.failed(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED)
    assert (each.question, each.info) == (Question.REGISTER, None)


def test_an_election_that_found_nobody_is_asked_for_again_without_a_registration() -> None:
    """As Java's broker does: each registration would make what the other replicas told too old to be elected by."""
    each = start(CONFIRMED)
    each.registered(info(master=None))
    each.failed(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED)
    assert (each.question, each.info) == (Question.ELECT, None)
    each.failed()
    assert question_of(each) is Question.REGISTER


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (info(5, None), Verdict.MASTERSHIP_TAKEN),
        (info(4, None), Verdict.OTHERWISE),
        (info(4, 3), Verdict.CONFIRMED),
        (info(5, 3), Verdict.OTHERWISE),
        (info(3, 3), Verdict.OTHERWISE),
        (info(5, 2), Verdict.OTHERWISE),
        (info(4, 2), Verdict.OTHERWISE),
    ],
)
def test_what_a_poll_says(answer: GroupInfo, expected: Verdict) -> None:
    assert judge_poll(answer, known=MasterSeen(4, 3, "127.0.0.1:1"), own_id=3) is expected


def test_pushed_and_asked_addresses_are_tried_in_turn() -> None:
    each = ReconnectBackoff()
    assert [each.address("pushed") for _ in range(4)] == ["pushed", "", "pushed", ""]
    assert each.address("pushed") == "pushed"
    each.transferred()
    assert each.address("pushed") == "pushed", "the one that worked first"


def test_pauses_double_and_end_when_it_works() -> None:
    each = ReconnectBackoff()
    pauses = [each.pause_seconds() for _ in range(8)]
    assert pauses[:3] == [FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS, 4 * FIRST_PAUSE_SECONDS]
    assert pauses[-1] == LAST_PAUSE_SECONDS
    assert each.in_vain
    each.transferred()
    assert not each.in_vain
    assert each.pause_seconds() == FIRST_PAUSE_SECONDS
    each.diverged()
    assert each.in_vain
    assert [each.pause_seconds(), each.pause_seconds()] == [DIVERGED_PAUSE_SECONDS, LAST_PAUSE_SECONDS]

"""When a message is acknowledged, which set is proposed, and how long a message waits: without sockets or clock."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketmq_replica.master_term import AcknowledgementPolicy, MasterTerm, PendingAcks, acknowledged_offset
from rocketmq_replica.sync_state import Proposal, SlaveProgress, SyncState

if TYPE_CHECKING:
    from rocketmq_replica.log.message_store import MessageStore


LAG = 15.0
ALL_ACK = AcknowledgementPolicy(all_ack_in_sync_state_set=True, min_in_sync_replicas=1)


def state(members: set[int], acks: dict[int, int], learners: frozenset[int] = frozenset()) -> SyncState:
    """Broker 1 is master; ``acks`` are the linked slaves."""
    each = SyncState(own_id=1, members=frozenset(members), set_epoch=5, epoch_start_offset=0, replicated_offset=0)
    for broker_id, offset in acks.items():
        each.link_opened(SlaveProgress(broker_id, broker_id in learners, offset, linked_at_seconds=0.0))
    return each


@pytest.mark.parametrize(
    ("policy", "members", "acks", "expected"),
    [
        # allAckInSyncStateSet, inSyncReplicas, minInSyncReplicas; the log ends at 100
        ((True, 1, 1), {1}, {}, 100),
        ((True, 1, 1), {1, 2}, {2: 60}, 60),
        ((True, 1, 1), {1, 2, 3}, {2: 60, 3: 80}, 60),
        ((True, 1, 1), {1, 2, 3}, {2: 60}, -1),
        ((True, 1, 2), {1}, {2: 100}, -1),
        ((True, 1, 99), {1, 2, 3}, {2: 100, 3: 100}, -1),
        ((True, 1, 1), {1, 2}, {2: 60, 3: 10}, 60),
        ((False, 1, 1), {1, 2, 3}, {}, 100),
        ((False, 2, 1), {1, 2, 3}, {2: 60, 3: 80}, 80),
        ((False, 3, 1), {1, 2, 3}, {2: 60, 3: 80}, 60),
        ((False, 2, 1), {1, 2}, {3: 90}, -1),
        ((False, 2, 1), {1}, {2: 90, 3: 90}, -1),
        ((False, 4, 1), {1, 2, 3}, {2: 60, 3: 80}, -1),
        ((False, 2, 3), {1, 2}, {2: 100}, -1),
    ],
)
def test_how_far_messages_may_be_acknowledged(
    policy: tuple[bool, int, int], members: set[int], acks: dict[int, int], expected: int
) -> None:
    offset = acknowledged_offset(AcknowledgementPolicy(*policy), state(members, acks), max_offset=100)
    assert offset == expected


def test_a_set_below_the_minimum_refuses_before_storing() -> None:
    policy = AcknowledgementPolicy(all_ack_in_sync_state_set=True, min_in_sync_replicas=2)
    assert (policy.accepts(state({1}, {2: 100})), policy.accepts(state({1, 2}, {}))) == (False, True)


def test_learners_are_neither_waited_for_nor_proposed() -> None:
    each = state({1}, {9: -1}, learners=frozenset({9}))
    each.acknowledged(each.links[9], 100, max_offset=100, now_seconds=1.0)
    assert each.advance(max_offset=100, now_seconds=1.0) == 100
    assert each.waited_for == {1}
    assert each.propose(now_seconds=1.0, allowed_lag_seconds=LAG) is None


def test_a_member_that_links_as_a_learner_is_proposed_away_at_once_and_counts_until_then() -> None:
    each = state({1, 2, 3}, {2: 100, 3: 100}, learners=frozenset({3}))
    assert each.propose(now_seconds=0.0, allowed_lag_seconds=LAG) == Proposal(frozenset({1, 2}), 5)
    each.acknowledged(each.links[3], 120, max_offset=120, now_seconds=0.0)
    each.acknowledged(each.links[2], 120, max_offset=120, now_seconds=0.0)
    assert each.advance(max_offset=120, now_seconds=0.0) == 120
    assert each.granted(frozenset({1, 2}), 6)
    assert each.waited_for == {1, 2}
    assert each.propose(now_seconds=0.0, allowed_lag_seconds=LAG) is None


def test_a_slave_that_caught_up_is_waited_for_first_and_then_proposed() -> None:
    each = state({1}, {})
    slave = SlaveProgress(2)
    each.link_opened(slave)
    assert each.advance(max_offset=100, now_seconds=0.0) == 100
    slave.sent(100, 0.0)
    each.acknowledged(slave, 60, max_offset=100, now_seconds=0.1)
    each.advance(max_offset=120, now_seconds=0.1)
    assert each.propose(now_seconds=0.1, allowed_lag_seconds=LAG) is None, "far behind"
    each.acknowledged(slave, 100, max_offset=150, now_seconds=0.2)
    assert each.replicated_offset == 120
    assert each.advance(max_offset=150, now_seconds=0.2) == 120, "from here on nothing is confirmed without it"
    assert each.waited_for == {1, 2}
    assert each.propose(now_seconds=0.2, allowed_lag_seconds=LAG) is None, "120 is confirmed and it holds 100"
    each.acknowledged(slave, 130, max_offset=170, now_seconds=0.3)
    assert each.advance(max_offset=170, now_seconds=0.3) == 130
    assert each.propose(now_seconds=0.3, allowed_lag_seconds=LAG) == Proposal(frozenset({1, 2}), 5)


def test_a_slave_without_the_epochs_beginning_is_not_proposed() -> None:
    each = SyncState(own_id=1, members=frozenset({1}), set_epoch=5, epoch_start_offset=500, replicated_offset=0)
    slave = SlaveProgress(2)
    each.link_opened(slave)
    each.acknowledged(slave, 499, max_offset=499, now_seconds=0.0)
    each.advance(max_offset=499, now_seconds=0.0)
    assert each.propose(now_seconds=0.0, allowed_lag_seconds=LAG) is None


def proposing() -> SyncState:
    """{1} has asked for {1, 2}."""
    each = state({1}, {2: -1})
    each.acknowledged(each.links[2], 100, max_offset=100, now_seconds=0.0)
    each.advance(max_offset=100, now_seconds=0.0)
    assert each.propose(now_seconds=0.0, allowed_lag_seconds=LAG) == Proposal(frozenset({1, 2}), 5)
    assert each.propose(now_seconds=0.0, allowed_lag_seconds=LAG) is None, "one at a time"
    return each


def in_doubt(since_seconds: float) -> SyncState:
    """{1} has asked for {1, 2} and got no answer, and 2 has left."""
    each = proposing()
    each.outcome_unknown(now_seconds=since_seconds)
    each.link_closed(each.links[2])
    return each


def test_the_union_is_waited_for_while_the_controller_decides() -> None:
    each = proposing()
    each.link_closed(each.links[2])
    assert each.waited_for == {1, 2}
    assert acknowledged_offset(ALL_ACK, each, max_offset=200) == -1
    each.refused(now_seconds=0.0)
    assert acknowledged_offset(ALL_ACK, each, max_offset=200) == 200


def test_an_unknown_outcome_is_waited_for_until_a_newer_set_is_seen() -> None:
    """Upstream #5663: the controller granted it, the answer was lost."""
    each = in_doubt(0.0)
    assert each.waited_for == {1, 2}
    assert not each.apply(frozenset({1}), 5), "the epoch we know proves nothing"
    assert each.waited_for == {1, 2}
    assert each.apply(frozenset({1, 2}), 6)
    assert each.members == {1, 2}
    assert each.propose(now_seconds=9.0, allowed_lag_seconds=LAG) == Proposal(frozenset({1}), 6)
    assert each.granted(frozenset({1}), 7)
    assert each.waited_for == {1}


def test_an_unknown_outcome_is_settled_when_the_controller_still_has_the_old_set_much_later() -> None:
    each = in_doubt(5.0)
    each.seen_unchanged(asked_seconds=14.9)
    assert each.in_doubt, "the answer may have come later; what it says is of when it was asked"
    assert each.waited_for == {1, 2}
    each.seen_unchanged(asked_seconds=15.1)
    assert not each.in_doubt
    assert each.waited_for == {1}


def test_a_set_in_doubt_is_asked_for_again_although_its_member_has_left() -> None:
    """A frozen controller may still have the first request in its socket; a newer set epoch makes that one too late."""
    each = in_doubt(5.0)
    assert each.propose(now_seconds=5.4, allowed_lag_seconds=LAG) is None, "not at once"
    assert each.propose(now_seconds=5.6, allowed_lag_seconds=LAG) == Proposal(frozenset({1, 2}), 5)
    assert each.waited_for == {1, 2}
    assert each.granted(frozenset({1, 2}), 6)
    assert not each.in_doubt
    assert each.propose(now_seconds=5.7, allowed_lag_seconds=LAG) == Proposal(frozenset({1}), 6)
    assert each.waited_for == {1, 2}, "a member until the controller has let it go"


def test_a_set_in_doubt_that_is_asked_for_again_and_refused_is_in_doubt_until_much_later() -> None:
    each = in_doubt(5.0)
    for now_seconds in (5.6, 9.0, 14.0):
        assert each.propose(now_seconds=now_seconds, allowed_lag_seconds=LAG) == Proposal(frozenset({1, 2}), 5)
        each.refused(now_seconds=now_seconds)
        each.seen_unchanged(asked_seconds=now_seconds)
        assert each.waited_for == {1, 2}
    each.seen_unchanged(asked_seconds=15.1)
    assert each.waited_for == {1}
    assert each.propose(now_seconds=16.0, allowed_lag_seconds=LAG) is None


def test_a_doubt_that_is_renewed_lasts_from_then_on() -> None:
    each = in_doubt(0.0)
    assert each.propose(now_seconds=8.0, allowed_lag_seconds=LAG) == Proposal(frozenset({1, 2}), 5)
    each.outcome_unknown(now_seconds=9.0)
    each.seen_unchanged(asked_seconds=18.9)
    assert each.waited_for == {1, 2}
    each.seen_unchanged(asked_seconds=19.1)
    assert each.waited_for == {1}


def test_two_sets_in_doubt_are_both_waited_for() -> None:
    """Either may have been granted: the second without an answer says nothing of the first."""
    each = in_doubt(0.0)
    each.link_opened(SlaveProgress(3, linked_at_seconds=1.0))
    each.acknowledged(each.links[3], 100, max_offset=100, now_seconds=1.0)
    each.advance(max_offset=100, now_seconds=1.0)
    assert each.propose(now_seconds=1.0, allowed_lag_seconds=LAG) == Proposal(frozenset({1, 3}), 5)
    each.outcome_unknown(now_seconds=1.0)
    assert each.waited_for == {1, 2, 3}


def test_a_set_in_doubt_that_would_shrink_is_waited_for_whole() -> None:
    each = state({1, 2, 3}, {2: 100, 3: 100})
    each.link_closed(each.links[3])
    assert each.propose(now_seconds=1.0, allowed_lag_seconds=LAG) == Proposal(frozenset({1, 2}), 5)
    each.outcome_unknown(now_seconds=1.0)
    each.link_opened(SlaveProgress(3, ack_offset=100, linked_at_seconds=1.0))
    assert each.waited_for == {1, 2, 3}
    assert each.propose(now_seconds=2.0, allowed_lag_seconds=LAG) is None, "nothing is doubted that we do not wait for"


def test_leaving_and_joining_are_two_proposals_and_a_refused_one_holds_up_no_other() -> None:
    """A set that adds and drops is taken for one that was computed from an older set."""
    each = state({1, 2}, {3: 100})
    each.acknowledged(each.links[3], 100, max_offset=100, now_seconds=20.0)
    each.advance(max_offset=100, now_seconds=20.0)
    assert each.propose(now_seconds=20.0, allowed_lag_seconds=LAG) == Proposal(frozenset({1, 2, 3}), 5)
    each.refused(now_seconds=20.0)
    assert each.propose(now_seconds=20.1, allowed_lag_seconds=LAG) == Proposal(frozenset({1}), 5)
    each.refused(now_seconds=20.1)
    assert each.propose(now_seconds=20.2, allowed_lag_seconds=LAG) is None
    assert each.propose(now_seconds=21.0, allowed_lag_seconds=LAG) == Proposal(frozenset({1, 2, 3}), 5)
    assert each.granted(frozenset({1, 2, 3}), 6)
    assert each.propose(now_seconds=21.1, allowed_lag_seconds=LAG) == Proposal(frozenset({1, 3}), 6)


def test_a_refused_set_is_asked_for_again_after_a_while() -> None:
    each = proposing()
    each.refused(now_seconds=0.0)
    assert each.propose(now_seconds=0.1, allowed_lag_seconds=LAG) is None
    assert each.propose(now_seconds=0.6, allowed_lag_seconds=LAG) is not None


def test_a_member_without_a_link_is_proposed_out_and_holds_everything_until_it_is_granted() -> None:
    """Hole A of Java 5.5.0: it shrinks at once and acknowledges what was waiting."""
    each = state({1, 2, 3}, {2: 100, 3: 100})
    each.acknowledged(each.links[2], 100, max_offset=100, now_seconds=0.0)
    each.acknowledged(each.links[3], 100, max_offset=100, now_seconds=0.0)
    each.link_closed(each.links[2])
    each.link_closed(each.links[3])
    assert each.propose(now_seconds=0.1, allowed_lag_seconds=LAG) == Proposal(frozenset({1}), 5), "both in one proposal"
    assert acknowledged_offset(ALL_ACK, each, max_offset=150) == -1
    assert each.advance(max_offset=150, now_seconds=0.1) == 0, "upstream #6662: frozen"
    each.granted(frozenset({1}), 6)
    assert acknowledged_offset(ALL_ACK, each, max_offset=150) == 150


def test_9897_two_slaves_that_leave_together_are_proposed_out_together_or_one_after_the_other() -> None:
    each = state({1, 2, 3}, {2: 100, 3: 100})
    each.link_closed(each.links[2])
    assert each.propose(now_seconds=0.1, allowed_lag_seconds=LAG) == Proposal(frozenset({1, 3}), 5)
    each.link_closed(each.links[3])
    assert each.propose(now_seconds=0.1, allowed_lag_seconds=LAG) is None, "one proposal is under way at a time"
    each.granted(frozenset({1, 3}), 6)
    assert each.propose(now_seconds=0.1, allowed_lag_seconds=LAG) == Proposal(frozenset({1}), 6)
    assert acknowledged_offset(ALL_ACK, each, max_offset=200) < 200, "until it is granted, nothing rests on it"


def test_a_member_under_steady_load_stays_although_it_never_holds_the_last_byte() -> None:
    each = state({1, 2}, {2: 0})
    slave = each.links[2]
    for step in range(1, 1000):
        slave.sent(step * 100, step / 20)
        each.acknowledged(slave, step * 100 - 50, max_offset=step * 100, now_seconds=step / 20)
        assert each.propose(now_seconds=step / 20, allowed_lag_seconds=LAG) is None


def test_an_idle_member_stays() -> None:
    each = state({1, 2}, {2: 100})
    for second in range(100):
        each.tick(max_offset=100, now_seconds=float(second))
        assert each.propose(now_seconds=float(second), allowed_lag_seconds=LAG) is None


def test_a_newer_link_of_the_same_slave_replaces_the_older_one() -> None:
    each = state({1, 2}, {2: 100})
    old = each.links[2]
    each.link_opened(SlaveProgress(2, ack_offset=40))
    each.link_closed(old)
    assert acknowledged_offset(ALL_ACK, each, max_offset=100) == 40


def test_the_replicated_offset_never_goes_back() -> None:
    each = state({1, 2}, {2: 100})
    assert each.advance(max_offset=100, now_seconds=0.0) == 100
    each.link_opened(SlaveProgress(2, ack_offset=40))
    assert each.advance(max_offset=100, now_seconds=0.0) == 100


@pytest.mark.parametrize(
    ("in_sync", "minimum", "members", "needed"), [(3, 1, 3, 3), (3, 1, 2, 2), (3, 2, 1, 2), (1, 1, 3, 1), (0, 1, 1, 1)]
)
def test_auto_in_sync_replicas_asks_for_no_more_than_there_are(
    in_sync: int, minimum: int, members: int, needed: int
) -> None:
    policy = AcknowledgementPolicy(in_sync_replicas=in_sync, min_in_sync_replicas=minimum)
    assert policy.needed(members) == max(in_sync, 1)
    policy.auto_in_sync_replicas = True
    assert policy.needed(members) == needed


class Log:
    """A store of which only the length is known."""

    def __init__(self, end: int) -> None:
        self.max_offset = end
        self.confirm_offset = 0
        self.log = self
        self.flushed_offset = 0


def test_what_is_acknowledged_at_once_is_what_waiting_would_acknowledge() -> None:
    for case in itertools.product((True, False), (1, 2), (1, 2), ({1}, {1, 2}), (True, False), (True, False)):
        all_ack, in_sync, minimum, members, sync_flush, paused = case
        enough = minimum <= len(members) and (members == {1} if all_ack else in_sync == 1)
        now = 9.0 if paused else 1.0
        for fast in (True, False):
            store = Log(100)
            term: MasterTerm[str] = MasterTerm(
                cast("MessageStore", store), AcknowledgementPolicy(all_ack, in_sync, minimum),
                sync_state=state(members, {}), master_epoch=1, sync_flush=sync_flush, max_pause_seconds=5.0,
                now_seconds=0.0,
            )  # fmt: skip
            if acknowledged := fast and term.acknowledges_at_once(100, now_seconds=now):
                assert store.confirm_offset == 100, case
            else:
                term.wait("w", end_offset=100, deadline_seconds=99.0)
                acknowledged = term.settle(now_seconds=now) == ["w"]
            assert acknowledged is (enough and not sync_flush and not paused), (case, fast)


WAIT, RELEASE, EXPIRE, PROLONG, CLEAR = range(5)
ACTIONS = st.lists(st.tuples(st.integers(WAIT, CLEAR), st.integers(1, 20)), max_size=60)


@dataclass
class NaiveRoom:
    """The waiters: name to (end offset, deadline)."""

    waiting: dict[int, tuple[int, float]] = field(default_factory=dict)

    def take(self, names: list[int]) -> list[int]:
        for name in names:
            del self.waiting[name]
        return names

    def release(self, offset: int) -> list[int]:
        return self.take([name for name, (end, _) in self.waiting.items() if end <= offset])

    def due(self, now_seconds: float) -> set[int]:
        return {name for name, (_, deadline) in self.waiting.items() if deadline <= now_seconds}

    def next_deadline_seconds(self) -> float | None:
        return min((deadline for _, deadline in self.waiting.values()), default=None)


@given(ACTIONS)
def test_each_waiter_is_released_exactly_once(actions: list[tuple[int, int]]) -> None:
    room: PendingAcks[int] = PendingAcks()
    naive = NaiveRoom()
    end_offset, now_seconds = 0, 0.0
    for name, (action, number) in enumerate(actions):
        if action == WAIT:
            end_offset += 10
            room.wait(name, end_offset=end_offset, deadline_seconds=now_seconds + number)
            naive.waiting[name] = (end_offset, now_seconds + number)
        elif action == RELEASE:
            assert room.release(number * 10) == naive.release(number * 10)
        elif action == CLEAR and number == 1:
            assert room.clear() == naive.take(list(naive.waiting))
        else:
            now_seconds += number / 4
            due = room.due(now_seconds)
            assert {each.waiter for each in due} == naive.due(now_seconds)
            assert len(due) == len(naive.due(now_seconds))
            for position, each in enumerate(due):
                if action == PROLONG and position % 2:
                    room.wait_until(each, now_seconds + number)
                    naive.waiting[each.waiter] = (naive.waiting[each.waiter][0], now_seconds + number)
                else:
                    room.leave(each)
                    naive.take([each.waiter])
        assert len(room) == len(naive.waiting)
        assert room.next_deadline_seconds() == naive.next_deadline_seconds()


def test_what_is_answered_is_not_kept_until_its_deadline() -> None:
    room: PendingAcks[int] = PendingAcks()
    for name in range(10_000):
        room.wait(name, end_offset=name, deadline_seconds=1000.0 + name)
        assert room.release(name) == [name]
    assert not room._in_turn
    assert not room._out_of_turn

"""The heartbeat table under a test clock. Each test shows one mistake of Java's table, or one rule of ours."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller_core.holdings import News, Quiet, quiet_after, report_is_news
from controller_core.liveness import HeartbeatTable
from controller_core.model import BrokerGroupRecord, LiveReplica, Mark, Replica
from controller_core.settings import ControllerSettings
from tests.support.draws import examples

ONE = 1
TWO = 2
THREE = 3


def _table(timeout_seconds: float = 3.0) -> HeartbeatTable:
    return HeartbeatTable(timeout_seconds)


def _beat(broker_id: int, **told: int) -> LiveReplica:
    return LiveReplica(broker_id=broker_id, **told)  # type: ignore[arg-type]


def test_a_replica_lives_until_its_deadline_and_not_a_moment_longer() -> None:
    table = _table()
    assert table.heartbeat(10.0, _beat(ONE, epoch=2, max_offset=5), connection_id=1)
    assert not table.heartbeat(11.0, _beat(ONE, epoch=2, max_offset=6), connection_id=1)
    assert table.live(14.0)[1].max_offset == 6
    assert table.live(14.001) == {}


def test_a_replica_that_is_forgotten_is_not_in_the_table() -> None:
    table = _table()
    table.heartbeat(0.0, _beat(ONE), connection_id=1)
    table.heartbeat(0.0, _beat(TWO), connection_id=2)
    assert table.live(5.0) == {}
    assert table.heartbeat(5.0, _beat(ONE), connection_id=1), "it was not alive before"
    table.forget(TWO)
    assert set(table.entries()) == {ONE}


def test_the_late_close_of_an_old_connection_evicts_nobody() -> None:
    """Issue 11045: Java binds a replica to the first connection for ever."""
    table = _table()
    table.heartbeat(0.0, _beat(ONE), connection_id=1)
    table.heartbeat(1.0, _beat(ONE), connection_id=2)
    assert table.connection_closed(1.5, 1) == ()
    assert 1 in table.live(1.5)
    assert table.connection_closed(2.0, 2) == (ONE,)
    assert table.live(2.0) == {}


def test_a_shared_connection_reports_everybody_it_carried() -> None:
    """Java reports only the first broker of a container's connection as lost; the others wait for the timeout."""
    table = _table()
    for broker_id in (THREE, TWO, ONE):
        table.heartbeat(0.0, _beat(broker_id), connection_id=7)
    assert table.connection_closed(1.0, 7) == (ONE, TWO, THREE)
    assert table.connection_closed(1.0, 7) == ()


def test_a_connection_that_closes_after_the_timeout_reports_nothing_new() -> None:
    table = _table()
    table.heartbeat(0.0, _beat(ONE), connection_id=1)
    assert table.connection_closed(9.0, 1) == ()


def test_a_new_registration_forgets_what_the_old_process_said() -> None:
    """Java keeps the higher (epoch, offset): a replica with a lost disk still seems to have the longest log."""
    table = _table()
    table.heartbeat(0.0, _beat(ONE, epoch=5, max_offset=900), connection_id=1)
    table.registered(1.0, ONE, connection_id=2, address="10.0.0.9:10911")
    assert table.live(1.0)[1].max_offset == -1
    assert not table.live(1.0)[1].has_reported
    assert table.connection_closed(1.1, 1) == (), "the old process's connection is not the new one's"
    table.heartbeat(1.2, _beat(ONE, epoch=1, max_offset=0), connection_id=3)
    assert table.live(1.2)[1].max_offset == 0


def test_values_may_fall_within_an_incarnation_too() -> None:
    """The table accepts a lower offset from a replica that truncated its log."""
    table = _table()
    table.heartbeat(0.0, _beat(ONE, epoch=5, max_offset=900), connection_id=1)
    table.heartbeat(0.5, _beat(ONE, epoch=5, max_offset=700), connection_id=1)
    assert table.live(0.5)[1].max_offset == 700


def test_a_request_is_a_sign_of_life_and_tells_nothing_of_the_disk() -> None:
    table = _table()
    table.sign_of_life(0.0, ONE, connection_id=1)
    assert not table.live(0.0)[1].has_reported
    table.heartbeat(1.0, _beat(ONE, epoch=1, max_offset=4), connection_id=1)
    table.sign_of_life(3.0, ONE, connection_id=9)
    assert table.live(5.5)[1].max_offset == 4, "its earlier report is kept, the deadline moves"
    assert table.connection_closed(5.5, 9) == (), "heartbeats come on connection 1"
    assert table.connection_closed(5.5, 1) == (ONE,)


def test_a_sign_of_life_after_the_close_binds_the_connection_it_came_on() -> None:
    table = _table()
    table.heartbeat(0.0, _beat(ONE), connection_id=1)
    table.connection_closed(0.1, 1)
    table.sign_of_life(0.2, ONE, connection_id=2)
    assert 1 in table.live(0.2)
    assert table.connection_closed(0.3, 2) == (ONE,)


def test_a_replica_lives_as_long_as_it_asks_for_or_for_the_tables_timeout() -> None:
    table = _table()
    table.heartbeat(0.0, _beat(ONE), connection_id=1, timeout_seconds=10.0)
    table.heartbeat(0.0, _beat(TWO), connection_id=2)
    assert [set(table.live(at)) for at in (3.0, 3.001, 10.0, 10.001)] == [{ONE, TWO}, {ONE}, {ONE}, set()]


def test_after_a_pause_of_our_own_nobodys_silence_counts() -> None:
    """Self-distrust: after our own pause of a minute all replicas look dead. Closed connections stay closed."""
    table = _table()
    table.heartbeat(0.0, _beat(ONE), connection_id=1)
    table.heartbeat(0.0, _beat(TWO), connection_id=2)
    table.connection_closed(0.0, 2)
    assert table.live(60.0) == {}
    table.restart_deadlines(60.0)
    assert set(table.live(60.0)) == {1}
    assert set(table.live(63.0)) == {1}
    assert table.live(63.001) == {}


# ---- Nearly every heartbeat only goes on from the last one, and takes a shorter way. Both ways must end the same.


class _Thorough(HeartbeatTable):
    """Judges each heartbeat as if it were the first."""

    def _goes_on(self, entry: Any, told: LiveReplica) -> bool:
        return False


OFFSETS = st.sampled_from([-1, 0, 5, 9, 10, 11, 50, 99, 100, 101, 200])
EPOCHS = st.sampled_from([-1, 1, 2, 2, 2, 2, 2, 3])
MEMBERS = st.sampled_from([ONE, ONE, ONE, TWO])
MOST = st.sampled_from([{ONE, TWO}, {ONE, TWO}, {ONE}, {TWO}, set()])
BEATS = st.one_of(
    st.tuples(st.just("beat"), MEMBERS, EPOCHS, OFFSETS, OFFSETS, st.sampled_from([1, 1, 2])),
    st.tuples(
        st.just("more"), MEMBERS, st.sampled_from([0, 1, 1, 9, 40, -1, -40]), st.sampled_from([0, 1, 9, -9, -40])
    ),
    st.tuples(st.just("more"), MEMBERS, st.sampled_from([0, 1, 9]), st.sampled_from([0, 1, 9])),
)
OTHERS = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([0.1, 0.2, 4.0])),
    st.tuples(st.just("close"), st.sampled_from([1, 2])),
    st.tuples(st.just("registers"), MEMBERS, st.sampled_from([1, 2])),
    st.tuples(st.just("lost")),
    st.tuples(st.just("reports"), MEMBERS, EPOCHS, OFFSETS),
    st.tuples(st.just("record"), st.sampled_from([2, 2, 2, 1, 3]), MOST, OFFSETS, EPOCHS),
    st.tuples(st.just("seats lost"), MOST),
)
# After a beat a second passes, but for bursts.
STEPS = st.one_of(
    BEATS, BEATS.map(lambda beat: (*beat, "then a second")), BEATS.map(lambda beat: (*beat, "then a second")), OTHERS
)
CAUTIOUS = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2, held_bucket_bytes=10)


def _record() -> BrokerGroupRecord:
    replicas = {one: Replica(one, f"{one}:1;1", f"{one}:1", registered=True) for one in (ONE, TWO)}
    return BrokerGroupRecord("cl", "bn", 3, replicas, ONE, 2, frozenset({ONE, TWO}), 2)


def _next_record(record: BrokerGroupRecord, step: tuple[Any, ...]) -> BrokerGroupRecord:
    match step:
        case ("record", epoch, members, offset, held_epoch):
            replicas = {
                one: replace(replica, held_epoch=held_epoch, held_offset=offset)
                for one, replica in record.replicas.items()
            }
            return replace(record, master_epoch=epoch, sync_state_set=frozenset(members), replicas=replicas)
        case ("seats lost", ids):
            return replace(record, lost_seats=frozenset(ids), master_broker_id=None)
    return record


def _apply(table: HeartbeatTable, step: tuple[Any, ...], now_seconds: float) -> None:
    match step:
        case ("beat", one, epoch, offset, confirm, connection, *_):
            beat = LiveReplica(one, epoch, offset, confirm)
            table.heartbeat(now_seconds, beat, connection)
        case ("more", one, by, confirmed_by, *_) if (entry := table.entry(one)) is not None:
            last = entry.replica
            beat = LiveReplica(one, last.epoch, last.max_offset + by, last.confirm_offset + confirmed_by)
            table.heartbeat(now_seconds, beat, entry.connection_id or 1)
        case ("close", connection):
            table.connection_closed(now_seconds, connection)
        case ("registers", one, connection):
            table.registered(now_seconds, one, connection)
        case ("lost",):
            table.ask_anew(now_seconds)
        case ("reports", one, epoch, offset):
            table.reported(one, epoch=epoch, max_offset=offset)


def _seen_by(table: HeartbeatTable, record: BrokerGroupRecord, now_seconds: float) -> object:
    """All that decisions go by. `Holding.known` may lag in the short way, where no report can fall below it."""
    found = {one: table.holding(one) for one in (ONE, TWO)}
    news = {one: held and report_is_news(record, held, CAUTIOUS) for one, held in found.items()}
    holdings = {one: held and _but_known(held) for one, held in found.items()}
    return table.live(now_seconds), news, holdings, table.lost_seconds


def _but_known(held: Any) -> Any:
    return held._replace(known=Mark(held.broker_id))


@pytest.mark.sampled
@settings(max_examples=examples(300, 5_000))
@given(st.lists(STEPS, max_size=25))
def test_a_heartbeat_that_goes_on_from_the_last_one_changes_the_same(steps: list[tuple[Any, ...]]) -> None:
    """A table that takes the shorter way and one that never does get the same heartbeats, and decisions see no difference. A report
    that `Quiet` lets pass would have been no news.
    """
    short, thorough, record, now_seconds = HeartbeatTable(), _Thorough(), _record(), 0.0
    quiet: dict[int, Quiet | None] = {}
    for step in steps:
        if step[0] == "wait":
            now_seconds += step[1]
        elif step[-1] == "then a second":
            now_seconds += 1.0
        record = _next_record(record, step)
        for table in (short, thorough):
            table.note_seats(record, now_seconds)
            _apply(table, step, now_seconds)
        assert _seen_by(short, record, now_seconds) == _seen_by(thorough, record, now_seconds)
        if step[0] in ("beat", "more") and (entry := short.entry(step[1])) is not None:
            holding, last = thorough.holding(step[1]), quiet.get(step[1])
            if last is not None and last.goes_on(record, CAUTIOUS, entry.replica, entry.seen):
                assert holding is None or report_is_news(record, holding, CAUTIOUS) is News.NOTHING
            elif holding is not None:
                is_news = report_is_news(record, holding, CAUTIOUS) is not News.NOTHING
                quiet[step[1]] = None if is_news else quiet_after(record, holding, CAUTIOUS)

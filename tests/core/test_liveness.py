"""The heartbeat table under a test clock. Each test shows one mistake of Java's table, or one rule of ours."""

from controller_core.liveness import HeartbeatTable
from controller_core.model import LiveReplica

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

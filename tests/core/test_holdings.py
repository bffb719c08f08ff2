"""A replica's data, from heartbeats to marks: the heartbeat table's memory, and which reports are news."""

from dataclasses import replace
from typing import Any

import pytest

from controller_core.decision import SeatsLost
from controller_core.holdings import News, demand_of, report_is_news
from controller_core.liveness import HeartbeatTable
from controller_core.model import MAX_EPOCH, BrokerGroupRecord, LiveReplica, Mark
from controller_core.requests import Holding, ReportHoldings
from controller_core.settings import ControllerSettings
from controller_core.step import step
from tests.core.small_world import record_of_three

SETTINGS = ControllerSettings(held_bucket_bytes=1000)
ONE, TWO, THREE = 1, 2, 3


def _marked(record: BrokerGroupRecord, broker_id: int, epoch: int, offset: int) -> BrokerGroupRecord:
    replicas = dict(record.replicas)
    replicas[broker_id] = replace(replicas[broker_id], held_epoch=epoch, held_offset=offset)
    return replace(record, replicas=replicas)


def _table(record: BrokerGroupRecord) -> HeartbeatTable:
    table = HeartbeatTable()
    table.note_seats(record)
    return table


def known() -> tuple[BrokerGroupRecord, HeartbeatTable]:
    """Return the record of three, and a table that knows who has a seat in it."""
    record = record_of_three()
    return record, _table(record)


def _beat(
    table: HeartbeatTable, epoch: int, offset: int, *, broker_id: int = TWO, confirm: int = -1, now_seconds: float = 1.0
) -> None:
    beat = LiveReplica(broker_id=broker_id, epoch=epoch, max_offset=offset, confirm_offset=confirm)
    table.heartbeat(now_seconds, beat, connection_id=broker_id)


def _news(table: HeartbeatTable, record: BrokerGroupRecord, broker_id: int = TWO) -> News:
    holding = table.holding(broker_id)
    assert holding is not None
    return report_is_news(record, holding, SETTINGS)


@pytest.mark.parametrize(("confirmed", "must_have"), [(-1, 800), (760, 760)], ids=["unknown", "confirmed"])
def test_a_new_process_must_have_what_the_old_one_told(confirmed: int, must_have: int) -> None:
    """The torn end of a log is no loss: unconfirmed data may be gone after a kill; confirmed data must remain."""
    record, table = known()
    _beat(table, 5, 500)
    _beat(table, 5, 800, confirm=confirmed)
    table.registered(2.0, TWO, 7)
    assert table.holding(TWO) is None, "it has reported no data yet"
    _beat(table, 5, must_have)
    assert _news(table, record) is not News.LOSS
    table.registered(3.0, TWO, 8)
    _beat(table, 5, must_have - 1)
    assert _news(table, record) is News.LOSS


def test_what_was_told_before_another_controller_raised_the_mark_is_no_loss() -> None:
    """Two tables hear one replica; this one knows the other's mark before the heartbeat behind that mark arrives."""
    table = _table(record_of_three())
    _beat(table, 5, 0)
    marked = _marked(record_of_three(), 2, 5, 5344)
    assert _news(table, marked) is not News.LOSS, "the record was read for this very decision"
    table.note_seats(marked)
    for number in range(4):
        _beat(table, 5, 0, now_seconds=2.0 + number / 100)
        assert _news(table, marked) is not News.LOSS, "these lay in a socket when the mark was raised"
    _beat(table, 5, 5344, now_seconds=2.5)
    assert _news(table, marked) is News.NOTHING


@pytest.mark.parametrize("how", ["beats on", "beats fast", "registers", "after a pause of ours"])
def test_what_is_told_after_the_mark_was_known_is_a_loss(how: str) -> None:
    marked = _marked(record_of_three(), 2, 5, 5344)
    table = _table(marked)
    now_seconds = 2.0
    if how == "registers":
        table.registered(now_seconds, TWO, 2)
    else:
        _beat(table, 5, 0)
    if how == "after a pause of ours":
        table.restart_deadlines(1.0)
        _beat(table, 5, 0, now_seconds=now_seconds)
        assert _news(table, marked) is not News.LOSS, "it may have waited in a socket since before the mark was raised"
        now_seconds = 3.0
    for number in range(8 if how == "beats fast" else 1):
        _beat(table, 5, 0, now_seconds=(1.05 if how == "beats fast" else now_seconds) + number * 0.05)
    assert _news(table, marked) is News.LOSS
    events = step(marked, _report(table), {}, SETTINGS).events
    assert [event.broker_ids for event in events if isinstance(event, SeatsLost)] == [{2}]


def test_what_was_told_before_another_controller_saw_the_loss_gives_no_seat_back() -> None:
    """The disk had data at this table's last heartbeat, and has been empty since."""
    before = _marked(record_of_three(), 2, 5, 5344)
    table = _table(before)
    _beat(table, 5, 5344)
    lost = replace(before, master_broker_id=None, sync_state_set=frozenset(), lost_seats=frozenset({2}))
    table.note_seats(lost)
    assert _news(table, lost) is News.NOTHING
    _beat(table, 5, 5344, now_seconds=2.0)
    assert _news(table, lost) is News.NOTHING, "it may have been under way when the loss was seen"
    _beat(table, 5, 5344, now_seconds=3.0)
    assert _news(table, lost) is News.REGAINED


def _told(record: BrokerGroupRecord | None, broker_id: int, epoch: int, offset: int) -> Holding:
    """Return a first report, with the record as it is known since before."""
    return Holding(
        broker_id, epoch, offset, known=Mark(broker_id), sure=Mark(broker_id), seen=demand_of(record, broker_id)
    )


def _report(table: HeartbeatTable) -> ReportHoldings:
    holding = table.holding(TWO)
    assert holding is not None
    return ReportHoldings(holdings=(holding,))


def test_two_heartbeats_that_overtake_each_other_cost_no_seat() -> None:
    record, table = known()
    _beat(table, 5, 800)
    _beat(table, 5, 700)
    assert table.holding(TWO) is None, "which of the two is true is not known yet"
    assert not table.live(1.0)[2].has_reported, "and it is not elected meanwhile"
    _beat(table, 5, 900)
    assert _news(table, record) is not News.LOSS


def test_less_that_is_said_twice_is_a_loss() -> None:
    """A disk is lost, and the new process registered at another controller."""
    record, table = known()
    _beat(table, 5, 800)
    _beat(table, 0, 0)
    assert table.live(1.0)[2].epoch == 5, "an epoch that was reported still shows that the record is older"
    _beat(table, 0, 0)
    assert _news(table, record) is News.LOSS


ORDERS = [[*range(swapped), swapped + 1, swapped, *range(swapped + 2, 6)] for swapped in range(5)]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("epochs", [(4, 5, 5, 5, 5, 5), (5, 5, 5, 5, 5, 5), (4, 4, 4, 5, 5, 5)])
@pytest.mark.parametrize("moved", [None, 0, 1, 2, 3])
def test_in_whatever_place_they_overtake_each_other(
    order: list[int], epochs: tuple[int, ...], moved: int | None
) -> None:
    """For every position of the swap and of the epoch, and for a new connection from any heartbeat on."""
    record, table = known()
    _beat(table, epochs[0], 10)
    for one in order:
        connection = 2 if moved is None or one < moved else 3
        table.heartbeat(
            1.0, LiveReplica(broker_id=TWO, epoch=epochs[one], max_offset=10 + one), connection_id=connection
        )
        holding = table.holding(TWO)
        assert holding is None or report_is_news(record, holding, SETTINGS) is not News.LOSS


@pytest.mark.parametrize("at", range(1, 6))
@pytest.mark.parametrize("left", [0, 5, 9])
def test_a_real_loss_is_found_by_the_second_report_wherever_it_comes(at: int, left: int) -> None:
    record, table = known()
    for one in range(at):
        _beat(table, 5, 10 + one)
    _beat(table, 5, left)
    assert 2 not in {key for key, one in table.live(1.0).items() if one.has_reported}
    _beat(table, 5, left)
    assert _news(table, record) is News.LOSS


def test_what_was_told_as_a_member_survives_a_silence_and_a_second_restart() -> None:
    record, table = known()
    _beat(table, 5, 800)
    table.forget(TWO)
    table.registered(3.0, TWO, 8)
    table.registered(4.0, TWO, 9)
    _beat(table, -1, 0)
    assert _news(table, record) is News.LOSS


def test_what_was_told_before_it_joined_or_before_an_election_is_forgotten() -> None:
    """A slave that follows a new master truncates unacknowledged messages: that is no loss."""
    record, table = known()
    _beat(table, 5, 900)
    elected = replace(record, master_epoch=6, sync_state_set=frozenset({1}))
    table.note_seats(elected)
    _beat(table, 4, 700)
    table.note_seats(replace(elected, sync_state_set=frozenset({1, 2})))
    assert table.holding(TWO) is None, "its last report may be older than its membership"
    _beat(table, 6, 650)
    assert _news(table, replace(elected, sync_state_set=frozenset({1, 2}))) is not News.LOSS


def test_losing_the_master_makes_nobody_truncate() -> None:
    record, table = known()
    _beat(table, 5, 900)
    masterless = replace(record, master_broker_id=None, master_epoch=6)
    table.note_seats(masterless)
    table.registered(2.0, TWO, 7)
    _beat(table, 5, 100)
    assert _news(table, masterless) is News.LOSS


def test_an_epoch_counts_only_with_bytes_in_it() -> None:
    """A slave that truncates to the beginning of an epoch drops that epoch until the next frame."""
    record, table = known()
    _beat(table, 5, 900)
    holding = table.holding(TWO)
    assert holding is not None
    assert (holding.sure.epoch, holding.sure.offset) == (-1, 900)
    _beat(table, 4, 900)
    assert _news(table, record) is not News.LOSS
    _beat(table, 5, 900)
    _beat(table, 5, 950)
    _beat(table, 4, 950)
    _beat(table, 4, 950)  # reported twice
    assert _news(table, record) is News.LOSS


def test_a_heartbeat_that_lay_in_the_socket_at_a_loss_is_no_newer_than_the_loss() -> None:
    """It was sent before the loss, and may lack the lost master's last messages; a heartbeat one interval later was sent after."""
    table = _table(record_of_three())
    _beat(table, 5, 900, broker_id=ONE)
    _beat(table, 5, 900)
    assert all(one.fresh for one in table.live(1.0).values())
    table.connection_closed(2.0, 1)
    assert not table.live(2.0)[2].fresh
    _beat(table, 5, 900, now_seconds=2.001)
    _beat(table, 5, 900, now_seconds=2.002)
    assert not table.live(2.1)[2].fresh, "both lay in the socket"
    _beat(table, 5, 900, now_seconds=3.0)
    assert table.live(3.0)[2].fresh
    table.ask_anew(1.0)
    assert not table.live(3.0)[2].fresh


@pytest.mark.parametrize(
    "after",
    [
        {"master_broker_id": None, "master_epoch": 6},
        {"master_broker_id": 2, "master_epoch": 6},
        {"master_process_lost": True},
    ],
    ids=["no master", "another master", "its process is lost"],
)
def test_a_loss_that_only_the_record_tells_of_makes_reports_old(after: dict[str, Any]) -> None:
    """A plane that is cut off from the brokers notices no loss: its earlier reports may lack messages acknowledged since."""
    record, table = known()
    _beat(table, 5, 900, broker_id=ONE)
    _beat(table, 5, 900)
    table.note_seats(replace(record, sync_state_set_epoch=record.sync_state_set_epoch + 1))
    assert all(one.fresh for one in table.live(1.0).values()), "the same master"
    table.note_seats(replace(record, **after))
    assert not any(one.fresh for one in table.live(1.0).values())


def test_reports_from_before_the_first_look_at_a_record_without_master_are_old() -> None:
    table = HeartbeatTable()
    _beat(table, 5, 900)
    table.note_seats(replace(record_of_three(), master_broker_id=None))
    assert not table.live(1.0)[2].fresh


@pytest.mark.parametrize(
    ("registers", "next_seconds"), [(False, 3.0), (True, 2.3)], ids=["not heard before", "a new process"]
)
def test_a_first_heartbeat_after_a_loss_is_no_newer_than_the_loss_either(registers: bool, next_seconds: float) -> None:
    """It, or the registration before it, may have waited in the socket since before the loss; one an interval later has not."""
    table = _table(record_of_three())
    _beat(table, 5, 900, broker_id=ONE)
    table.connection_closed(2.0, 1)
    if registers:
        table.registered(2.001, TWO, 2)
    _beat(table, 5, 900, now_seconds=2.002)
    assert not table.live(2.1)[2].fresh
    _beat(table, 5, 900, now_seconds=next_seconds)
    assert table.live(next_seconds)[2].fresh


def test_an_answer_to_a_question_asked_after_the_loss_is_fresh() -> None:
    table = _table(record_of_three())
    _beat(table, 5, 900)
    table.ask_anew(1.0)
    table.reported(TWO, epoch=5, max_offset=950)
    assert (table.live(1.1)[2].max_offset, table.live(1.1)[2].fresh) == (950, True)
    table.ask_anew(1.0)
    assert not table.live(1.1)[2].fresh


@pytest.mark.parametrize(
    ("registers_seconds", "connection_id", "fresh"),
    [(2.5, 2, True), (2.1, 2, False), (2.5, 9, False)],
    ids=["after the loss", "perhaps before the loss", "a heartbeat of the process before it"],
)
def test_what_a_process_tells_on_the_connection_of_its_registration_is_as_young_as_that(
    registers_seconds: float, connection_id: int, *, fresh: bool
) -> None:
    """A starting Java broker heartbeats once, and then every 5 s: its first heartbeat must count."""
    table = _table(record_of_three())
    _beat(table, 5, 900, broker_id=ONE)
    table.connection_closed(2.0, ONE)
    table.registered(registers_seconds, TWO, 2)
    beat = LiveReplica(TWO, 5, 900)
    table.heartbeat(registers_seconds + 0.001, beat, connection_id)
    assert table.live(registers_seconds + 0.1)[TWO].fresh is fresh


def test_an_answer_with_less_than_was_told_is_doubted_like_a_heartbeat() -> None:
    table = _table(record_of_three())
    _beat(table, 5, 900)
    _beat(table, 5, 900, now_seconds=1.5)
    table.ask_anew(1.0)
    table.reported(TWO, epoch=5, max_offset=10)
    assert not table.live(1.6)[2].has_reported
    assert not table.live(1.6)[2].fresh
    _beat(table, 5, 10, now_seconds=2.0)
    assert table.live(2.1)[2].max_offset == 10


def test_an_answer_of_a_replica_that_was_never_heard_is_dropped() -> None:
    table = _table(record_of_three())
    table.reported(TWO, epoch=5, max_offset=950)
    assert table.entry(TWO) is None


@pytest.mark.parametrize(
    ("registered_id", "connection_id", "fresh"),
    [(TWO, 2, True), (TWO, 7, True), (ONE, 1, False), (THREE, 3, False)],
    ids=["the same process", "another process", "the record's master", "a master that may still run"],
)
def test_only_a_master_that_registers_makes_what_the_others_told_older(
    registered_id: int, connection_id: int, *, fresh: bool
) -> None:
    """Two wiped replicas that registered every half second blocked the election of the third, which had all data (e2e).

    The others' logs grow only by a master.
    """
    table = _table(record_of_three(unfenced=frozenset({THREE})))
    for broker_id in (ONE, TWO, THREE):
        _beat(table, 5, 900, broker_id=broker_id)
    table.registered(2.0, registered_id, connection_id)
    other = THREE if registered_id != THREE else TWO
    assert table.live(2.0)[other].fresh is fresh


@pytest.mark.parametrize(
    ("held", "told", "expected"),
    [
        ((-1, -1), (0, 0), News.NOTHING),
        ((-1, -1), (-1, 1), News.MARK),
        ((5, 10), (5, 19), News.NOTHING),
        ((5, 10), (5, 20), News.MARK),
        ((5, 5000), (5, 5999), News.NOTHING),
        ((5, 5000), (5, 6000), News.MARK),
        ((4, 5000), (5, 5001), News.MARK),
        ((5, 5000), (5, 4999), News.LOSS),
        ((5, 5000), (4, 9000), News.LOSS),
    ],
)
def test_when_a_mark_moves(held: tuple[int, int], told: tuple[int, int], expected: News) -> None:
    record = _marked(record_of_three(), 2, *held)
    holding = _told(record, 2, *told)._replace(sure=Mark(2, *told))
    assert report_is_news(record, holding, SETTINGS) is expected


def test_only_holders_of_seats_have_news_of_their_disks() -> None:
    record = record_of_three()
    for broker_id in (3, 9):
        holding = _told(record, broker_id, 5, 9999)._replace(known=Mark(broker_id, -1, 10**6))
        assert report_is_news(record, holding, SETTINGS) is News.NOTHING
    assert report_is_news(None, _told(None, 1, 5, 1), SETTINGS) is News.NOTHING
    assert report_is_news(record, _told(record, 1, -1, -1), SETTINGS) is News.NOTHING


@pytest.mark.parametrize(
    ("epoch", "accepted", "expected"),
    [
        (6, 0, News.FLOOR),
        (5 + 10_000, 0, News.FLOOR),
        (5 + 10_001, 0, News.JUMP),
        (5 + 10_001, 5 + 10_001, News.FLOOR),
        (MAX_EPOCH - 2, MAX_EPOCH, News.FLOOR),
        (MAX_EPOCH - 1, MAX_EPOCH, News.JUMP),
    ],
)
def test_how_far_an_epoch_may_jump(epoch: int, accepted: int, expected: News) -> None:
    settings = ControllerSettings(accepted_epoch=accepted)
    record = record_of_three()
    holding = _told(record, 3, epoch, 1)
    assert report_is_news(record, holding, settings) is expected
    decision = step(record, ReportHoldings(holdings=(holding,)), {}, settings)
    assert decision.changed == (expected is News.FLOOR)
    if decision.record is not None and decision.changed:
        assert epoch < decision.record.master_epoch < MAX_EPOCH
        assert decision.record.is_first_election


def test_an_empty_disk_regains_no_seat() -> None:
    record = _marked(record_of_three(), 2, -1, -1)
    lost = replace(record, master_broker_id=None, sync_state_set=frozenset(), lost_seats=frozenset({2}))
    assert report_is_news(lost, _told(lost, 2, -1, 0), SETTINGS) is News.NOTHING
    assert report_is_news(lost, _told(lost, 2, 1, 9), SETTINGS) is News.REGAINED

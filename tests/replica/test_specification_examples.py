"""Worked examples of the specification (seeds 000 and 004); where a log is cut: `test_ha_protocol.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rocketmq_remoting.codes import ResponseCode
from rocketmq_replica.ha.links import FlowMeter
from rocketmq_replica.sync_state import Proposal, SlaveProgress, SyncState
from tests.replica.support import Client, FakeController, change_master, eventually, start_pair

if TYPE_CHECKING:
    from tests.replica.support import Starter


async def test_a_promoted_slave_confirms_all_it_holds(
    start: Starter, controller: FakeController, client: Client
) -> None:
    """004: the master sent [40-100] and died before the slave heard that 100 was confirmed; the senders were answered."""
    one, two = await start_pair(start, controller)
    for number in range(10):
        assert (await client.send(one.address, b"message %d" % number)).code == ResponseCode.SUCCESS
    store = two.process.store
    await eventually(lambda: store.max_offset == one.process.store.max_offset)
    await one.stop()
    store.confirm_offset = store.max_offset * 4 // 10
    assert store.confirm_offset < store.max_offset
    await change_master(controller, two)
    assert store.confirm_offset == store.max_offset
    assert [message.body for message in await client.pull_all(two.address)] == [b"message %d" % n for n in range(10)]


def test_a_link_tells_the_bytes_of_its_last_whole_second() -> None:
    flow = FlowMeter(10.0)
    flow.add(300, 10.2)
    flow.add(200, 10.9)
    assert flow.bytes_in_last_second(10.95) == 0, "no second has ended"
    assert flow.bytes_in_last_second(11.0) == 500
    flow.add(70, 11.5)
    assert flow.bytes_in_last_second(11.9) == 500
    assert flow.bytes_in_last_second(12.1) == 70
    assert flow.bytes_in_last_second(14.0) == 0, "it has been idle since"


async def test_both_ends_of_a_link_tell_how_fast_it_is(
    start: Starter, controller: FakeController, client: Client
) -> None:
    """004: replication speed; it was always 0."""
    one, two = await start_pair(start, controller)
    seen: list[tuple[int, int]] = []

    async def ask() -> bool:
        await client.send(one.address, b"x" * 4000)
        master = await client.status(one.address)
        slave = await client.status(two.address)
        (link,) = master.ha_connection_info
        seen.append((link.transferred_byte_in_second, slave.ha_client_runtime_info.transferred_byte_in_second))
        return min(seen[-1]) >= 4000

    while not await ask():
        assert len(seen) < 100_000, seen[-3:]


JAVAS_GAP_BYTES = 256 << 20


@pytest.mark.parametrize("behind_bytes", [1, JAVAS_GAP_BYTES, 4 * JAVAS_GAP_BYTES])
def test_in_sync_is_judged_by_time_and_not_by_bytes(behind_bytes: int) -> None:
    """004 allows either. Java's `haMaxGapNotInSync` is read by DefaultHAService alone; with a controller, time decides (000)."""
    state = SyncState(own_id=1, members=frozenset({1, 2}), set_epoch=5, epoch_start_offset=0, replicated_offset=0)
    slave = SlaveProgress(2, linked_at_seconds=0.0)
    state.link_opened(slave)
    state.acknowledged(slave, 100, max_offset=100, now_seconds=10.0)
    end = 100 + behind_bytes
    state.tick(max_offset=end, now_seconds=20.0)
    assert state.advance(max_offset=end, now_seconds=20.0) == 100
    assert state.propose(now_seconds=25.0, allowed_lag_seconds=15.0) is None, "in time, however many bytes it lacks"
    assert state.propose(now_seconds=25.1, allowed_lag_seconds=15.0) == Proposal(frozenset({1}), 5)


async def test_a_slave_behind_javas_gap_is_in_sync_and_its_lag_in_bytes_is_told(
    start: Starter, controller: FakeController, client: Client
) -> None:
    keys = {"haMaxGapNotInSync": 1, "allAckInSyncStateSet": "false", "haMaxTimeSlaveNotCatchup": 600_000}
    one, two = await start_pair(start, controller, **keys)
    connection = two.process.ha_client.connection
    assert connection is not None
    held: list[bytes] = []

    def hold(data: bytes, *, now_seconds: float) -> bytes:
        held.append(data)
        return b""

    connection.link.receive = hold  # type: ignore[method-assign] # a slave whose disk takes nothing for a while
    before = one.process.store.max_offset
    assert (await client.send(one.address, b"x" * 5000)).code == ResponseCode.SUCCESS
    lacks = one.process.store.max_offset - before
    assert lacks > 5000
    status = await client.status(one.address)
    (link,) = status.ha_connection_info
    assert (link.in_sync, link.diff, status.in_sync_slave_nums) == (True, lacks, 1)
    assert controller.members == {1, 2}
    await eventually(lambda: b"x" * 5000 in b"".join(held))

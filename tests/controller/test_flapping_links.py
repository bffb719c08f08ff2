"""A slave that the operator can't reach, and whose link comes and ends: what it costs, and that it never holds a send up for long.

Why there is no backoff: docs/adr/0008-in-pod-fence.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketmq_remoting.codes import RequestCode
from tests.controller.conftest import record_of
from tests.controller.test_links import looked_at
from tests.support.fake_broker import FakeBroker, eventually

if TYPE_CHECKING:
    from tests.controller.world import World


async def looks_at(master: FakeBroker) -> None:
    """Return after the plane has asked this master for its links many times."""
    before = master.asked.count(RequestCode.GET_BROKER_HA_STATUS)
    await eventually(lambda: master.asked.count(RequestCode.GET_BROKER_HA_STATUS) > before + 8, what="many looks")


async def test_a_link_that_flaps_costs_one_epoch_for_each_time_that_its_master_took_it_in(group: World) -> None:
    plane, (first, second, _) = await looked_at(group)
    await second.close_port()
    for times in (1, 2, 3):
        first.linked.discard(2)
        await eventually(lambda: first.sync_state_set == {1, 3}, what="the master to go on without it, however often")
        await looks_at(first)
        assert record_of(plane).sync_state_set == {1, 3}
        assert record_of(plane).master_epoch == 1 + times, "outside the set its missing link costs nothing"
        first.linked.add(2)
        await first.propose_set()
        assert record_of(plane).sync_state_set == {1, 2, 3}


async def test_a_link_that_flaps_costs_no_epoch_where_its_master_drops_it(group: World) -> None:
    """As Java does unless an acknowledgement was read after the link had ended."""
    plane, (first, second, _) = await looked_at(group)
    await second.close_port()
    for _ in range(3):
        first.linked.discard(2)
        await first.propose_set()
        assert record_of(plane).sync_state_set == {1, 3}
        await looks_at(first)
        first.linked.add(2)
        await first.propose_set()
        assert record_of(plane).sync_state_set == {1, 2, 3}
    assert record_of(plane).master_epoch == 1

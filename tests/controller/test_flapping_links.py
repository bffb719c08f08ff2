"""A slave that the operator can't reach, and whose link comes and ends: what it costs, and that it never holds a send up for long.

Why there is no backoff: docs/adr/0008-in-pod-fence.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from brokergroup_operator.controller.peers.ha_links import surely_unlinked
from rocketmq_remoting.broker_protocol import HAConnectionRuntimeInfo, HARuntimeInfoBody
from rocketmq_remoting.codes import RequestCode
from tests.controller.conftest import record_of, snapshot_of
from tests.controller.world import STRICT, looked_at
from tests.support.fake_broker import FakeBroker, eventually

if TYPE_CHECKING:
    from brokergroup_operator.controller.plane import ControllerPlane
    from rocketmq_remoting.command import RemotingCommand
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


@pytest.mark.parametrize("shrinks_first", [True, False], ids=["Java 5.5.0", "a master that forgets a refused set"])
async def test_a_master_that_was_refused_a_member_is_told_the_set_once_that_members_link_ends(
    group: World, *, shrinks_first: bool
) -> None:
    """A Java master waits for the member that it proposed, and each send fails (tests/real/test_java_refused_set.py)."""
    rules = replace(STRICT, masters_shrink_first=shrinks_first)
    plane, (first, second, _) = await looked_at(
        group, settings=rules, keeper_slow_poll_seconds=0.05, link_refused_seconds=0.0
    )
    second.silent = True
    await eventually(lambda: 2 not in snapshot_of(plane).live, what="the member to be unheard")
    first.linked.discard(2)
    await first.propose_set()
    assert record_of(plane).sync_state_set == {1, 3}
    first.linked.add(2)
    await first.propose_set()
    assert record_of(plane).sync_state_set == {1, 3}, "a member that is not heard is refused"
    await looks_at(first)
    assert record_of(plane).master_epoch == 1, "while it is linked its acknowledgements come"
    first.linked.discard(2)
    if shrinks_first:
        await eventually(lambda: first.epoch == 2, what="the master to be told")
    await looks_at(first)
    assert record_of(plane).master_epoch == (2 if shrinks_first else 1)
    assert record_of(plane).sync_state_set == first.sync_state_set == {1, 3}


async def refused(group: World, *, link_refused_seconds: float = 0.0) -> tuple[ControllerPlane, FakeBroker, FakeBroker]:
    """Return plane, master and a slave that the master was refused as a member, and whose link stands."""
    rules = replace(STRICT, masters_shrink_first=True)
    plane, (first, second, _) = await looked_at(
        group, settings=rules, keeper_slow_poll_seconds=0.05, link_refused_seconds=link_refused_seconds
    )
    second.silent = True
    await eventually(lambda: 2 not in snapshot_of(plane).live, what="the member to be unheard")
    first.linked.discard(2)
    await first.propose_set()
    first.linked.add(2)
    await first.propose_set()
    assert record_of(plane).sync_state_set == {1, 3}
    await looks_at(first)
    return plane, first, second


@pytest.mark.parametrize("during", [1, 2, 3, 4])
async def test_a_member_that_is_taken_in_while_its_master_is_asked_costs_no_epoch(
    group: World, monkeypatch: pytest.MonkeyPatch, during: int
) -> None:
    """Seen with 5.5.0 on nodes: in each restart of a slave, the answer to 907 was of before the 1001 that took it in."""
    plane, first, second = await refused(group)
    answer, answered = first._answer, 0

    async def taken_in_meanwhile(command: RemotingCommand) -> RemotingCommand:
        nonlocal answered
        old_word = await answer(command)
        if command.code == RequestCode.GET_BROKER_HA_STATUS:
            answered += 1
            if answered == during:
                second.silent = False
                await second.heartbeat()
                first.linked.add(2)
                await first.propose_set()
        return old_word

    monkeypatch.setattr(first, "_answer", taken_in_meanwhile)
    first.linked.discard(2)
    await eventually(lambda: record_of(plane).sync_state_set == {1, 2, 3}, what="the member to be taken in")
    await looks_at(first)
    assert record_of(plane).master_epoch == 1


async def test_a_master_is_not_told_while_a_refused_member_restarts(group: World) -> None:
    """Seen with 5.5.0 on nodes: the master proposes it again at once, so each second had an epoch until the slave was back."""
    plane, first, _ = await refused(group, link_refused_seconds=5.0)
    first.linked.discard(2)
    await looks_at(first)
    assert record_of(plane).master_epoch == 1


async def test_a_master_is_told_only_once_two_looks_have_shown_no_link(group: World) -> None:
    """Between two links of one slave there is a moment without any."""
    plane, first, _ = await refused(group)
    first.linked.discard(2)
    before = first.asked.count(RequestCode.GET_BROKER_HA_STATUS)
    await eventually(lambda: first.epoch == 2, what="the master to be told")
    # Each look asks once for all links, and once more for this one.
    assert first.asked.count(RequestCode.GET_BROKER_HA_STATUS) - before >= 4
    assert record_of(plane).sync_state_set == {1, 3}


async def test_a_link_of_a_member_that_is_not_heard_holds_up_no_end_of_a_wait(group: World) -> None:
    """An operator that is cut off from both knows whose link it is by the record."""
    plane, first, _ = await refused(group)
    group.brokers[3].silent = True
    await eventually(lambda: 3 not in snapshot_of(plane).live, what="the other slave to be unheard")
    first.linked.discard(2)
    await eventually(lambda: first.epoch == 2, what="the master to be told")
    assert record_of(plane).sync_state_set == first.sync_state_set == {1, 3}


async def test_a_master_that_counts_fewer_than_the_record_is_told_no_set(
    group: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has dropped a slave by itself, and acknowledges without it: under another epoch its 1001 for that would be refused."""
    plane, first, _ = await refused(group)
    status = first._ha_status
    monkeypatch.setattr(first, "_ha_status", lambda: structs.replace(status(), in_sync_slave_nums=0))
    first.linked.discard(2)
    await looks_at(first)
    assert (record_of(plane).master_epoch, record_of(plane).sync_state_set) == (1, frozenset({1, 3}))
    monkeypatch.undo()
    await eventually(lambda: first.epoch == 2, what="it to be told once it counts as the record does")


@pytest.mark.parametrize(
    ("hosts", "links", "in_sync", "gone"),
    [
        ({2: "b", 3: "c"}, ["/c:50000"], 1, {2}),
        ({2: "b", 3: "c"}, [], 0, {2}),
        ({2: "b", 3: "c"}, ["/b:50000"], 0, set()),
        ({2: "b", 3: "c"}, ["/b:50000"], 1, set()),
        ({2: "b", 3: "c"}, ["/c:50000", "/nat:50000"], 1, set()),
        ({2: "b", 3: "b"}, ["/b:50000"], 0, set()),
        ({2: "b", 3: "b"}, ["/b:50000"], 1, {2}),
        ({2: "b", 3: "b"}, ["/b:50000", "/b:50001"], 1, set()),
        ({2: "b", 3: "b", 4: "d"}, ["/d:50000"], 1, {2}),
    ],
    ids=[
        "it is gone",
        "all are",
        "another one is",
        "a host of its own is enough",
        "a link may be its",
        "the only link of a host may be its",
        "the only link of a host is of the set",
        "one of a host is of the set",
        "none of a host",
    ],
)
def test_when_a_refused_member_has_no_link(
    hosts: dict[int, str], links: list[str], in_sync: int, gone: set[int]
) -> None:
    """The first links are of members of the master's own set, in which it is not."""
    shown = tuple(HAConnectionRuntimeInfo(addr=addr, in_sync=at < in_sync) for at, addr in enumerate(links))
    status = HARuntimeInfoBody(master=True, ha_connection_info=shown)
    assert surely_unlinked(hosts, status, frozenset({2})) == gone

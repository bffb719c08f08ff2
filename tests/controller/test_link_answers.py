"""What a master's answer (907) shows: which members are linked or have caught up, how fast links are, and the master's role."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.api.brokergroup import BrokerGroupSpec
from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.controller.peers.ha_links import level_members, links_by_host, speeds_of_links, unlinked
from brokergroup_operator.reconcile.decide.failover_safe import why_not_writable
from rocketmq_remoting.broker_protocol import HAConnectionRuntimeInfo, HARuntimeInfoBody
from tests.controller.conftest import record_of, snapshot_of
from tests.support.fake_broker import eventually

if TYPE_CHECKING:
    from tests.controller.world import World


async def test_the_masters_answer_has_the_speed_of_each_link(group: World) -> None:
    """The 907 answer that lists the links has the speeds too. If the master dies or omits them, old speeds are dropped."""
    plane, (first, *others) = await group.three_under(link_check_seconds=0.05)
    first.link_speeds = {2: 1000, 3: 7}
    await eventually(lambda: snapshot_of(plane).replication_speeds == {2: 1000, 3: 7}, what="both speeds")
    first.link_speeds = {2: 1000}
    await eventually(lambda: snapshot_of(plane).replication_speeds == {2: 1000, 3: 0}, what="an idle link")
    first.answers_ha_status = False
    await eventually(lambda: snapshot_of(plane).replication_speeds == {}, what="speeds without a report to be dropped")
    first.answers_ha_status = True
    await eventually(lambda: snapshot_of(plane).replication_speeds == {2: 1000, 3: 0}, what="the speeds again")
    await first.kill()
    await eventually(lambda: record_of(plane).sync_state_set == {2, 3}, what="another master and its slave")
    slave = next(one.broker_id for one in others if not one.is_master)
    await eventually(lambda: snapshot_of(plane).replication_speeds == {slave: 0}, what="the one link there is")


def test_a_speed_is_a_members_only_where_its_host_is() -> None:
    links = (
        HAConnectionRuntimeInfo(addr="/10.0.0.2:50001", transferred_byte_in_second=5),
        HAConnectionRuntimeInfo(addr="10.0.0.2:50002", transferred_byte_in_second=6),
        HAConnectionRuntimeInfo(addr="[fd00::3]:50003", transferred_byte_in_second=7),
    )
    status = HARuntimeInfoBody(master=True, ha_connection_info=links)
    assert speeds_of_links({2: "10.0.0.2", 3: "fd00::3", 4: "10.0.0.4"}, status) == {2: 11, 3: 7}
    assert speeds_of_links({2: "10.0.0.2", 4: "10.0.0.2", 3: "fd00::3"}, status) == {3: 7}, (
        "the answer does not identify the link's member"
    )


FIVE = {2: "fd00::5"}


@pytest.mark.parametrize(
    ("hosts", "links", "linked", "missing"),
    [
        ({2: "b", 3: "c"}, ["/b:50000", "/c:50001"], {2: True, 3: True}, []),
        ({2: "b", 3: "c"}, ["/c:50000"], {2: False, 3: True}, [2]),
        ({2: "b", 3: "c"}, [], {2: False, 3: False}, [2, 3]),
        ({2: "b", 3: "b"}, ["/b:50000", "/b:50001"], {2: None, 3: None}, []),
        ({2: "b", 3: "b"}, ["/b:50000"], {2: None, 3: None}, [2, 3]),
        (FIVE, ["/[fd00:0:0:0:0:0:0:5]:40001"], {2: True}, []),
        (FIVE, ["/fd00:0:0:0:0:0:0:5:40001"], {2: True}, []),
        (FIVE, ["[fd00::5]:40001"], {2: True}, []),
        (FIVE, ["/fd00::5:40001"], {2: True}, []),
        ({2: "fd00::6"}, ["/[fd00::5]:40001"], {2: False}, [2]),
        ({2: "10.0.0.1"}, ["/[::ffff:10.0.0.1]:40001"], {2: True}, []),
    ],
    ids=str,
)
def test_a_link_is_known_by_its_host_however_its_master_prints_the_address(
    hosts: dict[int, str], links: list[str], linked: dict[int, bool | None], missing: list[int]
) -> None:
    connections = tuple(HAConnectionRuntimeInfo(addr=one, diff=0) for one in links)
    status = HARuntimeInfoBody(master=True, ha_connection_info=connections)
    assert links_by_host(hosts, status) == linked
    assert unlinked(hosts, status) == missing
    if hosts == FIVE:
        assert level_members(hosts, [2], status) == frozenset({2})


@pytest.mark.parametrize(
    ("hosts", "alive", "linked", "behind", "level"),
    [
        ("abc", [1, 2, 3], ("b", "c"), "", {2, 3}),
        ("abc", [1, 2, 3], ("b", "c"), "c", {2}),
        ("abc", [1, 2, 3], ("b",), "", {2}),
        ("abc", [1, 2, 3], (), "", set()),
        # One of the two links remains from before; either slave may have it.
        ("abc", [1, 2, 3], ("b", "b"), "", {2}),
        ("abb", [1, 2, 3], ("b", "b"), "", None),
        ("abc", [1, 2, 3], ("b", "elsewhere"), "", None),
        # A living member counts before a dead one that had its address.
        ("abb", [1, 2], ("b",), "", {2}),
    ],
)
def test_members_that_caught_up_are_known_by_hosts_or_not_at_all(
    hosts: str, alive: list[int], linked: tuple[str, ...], behind: str, level: set[int] | None
) -> None:
    links = tuple(HAConnectionRuntimeInfo(addr=f"/{host}:50000", diff=int(host in behind)) for host in linked)
    status = HARuntimeInfoBody(master=True, ha_connection_info=links)
    assert level_members(dict(enumerate(hosts, start=1)), alive, status) == level


# ---- A snapshot that is not writable shows what is missing.


async def test_a_master_whose_slaves_died_lacks_members_in_sync(group: World) -> None:
    """The set stays at its floor of two, so the record does not show it; the status said that the master had not confirmed."""
    plane, (_, *slaves) = await group.serving()
    for slave in slaves:
        await slave.kill()
    await eventually(lambda: not snapshot_of(plane).writable, what="the plane to miss both slaves")
    verdict = why_not_writable(BrokerGroupSpec(), record_of(plane), snapshot_of(plane))
    assert verdict.reason is Reason.NOT_ENOUGH_IN_SYNC_REPLICAS


async def test_a_master_that_denies_its_role_has_not_confirmed_it(group: World) -> None:
    plane, (first, *_) = await group.serving(link_check_seconds=0.05)
    first.is_master = False
    await eventually(lambda: not snapshot_of(plane).writable, what="the plane to believe the master's own word")
    verdict = why_not_writable(BrokerGroupSpec(), record_of(plane), snapshot_of(plane))
    assert verdict.reason is Reason.MASTER_NOT_READY

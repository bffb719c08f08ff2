"""A stopping slave that its master counts without a link: when it leaves the SyncStateSet, and when it stays."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from brokergroup_operator.controller.peers.ha_links import counted_without_link
from brokergroup_operator.controller.upkeep.links import _Care
from brokergroup_operator.observe.timeline import Outcome, Step
from rocketmq_remoting.broker_protocol import HAConnectionRuntimeInfo, HARuntimeInfoBody
from rocketmq_remoting.codes import RequestCode
from tests.controller.conftest import group_of, record_of, snapshot_of
from tests.controller.world import ALL_THREE, LOOSE, STRICT, World, looked_at
from tests.support.fake_broker import eventually

if TYPE_CHECKING:
    from controller_core.settings import ControllerSettings


async def test_a_stopping_slave_that_its_master_counts_without_a_link_leaves_the_set(
    group: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Java master took it into the set after its link had ended; each send waited for it for 3.9 s (measured). The plane
    notifies the master at once; it does not wait for the keeper.
    """
    plane, (first, second, _) = await looked_at(group)
    await eventually(lambda: group_of(plane).changes.told == {1: 1, 2: 1, 3: 1}, what="all to be told")

    async def agree(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(plane._executor, "agree", agree)
    await second.close_port()
    first.linked.discard(2)
    await eventually(lambda: first.sync_state_set == {1, 3}, what="the master to go on without it")
    assert record_of(plane).sync_state_set == {1, 3}
    assert (first.is_master, record_of(plane).master_epoch) == (True, 2)


async def test_a_stopping_slave_that_leaves_the_set_ends_no_incident(group: World) -> None:
    """As in a drain: the role is moved, the former master stops and is taken out, and the index of the next one is not built."""
    plane, (first, *others) = await looked_at(group, settings=LOOSE)
    for broker in others:
        broker.behind_dispatch = 1
    await first.kill()
    await eventually(lambda: record_of(plane).sync_state_set == {2, 3}, what="another master and its slave")
    slave, master = sorted(others, key=lambda one: one.is_master)
    await slave.close_port()
    master.linked.discard(slave.broker_id)
    await eventually(
        lambda: record_of(plane).sync_state_set == {master.broker_id}, what="the master to go on without it"
    )
    assert record_of(plane).master_epoch == 3
    assert group.notes.closed == []
    master.behind_dispatch = 0
    incident = await group.incident()
    assert (incident.outcome, incident.epoch_after) == (Outcome.COMPLETED, 2)
    assert Step.INDEX_CAUGHT_UP in incident.steps


@pytest.mark.parametrize(
    ("settings", "counted"),
    [(ALL_THREE, {1, 2, 3}), (STRICT, {1, 2})],
    ids=["the minimum needs the slave", "the master has dropped another slave, and the record has not"],
)
async def test_a_slave_without_a_link_stays_in_the_set(
    group: World, settings: ControllerSettings, counted: set[int]
) -> None:
    plane, (first, second, _) = await looked_at(group, settings=settings)
    first.sync_state_set = set(counted)
    await second.close_port()
    first.linked.discard(2)
    await eventually(lambda: snapshot_of(plane).unlinked == {2}, what="the missing link to be noticed")
    await first.asked_again(RequestCode.GET_BROKER_HA_STATUS, times=9, what="it to be looked for many times")
    assert record_of(plane).sync_state_set == {1, 2, 3}
    assert record_of(plane).master_epoch == 1


@pytest.mark.parametrize("meanwhile", ["it is linked", "a change of master begins"])
async def test_a_slave_stays_in_the_set_if_while_its_role_is_sent(group: World, meanwhile: str) -> None:
    """A linked one may have acknowledged what another member of the set lacks: the plane asks the master again afterwards."""
    plane, (first, second, _) = await looked_at(group, role_change_deadline_seconds=0.3)
    await eventually(lambda: record_of(plane).change is None, what="the end of the first election")
    second.role_change_waits, second.ignores_ha_pushes_for_ever = asyncio.Event(), True
    tellings = group.journal.count("1008 to 2")
    first.linked.discard(2)
    await eventually(lambda: group.journal.count("1008 to 2") > tellings, what="it to be told again")
    look = group_of(plane).care(_Care).task
    assert look is not None
    change = asyncio.create_task(asyncio.Event().wait())
    if meanwhile == "it is linked":
        first.linked.add(2)
    else:
        group_of(plane).changes.task = cast("asyncio.Task[None]", change)
    await look
    assert record_of(plane).sync_state_set == {1, 2, 3}
    assert record_of(plane).master_epoch == 1
    second.role_change_waits.set()
    change.cancel()


@pytest.mark.parametrize(
    ("hosts", "links", "slaves", "counted"),
    [
        ({2: "b", 3: "c"}, {"/c:50000": True}, 2, {2}),
        ({2: "fd00::5", 3: "c"}, {"/[fd00::5]:50000": True}, 2, {3}),
        ({2: "b", 3: "c"}, {"/c:50000": True, "/c:50001": True}, 2, {2}),
        ({2: "b", 3: "c"}, {}, 2, {2, 3}),
        ({2: "b", 3: "c"}, {"/c:50000": True, "/b:50000": True}, 2, set()),
        ({2: "b", 3: "c"}, {"/c:50000": True}, 1, set()),
        ({2: "b", 3: "c"}, {"/c:50000": False}, 2, set()),
        ({2: "b", 3: "c"}, {"/c:50000": False, "/nat:50000": True}, 2, set()),
        ({2: "b", 3: "c"}, {"/c:50000": True, "/nat:50000": True}, 2, set()),
        ({2: "b", 3: "b", 4: "d"}, {"/b:50000": True, "/b:50001": True}, 3, set()),
        ({}, {"/c:50000": False}, 0, set()),
    ],
    ids=[
        "one is lost",
        "one with another kind of address",
        "an old link of the other one has not ended yet",
        "all are lost",
        "none",
        "the master has dropped it, or answers as a Python broker: only those with a link are counted",
        "the other one is linked, and the master counts another than it",
        "a link from an unknown host is counted instead of the other one's",
        "a link from an unknown host may be the slave's",
        "two slaves share the host of the links",
        "the set is the master alone",
    ],
)
def test_which_slaves_a_master_counts_without_a_link(
    hosts: dict[int, str], links: dict[str, bool], slaves: int, counted: set[int]
) -> None:
    shown = tuple(HAConnectionRuntimeInfo(addr=addr, in_sync=in_sync) for addr, in_sync in links.items())
    status = HARuntimeInfoBody(master=True, in_sync_slave_nums=slaves, ha_connection_info=shown)
    assert counted_without_link(hosts, status) == counted

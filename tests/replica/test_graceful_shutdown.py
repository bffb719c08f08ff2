"""A replica that is asked to stop: a master serves until another replica is master, a slave until it has left the SyncStateSet."""

from __future__ import annotations

import asyncio

import pytest

from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_replica.controller import roles
from tests.replica.support import Client, FakeController, Lab, RunningReplica, numbered
from tests.support.waiting import eventually

SUCCESS = ResponseCode.SUCCESS


async def test_a_master_that_is_stopped_serves_until_another_replica_is_master(lab: Lab) -> None:
    one, two = await lab.pair(stopHandOverTimeout=60_000)
    one.stop_event.set()
    await lab.client.store(one, *numbered(3))
    assert not one.task.done()
    await lab.controller.elect(2, 1)
    # Routes still name it: a new client is refused at once, and does not wait for an address that is gone.
    assert (await Client().send(one.address, b"late")).code == ResponseCode.SYSTEM_BUSY
    await asyncio.wait_for(one.task, 15)
    await lab.controller.notify(2)
    assert two.role == "MASTER"
    assert await lab.client.bodies(two) == [b"0", b"1", b"2"]


async def test_a_master_whose_slaves_leave_a_moment_before_its_notification_hands_over(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our operator's order: commit, slaves sent to nowhere, then 1008 for the old master."""
    monkeypatch.setattr(roles, "_UNLINKED_SECONDS", 60.0)
    one, two = await lab.pair(stopHandOverTimeout=60_000)
    await lab.client.store(one, b"kept")
    lab.controller.silent.add(RequestCode.CONTROLLER_GET_REPLICA_INFO)  # 1004 goes on telling the old state meanwhile
    lab.controller.decide(2)
    two.process.ha_client.retire()
    await eventually(lambda: not one.process.broker.has_successors)
    one.stop_event.set()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(one.task), 0.2)
    assert (await lab.controller.notify(1)).code == SUCCESS
    assert (await Client().send(one.address, b"late")).code == ResponseCode.SYSTEM_BUSY
    await asyncio.wait_for(one.task, 15)
    await lab.controller.notify(2)
    assert await lab.client.bodies(two) == [b"kept"]


def refuse_another_set(controller: FakeController) -> None:
    """The SyncStateSet stays as it is."""
    failed = ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    controller.refused[RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET] = failed


async def test_a_master_whose_members_do_not_come_back_is_not_kept(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "_UNLINKED_SECONDS", 0.1)
    one, two = await lab.pair(stopHandOverTimeout=60_000)
    refuse_another_set(lab.controller)
    await asyncio.wait_for(two.stop(), 15)
    await asyncio.wait_for(one.stop(), 15)
    assert lab.controller.members == {1, 2}


async def test_a_master_that_is_elected_again_while_it_leaves_hands_over_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second in which it sent clients away it linked again, joined the set, and was elected: then it left as master."""
    monkeypatch.setattr(roles, "_SEND_AWAY_SECONDS", 60.0)
    one, two = await lab.pair(stopHandOverTimeout=60_000)
    one.stop_event.set()
    await lab.controller.elect(2, 1, 2)
    await eventually(lambda: two.role == "MASTER")
    assert not one.process.ha_client.linked
    await lab.controller.elect(1, 1)
    await eventually(lambda: one.role == "MASTER")
    await lab.controller.notify(2)
    await eventually(lambda: one.process.broker.has_successors)
    await lab.client.store(one, b"kept")
    assert not one.task.done()
    monkeypatch.setattr(roles, "_SEND_AWAY_SECONDS", 0.0)
    await lab.controller.elect(2, 1, 2)
    await asyncio.wait_for(one.task, 15)
    assert not one.process.ha_client.linked
    assert await lab.client.bodies(two) == [b"kept"]


async def test_a_slave_that_is_stopped_acknowledges_until_it_is_left_out_of_the_set(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roles, "_LEAVE_SET_SECONDS", 60.0)
    one, two = await lab.pair(stopHandOverTimeout=60_000)
    refuse_another_set(lab.controller)
    asked = lab.controller.requests.count(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET)
    two.stop_event.set()
    await eventually(lambda: lab.controller.requests.count(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET) > asked)
    await lab.client.store(one, b"while the controller refuses")
    assert lab.controller.members == {1, 2}
    assert two.log == one.log
    lab.controller.refused.clear()
    await asyncio.wait_for(two.task, 10)
    assert lab.controller.members == {1}
    await lab.client.store(one, b"alone")


@pytest.mark.parametrize("why", ["the master keeps it", "no controller knows the group", "no controller comes back"])
async def test_a_slave_that_is_not_left_out_of_the_set_ends_nevertheless(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "the master keeps it":
        monkeypatch.setattr(roles, "_LEAVE_SET_SECONDS", 0.1)
    _one, two = await lab.pair(stopHandOverTimeout=200 if why == "no controller comes back" else 60_000)
    if why == "no controller comes back":
        await lab.controller.go_away()
    else:
        refuse_another_set(lab.controller)
    if why == "no controller knows the group":
        unknown = ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
        lab.controller.refused[RequestCode.CONTROLLER_GET_REPLICA_INFO] = unknown
    await asyncio.wait_for(two.stop(), 15)
    assert lab.controller.members == {1, 2}


async def test_a_learner_is_in_no_set_and_waits_for_no_controller(lab: Lab) -> None:
    await lab.master()
    learner = await lab.start("r2", asyncLearner="true", stopHandOverTimeout=60_000)
    await eventually(lambda: learner.process.ha_client.linked)
    await lab.controller.go_away()
    await asyncio.wait_for(learner.stop(), 15)
    assert lab.controller.members == {1}


async def relinked(replica: RunningReplica, before: object) -> None:
    """Wait until the slave has a new link."""
    client = replica.process.ha_client
    await eventually(lambda: client.linked and client.connection is not before)


@pytest.mark.parametrize("answered_first", [False, True], ids=["away before", "away after an answer"])
async def test_a_slave_acknowledges_until_a_controller_is_back_and_leaves_it_out(
    lab: Lab, *, answered_first: bool
) -> None:
    """The only operator was killed while a rolling update ended this pod: nothing was acknowledged until the operator was back."""
    one, two = await lab.pair(stopHandOverTimeout=60_000)
    before = two.process.ha_client.connection
    if answered_first:
        refuse_another_set(lab.controller)
        asked = lab.controller.requests.count(RequestCode.CONTROLLER_GET_REPLICA_INFO)
        two.stop_event.set()
        await eventually(lambda: lab.controller.requests.count(RequestCode.CONTROLLER_GET_REPLICA_INFO) > asked)
    await lab.controller.go_away()
    two.stop_event.set()
    await relinked(two, before)
    await lab.client.store(one, *numbered(3))
    with pytest.raises(TimeoutError):  # longer than it waits for a controller that answers
        await asyncio.wait_for(asyncio.shield(two.task), 1.5 * roles._LEAVE_SET_SECONDS)
    await lab.client.store(one, b"still")
    assert (two.log, lab.controller.members) == (one.log, frozenset({1, 2}))
    lab.controller.refused.clear()
    await lab.controller.come_back()
    await asyncio.wait_for(two.task, 15)
    assert lab.controller.members == {1}
    await lab.client.store(one, b"alone")


@pytest.mark.parametrize("first", ["master", "slave"])
async def test_a_slave_whose_master_is_gone_too_waits_for_no_controller(lab: Lab, first: str) -> None:
    one, two = await lab.pair(stopHandOverTimeout=60_000)
    before = two.process.ha_client.connection
    await lab.controller.go_away()
    if first == "slave":
        two.stop_event.set()
        await relinked(two, before)
    one.task.cancel()
    await asyncio.wait([one.task])
    await asyncio.wait_for(two.stop(), 15)
    assert lab.controller.members == {1, 2}


async def test_a_master_without_a_successor_is_not_kept(lab: Lab) -> None:
    one, two = await lab.pair(stopHandOverTimeout=60_000)
    one.stop_event.set()
    await asyncio.wait_for(two.stop(), 15)
    await asyncio.wait_for(one.task, 15)


async def test_a_hand_over_without_an_election_ends(lab: Lab) -> None:
    one, _two = await lab.pair(stopHandOverTimeout=100)
    await asyncio.wait_for(one.stop(), 15)

"""Elections and the notification of brokers, also by a restarted controller: upstream issues and source."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from controller_core.settings import ControllerSettings
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.controller_protocol import ElectMasterResponseHeader
from rocketmq_remoting.signature import Credentials, SignatureState, verify
from tests.support.fake_broker import FakeGroup
from tests.support.fake_name_server import FakeNameServer
from tests.support.waiting import eventually
from tests.upstream.lab import Controller, WireGroup

if TYPE_CHECKING:
    from tests.upstream.lab import StartOurs, State, WireBroker


GIBIBYTE = 2**30
ELECTED = 0
ELECT_MASTER_FAILED = ResponseCode.CONTROLLER_ELECT_MASTER_FAILED


async def is_elected(broker: WireBroker) -> bool:
    """Send 1002, as a broker without a master does."""
    return (await broker.elect()).code in (ELECTED, ResponseCode.CONTROLLER_MASTER_STILL_EXIST)


async def test_issue_10578_the_longer_log_wins_beyond_two_gibibytes(group: WireGroup) -> None:
    """#10578 (fixed in 5.5.1): the difference of two offsets was cast to int, so 3 GiB more counted as less."""
    one, two, three = await group.in_sync(3)
    for broker, max_offset in ((one, 4 * GIBIBYTE), (two, 100), (three, 100 + 3 * GIBIBYTE)):
        broker.max_offset = max_offset
        await broker.heartbeat()
    await one.die()
    after = await group.until(lambda state: state.master_epoch > 1, "another master")
    assert after.master == (two.broker_id if group.controller.is_java else three.broker_id)


async def test_issue_10013_an_async_learner_is_not_elected_first(controller: Controller, start_ours: StartOurs) -> None:
    """#10013 (open): a learner requests the first election like any broker, and the request does not show that it is one.

    Ours knows learners from the group's spec (settings `never_elect`); it refuses the learner, and elects the next caller.
    """
    if not controller.is_java:
        controller = await start_ours(directory=FixedDirectory(settings=ControllerSettings(never_elect=frozenset({1}))))
    async with WireGroup(controller) as group:
        learner, other = await group.broker(), await group.broker()
        answer = await learner.elect()
        if controller.is_java:
            assert answer.code == ELECTED
            assert (await group.state()).master == learner.broker_id
            return
        assert answer.code == ELECT_MASTER_FAILED
        assert (await group.state()).master_epoch == 0
        assert (await other.elect()).code == ELECTED
        assert (await group.state()).master == other.broker_id


async def test_source_first_election_takes_nobody_who_is_not_registered(group: WireGroup) -> None:
    """Source (docs/reference/controller.md): the first election trusts the caller, so an id without a broker becomes master."""
    await group.broker()
    answer = await group.ask(RequestCode.CONTROLLER_ELECT_MASTER, brokerId=44, designateElect="false")
    if group.controller.is_java:
        # By its answer: its scan for inactive masters, every 5 s, may depose 44 before the next request.
        granted = ElectMasterResponseHeader.decode(answer.ext_fields)
        assert (answer.code, granted.master_broker_id, granted.master_epoch) == (ELECTED, 44, 1)
        assert granted.master_address is None
        return
    state = await group.state()
    assert answer.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    assert (state.master, state.master_epoch) == (None, 0)


async def test_source_a_lost_master_costs_one_epoch_and_not_three(group: WireGroup) -> None:
    """Source: every failed attempt of a trigger is a separate event, so a group without a candidate gets three epochs.

    Ours keeps the epoch while no member is electable, and grants the next one to the elected member.
    """
    one, two = await group.in_sync(2)
    for broker in (one, two):
        broker.max_offset = 1000
        await broker.heartbeat()
    await two.die()
    await group.until(lambda state: two.broker_id not in state.alive, "the slave is gone")
    await one.die()
    if group.controller.is_java:
        after = await group.until(lambda state: state.master_epoch >= 4, "three epochs")
        assert (after.master, after.master_epoch, after.members) == (None, 4, {1, 2})
        return
    await group.until(lambda state: one.broker_id not in state.alive, "the master is gone")
    lost = await group.stays(lambda state: state.master_epoch <= 2, for_seconds=1.0)
    assert lost.members == {1, 2}
    await two.come_back()
    await two.register()
    await two.heartbeat()
    after = await group.until(lambda state: state.master == two.broker_id, "the member that came back is master")
    assert after.master_epoch <= lost.master_epoch + 1


async def test_source_an_epoch_is_granted_once(group: WireGroup) -> None:
    """Source: a master whose process died and restarted unseen gets the same epoch again.

    The dead process's last writes of that epoch are indistinguishable from the new one's (safety rule 6).
    """
    [one] = await group.in_sync(1)
    await one.register()  # the next process, before a heartbeat was missed
    await one.heartbeat()
    answer = await one.elect()
    epoch = int((answer.ext_fields or {})["masterEpoch"])
    if group.controller.is_java:
        assert (answer.code, epoch) == (ResponseCode.CONTROLLER_MASTER_STILL_EXIST, 1)
        return
    # Elected by its own request, or just before by its heartbeat.
    assert answer.code in (ELECTED, ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
    assert epoch == 2


async def test_issue_9689_a_master_that_reconnects_keeps_its_epoch(group: WireGroup) -> None:
    """#9689: a new epoch without a change of master, which the master's HA service could not find.

    The broker was fixed. A controller can avoid such epochs: Java grants four of them when the only
    member's connection closes briefly; ours gives the master time to return.
    """
    [one] = await group.in_sync(1)
    await one.disconnect()
    if group.controller.is_java:
        lost = await group.until(lambda state: state.master is None, "the master is lost")
        await one.heartbeat()
        await eventually(
            lambda: is_elected(one), "as a Java broker without a master it repeats 1002 until one is elected"
        )
        after = await group.state()
        assert after.master == one.broker_id
        assert after.master_epoch > lost.master_epoch >= 2
        return
    one.keep_beating()
    await group.stays(lambda state: (state.master, state.master_epoch) == (1, 1))


async def test_source_a_member_that_lost_its_log_is_not_elected(group: WireGroup) -> None:
    """Source: a member of the SyncStateSet may lead with any data: one with an empty disk wins if it is alone.

    Ours records the data that a member must have, and removes the seat of one that returns with less (safety rule 2).
    """
    one, two = await group.in_sync(2)
    for broker in (one, two):
        broker.max_offset = 200 * 2**20
        await broker.heartbeat()
    await two.come_back()
    await group.until(lambda state: two.broker_id not in state.alive, "the slave is gone")
    two.epoch, two.max_offset = 0, 0
    await two.register()
    two.keep_beating()
    await one.die()
    if group.controller.is_java:
        await group.until(lambda state: state.master == two.broker_id, "the empty one is master")
        return
    lost = await group.stays(lambda state: state.master in (None, one.broker_id))
    assert two.broker_id not in lost.members
    await one.come_back()
    await one.register()
    one.keep_beating()
    await group.until(lambda state: state.master == one.broker_id, "the one with the data is master again")


async def test_source_a_role_change_is_asked_and_not_just_said(group: WireGroup) -> None:
    """Source: Java sends 1008 one-way, and does not learn whether the broker received it. Ours waits for an answer."""
    one, two = await group.in_sync(2)
    await one.die()
    await eventually(lambda: two.notifications(2), "the new master is told")
    told = two.notifications(2)[0]
    assert told.fields["masterBrokerId"] == "2"
    assert told.oneway == group.controller.is_java


JAVA_ATTEMPT_SECONDS = 3.0


async def test_source_a_role_change_that_was_not_heard_is_told_again(group: WireGroup) -> None:
    """Source: 1008 is sent once. A broker that did not listen at that moment learns its role only by its 5 s poll."""
    one, two, three = await group.in_sync(3)
    for broker in (two, three):
        broker.keep_beating()
    await three.stop_listening()
    await one.die()
    await group.until(lambda state: state.master == two.broker_id, "another master")
    await eventually(lambda: two.notifications(2), "the new master is told")
    if group.controller.is_java:
        # Its only attempt at the third broker runs in parallel to the one just seen, on another thread, and leaves no trace.
        await asyncio.sleep(JAVA_ATTEMPT_SECONDS)
    await three.listen_again()
    if group.controller.is_java:
        await group.stays(lambda state: state.master_epoch == 2)
        assert three.notifications(2) == []
        return
    await eventually(lambda: three.notifications(2), "the slave is told as soon as it listens")


async def test_source_a_role_change_is_signed_with_the_keys_of_the_group(
    controller: Controller, start_ours: StartOurs
) -> None:
    """Source: 1008 is never signed, so a broker with authenticationEnabled refuses it, and learns its role only by polling.

    tests/security has the real brokers' side, with ACL 2.0.
    """
    credentials = Credentials(access_key="group", secret_key="secret-of-the-group")
    if not controller.is_java:
        controller = await start_ours(directory=FixedDirectory(credentials=credentials))
    async with WireGroup(controller) as group:
        one, two = await group.in_sync(2)
        await one.die()
        await eventually(lambda: two.notifications(2), "the new master is told")
        told = two.notifications(2)[0]
        if controller.is_java:
            assert "Signature" not in told.fields
            return
        assert told.fields["AccessKey"] == credentials.access_key
        assert verify(told.fields, told.body, credentials) is SignatureState.VALID


async def test_issue_6316_the_old_master_is_off_the_name_server_before_the_new_one_is_told(
    start_ours: StartOurs,
) -> None:
    """#6316: two masters at the NameServer, of which clients got either. Fixed there: the epoch is the state's version.

    Older NameServers would still mix them up, so ours unregisters the old master (104) before it sends the new
    one its role. The Java controller sends NameServers no requests.
    """
    noted = FakeGroup()
    name_server = FakeNameServer(noted)
    await name_server.start()
    try:
        controller = await start_ours(directory=FixedDirectory(name_servers=(name_server.address,)))
        async with WireGroup(controller) as group:
            one, two = await group.in_sync(2)
            two.on_told = lambda told: noted.journal.append(f"{int(told.code)} {told.fields.get('masterEpoch')}")
            await one.die()
            await eventually(lambda: two.notifications(2), "the new master is told")
            assert noted.journal.index(f"104 {one.address}") < noted.journal.index("1008 2")
    finally:
        await name_server.stop()


async def elected(group: WireGroup, broker: WireBroker, *, instead_of: WireBroker) -> State:
    """Return the state once this broker is master. If Java's scan ran before its first heartbeat, the broker sends 1002 itself."""
    state = await group.until(
        lambda state: state.master != instead_of.broker_id, "the master that is not heard is given up"
    )
    if state.master is None:
        await broker.elect()
    return await group.until(lambda state: state.master == broker.broker_id, "the living one is master")


@pytest.mark.real_time
async def test_issue_5712_a_master_that_died_while_the_controller_was_away_is_replaced(group: WireGroup) -> None:
    """#5712: only one controller knows heartbeats, so a master that died around a change of leader was never missed.

    Fixed by the scan for inactive masters, which reads records and not only heartbeats; fixed in this version.
    """
    one, two = await group.in_sync(2)
    await one.die()
    await two.disconnect()
    await group.controller.restart()
    two.keep_beating()
    after = await elected(group, two, instead_of=one)
    assert after.members == {2}


@pytest.mark.real_time
async def test_issue_5712_but_a_master_that_is_only_heard_late_is_not(group: WireGroup) -> None:
    """The fix's cost in Java (#5712): a slave that a new leader hears first replaces a living master."""
    one, two = await group.in_sync(2)
    await one.disconnect()
    await two.disconnect()
    await group.controller.restart()
    two.keep_beating()
    if group.controller.is_java:
        await elected(group, two, instead_of=one)
        return
    await group.stays(lambda state: (state.master, state.master_epoch) == (1, 1), for_seconds=3.0)
    one.keep_beating()
    await group.until(lambda state: state.alive == {1, 2}, "the master is heard")
    assert (await group.state()).master_epoch == 1


@pytest.mark.real_time
async def test_source_a_cleaned_master_is_master_no_more(group: WireGroup) -> None:
    """Source: a silent master that is cleaned by its id stays master in the record, under an id without a broker."""
    one, two = await group.in_sync(2)
    await two.disconnect()
    await one.die()
    await group.controller.restart()
    answer = await group.ask(RequestCode.CLEAN_BROKER_DATA, brokerControllerIdsToClean="1", isCleanLivingBroker="false")
    assert answer.code == 0
    after = await group.state()
    assert (after.members, after.others) == ({2}, set())
    # Java's scan for inactive masters, which starts with the restart, may come first: it elects none, in epoch 2.
    stays_master = group.controller.is_java and after.master_epoch == 1
    assert after.master == (1 if stays_master else None)

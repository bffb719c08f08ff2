"""Liveness: upstream issues about heartbeats, channels and scans."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from brokergroup_operator.controller.change.fencing import FenceOutcome
from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.records.memory import MemoryRecordStore
from controller_core.settings import ControllerSettings
from tests.support.places import free_port
from tests.support.waiting import eventually
from tests.upstream.lab import StartOurs, WireGroup

if TYPE_CHECKING:
    import pytest

    from brokergroup_operator.controller.directory.group_directory import GroupBinding
    from tests.upstream.lab import Controller


async def test_issue_11045_late_close_does_not_evict_a_healthy_master(group: WireGroup) -> None:
    """#11045 (open): a broker's entry stays bound to its first channel, whose late close evicts a healthy master."""
    one, two = await group.in_sync(2)
    two.keep_beating()
    await one.heartbeat(via="second")
    await one.disconnect("main")
    if group.controller.is_java:
        after = await group.until(lambda state: state.master_epoch > 1, "a needless election")
        assert (after.master, after.members) == (2, {2})
        return
    one.keep_beating(via="second")
    after = await group.stays(lambda state: (state.master, state.master_epoch) == (1, 1))
    assert after.members == {1, 2}
    # The close of the connection that now carries its heartbeats does count.
    await one.die()
    after = await group.until(lambda state: state.master == 2, "the slave is master")
    assert after.master_epoch == 2


async def test_issue_10875_a_master_that_was_never_heard_is_replaced(
    all_controllers: Controller, start_ours: StartOurs
) -> None:
    """#10875, #8380 (fixed in 5.5.1): jRaft's scan for inactive masters took the dead for alive, and the living for dead.

    Here the master dies before its first heartbeat, so that only the scan can find it, and another may be elected.
    """
    controller = all_controllers
    if not controller.is_java:
        controller = await start_ours(
            directory=FixedDirectory(settings=ControllerSettings(unclean_election_allowed=True))
        )
    async with WireGroup(controller) as group:
        one = await group.unheard_broker()
        assert (await one.elect()).code == 0
        await one.die()
        if not controller.is_java:
            two = await group.broker()
            await group.until(lambda state: state.master == two.broker_id, "the living one is master")
            return
        assert (await group.configure("enableElectUncleanMaster", "true")).code == 0
        try:
            two = await group.broker()
            two.keep_beating()
            if controller.kind == "jraft":
                await group.stays(lambda state: (state.master, state.master_epoch) == (1, 1), for_seconds=3.0)
                assert (await two.elect()).code == 0  # it was electable all the time
            await group.until(lambda state: state.master == two.broker_id, "the living one is master")
        finally:
            await group.configure("enableElectUncleanMaster", "false")


async def test_issue_8380_a_silent_slave_changes_nothing(all_controllers: Controller) -> None:
    """#8380: the same inversion started elections for groups with a live master and a dead slave.

    The election then keeps the live master, in Java 5.5.0 too: its only effect is log lines.
    """
    async with WireGroup(all_controllers) as group:
        one, two = await group.in_sync(2)
        one.keep_beating()
        two.timeout_ms = 300
        await two.heartbeat()
        await two.heartbeat()
        await group.until(lambda state: two.broker_id not in state.alive, "the slave is silent")
        await group.stays(lambda state: (state.master, state.master_epoch, state.members) == (1, 1, {1, 2}))


async def test_issue_9717_a_silent_broker_is_found(all_controllers_and_an_older: Controller) -> None:
    """#9717 (fixed in 5.3.4), #10416 (reports it for 5.5.0 again): jRaft's scan for silent brokers never ran.

    That is so on 5.3.3. On 5.5.0 it does run: a master that hangs with its connection open is replaced, as here.
    """
    async with WireGroup(all_controllers_and_an_older) as group:
        one, two = await group.in_sync(2)
        two.keep_beating()
        one.answers = False
        one.timeout_ms = 300
        await one.heartbeat()
        await one.heartbeat()
        if group.controller.kind == "older_jraft":
            await group.stays(lambda state: (state.master, state.master_epoch) == (1, 1), for_seconds=5.0)
            return
        after = await group.until(lambda state: state.master == two.broker_id, "the slave is master")
        assert (after.master_epoch, after.members) == (2, {2})


async def test_issue_4800_a_master_that_only_the_controller_can_not_hear_is_left_alone(group: WireGroup) -> None:
    """#4800, #4835: a master that is cut off from the leading controller in one direction is replaced despite a healthy data path.

    Java knows only heartbeats. Ours asks the silent master (907), and leaves it alone as long as it answers.
    """
    one, two = await group.in_sync(2)
    two.keep_beating()
    one.timeout_ms = 1500
    await one.heartbeat()
    await one.heartbeat()
    if group.controller.is_java:
        await group.until(lambda state: state.master == two.broker_id, "a needless election")
        return
    await group.stays(lambda state: (state.master, state.master_epoch) == (1, 1), for_seconds=4.0)
    one.answers = False
    await group.until(lambda state: state.master == two.broker_id, "once it does not answer either, it is replaced")


async def test_issue_10812_a_master_that_the_other_controllers_hear_is_left_alone(start_ours: StartOurs) -> None:
    """#10812: a broker's heartbeats reached only the followers, so the leader never counted it as alive.

    Ours have no leader; each gets heartbeats, and one without a master's heartbeats asks the others (1006) before it acts.
    Not shown on Java: that needs three controllers and a network between them.
    """
    addresses = tuple(f"127.0.0.1:{free_port()}" for _ in range(3))
    store = MemoryRecordStore()
    planes = [
        await start_ours(
            store=store,
            listen_port=int(address.rpartition(":")[2]),
            peer_addresses=addresses,
            other_planes_deadline_seconds=2.0,
        )
        for address in addresses
    ]
    async with WireGroup(planes[0]) as group:
        one, two = await group.in_sync(2)
        two.beats_at, one.beats_at = addresses, addresses[1:]
        two.keep_beating()
        one.answers = False
        one.keep_beating()
        for plane in planes[1:]:
            async with WireGroup(plane, name=group.name) as same:
                await same.until(lambda state: state.alive == {1, 2}, "both are heard there")
        one.stop_beating()
        one.timeout_ms = 500
        for _ in range(2):
            await one.heartbeat(at=addresses[:1])
        await group.until(lambda state: state.alive == {2}, "and the master is not heard here")
        await group.stays(lambda state: (state.master, state.master_epoch) == (1, 1), for_seconds=2.0)
        await one.die()
        await group.until(
            lambda state: state.master == two.broker_id, "without heartbeats at any controller it is replaced"
        )


async def test_issue_5009_a_group_without_master_gets_one_when_a_member_is_heard(group: WireGroup) -> None:
    """#5009, #6382: one lost trigger left a group without a master for ever. Fixed by a scan if the record has a master.

    If the master was removed, because no member was electable, Java waits for a broker's request; ours elects a member it hears.
    """
    one, two = await group.in_sync(2)
    await two.disconnect()
    await one.die()
    await group.until(lambda state: (state.master, state.alive) == (None, set()), "no master, and no live member")
    two.keep_beating()
    await group.until(lambda state: state.alive == {two.broker_id}, "a member is alive")
    if group.controller.is_java:
        await group.stays(lambda state: state.master is None)
        return
    await group.until(lambda state: state.master == two.broker_id, "it is master")


async def test_issue_5631_a_dead_master_is_not_named_to_who_registers(group: WireGroup) -> None:
    """#5631: the answer to 1003 named the recorded master without a check that it lives. Fixed."""
    one = await group.unheard_broker()
    assert (await one.elect()).code == 0
    await one.die()
    await group.until(lambda state: one.broker_id not in state.alive, "the master is gone")
    two = await group.starting_broker()
    await two.take_id()
    answer = await two.register()
    assert answer.code == 0
    assert not {"masterBrokerId", "masterAddress"} & set(answer.ext_fields or {})


async def test_issue_7017_a_silent_master_is_fenced_before_another_is_elected(
    controller: Controller, start_ours: StartOurs
) -> None:
    """#7017: an isolated master keeps acknowledging messages that are then lost. There is no lease, and Java has no fence.

    Java elects at once and sends the old master, which still listens, no role. Ours kills its pod first, and the record
    names no other master before that.
    """
    fenced: list[tuple[int, int]] = []

    class NotingFencer:
        async def fence(
            self, binding: GroupBinding, broker_id: int, address: str, *, deadline_seconds: float
        ) -> FenceOutcome:
            state = await group.state()
            fenced.append((broker_id, state.master or 0))
            await one.die()
            return FenceOutcome(confirmed=True, how="killed by the test")

    if not controller.is_java:
        controller = await start_ours(fencer=NotingFencer())
    async with WireGroup(controller) as group:
        one, two = await group.in_sync(2)
        two.keep_beating()
        one.answers = False
        one.timeout_ms = 300
        await one.heartbeat()
        await one.heartbeat()
        await group.until(lambda state: state.master == two.broker_id, "another master")
        if controller.is_java:
            await eventually(lambda: two.notifications(2), "the new master is told")
            assert one.notifications(2) == []
            return
        assert fenced == [(1, 1)]


async def test_source_a_shared_connection_carries_all_its_brokers(controller: Controller) -> None:
    """Source: a container's brokers share a connection, and when it closes, only one of them counts as dead."""
    async with WireGroup(controller) as left, WireGroup(controller) as right:
        first, _ = await left.in_sync(2)
        second, _ = await right.in_sync(2, share_with=first)
        for broker in (first, second):
            await broker.stop_listening()
        await first.disconnect()
        if not controller.is_java:
            await left.until(lambda state: state.master == 2, "the left group's slave is master")
            await right.until(lambda state: state.master == 2, "the right group's slave is master")
            return

        async def replaced() -> list[WireGroup]:
            return [group for group in (left, right) if (await group.state()).master == 2]

        assert len(await eventually(replaced, "one of two dead masters is replaced")) == 1
        [late] = {left, right} - set(await replaced())
        await late.stays(lambda state: state.master == 1)


async def test_source_a_truncated_log_is_not_taken_for_the_longest(group: WireGroup) -> None:
    """Source: the table only raises (epoch, offset), so a broker that returned with less still seems to have the longest log."""
    one, two, three = await group.in_sync(3)
    for broker, max_offset in ((one, 1000), (two, 1000), (three, 900)):
        broker.max_offset = max_offset
        await broker.heartbeat()
    await two.register()  # its next process with a truncated log, before its connection was missed
    two.max_offset = 10
    await two.heartbeat()
    await one.die()
    after = await group.until(lambda state: state.master not in (None, one.broker_id), "another master")
    assert after.master == (two.broker_id if group.controller.is_java else three.broker_id)


async def test_source_a_jump_of_the_clock_kills_nobody(ours: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    """Source: Java's deadlines use the wall clock, so a clock set forward makes every broker silent at once.

    Not shown on Java: it would need a separate clock (libfaketime), which is not among the pinned parts.
    """
    async with WireGroup(ours) as group:
        one, two = await group.in_sync(2, timeout_ms=2000)
        for broker in (one, two):
            broker.keep_beating()
        await group.stays(lambda state: state.alive == {1, 2}, for_seconds=0.3)
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + 3600)
        await group.stays(lambda state: (state.master, state.master_epoch, state.alive) == (1, 1, {1, 2}))

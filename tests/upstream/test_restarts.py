"""A controller that was started again knows its records and has heard nobody yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rocketmq_remoting.codes import RequestCode

if TYPE_CHECKING:
    from tests.upstream.lab import State, WireBroker, WireGroup


pytestmark = pytest.mark.real_time


async def elected(group: WireGroup, broker: WireBroker, *, instead_of: WireBroker) -> State:
    """The state once this broker is master. Java's scan may come before its first heartbeat and elect none: then it asks itself."""
    state = await group.until(
        lambda state: state.master != instead_of.broker_id, "the master that is not heard is given up"
    )
    if state.master is None:
        await broker.elect()
    return await group.until(lambda state: state.master == broker.broker_id, "the living one is master")


async def test_issue_5712_a_master_that_died_while_the_controller_was_away_is_replaced(group: WireGroup) -> None:
    """#5712: heartbeats are known to one controller only, so a master that died around a change of leader was never missed.

    Fixed with the scan for inactive masters, which looks at records and not only at who was heard; right here.
    """
    one, two = await group.in_sync(2)
    await one.die()
    await two.disconnect()
    await group.controller.restart()
    two.keep_beating()
    after = await elected(group, two, instead_of=one)
    assert after.members == {2}


async def test_issue_5712_but_a_master_that_is_only_heard_late_is_not(group: WireGroup) -> None:
    """What that repair costs in Java: a slave that is heard first by a new leader takes a living master's place."""
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


async def test_source_a_cleaned_master_is_master_no_more(group: WireGroup) -> None:
    """Source: cleaned by its id, a master that is not heard stays on as master, under an id that nobody holds."""
    one, two = await group.in_sync(2)
    await two.disconnect()
    await one.die()
    await group.controller.restart()
    answer = await group.ask(RequestCode.CLEAN_BROKER_DATA, brokerControllerIdsToClean="1", isCleanLivingBroker="false")
    assert answer.code == 0
    after = await group.state()
    assert (after.members, after.others) == ({2}, set())
    # Java's scan for inactive masters, which begins with the restart, may come first: it elects none, in epoch 2.
    stays_master = group.controller.is_java and after.master_epoch == 1
    assert after.master == (1 if stays_master else None)

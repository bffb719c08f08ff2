"""A member's broker is held stopped under load while its pod stays: no acknowledged message is lost, and it comes back as a slave.

Runs in the sandbox and at a real API server, there with Java brokers if a story is marked so.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from brokergroup_operator.kube.resources import PODS
from tests.e2e.house import NAMESPACE, House, WholeGroup
from tests.e2e.stories import a_slave, change, claims_of, condition, events, holds, pod_uids

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.longer, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

STOPPED = "brokergroup.dev/stopped"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(any_house: House) -> AsyncIterator[House]:
    """Each house in turn."""
    yield any_house


async def order(group: WholeGroup, *broker_ids: int) -> None:
    await change(group, {"spec": {"maintenance": {"stoppedBrokers": list(broker_ids)}}})


def state_of(group: WholeGroup, broker_id: int) -> str:
    return next((member.state for member in group.seen.members() if member.broker_id == broker_id), "")


async def until_stopped(group: WholeGroup, broker_id: int) -> None:
    await group.until(
        lambda: state_of(group, broker_id) == "Stopped" and broker_id not in group.seen.sync_state_set,
        f"the broker of {broker_id} is stopped, and out of the SyncStateSet",
    )
    await group.until(lambda: condition(group, "BrokersStopped") == ("True", "BySpec"), "its condition says so")


def command_of(pid: int | None) -> str:
    """Return the command line of a process; empty for one that has ended."""
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def waits(group: WholeGroup, broker_id: int) -> bool:
    """Whether the container runs, and waits instead of running a broker."""
    pid = group.house.pid_of(group.pod_of(broker_id))
    return pid is not None and command_of(pid).startswith("sh -c while")


async def restarts_of(group: WholeGroup, broker_id: int) -> int:
    pod = await group.house.api.get(PODS, group.pod_of(broker_id), namespace=NAMESPACE)
    [found] = [one for one in pod["status"]["containerStatuses"] if one["name"] == "broker"]
    return int(found["restartCount"])


@pytest.mark.java_brokers(nightly=True)
async def test_a_slave_is_stopped_and_its_pod_stays(group: WholeGroup) -> None:
    slave, before, epoch = a_slave(group), await pod_uids(group), group.seen.master_epoch
    async with group.lossless():
        await order(group, slave)
        await until_stopped(group, slave)
        await group.until(lambda: waits(group, slave), "its container waits")
        await group.until_acknowledged()
        assert condition(group, "Ready") == ("False", "MembersStopped")
        assert condition(group, "FailoverSafe")[0] == "False"
        assert condition(group, "Stalled")[0] == "False"
        acknowledged = {one.key for one in group.ledger.acknowledgements}
        assert acknowledged <= await group.keys_in_log(), "and consumers read on"

        waiting, restarts = group.house.pid_of(group.pod_of(slave)), await restarts_of(group, slave)
        assert waiting is not None
        os.kill(waiting, signal.SIGKILL)

        async def started_again() -> bool:
            return await restarts_of(group, slave) > restarts and waits(group, slave)

        await holds(group, "the container starts again, and waits", started_again)
        await group.until_acknowledged()
        assert state_of(group, slave) == "Stopped"
        assert await pod_uids(group) == before

        waiting = group.house.pid_of(group.pod_of(slave))
        await order(group)
        await group.until(group.is_settled, "it is in sync again")
        assert group.house.pid_of(group.pod_of(slave)) == waiting, "the waiting process became the broker"
    assert await pod_uids(group) == before
    assert group.seen.master_epoch == epoch
    assert {"BrokerStopping", "BrokersStopped", "BrokerStarting", "BrokersStarted"} <= set(await events(group))


async def test_the_order_outlives_the_pod_and_no_second_broker_is_stopped(group: WholeGroup) -> None:
    slave, master = a_slave(group), group.seen.master_id
    other = next(one for one in group.seen.sync_state_set if one not in (slave, master))
    async with group.lossless():
        await order(group, slave)
        await until_stopped(group, slave)

        async def noted() -> bool:
            claim = (await claims_of(group))[group.pod_of(slave)]
            return (claim["metadata"].get("annotations") or {}).get(STOPPED) == "true"

        await holds(group, "its claim says so", noted)
        uid, others = (await pod_uids(group))[group.pod_of(slave)], group.pids()
        await group.house.api.delete(PODS, group.pod_of(slave), namespace=NAMESPACE)

        async def is_new() -> bool:
            return (await pod_uids(group)).get(group.pod_of(slave)) not in {uid, None} and waits(group, slave)

        await holds(group, "its next pod waits from its start", is_new)
        await order(group, slave, other)
        await group.until(lambda: condition(group, "Stalled") == ("True", "StopRefused"), "a second one is refused")
        await group.until_acknowledged()
        assert (group.pids()[other], state_of(group, slave)) == (others[other], "Stopped")
        await order(group, slave, 99)
        await group.until(lambda: condition(group, "Stalled") == ("True", "InvalidSpec"), "99 is no member")
        await order(group)
        await group.until(group.is_settled, "it is in sync again")
    assert all(
        STOPPED not in (claim["metadata"].get("annotations") or {}) for claim in (await claims_of(group)).values()
    )


async def test_a_master_hands_over_before_it_is_stopped(group: WholeGroup) -> None:
    master, before, epoch = group.master, await pod_uids(group), group.seen.master_epoch
    async with group.lossless():
        await order(group, master)
        await until_stopped(group, master)
        assert group.seen.master_id != master
        await group.until_acknowledged()
        await order(group)
        await group.until(group.is_settled, "it is in sync again")
    assert await pod_uids(group) == before
    assert group.seen.master_epoch == epoch + 1, "one switchover, and no failover"
    told = [(one["kind"], one["outcome"]) for one in await group.incidents_since(epoch)]
    assert told == [("switchover", "completed")]

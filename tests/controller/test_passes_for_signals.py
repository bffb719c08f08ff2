"""Passes that brokers' signals cause: a broker in trouble sends many signals, and leaves a pass nothing to do."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.observe.group_view import GroupViewError
from brokergroup_operator.reconcile.run.queue import SIGNALS_AT_ONCE, ReconcileQueue
from brokergroup_operator.reconcile.settings import ReconcileSettings
from brokergroup_operator.records.store import GroupKey, RecordRefusedError
from rocketmq_remoting.codes import RequestCode
from tests.controller.conftest import record_of
from tests.controller.world import KEY, RefusingStore, World

UNSETTLED_SECONDS = 5.0
WATCHED_SECONDS = 20


@asynccontextmanager
async def passes_of(plane: ControllerPlane, work: Callable[[], Awaitable[None]]) -> AsyncIterator[list[float]]:
    """Return the times of the passes that signals start; each pass does `work`, and is repeated as long as it is unsettled."""
    begun: list[float] = []

    async def run(_: GroupKey) -> float:
        begun.append(asyncio.get_running_loop().time())
        await work()
        return UNSETTLED_SECONDS

    settings = ReconcileSettings(controller_addresses=("c:1",))
    queue = ReconcileQueue(run, settings, until_master_is_told=plane.wait_until_master_is_told)
    unsubscribe = plane.subscribe(queue.signal)
    queue.add(KEY)
    yield begun
    unsubscribe()
    await queue.stop()


async def _nothing() -> None:
    """The work of an empty pass."""


async def test_a_broker_that_registers_again_and_again_and_is_refused(group: World) -> None:
    store = RefusingStore(RecordRefusedError, elections_alone=False)
    plane, (_, second, _) = await group.serving(store)
    store.refuses = True
    refused = 0
    async with passes_of(plane, _nothing) as begun:
        for number in range(WATCHED_SECONDS * 20):
            elsewhere = f"{second.host}:{1000 + number}"
            answer = await second.ask(RequestCode.CONTROLLER_REGISTER_BROKER, brokerId=2, brokerAddress=elsewhere)
            refused += answer.code != 0
            await asyncio.sleep(0.05)
    assert refused == WATCHED_SECONDS * 20
    assert record_of(plane).address_of(2) == second.address
    assert len(begun) <= SIGNALS_AT_ONCE + WATCHED_SECONDS + 3


async def test_hot_configuration_that_a_broker_refuses_at_each_pass(group: World) -> None:
    plane, (_, second, _) = await group.serving()
    await asyncio.sleep(10.0)  # the changes at the start have ended
    second.refuses = lambda asked: "not by you" if asked.code == RequestCode.UPDATE_BROKER_CONFIG else ""
    refused = 0

    async def give() -> None:
        nonlocal refused
        try:
            await plane.set_broker_config(KEY, 2, {"fileReservedTime": "24"})
        except GroupViewError:
            refused += 1

    async with passes_of(plane, give) as begun:
        await asyncio.sleep(WATCHED_SECONDS)
    assert refused == len(begun)
    assert len(begun) <= WATCHED_SECONDS / UNSETTLED_SECONDS + 1

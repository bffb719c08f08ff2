"""The queue: one pass at a time per group, nothing lost, failures repeated with growing pauses."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import looptime
import pytest

from brokergroup_operator.reconcile.run.queue import LONGEST_WAIT_SECONDS, ReconcileQueue
from brokergroup_operator.reconcile.settings import ReconcileSettings
from brokergroup_operator.records.store import GroupKey

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

ONE, TWO = GroupKey("shop", "one"), GroupKey("shop", "two")
SETTINGS = ReconcileSettings(
    controller_addresses=("c:1",),
    backoff_initial_seconds=1.0,
    backoff_maximum_seconds=4.0,
    backoff_after_event_seconds=1.0,
    pass_timeout_seconds=10.0,
    concurrent_passes=2,
)


class Passes:
    """Records each pass with the virtual time of its start, in seconds."""

    def __init__(self) -> None:
        self.started: list[tuple[str, float]] = []
        self.running: set[GroupKey] = set()
        self.failures_left = 0
        self.duration_seconds = 0.0
        self.look_again_seconds: float | None = None
        # The groups whose master changes.
        self.changing: dict[GroupKey, asyncio.Event] = {}

    async def until_master_is_told(self, key: GroupKey, timeout_seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                if key in self.changing:
                    await self.changing[key].wait()

    async def run(self, key: GroupKey) -> float | None:
        assert key not in self.running, "two passes of one group at a time"
        self.running.add(key)
        try:
            self.started.append((key.name, asyncio.get_running_loop().time()))
            await asyncio.sleep(self.duration_seconds)
            if self.failures_left:
                self.failures_left -= 1
                raise RuntimeError("the API server is away")
            return self.look_again_seconds
        finally:
            self.running.discard(key)


def in_virtual_time(test: Callable[[ReconcileQueue, Passes], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run the test on a loop of its own whose clock jumps: minutes of pauses take no time."""

    async def run() -> None:
        passes = Passes()
        queue = ReconcileQueue(passes.run, SETTINGS, until_master_is_told=passes.until_master_is_told)
        try:
            await test(queue, passes)
        finally:
            await queue.stop()

    def sync_test() -> None:
        loop = looptime.new_event_loop()
        try:
            loop.run_until_complete(run())
        finally:
            loop.close()

    sync_test.__name__, sync_test.__doc__ = test.__name__, test.__doc__
    return sync_test


@in_virtual_time
async def test_many_events_make_one_pass(queue: ReconcileQueue, passes: Passes) -> None:
    for _ in range(10):
        queue.add(ONE)
    await asyncio.sleep(1)

    assert passes.started == [("one", 0)]
    assert queue.keys() == []


@in_virtual_time
async def test_an_event_during_a_pass_makes_one_more(queue: ReconcileQueue, passes: Passes) -> None:
    passes.duration_seconds = 2
    queue.add(ONE)
    await asyncio.sleep(1)
    queue.add(ONE)
    queue.add(ONE)
    await asyncio.sleep(10)

    assert passes.started == [("one", 0), ("one", 2)]


@in_virtual_time
async def test_failures_are_repeated_with_growing_pauses(queue: ReconcileQueue, passes: Passes) -> None:
    passes.failures_left = 5
    queue.add(ONE)
    await asyncio.sleep(100)

    assert [when for _, when in passes.started] == [0, 1, 3, 7, 11, 15]


@in_virtual_time
async def test_an_event_cuts_a_long_pause_but_not_to_nothing(queue: ReconcileQueue, passes: Passes) -> None:
    passes.failures_left = 10
    queue.add(ONE)
    await asyncio.sleep(7.5)  # passes at 0, 1, 3, 7; the next would be at 11
    queue.add(ONE)
    await asyncio.sleep(2)  # passes at 8; the next would be at 12
    queue.add(ONE)
    await asyncio.sleep(0.1)

    assert [when for _, when in passes.started] == [0, 1, 3, 7, 8, 9.5]


@in_virtual_time
async def test_a_pass_may_ask_to_be_repeated(queue: ReconcileQueue, passes: Passes) -> None:
    passes.look_again_seconds = 5
    queue.add(ONE)
    await asyncio.sleep(11)

    assert [when for _, when in passes.started] == [0, 5, 10]


@in_virtual_time
async def test_an_event_is_sooner_than_the_repetition(queue: ReconcileQueue, passes: Passes) -> None:
    passes.look_again_seconds = 50
    queue.add(ONE)
    await asyncio.sleep(1)
    queue.add(ONE)
    await asyncio.sleep(1)

    assert [when for _, when in passes.started] == [0, 1]


@in_virtual_time
async def test_a_pass_that_hangs_is_cut_and_repeated(queue: ReconcileQueue, passes: Passes) -> None:
    passes.duration_seconds = 1000
    queue.add(ONE)
    await asyncio.sleep(12)

    assert [when for _, when in passes.started] == [0, 11]


@in_virtual_time
async def test_groups_run_side_by_side_up_to_the_limit(queue: ReconcileQueue, passes: Passes) -> None:
    passes.duration_seconds = 3
    for key in (ONE, TWO, GroupKey("shop", "three")):
        queue.add(key)
    await asyncio.sleep(10)

    assert passes.started == [("one", 0), ("two", 0), ("three", 3)]


@in_virtual_time
async def test_nothing_starts_after_the_stop(queue: ReconcileQueue, passes: Passes) -> None:
    passes.duration_seconds = 5
    queue.add(ONE)
    await asyncio.sleep(1)
    queue.add(ONE)
    await queue.stop()
    queue.add(TWO)
    await asyncio.sleep(10)

    assert passes.started == [("one", 0)]


@in_virtual_time
async def test_a_pass_that_ends_in_the_moment_of_the_stop_is_the_last(queue: ReconcileQueue, passes: Passes) -> None:
    """`asyncio.wait_for` (3.11) swallows the cancellation if the pass has just ended: the next pass would begin."""
    passes.look_again_seconds = 1.0
    queue.add(ONE)
    await asyncio.sleep(0)
    worker = queue._workers[ONE]
    while not passes.started or ONE in passes.running:  # noqa: ASYNC110 - turn by turn: the moment is what is looked at
        await asyncio.sleep(0)
    # The pass has ended, and `wait_for` does not know it yet.
    stopping = asyncio.ensure_future(queue.stop())
    await asyncio.wait({stopping}, timeout=60)
    assert worker.done()
    assert len(passes.started) == 1


async def signalled_at_each_hundredth(queue: ReconcileQueue, *, times: int) -> None:
    """Signals of group one, a hundred a second."""
    for _ in range(times):
        queue.signal(ONE)
        await asyncio.sleep(0.01)


@in_virtual_time
async def test_a_signal_begins_a_pass_at_once(queue: ReconcileQueue, passes: Passes) -> None:
    """A failover is some signals within a second: none of them waits."""
    for _ in range(8):
        queue.signal(ONE)
        await asyncio.sleep(0.05)
    await asyncio.sleep(100)
    queue.signal(ONE)
    await asyncio.sleep(1)

    assert [when for _, when in passes.started] == pytest.approx([*(0.05 * number for number in range(8)), 100.4])


@in_virtual_time
async def test_a_change_of_master_goes_first(queue: ReconcileQueue, passes: Passes) -> None:
    passes.changing[ONE] = asyncio.Event()
    for key in (ONE, TWO):
        queue.signal(key)
    await asyncio.sleep(0.1)
    queue.add(ONE)
    await asyncio.sleep(0.1)
    assert passes.started == [("two", 0)]
    passes.changing[ONE].set()
    await asyncio.sleep(0.1)
    assert passes.started == [("two", 0), ("one", pytest.approx(0.2))], "one pass for what happened meanwhile"


@in_virtual_time
async def test_a_change_of_master_that_lasts_holds_up_no_pass_for_long(queue: ReconcileQueue, passes: Passes) -> None:
    passes.changing[ONE] = asyncio.Event()
    queue.add(ONE)
    await asyncio.sleep(5)
    assert passes.started == [("one", LONGEST_WAIT_SECONDS)]


@in_virtual_time
async def test_a_hundred_signals_a_second_are_one_pass_a_second(queue: ReconcileQueue, passes: Passes) -> None:
    await signalled_at_each_hundredth(queue, times=20 * 100)

    assert len(passes.started) <= 20 + 10 + 1


@in_virtual_time
async def test_the_last_of_many_signals_is_not_lost(queue: ReconcileQueue, passes: Passes) -> None:
    await signalled_at_each_hundredth(queue, times=500)
    ended = asyncio.get_running_loop().time()
    await asyncio.sleep(10)

    assert [when for _, when in passes.started if when >= ended] == [pytest.approx(ended, abs=1.0)]


@in_virtual_time
async def test_a_change_of_an_object_waits_for_no_signals(queue: ReconcileQueue, passes: Passes) -> None:
    await signalled_at_each_hundredth(queue, times=1000)
    await asyncio.sleep(0.5)
    queue.add(ONE)
    changed = asyncio.get_running_loop().time()
    await asyncio.sleep(0.1)

    assert passes.started[-1] == ("one", changed)


@in_virtual_time
async def test_signals_of_one_group_cost_no_other_group_anything(queue: ReconcileQueue, passes: Passes) -> None:
    await signalled_at_each_hundredth(queue, times=1000)
    queue.signal(TWO)
    signalled = asyncio.get_running_loop().time()
    await asyncio.sleep(0.1)

    assert ("two", signalled) in passes.started


@in_virtual_time
async def test_no_signal_begins_a_pass_after_the_stop(queue: ReconcileQueue, passes: Passes) -> None:
    await signalled_at_each_hundredth(queue, times=1000)
    await asyncio.sleep(0.5)  # one waits by now
    begun = len(passes.started)
    await queue.stop()
    queue.signal(TWO)
    await asyncio.sleep(10)

    assert len(passes.started) == begun

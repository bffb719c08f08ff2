"""A level-triggered queue: per group at most one pass at a time, and one more if anything happened meanwhile.

What happened is not kept, only that something did. So events may be doubled, reordered or lost: the next pass looks at what
is. A pass that fails is repeated after a pause that doubles. An event cuts a long pause short, since what changed may be
repaired even if another part of the pass goes on failing; but not to nothing, or a failing pass that causes events would spin.

A change of an object is an event (`add`). What the controller plane sees of brokers is a signal (`signal`): a broker that registers
again and again makes many of them and changes nothing, so those in a row are spaced. A change of the record is both.

A change of master goes first: the controller plane shares the event loop, and a pass takes it for milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from brokergroup_operator.reconcile.settings import ReconcileSettings
    from brokergroup_operator.records.store import GroupKey

log = structlog.get_logger(__name__)
# So many signals of a group are let through at once, as many as a failover has; then one in so many seconds.
SIGNALS_AT_ONCE, SIGNAL_PERIOD_SECONDS = 10, 1.0
# A pass waits no longer for the end of a change of master: a silent master's may take minutes.
LONGEST_WAIT_SECONDS = 0.5


class ReconcileQueue:
    """`run_pass` does one pass and returns in how many seconds to look again (None: when something happens).

    `until_master_is_told` waits for the end of a change of the group's master in this process, at most so many seconds; None: a
    pass is over nothing that has a master.
    """

    def __init__(
        self,
        run_pass: Callable[[GroupKey], Awaitable[float | None]],
        settings: ReconcileSettings,
        *,
        until_master_is_told: Callable[[GroupKey, float], Awaitable[None]] | None,
    ) -> None:
        self._run_pass, self._settings, self._until_master_is_told = run_pass, settings, until_master_is_told
        self._wake: dict[GroupKey, asyncio.Event] = {}
        self._workers: dict[GroupKey, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(settings.concurrent_passes)
        # When the next signal of a group is let through; and the signals that wait for that.
        self._next_signal_seconds: dict[GroupKey, float] = {}
        self._waiting_signals: dict[GroupKey, asyncio.TimerHandle] = {}
        self._stopped = False

    def add(self, key: GroupKey) -> None:
        """Something about the group may have changed. Returns at once."""
        if self._stopped:
            return
        self._wake.setdefault(key, asyncio.Event()).set()
        if key not in self._workers:
            self._workers[key] = asyncio.create_task(self._work(key), name=f"reconcile {key}")

    def signal(self, key: GroupKey) -> None:
        """The controller plane may see the group otherwise. The last of many signals begins a pass too, a moment later."""
        if key in self._waiting_signals or self._stopped:
            return
        loop = asyncio.get_running_loop()
        earliest = loop.time() - (SIGNALS_AT_ONCE - 1) * SIGNAL_PERIOD_SECONDS
        at_seconds = max(self._next_signal_seconds.get(key, earliest), earliest)
        self._next_signal_seconds[key] = at_seconds + SIGNAL_PERIOD_SECONDS
        if at_seconds <= loop.time():
            self.add(key)
        else:
            self._waiting_signals[key] = loop.call_at(at_seconds, self._let_through, key)

    def _let_through(self, key: GroupKey) -> None:
        del self._waiting_signals[key]
        self.add(key)

    def keys(self) -> list[GroupKey]:
        return list(self._workers)

    async def stop(self) -> None:
        """Cancel what runs; a pass may be cut anywhere."""
        self._stopped = True
        workers = list(self._workers.values())
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, key: GroupKey) -> None:
        wake, failures = self._wake[key], 0
        try:
            while True:
                look_again_seconds, failed = await self._one_pass(key, wake)
                if self._stopped:
                    return  # a pass that ended in the moment of the stop, and kept its cancellation to itself
                failures = failures + 1 if failed else 0
                if failures:
                    await self._pause(wake, failures)
                elif not await _woken(wake, look_again_seconds):
                    return
        finally:
            # Nothing can have set `wake` since it was last looked at: there is no await in between.
            del self._workers[key]
            del self._wake[key]

    async def _one_pass(self, key: GroupKey, wake: asyncio.Event) -> tuple[float | None, bool]:
        try:
            if self._until_master_is_told is not None:
                await self._until_master_is_told(key, LONGEST_WAIT_SECONDS)
            wake.clear()
            async with self._places, asyncio.timeout(self._settings.pass_timeout_seconds):
                return await self._run_pass(key), False
        except Exception as error:  # noqa: BLE001 - one of the two supervision points: the pass is repeated, whatever it was
            log.warning("reconcile.failed", group=str(key), error=f"{type(error).__name__}: {error}")
            return None, True

    async def _pause(self, wake: asyncio.Event, failures: int) -> None:
        doubled = self._settings.backoff_initial_seconds * 2.0 ** min(failures - 1, 20)
        whole_seconds = min(doubled, self._settings.backoff_maximum_seconds)
        certain_seconds = min(whole_seconds, self._settings.backoff_after_event_seconds)
        await asyncio.sleep(certain_seconds)
        await _woken(wake, whole_seconds - certain_seconds)


async def _woken(wake: asyncio.Event, within_seconds: float | None) -> bool:
    """Whether there is a reason for another pass: an event, or the time to look again. Without either the worker ends."""
    if wake.is_set():
        return True
    if within_seconds is None:
        return False
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_seconds):
            await wake.wait()
    return True

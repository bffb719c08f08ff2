"""Looks at the controller plane for the page: in the plane's loop, and never for longer than ``TURN_SECONDS`` at a time.

Groups that changed come first, then those that a viewer has open or whose master is being replaced, then the others in turn, so
that each is looked at again after a while. Without a viewer only changes are looked at, once a second: they make the
history that the next viewer sees. What was seen is handed to the page's thread as one list.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Final

import structlog

from brokergroup_operator.observe.observer import Observer
from brokergroup_operator.page.sighting import SetChange, Sighting, sighting_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from brokergroup_operator.observe.group_view import ShownGroups
    from brokergroup_operator.records.store import GroupKey
    from controller_core.model import BrokerGroupRecord

# A turn takes at most this much of the loop that answers brokers, and comes this often: one part in twenty-five.
TURN_SECONDS: Final = 0.004
PAUSE_SECONDS: Final = 0.1
UNWATCHED_PAUSE_SECONDS: Final = 1.0
# Between two turns; more changes than that are not remembered one by one.
MOST_CHANGES: Final = 2000

log = structlog.get_logger(__name__)


class SetChanges(Observer):
    """Notes each SyncStateSet and master as this plane commits it: between two looks there may be several."""

    def __init__(self) -> None:
        self._changes: deque[SetChange] = deque(maxlen=MOST_CHANGES)

    def record_changed(
        self, key: GroupKey, before: BrokerGroupRecord | None, after: BrokerGroupRecord, why: str
    ) -> None:
        """Note it, if it is about the set or the master."""
        change = SetChange.of(key, after, time.time(), why)
        if before is None or not change.says_the_same_as(SetChange.of(key, before, 0.0)):
            self._changes.append(change)

    def taken(self) -> list[SetChange]:
        """What was noted since the last call."""
        changes = list(self._changes)
        self._changes.clear()
        return changes


class Feed:
    """Run ``run()`` as a task of the controller plane's loop. ``hand_over`` must return at once."""

    def __init__(
        self,
        view: ShownGroups,
        changes: SetChanges,
        hand_over: Callable[[list[Sighting], list[SetChange], frozenset[GroupKey]], None],
    ) -> None:
        self._view = view
        self._set_changes = changes
        self._hand_over = hand_over
        self._changed: dict[GroupKey, None] = {}
        self._failing_over: set[GroupKey] = set()
        self._opened: frozenset[GroupKey] = frozenset()
        self._in_turn: deque[GroupKey] = deque()
        self._has_viewers = False
        self._new_viewer = asyncio.Event()

    async def run(self) -> None:
        """Look at the groups in turn until cancelled."""
        unsubscribe = self._view.subscribe(self._note_change)
        try:
            while True:
                self._look()
                await self._rest()
        finally:
            unsubscribe()

    def viewed(self, opened: frozenset[GroupKey], *, has_viewers: bool) -> None:
        """Which groups viewers have open now, and whether there are any viewers."""
        self._opened, self._has_viewers = opened, has_viewers
        if has_viewers:
            self._new_viewer.set()

    async def _rest(self) -> None:
        self._new_viewer.clear()
        if self._has_viewers:
            await asyncio.sleep(PAUSE_SECONDS)
            return
        try:
            async with asyncio.timeout(UNWATCHED_PAUSE_SECONDS):
                await self._new_viewer.wait()
        except TimeoutError:
            return

    def _note_change(self, key: GroupKey) -> None:
        self._changed[key] = None

    def _look(self) -> None:
        until_seconds = time.monotonic() + TURN_SECONDS
        sightings: list[Sighting] = []
        for key in self._next_keys():
            snapshot = self._view.snapshot(key)
            if snapshot is not None:
                sightings.append(sighting_of(snapshot, time.time()))
                (self._failing_over.discard if snapshot.in_progress is None else self._failing_over.add)(key)
            if time.monotonic() >= until_seconds:
                break
        self._hand_over(sightings, self._set_changes.taken(), frozenset(self._view.keys()))

    def _next_keys(self) -> Iterator[GroupKey]:
        """Yield the keys to look at, the most urgent first; the caller stops at the end of its time."""
        done: set[GroupKey] = set()
        while self._changed:
            key = next(iter(self._changed))
            del self._changed[key]
            done.add(key)
            yield key
        if not self._has_viewers:
            return
        for key in (self._failing_over | self._opened) - done:
            done.add(key)
            yield key
        if not self._in_turn:
            self._in_turn.extend(self._view.keys())
        while self._in_turn:
            key = self._in_turn.popleft()
            if key not in done:
                yield key

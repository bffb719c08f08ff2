"""This plane's part in the changes of master of one group: the task that runs, what it carries out, and what 1004 may answer.

The change itself is in the record; this is what the process knows besides, and may lose. `change/` begins and ends changes
through these methods; the group reports each record read or committed.
"""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import TYPE_CHECKING

from brokergroup_operator.kube.errors import Backoff
from brokergroup_operator.observe.timeline import Kind
from controller_core.plan import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from brokergroup_operator.controller.settings import PlaneSettings
    from brokergroup_operator.observe.timeline import FailoverTimeline
    from controller_core.model import BrokerGroupRecord
    from controller_core.plan import Change

ChangeKey = tuple[int, str]
FIRST_REFUSAL_PAUSE_SECONDS, LONGEST_REFUSAL_PAUSE_SECONDS = 0.5, 30.0
# No change has this key: ids begin with 1.
_NO_CHANGE: ChangeKey = (0, "")


class OwnChanges:
    """Of one group. Times are those of the event loop."""

    def __init__(self, settings: PlaneSettings) -> None:
        self._settings = settings
        self._task: asyncio.Task[None] | None = None
        self._only_tells = self._only_looks = False
        self._refusals = Backoff(FIRST_REFUSAL_PAUSE_SECONDS, LONGEST_REFUSAL_PAUSE_SECONDS)
        self._refused_until_seconds = 0.0
        self.in_progress: FailoverTimeline | None = None
        self.last_failover: FailoverTimeline | None = None
        self.last_switchover: FailoverTimeline | None = None
        # Since when the group has had no master, and no incident covers the time (as timelines count).
        self.masterless_since_seconds: float | None = None
        self._told: dict[int, int] = {}
        # The changes that this process carries out, or has.
        self.carried_out: set[ChangeKey] = set()
        # The last one it wrote; the one whose new state 1004 may tell; and the one of which all is done but its end in the record.
        self._written_here = self._released = self._over = _NO_CHANGE
        self._seen: tuple[Change | None, float] = (None, self._now)
        self._left_alone_until_seconds = 0.0

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # ---- the task

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The failover, switchover or takeover that runs here."""
        return self._task

    @property
    def telling(self) -> asyncio.Task[None] | None:
        """The same, if it only tells the members of an election that this plane wrote for a broker."""
        return self._task if self._only_tells else None

    @property
    def only_looks(self) -> bool:
        """Whether the task, or the last one, has begun no change: it looks, or looked, whether the master is lost."""
        return self._only_looks

    @property
    def has_begun(self) -> bool:
        """Whether a change is under way here: a doubt of the master alone is none."""
        return self._task is not None and not self._only_looks

    def run(
        self,
        task: asyncio.Task[None],
        on_end: Callable[[asyncio.Task[None]], None],
        *,
        only_tells: bool = False,
        looks_first: bool = False,
    ) -> None:
        """Set the task that runs; `on_end` is called when it has ended. One that `looks_first` may begin no change at all."""
        self._task, self._only_tells, self._only_looks = task, only_tells, looks_first

        def ended(done: asyncio.Task[None]) -> None:
            self._task, self._only_tells = None, False
            on_end(done)

        task.add_done_callback(ended)

    def may_begin(self) -> bool:
        """Whether a change of master may be begun: none runs here, and the store has not just refused one."""
        return self._task is None and self._now >= self._refused_until_seconds

    def refused(self) -> float:
        """The store refused a change, or cannot read the record; return for how long no other one is begun here.

        A refused record is a mistake of ours, a corrupt one needs a person. Another plane, or a member's next report, may mend it.
        """
        pause_seconds = self._refusals.next_seconds()
        self._refused_until_seconds = self._now + pause_seconds
        return pause_seconds

    def accepted(self) -> None:
        self._refusals.reset()

    async def wait_for_end(self, timeout_seconds: float) -> None:
        """Wait until the change that runs here has ended, at most this long; at once if none runs."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=max(0.0, timeout_seconds))

    # ---- what is shown of it

    def begins(self, timeline: FailoverTimeline | None) -> None:
        """A change is under way here, with this timeline; None: another plane reports it."""
        self.in_progress, self._only_looks = timeline, False

    def ended(self, timeline: FailoverTimeline) -> None:
        """It has ended, with whatever outcome."""
        self.in_progress = None
        self.found(timeline)

    def found(self, timeline: FailoverTimeline) -> None:
        if timeline.kind is Kind.SWITCHOVER:
            self.last_switchover = timeline
        else:
            self.last_failover = timeline

    def masterless(self, since_seconds: float | None) -> None:
        """Since when the group has no master; None: it has one."""
        self.masterless_since_seconds = since_seconds

    # ---- which members were told

    @property
    def told(self) -> Mapping[int, int]:
        """Under which epoch each member has answered 1008 in this process's life."""
        return MappingProxyType(self._told)

    def has_answered(self, broker_id: int, epoch: int) -> None:
        self._told[broker_id] = epoch

    def new_process(self, broker_id: int) -> None:
        """A member's process is another one: it was told nothing."""
        self._told.pop(broker_id, None)

    def leave_alone(self, seconds: float) -> None:
        """Another plane, or a broker that was just answered, is about to do what this plane would do."""
        self._left_alone_until_seconds = self._now + seconds

    @property
    def is_left_alone(self) -> bool:
        """Whether that is still waited for."""
        return self._now < self._left_alone_until_seconds

    # ---- the change in the record

    def wrote(self, change: Change) -> None:
        """A commit of this process brought this change into the record."""
        self._written_here = change.key

    def wrote_it(self, change: Change) -> bool:
        return change.key == self._written_here

    def elected(self, change: Change | None) -> bool:
        """Whether this plane wrote that election: what is left is telling, which a person's election supersedes."""
        return change is not None and change.is_decided and self.wrote_it(change)

    def release(self, key: ChangeKey) -> None:
        """1004 may answer the new state of this change."""
        self._released = key

    def is_over(self, key: ChangeKey) -> None:
        """Nothing is left to do for this change: its end goes with the next commit."""
        self._over = key

    def is_over_here(self, change: Change) -> bool:
        """Whether only the end of that change is left to be written."""
        return change.key == self._over

    def saw(self, change: Change | None) -> None:
        if change != self._seen[0]:
            self._seen = (change, self._now)

    @property
    def unmoved_seconds(self) -> float:
        """How long the change under way has not moved, by this plane's own clock."""
        return self._now - self._seen[1]

    def under_way(self, record: BrokerGroupRecord | None) -> bool:
        """Whether the record has a change of master for which something is left to do."""
        change = record.change if record is not None else None
        return change is not None and change.key != self._over and not change.is_told

    def record_to_tell(self, record: BrokerGroupRecord | None) -> BrokerGroupRecord | None:
        """Return what 1004 may answer: the state of before, until the brokers were told in order.

        Another plane sees that only by the end of the change, and waits for it for `hold_back_seconds` at most.
        """
        change = record.change if record is not None else None
        if record is None or change is None or change.phase is not Phase.TELLING or change.key == self._released:
            return record
        return record if self.unmoved_seconds >= self._settings.hold_back_seconds else record.as_told_before

"""This plane's part in the changes of master of one group: the task that runs, what it carries out, and what 1004 may answer.

The change itself is in the record; this is what the process knows besides, and may lose. `change/` begins and ends changes
through these methods; the group reports each record read or committed.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.controller.peers.services import Patience
from controller_core.decision import ChangeWritten, apply_events
from controller_core.model import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from brokergroup_operator.controller.settings import PlaneSettings
    from controller_core.decision import Decision
    from controller_core.model import BrokerGroupRecord, Change

log = structlog.get_logger(__name__)

ChangeKey = tuple[int, str]
FIRST_REFUSAL_PAUSE_SECONDS, LONGEST_REFUSAL_PAUSE_SECONDS = 0.5, 30.0
# No change has this key: ids begin with 1.
_NO_CHANGE: ChangeKey = (0, "")


class OwnChanges:
    """This plane's part in the changes of one group. Times are those of the event loop."""

    def __init__(self, settings: PlaneSettings, *, look_soon: Callable[[], None], changed: Callable[[], None]) -> None:
        self._settings, self._look_soon, self._changed = settings, look_soon, changed
        # The failover, switchover or takeover that runs here.
        self.task: asyncio.Task[None] | None = None
        self._only_tells = self._only_looks = False
        # With a store that refuses a change, or cannot read the record. A refused record is a mistake of ours, a corrupt one needs
        # a person; another plane, or a member's next report, may mend it.
        self.refusals = Patience(FIRST_REFUSAL_PAUSE_SECONDS, LONGEST_REFUSAL_PAUSE_SECONDS)
        self._told: dict[int, int] = {}
        # Under which epoch each member has answered 1008 in this process's life.
        self.told: Mapping[int, int] = MappingProxyType(self._told)
        # The changes that this process carries out, or has.
        self.carried_out: set[ChangeKey] = set()
        # The one that a commit of this process brought into the record last, or its election; the one whose new state 1004 may
        # tell; and the one of which all is done but its end in the record.
        self._written_here = self._released = self.over = _NO_CHANGE
        self._seen: tuple[Change | None, float] = (None, self._now)
        self._left_alone_until_seconds = 0.0

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # ---- the task

    @property
    def has_begun(self) -> bool:
        """Whether a change is under way here: a doubt of the master alone is none."""
        return self.task is not None and not self._only_looks

    def run(
        self,
        work: Coroutine[None, None, None],
        name: str,
        *,
        decided: asyncio.Future[Decision] | None = None,
        only_tells: bool = False,
        looks_first: bool = False,
    ) -> None:
        """Run this failover, switchover or takeover. What `looks_first` may begin no change at all.

        An error before the election is `decided` goes to that future's caller.
        """

        def ended(done: asyncio.Task[None]) -> None:
            self.task, self._only_tells = None, False
            error = None if done.cancelled() else done.exception()
            if decided is not None and not decided.done():
                if error is None:
                    decided.cancel()
                else:
                    decided.set_exception(error)
            elif error is not None:
                log.error("change of master not finished, the next look goes on", task=name, error=repr(error))
            if self._only_looks:
                self._look_soon()  # a plane that never hears the master doubts it ten times a second
            else:
                self._changed()

        self.task, self._only_tells, self._only_looks = asyncio.create_task(work, name=name), only_tells, looks_first
        self.task.add_done_callback(ended)

    def begins(self) -> None:
        """What was only a look begins a change."""
        self._only_looks = False

    def may_begin(self) -> bool:
        """Whether a change of master may be begun: none runs here, and the store has not just refused one."""
        return self.task is None and self.refusals.is_over

    async def wait_for_end(self, timeout_seconds: float) -> None:
        """Wait until the change that runs here has ended, at most this long; at once if none runs."""
        if self.task is not None:
            await asyncio.wait([self.task], timeout=max(0.0, timeout_seconds))

    async def leave_off_telling(self) -> None:
        """Stop telling an election that this plane wrote for a broker: a person's election supersedes it."""
        if self.task is not None and self._only_tells:
            self.task.cancel()
            await asyncio.wait([self.task])
            await asyncio.sleep(0)  # its callback clears `task`

    # ---- which members were told

    def has_answered(self, broker_id: int, epoch: int) -> None:
        """Note that this member has answered 1008 under this epoch."""
        self._told[broker_id] = epoch

    def new_process(self, broker_id: int) -> None:
        """A member's process is another one: it was told nothing."""
        self._told.pop(broker_id, None)

    def leave_alone(self, seconds: float) -> None:
        """Another plane, or a broker that was just answered, is about to do what this plane would do."""
        self._left_alone_until_seconds = self._now + seconds

    @property
    def is_left_alone(self) -> bool:
        return self._now < self._left_alone_until_seconds

    # ---- the change in the record

    def wrote(self, change: Change) -> None:
        """Note that a commit of this process brought this change, or its election, into the record."""
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
        self.over = key

    def with_the_end(self, decision: Decision, *, is_reported: bool) -> Decision:
        """Add the end of that change to a decision: it then costs no write of its own."""
        after = decision.record
        change = after.change if after is not None else None
        if not decision.changed or after is None or change is None or change.key != self.over:
            return decision
        end = ChangeWritten(change=None if is_reported else change.told)
        if end.change == change:
            return decision
        return replace(decision, events=(*decision.events, end), record=apply_events(after, (end,)))

    def saw(self, change: Change | None) -> None:
        """Note the change that the record has now; `unmoved_seconds` counts from the last difference."""
        if change != self._seen[0]:
            self._seen = (change, self._now)

    @property
    def unmoved_seconds(self) -> float:
        """How long the change under way has not moved, by this plane's own clock."""
        return self._now - self._seen[1]

    def record_to_tell(self, record: BrokerGroupRecord | None) -> BrokerGroupRecord | None:
        """Return what 1004 may answer: the state of before, until the brokers were told in order.

        Another plane sees that only by the end of the change, and waits for it for `hold_back_seconds` at most.
        """
        change = record.change if record is not None else None
        if record is None or change is None or change.phase is not Phase.TELLING or change.key == self._released:
            return record
        return record if self.unmoved_seconds >= self._settings.hold_back_seconds else record.as_told_before

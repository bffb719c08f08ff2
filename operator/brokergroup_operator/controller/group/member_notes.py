"""What the plane notes of each member beside its line in the heartbeat table. Perishable: true of this process of ours only."""

from __future__ import annotations

import asyncio


class MemberNotes:
    """The notes of one group."""

    def __init__(self, *, regular_heartbeat_seconds: float) -> None:
        # Where each member's own pod says it is, how often the record said otherwise, and when that is worth a word (adoption.py).
        self.whereabouts: dict[int, str] = {}
        self.moved_beats: dict[int, int] = {}
        self.not_proposed_until_seconds: dict[int, float] = {}
        self._regular_heartbeat_seconds = regular_heartbeat_seconds
        self._last_beat_seconds: dict[int, float] = {}
        self._regular: set[int] = set()
        self._first_reports: dict[int, asyncio.Future[None]] = {}

    def beats_regularly(self, broker_id: int, now_seconds: float) -> bool:
        """Whether this heartbeat belongs to a regular row of them.

        A Java broker heartbeats once when it registers and then only every 5 s until its start is complete, although it may have
        been elected meanwhile: until it has a rhythm, silence means little.
        """
        last_seconds = self._last_beat_seconds.get(broker_id)
        self._last_beat_seconds[broker_id] = now_seconds
        if last_seconds is not None and now_seconds - last_seconds <= self._regular_heartbeat_seconds:
            self._regular.add(broker_id)
        return broker_id in self._regular

    def reported(self, broker_id: int) -> None:
        """Its heartbeat came: whoever waits for the first one may go on."""
        waiting = self._first_reports.pop(broker_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def first_report(self, broker_id: int, timeout_seconds: float) -> None:
        """Wait for its next heartbeat; at most this long."""
        reported = self._first_reports.setdefault(broker_id, asyncio.get_running_loop().create_future())
        await asyncio.wait([reported], timeout=timeout_seconds)

    def new_process(self, broker_id: int) -> None:
        """It registered: nothing that was noted of its former process is true of this one."""
        self._last_beat_seconds.pop(broker_id, None)
        self._regular.discard(broker_id)
        self.whereabouts.pop(broker_id, None)
        self.moved_beats.pop(broker_id, None)

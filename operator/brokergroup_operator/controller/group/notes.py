"""What a plane notes of one group beside its record and its heartbeats, in parts. Perishable: true of this process only.

Each part names the module that writes it; all others read. A field that two modules need is changed by a method of its part
(`tests/controller/test_notes.py` holds both).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from brokergroup_operator.controller.directory.group_directory import GroupDirectory
    from brokergroup_operator.observe.group_view import Silence
    from brokergroup_operator.records.store import GroupKey

FIRST_REFUSAL_PAUSE_SECONDS, LONGEST_REFUSAL_PAUSE_SECONDS = 0.5, 30.0


@dataclass(slots=True)
class LinkNotes:
    """What the master's last 907 said. Written by `upkeep/links.py`."""

    # Living members that the master has no link to.
    unlinked: frozenset[int] = frozenset()
    # Bytes that each slave's link carried in the last second.
    speeds: Mapping[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class UnheardNotes:
    """Registered slaves without heartbeats, and what is known of each. Written by `upkeep/silent_members.py`."""

    silences: Mapping[int, Silence] = field(default_factory=dict)


@dataclass(slots=True)
class HoldingsNotes:
    """Reports of what members hold. Written by `detect/holdings_watch.py`."""

    # The last report, and when marks alone are worth the next one.
    report: asyncio.Task[None] | None = None
    next_mark_seconds: float = 0.0
    # An epoch that members report and that waits for a person (safety rule 3): no member is elected meanwhile.
    epoch_jump: int | None = None


@dataclass(slots=True)
class SilenceNotes:
    """Doubts about a silent master. Written by `detect/master_watch.py`."""

    # When it was last asked whether it is still there.
    asked_seconds: float = 0.0
    # How often it was left alone because other planes heard it: each silence counts once.
    spared: int = 0
    spared_silence_seconds: float | None = None


@dataclass(slots=True)
class WakingNotes:
    """A group that was put to sleep with its master, until another one is elected or its old one is heard for long enough.

    Written by `change/failover.py`, and by the group when its spec or its master changes.
    """

    wakes: bool = False
    # Since when its master has been heard without a pause.
    heard_seconds: float | None = None

    def declared(self, *, hibernated: bool) -> None:
        """The spec says so now."""
        self.wakes |= hibernated

    def elected(self, *, hibernated: bool) -> None:
        """The record names another master, or the same one under another epoch."""
        self.wakes = hibernated


@dataclass(slots=True)
class ActingNotes:
    """Brokers that may act as master although the record names none. Written by `detect/recovery.py`, ended by an election."""

    # By their present processes, when the record was found to be older than its brokers.
    acting: tuple[int, ...] = ()
    # A master was deposed whose process lives and goes on as master until it is told (safety rule 2).
    deposed_in_office: bool = False

    def elected(self) -> None:
        """Another master is in the record."""
        self.acting, self.deposed_in_office = (), False

    def deposed(self) -> None:
        """The master's seat was withdrawn while its process lives."""
        self.deposed_in_office = True

    def new_process(self, broker_id: int) -> None:
        """A process that has just registered acts as no master."""
        self.acting = tuple(one for one in self.acting if one != broker_id)


@dataclass(slots=True)
class PodNotes:
    """What the directory says of the members' pods; `take` and the rest are the only way in."""

    # Where pods are that are being deleted; and of these, those that were removed by force.
    leaving_hosts: frozenset[str] = frozenset()
    removed_hosts: frozenset[str] = frozenset()
    # Members whose container was reported terminated while their connection still stood.
    reported_dead: set[int] = field(default_factory=set)

    def take(self, directory: GroupDirectory, key: GroupKey) -> None:
        """Note which pods are about to go."""
        self.leaving_hosts, self.removed_hosts = directory.leaving_hosts(key), directory.removed_hosts(key)

    def died(self, broker_id: int) -> None:
        """The directory reports that the member's container has ended."""
        self.reported_dead.add(broker_id)

    def came_back(self, broker_id: int) -> None:
        """The member is heard again, or another process of it has registered."""
        self.reported_dead.discard(broker_id)


class MemberNotes:
    """What is noted of each member's heartbeats and registrations."""

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
        """A heartbeat says what this member holds: a request that waits for that goes on."""
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


class ConfigurationNotes:
    """What the members' brokers say that they run with (26), as far as it is watched."""

    def __init__(self) -> None:
        # Members that have answered since they last had a reason to run with something else, or were due to be asked again.
        self.checked: set[int] = set()
        # What they said: the watched keys, and minInSyncReplicas by itself, which decisions go by.
        self.said: dict[int, Mapping[str, str]] = {}
        self.minimums: dict[int, int] = {}
        self._changes: Counter[int] = Counter()

    def asking(self, broker_id: int) -> int:
        """To be given back with the answer: what was changed after the question is not in it."""
        return self._changes[broker_id]

    def heard(self, broker_id: int, values: Mapping[str, str], keys: Collection[str], *, asked: int) -> bool:
        """Keep what it said of these keys, unless it was changed meanwhile; returns whether that is news."""
        if asked != self._changes[broker_id]:
            return False
        known = {key: values[key] for key in keys if key in values}
        is_news = self.said.get(broker_id) != known
        self.said[broker_id] = known
        return is_news

    def changed(self, broker_id: int) -> None:
        """It was changed, or is another process: what it said is not true any more, and it is asked again."""
        self.may_have_changed(broker_id)
        self.said.pop(broker_id, None)

    def may_have_changed(self, broker_id: int) -> None:
        """It refused a change, or its answer was lost: what it said is the latest that is known, and it is asked again."""
        self._changes[broker_id] += 1
        self.checked.discard(broker_id)


class Refusals:
    """When a change of master is tried again whose record the store refused, or cannot be read: with pauses that double.

    A refused record is a mistake of ours, a corrupt one is for a person. Another plane or the next report of a member may mend
    it, so the group is not given up.
    """

    def __init__(self) -> None:
        self._not_before_seconds = 0.0
        self._pause_seconds = FIRST_REFUSAL_PAUSE_SECONDS

    def forbids(self, now_seconds: float) -> bool:
        """Whether it is too early to try again."""
        return now_seconds < self._not_before_seconds

    def note(self, now_seconds: float) -> float:
        """The store refused a change; returns how long none is begun."""
        pause_seconds = self._pause_seconds
        self._not_before_seconds = now_seconds + pause_seconds
        self._pause_seconds = min(2 * pause_seconds, LONGEST_REFUSAL_PAUSE_SECONDS)
        return pause_seconds

    def over(self) -> None:
        """The store took one."""
        self._pause_seconds = FIRST_REFUSAL_PAUSE_SECONDS

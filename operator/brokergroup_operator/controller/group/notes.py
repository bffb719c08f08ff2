"""What a plane notes of one group beside its record and its heartbeats, in parts. None of it outlives the process.

Each part names the module that writes it; no other module sets a field of it (`tests/controller/test_record_watch.py`). A set or a
mapping may be added to by two.
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from brokergroup_operator.controller.peers.services import doubled
from controller_core.liveness import MADE_LATER_SECONDS
from rocketmq_remoting.address import host_of, one_spelling

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection, Iterator, Mapping

    from brokergroup_operator.observe.group_view import LostLink, Silence
    from brokergroup_operator.records.store import StoredRecord
    from controller_core.decision import Decision
    from controller_core.holdings import Quiet
    from controller_core.model import BrokerGroupRecord
    from controller_core.requests import Request
    from rocketmq_remoting.tls import Validity

FIRST_PENALTY_SECONDS = 60.0
LONGEST_PENALTY_SECONDS = 960.0
FORGIVEN_AFTER_SECONDS = 600.0


@dataclass(slots=True)
class LinkNotes:
    """What the master's last 907 said. Written by `upkeep/links.py`."""

    # Living members that the master has no link to.
    unlinked: frozenset[int] = frozenset()
    # Those that no telling links.
    lost: Mapping[int, LostLink] = field(default_factory=dict)
    # Bytes that each slave's link carried in the last second.
    speeds: Mapping[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class RefusedSetNotes:
    """The members that the master's last refused 1001 would have added. Written by `detect/record_watch.py`.

    A Java master counts them until it takes a set of a higher epoch.
    """

    members: frozenset[int] = frozenset()
    # Of master and set, at the refusal.
    epochs: tuple[int, int] = (0, 0)

    def members_by(self, record: BrokerGroupRecord | None) -> frozenset[int]:
        """Return them while these epochs are the record's."""
        is_of_now = record is not None and self.epochs == (record.master_epoch, record.sync_state_set_epoch)
        return self.members if is_of_now else frozenset()


@dataclass(slots=True)
class UnheardNotes:
    """Registered members without heartbeats, and what is known of each. Written by `upkeep/silent_members.py`."""

    silences: Mapping[int, Silence] = field(default_factory=dict)


@dataclass(slots=True)
class HoldingsNotes:
    """Reports of what members hold. Written by `detect/record_watch.py`."""

    # The last report, and when marks alone are worth the next one.
    report: asyncio.Task[None] | None = None
    next_mark_seconds: float = 0.0
    # Which next heartbeats of each member are no news.
    quiet: dict[int, Quiet | None] = field(default_factory=dict)
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
    """A group that was hibernated with its master, until another one is elected or the old one is heard for long enough.

    Written by `change/failover.py`, and by the group when its spec or its master changes.
    """

    wakes: bool = False
    # Since when its master has been heard without a pause.
    heard_seconds: float | None = None

    def declared(self, *, hibernated: bool) -> None:
        self.wakes |= hibernated

    def elected(self, *, hibernated: bool) -> None:
        """The record names another master, or the same one under another epoch."""
        self.wakes = hibernated


@dataclass(slots=True)
class ActingNotes:
    """Brokers that may act as master although the record names none. Written by `detect/record_watch.py`, ended by an election."""

    # By their present processes, when the record was found to be older than its brokers.
    acting: tuple[int, ...] = ()
    # A master was deposed whose process lives and goes on as master until it is told (safety rule 2).
    deposed_in_office: bool = False

    def elected(self) -> None:
        self.acting, self.deposed_in_office = (), False

    def new_process(self, broker_id: int) -> None:
        """A process that has just registered acts as no master."""
        self.acting = tuple(one for one in self.acting if one != broker_id)


class RegistrationNotes:
    """New processes whose registration is decided here: a master that is told its old epoch goes on in it, although another
    process wrote under it (rule 6).
    """

    def __init__(self) -> None:
        self._under_way: Counter[int] = Counter()
        # The member whose registration was last not decided, and the record's epoch at that time.
        self._undecided: tuple[int, int] | None = None

    @contextmanager
    def deciding(self, broker_id: int, record: Callable[[], BrokerGroupRecord | None]) -> Iterator[None]:
        self._under_way[broker_id] += 1
        decided = False
        try:
            yield
            decided = True
        finally:
            self._under_way -= Counter((broker_id,))
            if not decided and (now := record()) is not None:
                self._undecided = (broker_id, now.master_epoch)

    def is_open(self, broker_id: int, record: BrokerGroupRecord | None) -> bool:
        """Whether a registration is being decided here, or the master's was not: another plane is asked then, and the record
        shows it (`test_a_new_process_whose_registration_failed_is_not_told_its_old_epoch`).
        """
        if self._under_way[broker_id] > 0:
            return True
        if record is None or record.granted_master_id != broker_id:
            return False
        return self._undecided == (broker_id, record.master_epoch)


class MemberNotes:
    """What is noted of each member's heartbeats, registrations and pod."""

    def __init__(self, *, regular_heartbeat_seconds: float) -> None:
        # For `AdoptionDesk`: where each member's own pod says it is, and how many heartbeats in a row differed from the record.
        self.whereabouts: dict[int, str] = {}
        self.moved_beats: Counter[int] = Counter()
        self.not_proposed_until_seconds: dict[int, float] = {}
        # Members whose container was reported terminated while their connection still stood, and when.
        self.reported_dead: dict[int, float] = {}
        # What the connection of each member's heartbeats showed, if this plane asks for client certificates.
        self.certificates: dict[int, Validity | None] = {}
        self._regular_heartbeat_seconds = regular_heartbeat_seconds
        self._last_beat_seconds: dict[int, float] = {}
        self._regular: set[int] = set()

    def beats_regularly(self, broker_id: int, now_seconds: float) -> bool:
        """Whether this heartbeat belongs to a regular row: a Java broker heartbeats every 5 s until its start is complete."""
        last_seconds = self._last_beat_seconds.get(broker_id)
        self._last_beat_seconds[broker_id] = now_seconds
        if last_seconds is not None and now_seconds - last_seconds <= self._regular_heartbeat_seconds:
            self._regular.add(broker_id)
        return broker_id in self._regular

    def lives(self, broker_id: int, now_seconds: float) -> None:
        """Take a heartbeat: one that was made after its process was reported dead is of the next process."""
        if now_seconds - self.reported_dead.get(broker_id, now_seconds) >= MADE_LATER_SECONDS:
            del self.reported_dead[broker_id]

    def new_process(self, broker_id: int) -> None:
        self.reported_dead.pop(broker_id, None)
        self._last_beat_seconds.pop(broker_id, None)
        self._regular.discard(broker_id)
        self.whereabouts.pop(broker_id, None)
        self.moved_beats.pop(broker_id, None)


class ConfigurationNotes:
    """The configuration that the members' brokers report (26), as far as it is watched."""

    def __init__(self) -> None:
        # Members that have answered since they last had a reason to run with something else, or were due to be asked again.
        self.checked: set[int] = set()
        # What they said: the watched keys, and minInSyncReplicas by itself, which decisions go by.
        self.said: dict[int, Mapping[str, str]] = {}
        self.minimums: dict[int, int] = {}
        self._changes: Counter[int] = Counter()

    def asking(self, broker_id: int) -> int:
        """Return a token for `heard`: an answer does not show what was changed after the question."""
        return self._changes[broker_id]

    def is_of_now(self, broker_id: int, *, asked: int) -> bool:
        return asked == self._changes[broker_id]

    def heard(self, broker_id: int, values: Mapping[str, str], keys: Collection[str], *, asked: int) -> bool:
        """Keep the values of these keys, unless they were changed meanwhile; return whether they are new."""
        if not self.is_of_now(broker_id, asked=asked):
            return False
        known = {key: values[key] for key in keys if key in values}
        is_news = self.said.get(broker_id) != known
        self.said[broker_id] = known
        return is_news

    def changed(self, broker_id: int) -> None:
        """Forget the answer: the configuration was changed, or it is another process."""
        self.may_have_changed(broker_id)
        self.said.pop(broker_id, None)
        self.minimums.pop(broker_id, None)

    def may_have_changed(self, broker_id: int) -> None:
        """Ask again, and keep the last answer: a change was refused, or its answer lost."""
        self._changes[broker_id] += 1
        self.checked.discard(broker_id)


class AddressNotes:
    """Where each member was last heard from: a fact with an age, because pods get one another's IPs (safety rule 8)."""

    def __init__(self) -> None:
        # The host that each member's heartbeats come from.
        self.channel_hosts: dict[int, str] = {}
        # By which address, connection and pod IP each member's broker last proved to be the member, and when.
        self.proven: dict[int, tuple[tuple[str, int, str | None], float]] = {}
        # What each member sent last: reading an address costs more than the rest of a heartbeat.
        self._spelled: dict[int, tuple[str, str, str]] = {}

    def spelled(self, broker_id: int, sent: str) -> tuple[str, str, str]:
        """Return the address of a member's heartbeat as it was sent, in the one spelling, and its host."""
        known = self._spelled.get(broker_id)
        if known is None or known[0] != sent:
            address = one_spelling(sent)
            known = self._spelled[broker_id] = (sent, address, host_of(address))
        return known

    def heard_from(self, broker_id: int, host: str) -> None:
        self.channel_hosts[broker_id] = host


@dataclass(frozen=True, slots=True)
class UnansweredWrite:
    """A write that the store did not answer, and the record that it replaces and was decided on."""

    request: Request
    replaced: StoredRecord | None
    decision: Decision
    write_id: str

    @property
    def before(self) -> BrokerGroupRecord | None:
        return self.replaced.record if self.replaced is not None else None

    def is_in(self, stored: StoredRecord | None) -> bool:
        """Whether this is what the write has left in the store."""
        return stored is not None and (self.write_id, self.decision.record) == (stored.write_id, stored.record)


class UnansweredWrites:
    """The last unanswered write of one group: unknown until a read shows that it has arrived, or that another one came first. Its
    caller asks again.

    While the record that it replaces is still there it may arrive: a slow store takes it after a read that did not show it. The
    id of the write shows whose it is; its content does not, because planes that see one death decide alike.
    """

    def __init__(self) -> None:
        self._unknown: UnansweredWrite | None = None
        self._arrived: UnansweredWrite | None = None

    def note(self, write: UnansweredWrite) -> None:
        self._unknown, self._arrived = write, None

    def find(self, stored: StoredRecord | None) -> UnansweredWrite | None:
        """Return the write if this read of the store is the first to show that it has arrived."""
        unknown = self._unknown
        if unknown is None or stored == unknown.replaced:
            return None
        self._unknown = None
        if not unknown.is_in(stored):
            return None
        self._arrived = unknown
        return unknown

    def take(self, request: Request, record: BrokerGroupRecord | None) -> Decision | None:
        """Return the decision for this very request, once, if its write arrived and the record has not moved since."""
        arrived = self._arrived
        if arrived is None or arrived.request != request or arrived.decision.record != record:
            return None
        self._arrived = None
        return arrived.decision


@dataclass(frozen=True, slots=True)
class _Losses:
    """How often one replica was lost as a master, under which epoch last, and until when it is passed over."""

    count: int
    last_epoch: int
    until_seconds: float


class CrashLoops:
    """The lost masters of one group. One that was lost twice is passed over for a while, if another member can lead: among equals
    an election prefers the old master (`test_a_loop_costs_at_most_one_election_a_minute`).
    """

    def __init__(self) -> None:
        self._losses: dict[int, _Losses] = {}

    def master_lost(self, broker_id: int, epoch: int, now_seconds: float) -> None:
        """Count the unwanted end of a master's process: once for each epoch, however often it is noticed."""
        before = self._losses.get(broker_id, _Losses(0, -1, -math.inf))
        if epoch == before.last_epoch:
            return
        count = 1 if now_seconds - before.until_seconds > FORGIVEN_AFTER_SECONDS else before.count + 1
        penalty_seconds = doubled(FIRST_PENALTY_SECONDS, count - 2, LONGEST_PENALTY_SECONDS) if count > 1 else 0.0
        self._losses[broker_id] = _Losses(count, epoch, now_seconds + penalty_seconds)

    def penalised(self, now_seconds: float) -> frozenset[int]:
        return frozenset(one for one, losses in self._losses.items() if now_seconds < losses.until_seconds)

"""When the broker of this pod must die: pure, time comes as an argument (ADR 8; docs/concepts/architecture.md, rule 7).

An unmodified Java master that is cut off or frozen may later acknowledge messages that no other replica has. Before it elects
another master, a controller waits for ``heartbeatTimeout + fenceTimeout`` after the last heartbeat, which may be one heartbeat
interval older than the cut. A master that dies before that does no harm. Six cases:

* *Isolated*: no controller has answered for the isolation timeout.
* *No election possible*: none has answered, but every other replica that could be elected reports the same. A
  controller that hears none of them can make none of them master: the broker lives on, through an outage or a restart of all
  operators. As soon as one of them hears a controller again, or is heard no more itself, this excuse ends, and a shorter time
  than ``fenceTimeout`` is left.
* *Cut off together with its controllers*: those that answer have not reached the Kubernetes API for ``bound_seconds``, and
  another one, on the other side of the cut, may elect. The same excuse holds: in an outage of the API none can (contact.py).
* *Frozen*: we ourselves did not run, and not for want of a processor. The broker beside us did not run either, and is about
  to process what waits in its sockets. The fence kills without a question.
* *Starved*: we did not run because others had the processor, so we could not ask. That time is excused, but only up to
  ``bound_seconds``: it ends before another master can be elected, whatever the reason why no controller was heard.
* *Deposed*: a controller says that another replica is master now, and the broker does not answer, or is still master long
  after. Not a process that began after its mastership was heard of: the one that was master is dead.

A controller counts as heard at the time of the *question*: its answer may have waited in a socket.

Only a broker that may be master is killed: a slave acknowledges nothing. After a kill the new process has no role until a
controller grants it a role, so nothing is killed again before a controller was heard.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from brokergroup_operator.fence.contact import ContactClock
from brokergroup_operator.fence.excuse import Excuse

if TYPE_CHECKING:
    from brokergroup_operator.fence.rules import FenceRules

# With more stalls than this since the last contact, the bound has passed: each lasts at least ``NOTICED_SECONDS`` (processes.py).
_STALLS_KEPT: Final = 512


class LocalRole(Enum):
    """The role that this pod's broker reports (907)."""

    MASTER = "master"
    SLAVE = "slave"
    SILENT = "silent"
    # It answered with an error (it may require a signature).
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Member:
    """One replica of the group in a controller's answer (1006)."""

    broker_id: int
    address: str
    in_sync: bool
    alive: bool


@dataclass(frozen=True, slots=True)
class Told:
    """A controller's answer about the group; ``own_id`` is the replica at our address, None if there is none.

    ``stops``: the whole group is being stopped, and no master will be elected.
    """

    own_id: int | None
    master_id: int | None
    master_epoch: int
    members: tuple[Member, ...] = ()
    stops: bool = False

    @property
    def we_are_master(self) -> bool:
        """Whether the record names the broker of this pod."""
        return self.own_id is not None and self.own_id == self.master_id


def _others(told: Told) -> tuple[Member, ...]:
    return tuple(member for member in told.members if member.broker_id != told.own_id)


@dataclass(frozen=True, slots=True)
class Kill:
    """The broker must die, and why."""

    why: str


@dataclass(frozen=True, slots=True)
class _Stall:
    ended_at: float
    starved_seconds: float


@dataclass(frozen=True, slots=True)
class _PeerWord:
    at: float
    hears_none_for_seconds: float


@dataclass(frozen=True, slots=True)
class _Mastership:
    """An epoch under which our broker was named as master, and when a controller was first heard to say so."""

    epoch: int
    heard_at: float


@dataclass(slots=True)
class _Rejoining:
    """A broker that has stepped down and is not known to be linked to its new master as a member of the SyncStateSet."""

    since: float
    # When it last read from its master by its last answer, in milliseconds of its clock; 0 without a link, or outside the set.
    last_read_ms: int = 0
    is_linked: bool = False

    def heard(self, last_read_ms: int, *, in_sync: bool) -> None:
        # A master writes to each link ten times a second and more: a link that has read nothing since the last answer has ended.
        # A read before the record had the broker in the set shows nothing: that link may have ended since.
        self.is_linked = 0 < self.last_read_ms < last_read_ms
        self.last_read_ms = last_read_ms if in_sync else 0


@dataclass(slots=True)
class FenceCore:
    """The state of one fence. Times are seconds of one clock that continues during suspend."""

    rules: FenceRules
    started_at: float
    # Whether an earlier fence of this pod heard a controller: then silence counts from the start. A fence that never heard one may
    # be misconfigured (an untrusted certificate, a wrong address), and does not kill.
    heard_before: bool = False
    told: Told | None = None
    _told_at: float | None = None
    _highest_epoch: int = 0
    # Since when there are only answers of a lower epoch than the last that was believed.
    _old_since: float | None = None
    _heard_at: float | None = None
    # Times in which other work, not a freeze, kept us from running.
    _stalls: deque[_Stall] = field(default_factory=lambda: deque(maxlen=_STALLS_KEPT))
    _peers: dict[int, _PeerWord] = field(default_factory=dict)
    _local: LocalRole | None = None
    _local_at: float = 0.0
    _local_silent_since: float | None = None
    # The last one, until our broker has stepped down or is dead.
    _led: _Mastership | None = None
    _deposed_at: float | None = None
    _rejoining: _Rejoining | None = None
    _alone_since: float | None = None
    _alone: bool = False
    _armed: bool = field(init=False)
    _contact: ContactClock = field(init=False)
    _excuse: Excuse = field(init=False)

    def __post_init__(self) -> None:
        self._excuse = Excuse(self.rules)
        self._armed = self.heard_before
        counts_from = float("-inf") if self.heard_before else self.started_at
        self._contact = ContactClock(self.rules, self.started_at, counts_from)

    # Observations.

    def controller_answered(
        self, now: float, told: Told | None, *, asked_at: float, api_silence_seconds: float = 0.0
    ) -> bool:
        """Record a controller's answer to the question of ``asked_at``; ``told`` is None if it does not know the group.

        ``api_silence_seconds``: for how long that controller had not reached the Kubernetes API when it answered.

        Return False for one of a lower epoch than an earlier one: that controller's copy of the record is old, or the record was
        restored. It says nothing at first, and is believed while no other one is heard.
        """
        self._heard_at, self._armed = asked_at, True
        self._excuse.end()
        contact_at = asked_at - api_silence_seconds
        self._contact.heard(contact_at)
        if told is None:
            return True
        if not self._is_believed(told, asked_at):
            return False
        self._highest_epoch = max(self._highest_epoch, told.master_epoch)
        self.told, self._told_at = told, asked_at
        self._contact.told(contact_at, tuple(one for one in _others(told) if one.in_sync))
        self._note_whether_alone(now, told)
        if told.we_are_master or told.master_id is None:
            # Without a master it is not deposed yet: the next one that is named deposes it.
            self._deposed_at = self._rejoining = None
        if told.we_are_master and (self._led is None or told.master_epoch > self._led.epoch):
            self._led = _Mastership(told.master_epoch, now)
        elif self._is_deposed_by(told) and self._deposed_at is None:
            self._deposed_at, self._local_silent_since = now, None
        return told.master_epoch >= self._highest_epoch

    def _is_believed(self, told: Told, asked_at: float) -> bool:
        before = self.told
        if before is None or told.master_epoch >= before.master_epoch:
            self._old_since = None
            return True
        if self._old_since is None:
            self._old_since = asked_at
        if asked_at - self._old_since < self.rules.old_word_seconds:
            return False
        self._old_since = None
        if self._led is not None:
            # The record may have forgotten that epoch; what it grants from now on deposes our broker.
            self._led = replace(self._led, epoch=told.master_epoch)
        return True

    def _is_deposed_by(self, told: Told) -> bool:
        """Whether this answer names another broker as master after ours was."""
        another = told.master_id is not None and not told.we_are_master
        return another and self._led is not None and told.master_epoch > self._led.epoch

    def _note_whether_alone(self, now: float, told: Told) -> None:
        if not told.we_are_master or any(one.alive for one in told.members if one.broker_id != told.own_id):
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        self._alone = self._alone_since is not None and now - self._alone_since >= self.rules.alone_seconds

    def peer_answered(
        self,
        asked_at: float,
        broker_id: int,
        hears_none_for_seconds: float,
        no_contact_for_seconds: float | None = None,
    ) -> None:
        """Record how long another replica's fence has been without a controller, and without one that reached the Kubernetes API.

        The answer may be older than its last contact. ``no_contact_for_seconds`` is None of a fence of an earlier release.
        """
        self._peers[broker_id] = _PeerWord(asked_at, hears_none_for_seconds)
        self._contact.peer_answered(asked_at, broker_id, no_contact_for_seconds)

    def local_answered(
        self, now: float, role: LocalRole, *, process_age_seconds: float | None, last_read_ms: int = 0
    ) -> None:
        """Record the broker's answer about its role, and when it last read from its master.

        ``process_age_seconds`` is None if no broker process runs.
        """
        self._local, self._local_at = role, now
        if role is not LocalRole.SILENT or process_age_seconds is None:
            self._local_silent_since = None
        elif self._local_silent_since is None and process_age_seconds > self.rules.starting_seconds:
            self._local_silent_since = now
        if self._deposed_at is not None and self._began_after_its_mastership(now, process_age_seconds):
            # The process that was master is dead. This one was never granted that epoch, and may read its log for minutes.
            self._deposed_at = self._led = None
        if role is LocalRole.SLAVE:
            if self._deposed_at is not None:
                self._deposed_at, self._led, self._rejoining = None, None, _Rejoining(now)
            elif self._is_another_named:
                self._led = None
        if self._rejoining is not None:
            self._rejoining.heard(last_read_ms, in_sync=self._is_in_sync)

    def _began_after_its_mastership(self, now: float, process_age_seconds: float | None) -> bool:
        if self._led is None or process_age_seconds is None:
            return False
        return now - process_age_seconds > self._led.heard_at

    @property
    def _is_another_named(self) -> bool:
        """Whether another broker is master by the last answer that was believed."""
        return self.told is not None and self.told.master_id is not None and not self.told.we_are_master

    def woke(self, now: float, paused_seconds: float, *, starved_seconds: float) -> None:
        """Record that we did not run for this long, and waited in the run queue for ``starved_seconds`` of it."""
        self._stalls.append(_Stall(now, min(paused_seconds, starved_seconds)))

    def killed(self, now: float) -> None:
        """Record that the broker is dead; the next process has no role until a controller names one, and commits that."""
        self._armed = False
        self._contact.killed(now)
        self._deposed_at = self._led = self._rejoining = None
        self._alone_since, self._alone = None, False
        self.told = None

    # Decisions.

    @property
    def role_word(self) -> str:
        """Return the broker's role for the preStop hook. ``master`` lasts until the broker steps down, whatever the record says,
        and is linked to the new master as a member of the SyncStateSet.

        A Java slave may lose its first link while the new master has it put into the set: the master waits 3 s and more for its
        acknowledgements. The operator makes a slave dial again, but not one that is stopping, whose port is closed.

        ``alone``: it is master, and no other replica will take its place: none is alive, or the whole group stops.
        """
        if self.told is None or self.told.own_id is None:
            return "unknown"
        if self._alone or (self.told.stops and self.told.we_are_master):
            return "alone"
        # Also by the old word of a controller that names another: ours was master under a higher epoch.
        has_not_stepped_down = self._led is not None and self._is_another_named
        is_handing_over = has_not_stepped_down or self._deposed_at is not None or self._rejoining is not None
        return "master" if self.told.we_are_master or is_handing_over else "slave"

    def is_known_as_slave(self, now: float) -> bool:
        """Whether a controller has just named another broker as master, and ours has stepped down if it was master.

        False in doubt: a fence that has just started, or hears no controller that reaches the API, may be beside a master.
        """
        if self.told is None or self.told.master_id is None or self._told_at is None or self.role_word != "slave":
            return False
        if self._contact.is_overdue(now):  # it may have been elected by a controller that is not heard
            return False
        return now - self._told_at < self.rules.asking_others_after_seconds

    def hears_none_for_seconds(self, now: float) -> float | None:
        """Return the time without a controller's answer, for the other fences; None before the first answer."""
        return None if self._heard_at is None else now - self._heard_at

    def asks_half(self, now: float) -> bool:
        """Whether to ask half of the controllers that answer, in turn.

        In an outage of the Kubernetes API all fences ask all controllers. After the first seconds of one that goes on half of them
        will do; not of those that do not answer: one of them may be across a cut, and elect, and time is short once it is reached.
        """
        return self._contact.is_silent_long(now)

    def no_contact_for_seconds(self, now: float) -> float | None:
        """Return the time without a controller that reached the Kubernetes API, for the other fences; None before any answer."""
        return None if self._contact.at is None else now - self._contact.at

    def asks_others(self, now: float) -> tuple[Member, ...]:
        """Return the replicas whose fences to ask now."""
        return self.candidates() if self._is_in_doubt(now) else ()

    def _is_in_doubt(self, now: float) -> bool:
        is_silent = self._silence_seconds(now) >= self.rules.asking_others_after_seconds
        return self._armed and (is_silent or self._contact.is_in_doubt(now))

    def asks_local(self, now: float) -> bool:
        """Whether to ask the broker about its role now."""
        if self._deposed_at is not None or self._rejoining is not None:
            return True
        if self._led is not None and self._is_another_named:
            return True
        return self._is_in_doubt(now)

    def look(self, now: float) -> Kill | None:
        """Return the reason to kill the broker now, or None."""
        if self._rejoining is not None and self._has_rejoined(self._rejoining, now):
            self._rejoining = None
        if not self._armed:
            return None
        self._excuse.renew(self._none_could_be_elected_at(now))
        return self._deposed(now) or self._isolated(now) or self._cut_off(now)

    @property
    def _is_in_sync(self) -> bool:
        told = self.told
        return told is not None and any(one.in_sync for one in told.members if one.broker_id == told.own_id)

    def _has_rejoined(self, rejoining: _Rejoining, now: float) -> bool:
        """Whether the former master is linked and in the set, or has had its time for it."""
        return (rejoining.is_linked and self._is_in_sync) or now - rejoining.since >= self.rules.rejoining_seconds

    def _isolated(self, now: float) -> Kill | None:
        silence = self._silence_seconds(now)
        allowed = min(self.rules.isolation_seconds + self._starved_seconds(), self.rules.bound_seconds)
        if silence < allowed or not self._may_be_master(self._silent_since):
            return None
        why = self._excuse.why_to_die(now, f"no controller for {silence:.1f} s")
        return None if why is None else Kill(why)

    def _cut_off(self, now: float) -> Kill | None:
        why = self._contact.look(now)
        if why is None or self._contact.at is None or not self._may_be_master(self._contact.at):
            return None
        return Kill(why)

    def _deposed(self, now: float) -> Kill | None:
        if self._deposed_at is None or self.told is None:
            return None
        master = f"broker {self.told.master_id} is master of epoch {self.told.master_epoch}"
        silent_since = self._local_silent_since
        if silent_since is not None and now - silent_since >= self.rules.deposed_silent_seconds:
            return Kill(f"{master}, and ours does not answer")
        if self._local is LocalRole.MASTER and now - self._deposed_at >= self.rules.deposed_master_seconds:
            return Kill(f"{master}, and ours has not stepped down for {now - self._deposed_at:.1f} s")
        return None

    @property
    def _silent_since(self) -> float:
        return self.started_at if self._heard_at is None else self._heard_at

    def _silence_seconds(self, now: float) -> float:
        return now - self._silent_since

    def _starved_seconds(self) -> float:
        """Return for how much of the silence we could not ask."""
        since = self._silent_since
        return sum(max(0.0, min(stall.starved_seconds, stall.ended_at - since)) for stall in self._stalls)

    def _may_be_master(self, silent_since: float) -> bool:
        """Whether the broker may be master: by its own report if younger than the silence, else if it was master by any answer, and
        has not stepped down since.
        """
        if self._local_at > silent_since:
            if self._local is LocalRole.MASTER:
                return True
            if self._local is LocalRole.SLAVE:
                return False
        return self._led is not None or (self.told is not None and self.told.we_are_master)

    def candidates(self) -> tuple[Member, ...]:
        """Return the other replicas that could be elected: the SyncStateSet, and those alive that may join it.

        Merely eligible replicas (rule 1) exist only while the set is below its minimum; a master then acknowledges nothing.
        """
        if self.told is None:
            return ()
        found = [*(self._contact.in_sync or ()), *(one for one in _others(self.told) if one.in_sync or one.alive)]
        return tuple({member.broker_id: member for member in found}.values())

    def _none_could_be_elected_at(self, now: float) -> float | None:
        """Return when no replica could last be elected, by the others' answers (read late: in the past). None: one may be."""
        if self.told is None or self._silence_seconds(now) < self.rules.asking_others_after_seconds:
            return None
        words = [self._peers.get(member.broker_id) for member in self.candidates()]
        blind = [word.at for word in words if word and self._was_cut_off_with_us(word)]
        if len(blind) < len(words):
            return None
        oldest = min(blind, default=now)
        return now if now - oldest <= self.rules.question_period_seconds else oldest

    def _was_cut_off_with_us(self, word: _PeerWord) -> bool:
        return word.hears_none_for_seconds >= self.rules.blind_seconds(word.at - self._silent_since)

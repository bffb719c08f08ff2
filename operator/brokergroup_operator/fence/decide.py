"""When the broker of this pod must die: pure, time comes as an argument (ADR 8; docs/concepts/architecture.md, rule 7).

An unmodified Java master that is cut off or frozen may acknowledge, later, what no other replica has. Whoever elects another
one waits for ``heartbeatTimeout + fenceTimeout`` first, counted from the last heartbeat, which may be one heartbeat interval
older than the cut; so a master that has been cut off from every controller for less than that, and dies then, can do no harm.
Four cases:

* *Isolated*: no controller has answered for the isolation timeout.
* *Nobody can elect*: none has answered, but every other replica that could be elected says that it hears none either. A
  controller that hears none of them can make none of them master: the broker lives on, through an outage or a restart of all
  operators. As soon as one of them hears a controller again, or is heard no more itself, this excuse ends, and a shorter time
  than ``fenceTimeout`` is left.
* *Frozen*: we ourselves did not run, and not for want of a processor. The broker beside us did not run either, and is about
  to go on with what waits in its sockets. Nobody is asked first.
* *Starved*: we did not run because others had the processor, and so could ask nobody. That time is forgiven, but only up to
  ``bound_seconds``: it ends before another master can be elected, whatever the reason why no controller was heard.
* *Deposed*: a controller says that another replica is master now, and the broker does not answer, or is still master long
  after.

A controller counts as heard at the moment in which it was *asked*: an answer that waited in a socket is old news.

Only a broker that may be master is killed: a slave acknowledges nothing. Once killed, the new process is nobody until a
controller grants it a role, so nothing is killed again before a controller was heard.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

# Of fenceTimeout, how much is used after an excuse has ended; the rest is for looking, asking and killing.
_SHARE_OF_FENCE_TIMEOUT: Final = 2 / 3
# Of the isolation timeout: from when on the others are asked, and how long they must have heard nothing themselves.
_SHARE_BEFORE_ASKING: Final = 0.5
_QUESTIONS_IN_ISOLATION: Final = 5
# More stalls than these since a controller was heard are long past the bound: each is at least ``NOTICED_SECONDS`` (processes.py).
_STALLS_KEPT: Final = 512


class LocalRole(Enum):
    """What the broker beside us says of itself (907)."""

    MASTER = "master"
    SLAVE = "slave"
    SILENT = "silent"
    # It answered, but not this question (it may ask for a signature).
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Member:
    """One replica of the group, as a controller shows it (1006)."""

    broker_id: int
    address: str
    in_sync: bool
    alive: bool


@dataclass(frozen=True, slots=True)
class Told:
    """What a controller said of the group; ``own_id`` is the replica at our address, None while it has none.

    ``stops``: all pods of the group are stopped, and nobody is elected.
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


@dataclass(frozen=True, slots=True)
class FenceRules:
    """Times of one fence, all in seconds."""

    isolation_seconds: float
    fence_timeout_seconds: float
    # After this silence of a broker, and ``fence_timeout_seconds`` more, another one is elected at the earliest.
    heartbeat_timeout_seconds: float
    # The silence may have begun so long before the cut: the next heartbeat was due at the moment of it.
    heartbeat_interval_seconds: float
    # A broker that a controller calls deposed, and that does not answer for this long, is frozen ...
    deposed_silent_seconds: float = 1.0
    # ... but not if it is so young that it is only starting.
    starting_seconds: float = 30.0
    # A master beside which no other replica was alive for this long has nobody to hand over to. Longer than a controller that has
    # just started may take to hear the others' heartbeats.
    alone_seconds: float = 3.0
    # One that goes on calling itself master for this long was not reached by its role change (worst case measured: 5 s).
    deposed_master_seconds: float = 8.0

    @property
    def bound_seconds(self) -> float:
        """The longest a master lives that hears no controller and has no excuse, however little we ourselves were let run."""
        silent_seconds = self.heartbeat_timeout_seconds - self.heartbeat_interval_seconds
        return max(self.isolation_seconds, silent_seconds + self.fence_timeout_seconds * _SHARE_OF_FENCE_TIMEOUT)

    @property
    def question_period_seconds(self) -> float:
        """How often a controller is asked."""
        return self.isolation_seconds / _QUESTIONS_IN_ISOLATION

    @property
    def asking_others_after_seconds(self) -> float:
        """Silence of the controllers after which the other replicas and the broker are asked."""
        return self.isolation_seconds * _SHARE_BEFORE_ASKING

    @property
    def left_after_excuse_seconds(self) -> float:
        """How long an excuse lasts: who hears controllers again when it ends is elected ``fenceTimeout`` later at the earliest."""
        return min(self.isolation_seconds, self.fence_timeout_seconds * _SHARE_OF_FENCE_TIMEOUT)

    def blind_seconds(self, silence_seconds: float) -> float:
        """How long another replica must have heard no controller to count as cut off, where we have heard none for so long.

        One that was cut off later than we by more than ``fenceTimeout``, less the heartbeat that we did not send any more, would
        still count as alive when we count as fenced; whatever made us late to judge makes that difference no smaller.
        """
        later_seconds = min(
            self.left_after_excuse_seconds, self.fence_timeout_seconds - self.heartbeat_interval_seconds
        )
        return max(self.asking_others_after_seconds, max(self.isolation_seconds, silence_seconds) - later_seconds)


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


@dataclass(slots=True)
class FenceCore:
    """Everything one fence knows. Times are seconds of one clock that goes on while the machine sleeps."""

    rules: FenceRules
    started_at: float
    # An earlier fence of this pod heard a controller: silence means something from the start. One that never heard any may only
    # not understand them (a certificate that it does not believe, a wrong address), and kills nobody.
    heard_before: bool = False
    told: Told | None = None
    _heard_at: float | None = None
    _excused_at: float | None = None
    # When we were kept from running by other work, not by a freeze.
    _stalls: deque[_Stall] = field(default_factory=lambda: deque(maxlen=_STALLS_KEPT))
    _peers: dict[int, _PeerWord] = field(default_factory=dict)
    _local: LocalRole | None = None
    _local_at: float = 0.0
    _local_silent_since: float | None = None
    _deposed_at: float | None = None
    _alone_since: float | None = None
    _alone: bool = False
    _armed: bool = field(init=False)

    def __post_init__(self) -> None:
        self._armed = self.heard_before

    # What happened.

    def controller_answered(self, now: float, told: Told | None, *, asked_at: float) -> None:
        """A controller answered what it was asked then; ``told`` is None if it does not know the group."""
        self._heard_at, self._excused_at = asked_at, None
        self._armed = True
        if told is None:
            return
        before, self.told = self.told, told
        self._note_whether_alone(now, told)
        if told.we_are_master or told.master_id is None:
            self._deposed_at = None
        elif before is not None and before.we_are_master and told.master_epoch > before.master_epoch:
            self._deposed_at, self._local_silent_since = now, None

    def _note_whether_alone(self, now: float, told: Told) -> None:
        if not told.we_are_master or any(one.alive for one in told.members if one.broker_id != told.own_id):
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        self._alone = self._alone_since is not None and now - self._alone_since >= self.rules.alone_seconds

    def peer_answered(self, asked_at: float, broker_id: int, hears_none_for_seconds: float) -> None:
        """The fence of another replica said since when it has heard no controller; it may have heard one since it was asked."""
        self._peers[broker_id] = _PeerWord(asked_at, hears_none_for_seconds)

    def local_answered(self, now: float, role: LocalRole, *, process_age_seconds: float | None) -> None:
        """The broker beside us was asked what it is; without a process there is nobody to be asked."""
        self._local, self._local_at = role, now
        if role is not LocalRole.SILENT or process_age_seconds is None:
            self._local_silent_since = None
        elif self._local_silent_since is None and process_age_seconds > self.rules.starting_seconds:
            self._local_silent_since = now
        if self._deposed_at is not None and role is LocalRole.SLAVE:
            self._deposed_at = None

    def woke(self, now: float, paused_seconds: float, *, starved_seconds: float) -> None:
        """We did not run for so long, and for ``starved_seconds`` of it we wanted to (the scheduler's own word)."""
        self._stalls.append(_Stall(now, min(paused_seconds, starved_seconds)))

    def killed(self) -> None:
        """The broker is dead; the next process is nobody until a controller says otherwise."""
        self._armed = False
        self._deposed_at = None
        self._alone_since, self._alone = None, False
        self.told = None

    # What to do.

    @property
    def role_word(self) -> str:
        """``master`` as long as the broker may think so: also after the record named another, until it has stepped down.

        ``alone``: it is master, and no other replica will take its place: none is alive, or the whole group stops.
        """
        if self.told is None or self.told.own_id is None:
            return "unknown"
        if self._alone or (self.told.stops and self.told.we_are_master):
            return "alone"
        return "master" if self.told.we_are_master or self._deposed_at is not None else "slave"

    def hears_none_for_seconds(self, now: float) -> float | None:
        """Since when no controller has answered, for the others; None if none ever has."""
        return None if self._heard_at is None else now - self._heard_at

    def asks_others(self, now: float) -> tuple[Member, ...]:
        """The replicas whose word is wanted now."""
        if not self._armed or self._silence_seconds(now) < self.rules.asking_others_after_seconds:
            return ()
        return self._candidates()

    def asks_local(self, now: float) -> bool:
        """Whether the broker's own word is wanted now."""
        if self._deposed_at is not None:
            return True
        return self._armed and self._silence_seconds(now) >= self.rules.asking_others_after_seconds

    def look(self, now: float) -> Kill | None:
        """Whether the broker has to die now."""
        if not self._armed:
            return None
        known_at = self._nobody_could_elect(now)
        if known_at is not None:
            self._excused_at = known_at if self._excused_at is None else max(self._excused_at, known_at)
        return self._deposed(now) or self._isolated(now)

    def _isolated(self, now: float) -> Kill | None:
        silence = self._silence_seconds(now)
        allowed = min(self.rules.isolation_seconds + self._starved_seconds(), self.rules.bound_seconds)
        if silence < allowed or not self._may_be_master():
            return None
        if self._excused_at is not None:
            unexcused = now - self._excused_at
            if unexcused < self.rules.left_after_excuse_seconds:
                return None
            return Kill(f"no controller for {silence:.1f} s, and for {unexcused:.1f} s another replica may hear one")
        return Kill(f"no controller for {silence:.1f} s")

    def _deposed(self, now: float) -> Kill | None:
        if self._deposed_at is None or self.told is None:
            return None
        whom = f"broker {self.told.master_id} is master of epoch {self.told.master_epoch}"
        silent_since = self._local_silent_since
        if silent_since is not None and now - silent_since >= self.rules.deposed_silent_seconds:
            return Kill(f"{whom}, and ours does not answer")
        if self._local is LocalRole.MASTER and now - self._deposed_at >= self.rules.deposed_master_seconds:
            return Kill(f"{whom}, and ours has not stepped down for {now - self._deposed_at:.1f} s")
        return None

    @property
    def _silent_since(self) -> float:
        return self.started_at if self._heard_at is None else self._heard_at

    def _silence_seconds(self, now: float) -> float:
        return now - self._silent_since

    def _starved_seconds(self) -> float:
        """For how long of the silence we were kept from asking anybody."""
        since = self._silent_since
        return sum(max(0.0, min(stall.starved_seconds, stall.ended_at - since)) for stall in self._stalls)

    def _may_be_master(self) -> bool:
        """The broker's own word if it is younger than the silence, else the controller's last one."""
        if self._local_at > self._silent_since:
            if self._local is LocalRole.MASTER:
                return True
            if self._local is LocalRole.SLAVE:
                return False
        return self.told is not None and self.told.we_are_master

    def _candidates(self) -> tuple[Member, ...]:
        """Who else could be elected: the SyncStateSet, and whoever was alive to join it.

        Replicas that are eligible only (rule 1) need no question: they exist only while the set is below its minimum, and then
        a master acknowledges nothing.
        """
        if self.told is None:
            return ()
        return tuple(
            member
            for member in self.told.members
            if member.broker_id != self.told.own_id and (member.in_sync or member.alive)
        )

    def _nobody_could_elect(self, now: float) -> float | None:
        """When that was last so, by what the others said. It lies in the past where we were late to read their words."""
        if self.told is None or self._silence_seconds(now) < self.rules.asking_others_after_seconds:
            return None
        words = [self._peers.get(member.broker_id) for member in self._candidates()]
        blind = [word.at for word in words if word and self._was_cut_off_with_us(word)]
        if len(blind) < len(words):
            return None
        oldest = min(blind, default=now)
        return now if now - oldest <= self.rules.question_period_seconds else oldest

    def _was_cut_off_with_us(self, word: _PeerWord) -> bool:
        return word.hears_none_for_seconds >= self.rules.blind_seconds(word.at - self._silent_since)

"""Three brokers' fences, their controllers and cuts between them, with time as plain numbers.

Each fence asks as watchman.py does: one controller, and all while that one is silent or does not reach the API.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from brokergroup_operator.api.failover_fields import times_of
from brokergroup_operator.fence.decide import FenceCore, Member, Told
from brokergroup_operator.fence.rules import FenceRules
from tests.fence import cores
from tests.fence.cores import TICK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PEERS_PERIOD = 0.1
MEETING_PERIOD = 5.0
API_PERIOD = 0.5
FOREVER = float("inf")


def rules_of(timeout_milliseconds: int) -> FenceRules:
    times = times_of(timeout_milliseconds)
    return FenceRules(
        isolation_seconds=times.isolation_milliseconds / 1000,
        fence_timeout_seconds=times.fence_milliseconds / 1000,
        heartbeat_timeout_seconds=times.heartbeat_timeout_milliseconds / 1000,
        heartbeat_interval_seconds=times.heartbeat_interval_milliseconds / 1000,
    )


RULES = rules_of(3000)


def told(own: int, *, master: int = 1, brokers: tuple[int, ...] = (1, 2, 3)) -> Told:
    """Return an answer to this broker: these brokers are members, alive and in sync."""
    whole = cores.told(master, own=own)
    return replace(whole, members=tuple(each for each in whole.members if each.broker_id in brokers))


@dataclass(eq=False)
class Plane:
    """A controller. ``reads_until``: when it loses the API; ``silence_of``: another course of its contact."""

    reads_until: float = FOREVER
    latency: float = 0.02
    phase: float = 0.0
    silence_of: Callable[[float], float] | None = None

    def silence(self, now: float) -> float:
        if self.silence_of is not None:
            return self.silence_of(now)
        answered = (min(now, self.reads_until) - self.latency - self.phase) // API_PERIOD
        return now - (answered * API_PERIOD + self.phase)


@dataclass
class Fence:
    """The fence of one broker, which reaches these controllers."""

    broker_id: int
    core: FenceCore
    planes: list[Plane]
    is_old: bool = False
    current: Plane | None = None
    controllers_due: float = 0.0
    peers_due: float = 0.0
    meeting_due: float = 0.0
    # The controllers that answered their last question.
    answering: list[Plane] = field(default_factory=list)
    round: int = 0
    killed_at: float | None = None

    def asks_controllers(self, now: float) -> None:
        if now < self.controllers_due:
            return
        self.controllers_due = now + self.core.rules.question_period_seconds
        asked = [self.current] if self.current in self.planes else list(self.planes)
        if self.current not in asked:
            self.current = None
        self.answering = [plane for plane in self.answering if plane in self.planes]
        self.round += 1
        skips = len(asked) > 1 and len(self.answering) > 1 and self.core.asks_half(now)
        skipped = self.answering[self.round % 2 :: 2] if skips else []
        self.answering += [plane for plane in self.planes if plane not in self.answering]
        for plane in (each for each in asked if each is not None and each not in skipped):
            silence = 0.0 if self.is_old else plane.silence(now)
            self.core.controller_answered(now, told(self.broker_id), asked_at=now, api_silence_seconds=silence)
            if silence < self.core.rules.asking_others_after_seconds:
                self.current = plane
            elif self.current is plane:
                self.current = None

    def members_to_ask(self, now: float) -> tuple[Member, ...]:
        if now >= self.peers_due and (members := self.core.asks_others(now)):
            self.peers_due = now + PEERS_PERIOD
            return members
        if now >= self.meeting_due:
            self.meeting_due = now + MEETING_PERIOD
            return self.core.candidates()
        return ()


@dataclass
class Shop:
    """Three brokers, of which 1 is master, and what each fence hears."""

    rules: FenceRules = RULES
    now: float = 0.0
    fences: dict[int, Fence] = field(default_factory=dict)
    cut: set[frozenset[int]] = field(default_factory=set)

    def add(self, broker_id: int, planes: list[Plane], *, is_old: bool = False, again: bool = False) -> Fence:
        core = FenceCore(self.rules, started_at=self.now if again else self.now - 100.0, heard_before=again)
        made = Fence(broker_id, core, planes, is_old=is_old, controllers_due=self.now + 0.13 * broker_id)
        self.fences[broker_id] = made
        return made

    def run(self, until: float, *, tick: float = TICK) -> None:
        while self.now < until:
            self.now += tick
            for fence in self.fences.values():
                self._turn(fence)

    def _turn(self, fence: Fence) -> None:
        fence.asks_controllers(self.now)
        for member in fence.members_to_ask(self.now):
            other = self.fences.get(member.broker_id)
            if other is None or frozenset((fence.broker_id, member.broker_id)) in self.cut:
                continue
            silence, contact = other.core.hears_none_for_seconds(self.now), other.core.no_contact_for_seconds(self.now)
            if silence is not None:
                without_number = other.is_old or fence.is_old
                fence.core.peer_answered(self.now, other.broker_id, silence, None if without_number else contact)
        if fence.core.look(self.now) is not None and fence.killed_at is None:
            fence.killed_at = self.now
            fence.core.killed(self.now)

    def separate(self, broker_id: int, *others: int) -> None:
        self.cut |= {frozenset((broker_id, other)) for other in others}

    @property
    def killed_at(self) -> float | None:
        return self.fences[1].killed_at


def shop(planes: list[Plane], *, rules: FenceRules = RULES, old: Iterable[int] = ()) -> Shop:
    """Return a shop in which each fence reaches each controller."""
    made = Shop(rules)
    for broker_id in (1, 2, 3):
        made.add(broker_id, list(planes), is_old=broker_id in set(old))
    return made


def in_outage(planes: list[Plane], at: float, *, rules: FenceRules = RULES, old: Iterable[int] = ()) -> Shop:
    """Return a shop in which all controllers have just lost the API."""
    made = shop(planes, rules=rules, old=old)
    made.run(at)
    for plane in planes:
        plane.reads_until = at
    return made


def cut_off_with_one_controller(at: float, made: Shop) -> None:
    """The first controller and the master lose all else."""
    alone, *others = made.fences[1].planes
    made.run(at)
    alone.reads_until = at
    made.fences[1].planes = [alone]
    for broker_id in (2, 3):
        made.fences[broker_id].planes = others
    made.separate(1, 2, 3)

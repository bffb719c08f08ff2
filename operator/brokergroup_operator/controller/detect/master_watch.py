"""Is the master dead? From the heartbeat table's doubts to a verdict with its certainty.

It is certain if its address refuses connections, its container was reported terminated, or a new process registered in its place.
Else:

* only its connection closed: it gets 400 ms to come back, and the whole heartbeat timeout while something listens at its address;
* silent: one that other planes hear (`peers/services.py`) is left alone, and one that answers (907);
* not yet heard by this plane: it may have registered with another plane and not opened its port. It gets the time of a start,
  and a closed port proves its death only if no other plane hears it.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.api import names
from brokergroup_operator.controller.group.elections import process_lost
from brokergroup_operator.controller.peers.services import HeardElsewhere, Part, Services, dial, doubled
from brokergroup_operator.observe.timeline import NO_ANSWER_WORDS, Trigger
from rocketmq_remoting.address import host_of

if TYPE_CHECKING:
    from brokergroup_operator.controller.directory.group_directory import GroupDirectory
    from brokergroup_operator.controller.group.group import Group
    from controller_core.liveness import HeartbeatEntry
    from controller_core.model import BrokerGroupRecord

POLL_SECONDS = 0.01

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class PauseGuard:
    """Notices that this process itself stood still (SIGSTOP, a paused machine, a starved loop): every broker looks silent then,
    and brokers close connections that do not answer.
    """

    threshold_seconds: float
    distrust_seconds: float
    _last_tick_seconds: float = math.inf
    _distrust_until_seconds: float = 0.0

    def tick(self, now_seconds: float) -> bool:
        """Take a tick; return whether this process was paused before it."""
        paused = self._note(now_seconds)
        self._last_tick_seconds = now_seconds
        return paused

    def distrusts(self, now_seconds: float) -> bool:
        """Whether this process's own view is not to be believed now."""
        self._note(now_seconds)
        return now_seconds < self._distrust_until_seconds

    def _note(self, now_seconds: float) -> bool:
        paused = now_seconds - self._last_tick_seconds > self.threshold_seconds
        if paused:
            self._distrust_until_seconds = now_seconds + self.distrust_seconds
        return paused


class Suspicion(StrEnum):
    CLOSED = "its connection closed"
    SILENT = "it is silent"
    UNHEARD = "it was never heard since this controller started"
    REPORTED = "its container was reported terminated"


class Probe(Enum):
    """A refusal proves a death. A listener proves little, because a frozen process has one too; no answer proves nothing."""

    REFUSED = auto()
    LISTENS = auto()
    NO_ANSWER = auto()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found. `certain`: the process is known to be dead."""

    trigger: Trigger
    evidence: tuple[str, ...]
    certain: bool


@dataclass(slots=True)
class _Case:
    group: Group
    record: BrokerGroupRecord
    master: int
    address: str
    # Where its port says whether the process is there; None: nowhere.
    probed: str | None
    suspicion: Suspicion
    deadline_seconds: float
    listening_deadline_seconds: float
    evidence: list[str] = field(default_factory=list)
    probes: int = 0
    question: asyncio.Task[HeardElsewhere] | None = None

    def probe_again(self) -> asyncio.Task[Probe]:
        """Probe at once, then after pauses that double: a dead process's connections may close before its listener does."""
        pause_seconds = doubled(0.0005, self.probes - 1, 0.1) if self.probes else 0.0
        self.probes += 1
        return asyncio.create_task(_probe(self.probed, after_seconds=pause_seconds), name=f"rmq:probe {self.group.key}")

    def forget_question(self) -> None:
        if self.question is not None:
            self.question.cancel()
            self.question = None


class MasterWatch(Part):
    def __init__(self, services: Services, *, directory: GroupDirectory, guard: PauseGuard) -> None:
        super().__init__(services)
        self._directory, self._guard = directory, guard

    def suspect(self, group: Group, record: BrokerGroupRecord, master: int) -> Suspicion | None:
        """Return why the heartbeat table gives reason to doubt this master, or None. Cheap."""
        # Not before its possible successors could have been heard: a member that is missing from a cold table may live.
        if not group.not_heard_yet() <= {master}:
            return None
        entry, now_seconds = group.table.entry(master), self._now_seconds
        if entry is None:
            reported = self._is_terminated(group, master, record.address_of(master) or "") is not None
            overdue = self.is_warm(group) and not self._may_be_starting(group)
            return Suspicion.UNHEARD if reported or overdue else None
        if entry.connection_id is None:
            return Suspicion.CLOSED
        if not entry.alive(now_seconds):
            return Suspicion.SILENT if now_seconds >= _silent_from(group, entry) else None
        self._ask_the_silent(group, record, master, entry)
        # A terminated container whose connection still stands: believed once heartbeats are missing too.
        silent_for_seconds = now_seconds - entry.last_seen_seconds
        if master in group.members.reported_dead and silent_for_seconds > self._settings.pause_threshold_seconds:
            return Suspicion.REPORTED
        return None

    def is_warm(self, group: Group) -> bool:
        """Whether silence counts yet: all members were heard, or could have been."""
        return not self._guard.distrusts(self._now_seconds) and not group.not_heard_yet()

    def _may_be_starting(self, group: Group) -> bool:
        """Whether the master's process may be so new that it has not called this plane yet."""
        start_seconds = self._settings.startup_timeout_seconds + self._settings.broker_rescan_seconds
        is_new = self._now_seconds - group.master_known_seconds < start_seconds
        return is_new and group.master_known_seconds > group.met_seconds

    async def corroborate(
        self, group: Group, record: BrokerGroupRecord, master: int, suspicion: Suspicion
    ) -> Verdict | None:
        """Look for certainty while the master may still come back; None if it did, or is not master any more."""
        case = self._open(group, record, master, suspicion)
        probe = case.probe_again()
        try:
            while self._now_seconds < case.deadline_seconds:
                if self._is_settled(case):
                    return None
                self._ask_others_near_the_end(case)
                verdict = self._look(case, probe)
                if verdict is not None:
                    return None if await self._is_starting(case, verdict) else verdict
                if probe.done():
                    if suspicion is not Suspicion.CLOSED:
                        break
                    if probe.result() is Probe.LISTENS and case.deadline_seconds < case.listening_deadline_seconds:
                        case.deadline_seconds = case.listening_deadline_seconds
                        case.forget_question()  # what the other planes said is old by then
                    probe = case.probe_again()
                await asyncio.wait([probe], timeout=POLL_SECONDS)
            # One that is reported dead and heard, and nothing else shows its end: it may be that of the process before it.
            if group.is_live(master) or await self._is_heard_elsewhere(case) or self._is_settled(case):
                return None
            if suspicion is not Suspicion.CLOSED and case.probed is not None and not await _is_answered(probe):
                case.evidence.append(NO_ANSWER_WORDS)
        finally:
            probe.cancel()
            case.forget_question()
        if suspicion is Suspicion.UNHEARD and await self._answers_as_master(case):
            return None
        trigger = Trigger.CONNECTION_CLOSED if suspicion is Suspicion.CLOSED else Trigger.SILENCE
        return Verdict(trigger, tuple(case.evidence), certain=False)

    def _ask_others_near_the_end(self, case: _Case) -> None:
        left_seconds = case.deadline_seconds - self._now_seconds
        is_near = left_seconds <= self._settings.other_planes_deadline_seconds or case.suspicion is not Suspicion.CLOSED
        if case.question is None and is_near:
            asked = self._planes.who_hears(case.group.key, case.group.binding.broker_name, case.master)
            case.question = asyncio.create_task(asked, name=f"rmq:other planes {case.group.key}")

    async def _is_heard_elsewhere(self, case: _Case) -> bool:
        """Whether enough other planes hear this master to leave it alone for a moment."""
        if case.question is None:
            return False
        testimony, group, master = await case.question, case.group, case.master
        if not testimony.protects(group.silent_for_seconds(master), self._settings.other_planes_patience_seconds):
            if testimony.hearing:
                case.evidence.append(f"heard by {len(testimony.hearing)} of {testimony.planes} planes, for too long")
            return False
        heard_seconds = group.last_heard_seconds(master)
        if group.silence.spared_silence_seconds != heard_seconds:  # each silence counts once
            group.silence.spared_silence_seconds = heard_seconds
            group.silence.spared += 1
            what = "master silent here, but other planes hear it: left alone"
            log.warning(what, group=str(group.key), broker_id=master, planes=testimony.hearing)
            group.changed()
        await asyncio.sleep(self._settings.other_planes_pause_seconds)  # and not asked again at every tick
        return True

    async def _is_starting(self, case: _Case, verdict: Verdict) -> bool:
        """Whether the closed port of a master that was not heard here is only not open yet: another plane hears the process."""
        if case.suspicion is not Suspicion.UNHEARD or verdict.trigger is not Trigger.CONNECTION_REFUSED:
            return False
        return await self._is_heard_elsewhere(case)

    def _open(self, group: Group, record: BrokerGroupRecord, master: int, suspicion: Suspicion) -> _Case:
        grace_seconds, now_seconds, listening_deadline_seconds = self._settings.probe_seconds, self._now_seconds, 0.0
        if suspicion is Suspicion.CLOSED:
            distrusted = self._guard.distrusts(now_seconds)
            grace_seconds = self._guard.distrust_seconds if distrusted else self._settings.reconnect_grace_seconds
            if (entry := group.table.entry(master)) is not None:
                listening_deadline_seconds = _silent_from(group, entry)
        address = record.address_of(master) or ""
        return _Case(
            group=group,
            record=record,
            master=master,
            address=address,
            probed=group.binding.probe_address(address, group.addresses.channel_hosts.get(master)),
            suspicion=suspicion,
            deadline_seconds=now_seconds + grace_seconds,
            listening_deadline_seconds=max(now_seconds + grace_seconds, listening_deadline_seconds),
            evidence=[f"{suspicion.value} (broker {master}, {address})"],
        )

    @staticmethod
    def _is_settled(case: _Case) -> bool:
        now = case.group.record
        if now is None or (now.master_broker_id, now.master_epoch) != (case.master, case.record.master_epoch):
            return True
        is_heard = case.group.is_live(case.master) and not now.master_process_lost
        return is_heard and case.suspicion is not Suspicion.REPORTED

    def _look(self, case: _Case, probe: asyncio.Task[Probe]) -> Verdict | None:
        terminated = self._is_terminated(case.group, case.master, case.address)
        if process_lost(case.group, case.master):
            trigger, how = Trigger.CONNECTION_CLOSED, "a new process registered in its place"
        elif terminated is not None:
            trigger, how = Trigger.CONTAINER_TERMINATED, terminated
        elif probe.done() and probe.result() is Probe.REFUSED:
            trigger, how = Trigger.CONNECTION_REFUSED, "connection refused"
        else:
            return None
        return Verdict(trigger, (*case.evidence, how), certain=True)

    def _is_terminated(self, group: Group, master: int, address: str) -> str | None:
        own = group.binding.process_address(address, group.addresses.channel_hosts.get(master))
        return self._directory.pods.termination_at(group.key, own or address)

    def _ask_the_silent(self, group: Group, record: BrokerGroupRecord, master: int, entry: HeartbeatEntry) -> None:
        address = record.address_of(master)
        if group.silence.asked_seconds >= entry.last_seen_seconds or address is None:
            return
        ask_before_seconds = min(self._settings.small_rpc_deadline_seconds, entry.timeout_seconds) / 2
        if entry.deadline_seconds - self._now_seconds <= ask_before_seconds:
            group.silence.asked_seconds = self._now_seconds
            self._tasks.start(self._ask(group, master, address, entry), f"rmq:ask {group.key}")

    async def _answers_as_master(self, case: _Case) -> bool:
        """Whether a master that was not heard here answers as master: it may heartbeat to another address of this installation."""
        owner = self._directory.pods.peer_at(host_of(case.address))
        own_pod = case.record.replicas[case.master].reserved_for or names.pod_name(case.group.key.name, case.master)
        if owner is not None and (owner.group, owner.pod_name) != (case.group.key, own_pod):
            return False  # the address changed hands (safety rule 8)
        status = await self._calls.ha_status_if_any(case.address)
        if status is None or not status.master:
            return False
        log.warning("master never heard, but it answers: left alone", group=str(case.group.key), broker_id=case.master)
        await asyncio.sleep(self._settings.small_rpc_deadline_seconds)  # and not asked again at every tick
        return True

    async def _ask(self, group: Group, master: int, address: str, before: HeartbeatEntry) -> None:
        status = await self._calls.ha_status_if_any(address)
        entry = group.table.entry(master)
        same_connection = entry is not None and entry.connection_id == before.connection_id
        if status is not None and status.master and same_connection and before.connection_id is not None:
            log.warning("master silent, but it answers: left alone", group=str(group.key), broker_id=master)
            group.table.sign_of_life(self._now_seconds, master, before.connection_id)


async def _is_answered(probe: asyncio.Task[Probe]) -> bool:
    await asyncio.wait([probe], timeout=POLL_SECONDS)
    return probe.done() and probe.result() is not Probe.NO_ANSWER


def _silent_from(group: Group, entry: HeartbeatEntry) -> float:
    """Return from when on this master counts as silent: a heartbeat timeout after its last heartbeat, but also after this plane
    learned that it is master: a plane that was cut off has not heard any broker meanwhile.
    """
    return max(entry.last_seen_seconds, group.master_known_seconds) + entry.timeout_seconds


async def _probe(address: str | None, *, after_seconds: float) -> Probe:
    await asyncio.sleep(after_seconds)
    if address is None:
        return Probe.NO_ANSWER
    try:
        await dial(address, deadline_seconds=1.0)
    except ConnectionRefusedError:
        return Probe.REFUSED
    except (OSError, ValueError):
        return Probe.NO_ANSWER
    return Probe.LISTENS

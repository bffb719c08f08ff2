"""From the loss of a master to the next one: fence if need be, decide, commit, tell.

A master that is certainly dead is replaced at once. A silent one is fenced first; if nothing confirms its death in time, the
failover goes on and says so (`unfenced`). The way through all files is in docs/concepts/architecture.md.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.controller.change.executor import Course, Executor, decided_at_last
from brokergroup_operator.controller.change.fencing import FenceOutcome, Fencer
from brokergroup_operator.controller.detect.master_watch import MasterWatch, Suspicion
from brokergroup_operator.controller.group import elections
from brokergroup_operator.controller.group.group import Group, PremiseGoneError
from brokergroup_operator.controller.peers.services import Part, Services
from brokergroup_operator.observe.timeline import FailoverTimeline, Outcome, Step, Trigger
from brokergroup_operator.records.store import RecordCorruptError, RecordRefusedError, RecordStoreError
from controller_core.change import Commit, Fence
from controller_core.decision import ControllerCode, Decision
from controller_core.holdings import epoch_seen_above
from controller_core.model import BrokerGroupRecord, Change, ChangeKind, Phase
from controller_core.requests import BeginChange, ElectMaster, TakeOverChange
from controller_core.step import step

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from brokergroup_operator.controller.detect.record_watch import Recovery
    from brokergroup_operator.controller.group.group import Premise

POLL_SECONDS = 0.01

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Attempt:
    """A change of master while this plane tries it."""

    group: Group
    timeline: FailoverTimeline
    premise: Premise
    wanted: ElectMaster = field(default_factory=ElectMaster)
    # The members that act as master although the record names none.
    acting: tuple[int, ...] = ()
    decision: Decision | None = None
    is_over: bool = False


class Failover(Part):
    def __init__(
        self, services: Services, *, watch: MasterWatch, fencer: Fencer | None, executor: Executor, recovery: Recovery
    ) -> None:
        super().__init__(services)
        self._watch, self._fencer, self._executor = watch, fencer, executor
        self._recovery, self._reports = recovery, recovery.reports

    def look_at(self, group: Group) -> None:
        """Begin a failover if this group needs one. Cheap: called at every tick and event."""
        record = group.record
        if record is None or not group.changes.may_begin() or group.is_leaving or group.holdings.epoch_jump is not None:
            return
        if (master := record.granted_master_id) is None:
            self._reports.ask(group)
            if self._watch.is_warm(group) and self._someone_can_lead(group, record):
                self._start(group, self._elect_for_masterless(group, record))
            return
        if group.waking.wakes and not self._is_awake(group, record, master):
            return
        suspicion = self._watch.suspect(group, record, master)
        if suspicion is not None:
            self._start(group, self._replace(group, record, master, suspicion), looks_first=True)

    async def settle(self, group: Group, timeout_seconds: float) -> None:
        """Wait, at most this long, until the group has a living master or none; begin a failover if one is needed."""
        deadline_seconds = self._now_seconds + timeout_seconds
        while (left_seconds := deadline_seconds - self._now_seconds) > 0:
            record = group.record
            if record is None or record.granted_master_id is None or group.is_live(record.granted_master_id):
                return
            self.look_at(group)
            if group.master_change is not None:
                await group.changes.wait_for_end(left_seconds)
            else:
                await asyncio.sleep(POLL_SECONDS)  # not warm yet: the master may be heard any moment

    def _start(self, group: Group, work: Coroutine[None, None, None], *, looks_first: bool = False) -> None:
        if group.record is None or epoch_seen_above(group.record, group.live()) is not None:
            work.close()  # the record is older than the brokers: what they hold is reported first (record_watch.py)
            return
        group.changes.run(work, f"rmq:failover {group.key}", looks_first=looks_first)

    def _is_awake(self, group: Group, record: BrokerGroupRecord, master: int) -> bool:
        """Whether another member of a waking group can lead, or its master was heard for a heartbeat timeout; for less it may be
        the woken process, whose registration another plane took. Before a member has reported its log an election would fail.
        """
        if not group.is_live(master):
            group.waking.heard_seconds = None
        elif group.waking.heard_seconds is None:
            group.waking.heard_seconds = self._now_seconds
        elif self._now_seconds - group.waking.heard_seconds > group.longest_silence_seconds:
            group.waking.wakes = False
        return not group.waking.wakes or self._someone_can_lead(group, record, besides=master)

    def _someone_can_lead(self, group: Group, record: BrokerGroupRecord, *, besides: int | None = None) -> bool:
        """Whether an election without this member would succeed now. A group's first election waits for a broker to ask."""
        if record.is_first_election and record.master_epoch == 0:
            return False
        live = {one: replica for one, replica in group.live().items() if one != besides}
        passed_over = frozenset({besides} if besides is not None else ())
        request = ElectMaster(passed_over=passed_over, heard_out=self._reports.are_heard_out(group))
        return step(record, request, live, group.binding.settings).code == ControllerCode.SUCCESS

    def _is_worth_waiting_for(self, group: Group, record: BrokerGroupRecord, master: int) -> bool:
        """Whether only a silent master could lead, and has not been silent for too long.

        On an ephemeral disk it never is too long, because the fence would delete the last copy with the pod
        (`test_a_silent_master_whose_disk_goes_with_its_pod_is_never_fenced_without_a_successor`).
        """
        is_early = group.silent_for_seconds(master) < self._settings.no_successor_patience_seconds
        return (group.binding.ephemeral or is_early) and not self._someone_can_lead(group, record, besides=master)

    def replace_deaf(self, group: Group, record: BrokerGroupRecord, master: int) -> bool:
        """Begin to elect another member for a master that denies its role and ignores 1008; return False if no other can lead.

        By its own word it is a slave and acknowledges nothing, so nothing is fenced or quieted first.
        """
        if not group.changes.may_begin() or not self._someone_can_lead(group, record, besides=master):
            return False
        self._start(group, self._elect_for_deaf(group, record, master))
        return True

    async def _elect_for_masterless(self, group: Group, record: BrokerGroupRecord) -> None:
        def premise(now: BrokerGroupRecord | None) -> bool:
            # Asked again at the decision: the report that led here may be of a process that has ended since, and an election
            # without a winner would cost another epoch.
            return now is not None and now.granted_master_id is None and self._someone_can_lead(group, now)

        await self._fail_over(_Attempt(group, elections.masterless_timeline(group, record), premise))

    async def _elect_for_deaf(self, group: Group, record: BrokerGroupRecord, master: int) -> None:
        evidence = f"broker {master} says that it is no master, and takes no epoch that it is told"
        timeline = elections.new_timeline(group, record, master, Trigger.MASTERLESS, evidence)
        self._observer.master_lost(timeline)
        another = ElectMaster(passed_over=frozenset({master}))
        await self._fail_over(_Attempt(group, timeline, _still_master(record, master), another))

    async def decide_for_caller(self, group: Group, wanted: ElectMaster) -> Decision:
        """Decide a broker's own ElectMaster, after its first heartbeat if no member can win without it.

        If brokers may act as masters although the record names none, the plane elects: they must be told in order.
        """
        record = group.record
        if record is not None and record.granted_master_id is None:
            if elections.may_be_too_early(group, record, wanted):
                await self._until_reported(group, wanted.broker_id or 0)
                await self._reports.gather(group, self._settings.fresh_report_seconds)
            self.look_at(group)
            if elections.may_have_acting_masters(group, record):
                await group.changes.wait_for_end(self._settings.first_heartbeat_seconds)
        try:
            decision = await self._decide_for_caller(group, wanted)
        except PremiseGoneError:
            # The master was lost between the caller's look and the decision: a failover comes first.
            await self.settle(group, self._settings.first_heartbeat_seconds)
            decision = await self._decide_for_caller(group, wanted)
        if decision.changed and decision.record is not None and decision.record.change is not None:
            # The caller has its role by this answer: 1004 answers the same from now on, as a Java controller's does.
            group.changes.release(decision.record.change.key)
        return decision

    async def _until_reported(self, group: Group, broker_id: int) -> None:
        deadline_seconds = self._now_seconds + self._settings.first_heartbeat_seconds
        while self._now_seconds < deadline_seconds:
            if (entry := group.table.entry(broker_id)) is not None and entry.replica.has_reported:
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _decide_for_caller(self, group: Group, wanted: ElectMaster) -> Decision:
        """Decide; if the group had lost its master, the answer ends an incident."""
        record, timeline = group.record, None
        # The cause is for the incident, if the store does not answer this write and only the plan shows what it was.
        wanted = replace(
            wanted, plan=self._executor.plan(_kind(group), elections.trigger_now(group, Trigger.MASTERLESS))
        )

        def premise(now: BrokerGroupRecord | None) -> bool:
            return elections.replaces_no_master(group, wanted, now)

        if record is not None and record.master_epoch > 0 and record.granted_master_id is None:
            timeline = elections.masterless_timeline(group, record)
            if elections.may_have_acting_masters(group, record):
                acting = await self._recovery.acting_masters(group)
                wanted = replace(wanted, incumbent=next(iter(acting), None))
            wanted = elections.but_the_unsteady(group, replace(wanted, heard_out=self._reports.are_heard_out(group)))
        decision = await group.decide(wanted, timeline=timeline, premise=premise)
        if timeline is not None and decision.changed and decision.code == ControllerCode.SUCCESS:
            elections.note_election(group, timeline, decision)
            timeline.reach(Step.NOTIFIED, time.monotonic())
            group.open_incident(timeline)
        return decision

    async def elect(self, group: Group, wanted: ElectMaster) -> tuple[FailoverTimeline, Decision]:
        """A person's election for a group that lost its master: decided as wanted, then told in order like any other."""
        await group.changes.wait_for_end(self._settings.switchover_deadline_seconds)
        record = group.record
        if record is None or group.master_change is not None:
            raise PremiseGoneError(f"group {group.key}: a change of master is under way")
        evidence = f"broker {wanted.broker_id} was asked for by a person"
        timeline = elections.new_timeline(group, record, record.master_broker_id, Trigger.REQUESTED, evidence)
        timeline.last_sign_of_life_seconds = group.incidents.masterless_since_seconds
        attempt = _Attempt(group, timeline, lambda now: now is not None and now.granted_master_id is None, wanted)
        self._start(group, self._fail_over(attempt))
        await group.changes.wait_for_end(self._settings.switchover_deadline_seconds)
        if attempt.decision is None or not attempt.is_over:
            raise PremiseGoneError(f"group {group.key}: the record has moved on, or is older than the brokers")
        return timeline, attempt.decision

    async def _replace(self, group: Group, record: BrokerGroupRecord, master: int, suspicion: Suspicion) -> None:
        """Find out whether the master is dead; if it may be and another can lead, fence a silent one, and elect."""
        half_seconds = group.longest_silence_seconds / 2
        was_silent = suspicion is not Suspicion.CLOSED or group.silent_for_seconds(master) > half_seconds
        verdict = await self._watch.corroborate(group, record, master, suspicion)
        if verdict is None or group.is_leaving:
            return
        if not verdict.certain and self._is_worth_waiting_for(group, record, master):
            log.info("master silent, and no member can take its place: waiting", group=str(group.key), master=master)
            self._reports.ask(group)
            await asyncio.sleep(self._settings.no_successor_pause_seconds)
            return
        if group.silent_for_seconds(master) < group.binding.failover_delay_seconds:
            await asyncio.sleep(self._settings.no_successor_pause_seconds)  # its owner would rather have it back
            return
        if not await self._is_our_turn(group, record, master):
            return
        found = None if verdict.certain else group.change
        if found is not None and found.phase is Phase.FENCING and not self._executor.may_take_over(group, found):
            await asyncio.sleep(self._settings.no_successor_pause_seconds)  # another plane fences the master
            return
        timeline = elections.new_timeline(group, record, master, verdict.trigger, *verdict.evidence)
        group.changes.begins()
        group.incidents.begins(timeline)
        group.changed()
        self._observer.master_lost(timeline)
        if suspicion is not Suspicion.CLOSED:
            group.table.ask_anew(self._now_seconds)  # a closed connection has said so itself
        fences = not verdict.certain and self._fencer is not None
        wanted = ElectMaster(set_in_doubt=was_silent or fences)
        attempt = _Attempt(group, timeline, _still_master(record, master), wanted)
        if fences:
            await self._fail_over(attempt, self._fence_first(attempt, record, master))
            return
        if verdict.certain:
            self._note_dead(group, record, master)
        else:
            timeline.evidence.append("there is nothing to fence with here")
            timeline.reach(Step.FENCED, time.monotonic())
            timeline.unfenced = True
        await self._fail_over(attempt)

    async def _is_our_turn(self, group: Group, record: BrokerGroupRecord, master: int) -> bool:
        """Let the planes of better rank act first, a moment each. Return False if one of them did."""
        if (rank := self._planes.rank(group.key)) == 0:
            return True
        await asyncio.sleep(rank * self._settings.rank_delay_seconds)
        try:
            now = await group.load()
        except RecordStoreError:
            return True
        return _still_master(record, master)(now)

    def _note_dead(self, group: Group, record: BrokerGroupRecord, master: int) -> None:
        if not elections.process_lost(group, master):
            group.table.forget(master)
            group.crash_loops.master_lost(master, record.master_epoch, self._now_seconds)

    async def _fence_first(self, attempt: _Attempt, record: BrokerGroupRecord, master: int) -> Course:
        """Write the plan before the fence, so that other planes begin none; then the course fences, and elects."""
        group, timeline = attempt.group, attempt.timeline
        change = await self._begin_fencing(attempt, record)
        timeline.change_id = change.id
        outcome: list[FenceOutcome] = []

        async def fence() -> bool:
            outcome.append(await self._kill(group, master, record.address_of(master) or ""))
            timeline.evidence.append(outcome[-1].how)
            return outcome[-1].confirmed

        async def elect() -> bool:
            timeline.reach(Step.FENCED, time.monotonic())
            timeline.unfenced = not (outcome and outcome[-1].confirmed)
            if not timeline.unfenced:
                self._note_dead(group, record, master)
            elif group.binding.unconfirmed_trust:
                timeline.unconfirmed_trust = group.binding.unconfirmed_trust
                timeline.evidence.append(timeline.unconfirmed_trust)
            group.table.ask_anew(self._now_seconds)  # it may have acknowledged until now
            return await self._elected(attempt)

        course = self._executor.course_of(group, change, hands={Fence: fence, Commit: elect}, timeline=timeline)
        course.acting, course.may_not_elect_before_seconds = frozenset(), self._pod_fence_is_over(group, master)
        return await self._executor.run(course)

    async def _begin_fencing(self, attempt: _Attempt, record: BrokerGroupRecord) -> Change:
        """Write the plan, or take over one that has not moved."""
        group, timeline, found = attempt.group, attempt.timeline, attempt.group.change
        plan = self._executor.plan(ChangeKind.FAILOVER, timeline.trigger, started_at=timeline.started_at)
        wanted = replace(plan, phase=Phase.FENCING, from_broker_id=timeline.from_broker_id)
        request: BeginChange | TakeOverChange = BeginChange(change=wanted, master_epoch=record.master_epoch)
        if found is not None and found.phase is Phase.FENCING:
            request = TakeOverChange(change=found, carried_out_by=self._planes.own_address)
        decision = await decided_at_last(lambda: group.decide(request), key=group.key, waits="change")
        if decision.code != ControllerCode.SUCCESS or decision.record is None or decision.record.change is None:
            raise PremiseGoneError(f"group {group.key}: another plane changes the master")
        return decision.record.change

    def _pod_fence_is_over(self, group: Group, master: int) -> float:
        """Return when the fence inside the master's pod has killed it, by `fence.rules.FenceRules`; 0 if no pod has one.

        Also where another pod has none, and nothing is trusted: the master's may have one.
        """
        binding = group.binding
        has_one = binding.unconfirmed_trust or binding.told_fence_seconds
        if not has_one or binding.heartbeat_timeout_seconds is None:
            return 0.0
        return group.last_heard_seconds(master) + binding.pod_fence_seconds

    async def _kill(self, group: Group, master: int, address: str) -> FenceOutcome:
        own = group.binding.process_address(address, group.addresses.channel_hosts.get(master))
        if own is None:
            how = f"nothing was heard from broker {master} here, so it is not known which pod at {address} was its"
            return FenceOutcome(confirmed=False, how=how, untouched=True)
        assert self._fencer is not None
        return await self._fencer.fence(
            group.binding, master, own, deadline_seconds=group.binding.fence_timeout_seconds
        )

    async def _elected_and_told(self, attempt: _Attempt) -> Course | None:
        """Return the course; None if no member was elected, or the kind in the cluster is older: the keeper tells then."""
        before = attempt.group.record
        if before is not None and elections.may_have_acting_masters(attempt.group, before):
            attempt.acting = await self._recovery.acting_masters(attempt.group)
        is_elected = await self._elected(attempt)
        record = attempt.decision.record if attempt.decision is not None else None
        if not is_elected or record is None or record.change is None:
            return None
        acting = frozenset(attempt.acting) - {record.master_broker_id}
        course = self._executor.course_of(attempt.group, record.change, acting=acting, timeline=attempt.timeline)
        return await self._executor.run(course)

    async def _elected(self, attempt: _Attempt) -> bool:
        """Commit the election; wait while the store is away.

        Raise `PremiseGoneError`, `RecordRefusedError` or `RecordCorruptError`: a retry mends none of them.
        """
        group, timeline, wanted = attempt.group, attempt.timeline, attempt.wanted
        patience_seconds = self._settings.fresh_report_seconds
        if wanted.set_in_doubt:
            patience_seconds = group.longest_silence_seconds
        await self._reports.gather(group, patience_seconds)
        kind = ChangeKind.ELECT if wanted.designate_elect else _kind(group)
        request = replace(
            wanted,
            incumbent=next(iter(attempt.acting), None),
            unfenced=timeline.unfenced,
            heard_out=self._reports.are_heard_out(group),
            plan=self._executor.plan(kind, timeline.trigger, started_at=timeline.started_at),
        )
        request = elections.but_the_unsteady(group, request)
        decision = attempt.decision = await decided_at_last(
            lambda: group.decide(request, linearizable=False, timeline=timeline, premise=attempt.premise),
            key=group.key,
            waits="election",
        )
        group.changes.refusals.answered()
        if decision.code != ControllerCode.SUCCESS or decision.record is None:
            return False
        elections.note_election(group, timeline, decision)
        return True

    async def _fail_over(self, attempt: _Attempt, work: Coroutine[None, None, Course | None] | None = None) -> None:
        """Do this, or else elect, commit and tell, and end its incident by how it went."""
        group, timeline = attempt.group, attempt.timeline
        group.incidents.begins(timeline)
        try:
            course = await (work or self._elected_and_told(attempt))
            attempt.is_over = True
        except PremiseGoneError:
            attempt.is_over = True
            # Another plane, or the brokers themselves, were faster; they also tell the members.
            group.changes.leave_alone(1.0)
            elections.withdraw(group, timeline, "another plane, or the brokers themselves, were faster")
            return
        except (RecordRefusedError, RecordCorruptError) as error:
            attempt.is_over = True
            pause_seconds = group.changes.refusals.failed()
            what = "the record store refuses the election: tried again later"
            log.error(what, group=str(group.key), error=str(error), pause_seconds=pause_seconds)  # noqa: TRY400 - expected
            elections.withdraw(group, timeline, f"the record store refuses it: {error}")
            return
        if course is not None and course.lost:
            elections.withdraw(group, timeline, "another plane took the change over")
        elif attempt.decision is None:
            timeline.evidence.append("the master was heard again")
            elections.withdraw(group, timeline, "the master was heard again, or another plane was faster")
        elif attempt.decision.code != ControllerCode.SUCCESS or attempt.decision.record is None:
            self._nobody(attempt, attempt.decision)
        else:
            elections.finish(group, timeline, Outcome.INCOMPLETE if course is None else None)

    def _nobody(self, attempt: _Attempt, decision: Decision) -> None:
        group, timeline = attempt.group, attempt.timeline
        # A group that is being deleted loses its members one by one: no incident.
        if attempt.wanted.designate_elect:
            elections.finish(group, timeline, Outcome.CANCELLED)
        elif decision.code == ControllerCode.CONTROLLER_MASTER_STILL_EXIST or group.is_leaving:
            elections.withdraw(group, timeline, decision.why)
        else:
            elections.finish(group, timeline, Outcome.NO_ELIGIBLE_REPLICA)
            # This incident ends here; the time without a master goes on, and belongs to the failover that finds the next one.
            group.incidents.close()
            group.incidents.masterless(max(timeline.steps.values()))
            group.changed()


def _still_master(record: BrokerGroupRecord, master: int) -> Premise:
    """Return the premise that the record names this master under this epoch."""
    return lambda now: now is not None and (now.master_broker_id, now.master_epoch) == (master, record.master_epoch)


def _kind(group: Group) -> ChangeKind:
    """Return the kind of an election now: a recovery if brokers may act as masters although the record names none."""
    record = group.record
    recovers = record is not None and elections.may_have_acting_masters(group, record)
    return ChangeKind.RECOVERY if recovers else ChangeKind.FAILOVER

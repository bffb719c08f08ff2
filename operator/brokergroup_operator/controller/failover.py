"""From the loss of a master to the next one: fence if need be, decide, commit, tell.

``master_watch.py`` says whether the master is dead, and how sure that is. A master that is dead for certain is replaced at
once. One that is only silent is fenced first; if its death is not confirmed by the fence's deadline the failover goes on and
says so (``unfenced``). One that is heard again before it was fenced cancels the whole thing.

There is one such task for each group, and none of it is needed after a crash: the record says who is master, the heartbeats
say who is alive, and the tick asks again.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.controller.election_premises import (
    but_the_unsteady,
    may_be_too_early,
    may_have_acting_masters,
    process_lost,
    replaces_no_master,
)
from brokergroup_operator.controller.fencing import FenceOutcome
from brokergroup_operator.controller.group import PremiseGoneError
from brokergroup_operator.controller.incidents import masterless_timeline, new_timeline, note_election, withdraw
from brokergroup_operator.controller.master_watch import Suspicion
from brokergroup_operator.controller.places import process_address
from brokergroup_operator.controller.ranks import rank_of
from brokergroup_operator.controller.recovery import ActingMasters
from brokergroup_operator.observe.timeline import FailoverTimeline, Outcome, Step, Trigger
from brokergroup_operator.records.store import RecordStoreError
from controller_core.codes import ControllerCode
from controller_core.recovery import epoch_seen_above
from controller_core.requests import ElectMaster
from controller_core.step import step

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from brokergroup_operator.controller.fencing import Fencer
    from brokergroup_operator.controller.group import Group, Premise
    from brokergroup_operator.controller.master_watch import MasterWatch
    from brokergroup_operator.controller.recovery import Recovery
    from brokergroup_operator.controller.role_sequence import RoleSequence
    from brokergroup_operator.controller.settings import PlaneSettings
    from brokergroup_operator.observe.observer import Observer
    from controller_core.decision import Decision
    from controller_core.model import BrokerGroupRecord

POLL_SECONDS = 0.01
UNTOUCHED_POLL_SECONDS = 0.05
RETRY_SECONDS = 0.05
LONGEST_RETRY_SECONDS = 0.5

log = structlog.get_logger(__name__)


class Failover:
    """Starts and runs the failovers of all groups."""

    def __init__(
        self,
        *,
        watch: MasterWatch,
        fencer: Fencer,
        sequence: RoleSequence,
        recovery: Recovery,
        settings: PlaneSettings,
        observer: Observer,
    ) -> None:
        self._watch = watch
        self._recovery = recovery
        self._fencer = fencer
        self._sequence = sequence
        self._settings = settings
        self._observer = observer
        # Which of the plane addresses is this one; known when it listens.
        self.own_address = settings.advertise_address

    def look_at(self, group: Group) -> None:
        """Begin a failover if this group needs one and none is under way. Cheap: called at every tick and every event."""
        record = group.record
        if record is None or group.master_change is not None or group.is_leaving or group.epoch_jump is not None:
            return
        if record.granted_master_id is None:
            if self._watch.is_warm(group, record) and self._someone_can_lead(group, record):
                self._start(group, self._elect_for_masterless(group))
            return
        suspicion = self._watch.suspect(group, record, record.granted_master_id)
        if suspicion is not None:
            self._start(group, self._replace(group, record.granted_master_id, suspicion))

    async def settle(self, group: Group, timeout_seconds: float) -> None:
        """Wait until it is clear who is master: one that lives, or none; at most this long. Begins a failover if there is need."""
        clock = asyncio.get_running_loop().time
        deadline_seconds = clock() + timeout_seconds
        while (left_seconds := deadline_seconds - clock()) > 0:
            record = group.record
            if record is None or record.granted_master_id is None or group.is_live(record.granted_master_id):
                return
            self.look_at(group)
            if group.master_change is not None:
                await asyncio.wait([group.master_change], timeout=left_seconds)
            else:
                await asyncio.sleep(POLL_SECONDS)  # not warm yet: the master may be heard any moment

    def _start(self, group: Group, work: Coroutine[None, None, None]) -> None:
        if group.record is None or epoch_seen_above(group.record, group.live()) is not None:
            work.close()  # the record is older than the brokers: what they hold is reported first (holdings_watch.py)
            return
        task = asyncio.create_task(work, name=f"rmq:failover {group.key}")
        group.master_change = task
        task.add_done_callback(lambda done: self._ended(group, done))

    def _ended(self, group: Group, task: asyncio.Task[None]) -> None:
        group.master_change = None
        group.hold_back(None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("failover failed, the next tick begins again", group=str(group.key), error=repr(error))
        group.changed()

    @staticmethod
    def _someone_can_lead(group: Group, record: BrokerGroupRecord) -> bool:
        """Whether an election without a caller would succeed. The very first one of a group waits for a broker to ask."""
        if record.is_first_election and record.master_epoch == 0:
            return False
        live = {broker_id: replica for broker_id, replica in group.live().items() if replica.has_reported}
        trial = step(record, ElectMaster(broker_name=record.broker_name), live, group.binding.settings)
        return trial.code == ControllerCode.SUCCESS

    def _is_worth_waiting_for(self, group: Group, record: BrokerGroupRecord, master: int) -> bool:
        """Whether a silent master is the only one who could lead, and has not been silent for too long.

        Where its disk would go with its pod that is never too long: the fence deletes the pod, and so the last copy.
        """
        others = {broker_id: replica for broker_id, replica in group.live().items() if broker_id != master}
        request = ElectMaster(broker_name=record.broker_name, passed_over=frozenset({master}))
        if step(record, request, others, group.binding.settings).code == ControllerCode.SUCCESS:
            return False
        return group.binding.ephemeral or (
            group.silent_for_seconds(master) < self._settings.no_successor_patience_seconds
        )

    # ---- the two ways in

    async def _elect_for_masterless(self, group: Group) -> None:
        record = group.record
        assert record is not None
        await self._fail_over(
            group,
            masterless_timeline(group, record),
            # Asked again at the decision: what led to it may have been a report of a process that is gone by now, and to find
            # nobody would take another epoch for a master that was lost once.
            lambda now: now is not None and now.granted_master_id is None and self._someone_can_lead(group, now),
            slaves_first_seconds=None,
        )

    async def decide_for_caller(self, group: Group, wanted: ElectMaster) -> Decision:
        """Decide a broker's own ElectMaster. Its first heartbeat is waited for where nobody can win without it.

        Where brokers may be acting as masters of a record that names nobody, the election is the plane's own: they must be told
        in order, and not by who asks first.
        """
        record = group.record
        if record is not None and record.granted_master_id is None:
            if may_be_too_early(group, record, wanted):
                await group.first_report(wanted.broker_id or 0, self._settings.first_heartbeat_seconds)
            self.look_at(group)
            if group.master_change is not None and may_have_acting_masters(group, record):
                await asyncio.wait([group.master_change], timeout=self._settings.first_heartbeat_seconds)
        try:
            return await self._decide_for_caller(group, wanted)
        except PremiseGoneError:
            # The master was lost between the caller's look and the decision: a failover comes first.
            await self.settle(group, self._settings.first_heartbeat_seconds)
            return await self._decide_for_caller(group, wanted)

    async def _decide_for_caller(self, group: Group, wanted: ElectMaster) -> Decision:
        """Where the group had lost its master, the answer ends an incident."""
        record = group.record

        def premise(now: BrokerGroupRecord | None) -> bool:
            return replaces_no_master(group, wanted, now)

        if record is None or record.master_epoch == 0 or record.granted_master_id is not None:
            return await group.decide(wanted, premise=premise)
        timeline = masterless_timeline(group, record)
        if may_have_acting_masters(group, record):
            wanted = replace(wanted, incumbent=(await self._recovery.acting_masters(group)).incumbent)
        decision = await group.decide(but_the_unsteady(group, wanted), timeline=timeline, premise=premise)
        if decision.changed and decision.code == ControllerCode.SUCCESS and decision.record is not None:
            note_election(timeline, decision)
            self._observer.master_committed(timeline)
            timeline.reach(Step.NOTIFIED, time.monotonic())
            group.last_failover = timeline
            group.open_incident(timeline)
        return decision

    async def elect(self, group: Group, wanted: ElectMaster) -> tuple[FailoverTimeline, Decision]:
        """A person's election for a group that lost its master: decided as wanted, then told in order like any other."""
        if group.master_change is not None:
            await asyncio.wait([group.master_change], timeout=self._settings.switchover_deadline_seconds)
        record = group.record
        if record is None or group.master_change is not None:
            raise PremiseGoneError(f"group {group.key}: a change of master is under way")
        timeline = new_timeline(group, record, record.master_broker_id, Trigger.REQUESTED)
        timeline.evidence.append(f"broker {wanted.broker_id} was asked for by a person")
        timeline.last_sign_of_life_seconds = group.masterless_since_seconds
        timeline.reach(Step.DETECTED, time.monotonic())
        decisions: list[Decision] = []

        async def run() -> None:
            decision = await self._fail_over(
                group,
                timeline,
                lambda now: now is not None and now.granted_master_id is None,
                slaves_first_seconds=None,
                wanted=wanted,
            )
            if decision is not None:
                decisions.append(decision)

        self._start(group, run())
        if group.master_change is not None:
            await asyncio.wait([group.master_change], timeout=self._settings.switchover_deadline_seconds)
        if not decisions:
            raise PremiseGoneError(f"group {group.key}: the record has moved on, or is older than the brokers")
        return timeline, decisions[0]

    async def _replace(self, group: Group, master: int, suspicion: Suspicion) -> None:
        record = group.record
        assert record is not None
        verdict = await self._watch.corroborate(group, record, master, suspicion)
        if verdict is None or group.is_leaving:
            return
        if not verdict.certain and self._is_worth_waiting_for(group, record, master):
            log.info("master silent, and nobody could take its place: waiting", group=str(group.key), master=master)
            await asyncio.sleep(self._settings.no_successor_pause_seconds)
            return
        if group.silent_for_seconds(master) < group.binding.failover_delay_seconds:
            await asyncio.sleep(self._settings.no_successor_pause_seconds)  # its owner would rather have it back
            return
        if not await self._is_our_turn(group, record, master):
            return
        timeline = new_timeline(group, record, master, verdict.trigger)
        timeline.evidence.extend(verdict.evidence)
        timeline.reach(Step.DETECTED, time.monotonic())
        group.in_progress = timeline
        group.changed()
        self._observer.master_lost(timeline)
        if not verdict.certain and not await self._fence(group, record, master, timeline):
            self._withdraw(group, timeline, "the master was heard again")
            return
        if suspicion is not Suspicion.CLOSED:
            group.table.ask_anew(str(group.key))  # a closed connection has said so itself
        if not timeline.unfenced and not process_lost(group, master):
            # Dead for certain: what the table still holds of it is of no use to an election.
            group.table.forget(group.identity(master))
            group.crash_loops.master_lost(master, record.master_epoch, asyncio.get_running_loop().time())
        slaves_first_seconds = self._settings.slaves_first_unfenced_seconds if timeline.unfenced else None
        await self._fail_over(
            group,
            timeline,
            lambda now: now is not None and now.master_broker_id == master and now.master_epoch == record.master_epoch,
            slaves_first_seconds=slaves_first_seconds,
        )

    # ---- step by step

    async def _is_our_turn(self, group: Group, record: BrokerGroupRecord, master: int) -> bool:
        """Let the planes of better rank act first, a moment each: several that see one death need not race for it."""
        rank = rank_of(self.own_address, self._settings.peer_addresses, str(group.key))
        if rank == 0:
            return True
        await asyncio.sleep(rank * self._settings.rank_delay_seconds)
        try:
            now = await group.load()
        except RecordStoreError:
            return True
        return now is not None and (now.master_broker_id, now.master_epoch) == (master, record.master_epoch)

    async def _fence(self, group: Group, record: BrokerGroupRecord, master: int, timeline: FailoverTimeline) -> bool:
        """Make sure the master runs no more; returns False if it came back alive and was not touched."""
        began = asyncio.get_running_loop().time()
        outcome = await self._kill(group, master, record.address_of(master) or "")
        timeline.evidence.append(outcome.how)
        if not outcome.confirmed:
            await self._wait_out(group, master, self._unconfirmed_until(group, master, began, outcome))
        if not outcome.confirmed and group.is_live(master):
            timeline.evidence.append("the master was heard again")
            return False
        timeline.reach(Step.FENCED, time.monotonic())
        timeline.unfenced = not outcome.confirmed
        if timeline.unfenced and group.binding.unconfirmed_trust:
            timeline.unconfirmed_trust = group.binding.unconfirmed_trust
            timeline.evidence.append(timeline.unconfirmed_trust)
        return True

    def _unconfirmed_until(self, group: Group, master: int, began: float, outcome: FenceOutcome) -> float:
        """When another broker may be elected without proof that the master is dead: the fence inside its pod has killed it by then.

        `fence.decide.FenceRules` counts on heartbeat timeout and fence timeout from the last heartbeat on, also where a connection
        that closed told of the loss long before the heartbeat timeout.
        """
        binding = group.binding
        until = began + binding.fence_timeout_seconds if outcome.untouched else began
        shortest_seconds = binding.shortest_heartbeat_timeout_seconds
        if binding.unconfirmed_trust and shortest_seconds is not None:
            last_heard = asyncio.get_running_loop().time() - group.silent_for_seconds(master)
            until = max(until, last_heard + shortest_seconds + binding.fence_timeout_seconds)
        return until

    async def _wait_out(self, group: Group, master: int, until: float) -> None:
        """Wait until then; a master that is heard again ends it."""
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            if group.is_live(master):
                return
            await asyncio.sleep(UNTOUCHED_POLL_SECONDS)

    async def _kill(self, group: Group, master: int, address: str) -> FenceOutcome:
        own = process_address(group.binding, address, group.addresses.channel_hosts.get(master))
        if own is None:
            how = f"nothing was heard from broker {master} here, so nobody knows which pod at {address} was its"
            return FenceOutcome(confirmed=False, how=how, untouched=True)
        deadline_seconds = group.binding.fence_timeout_seconds
        return await self._fencer.fence(group.binding, master, own, deadline_seconds=deadline_seconds)

    async def _fail_over(
        self,
        group: Group,
        timeline: FailoverTimeline,
        premise: Premise,
        *,
        slaves_first_seconds: float | None,
        wanted: ElectMaster | None = None,
    ) -> Decision | None:
        """Elect, commit, tell. The premise is checked against the record that is committed on; None if it does not hold."""
        group.in_progress = timeline
        before = group.record
        group.hold_back(before)
        acting = ActingMasters()
        if before is not None and may_have_acting_masters(group, before):
            acting = await self._recovery.acting_masters(group)
        try:
            decision = await self._decide(group, timeline, premise, acting, wanted)
        except PremiseGoneError:
            # Another controller plane, or the brokers themselves, were faster; they also tell the members.
            group.keeper_quiet_until_seconds = asyncio.get_running_loop().time() + 1.0
            self._withdraw(group, timeline, "another plane, or the brokers themselves, were faster")
            return None
        if decision.code != ControllerCode.SUCCESS or decision.record is None:
            # A group that is being deleted loses its members one by one: that nobody is left is no incident.
            if wanted is not None:
                self._finish(group, timeline, Outcome.CANCELLED)
            elif decision.code == ControllerCode.CONTROLLER_MASTER_STILL_EXIST or group.is_leaving:
                self._withdraw(group, timeline, decision.why)
            else:
                self._finish(group, timeline, Outcome.NO_ELIGIBLE_REPLICA)
            return decision
        note_election(timeline, decision)
        self._observer.master_committed(timeline)
        gone = before.address_of(timeline.from_broker_id) if before is not None else None
        await self._sequence.depose(
            group,
            decision.record,
            acting.besides(decision.record.master_broker_id),
            wait_seconds=self._settings.slaves_first_unfenced_seconds,
        )
        changed = await self._sequence.announce(
            group,
            decision.record,
            gone_addresses=(gone,) if gone is not None and timeline.from_broker_id != timeline.to_broker_id else (),
            slaves_first_seconds=slaves_first_seconds or self._settings.slaves_first_seconds,
            timeline=timeline,
        )
        self._finish(group, timeline, Outcome.COMPLETED if changed else Outcome.INCOMPLETE)
        return decision

    async def _decide(
        self,
        group: Group,
        timeline: FailoverTimeline,
        premise: Premise,
        acting: ActingMasters,
        wanted: ElectMaster | None,
    ) -> Decision:
        """Commit the election; while the store is away this waits for it, since nothing else can help the group."""
        anybody = ElectMaster(broker_name=group.binding.broker_name, cluster_name=group.binding.cluster_name)
        request = replace(wanted or anybody, incumbent=acting.incumbent, unfenced=timeline.unfenced)
        request = but_the_unsteady(group, request)
        pause_seconds = RETRY_SECONDS
        while True:
            try:
                return await group.decide(request, linearizable=False, timeline=timeline, premise=premise)
            except RecordStoreError as error:
                log.warning("election waits for the record store", group=str(group.key), error=str(error))
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, LONGEST_RETRY_SECONDS)

    def _withdraw(self, group: Group, timeline: FailoverTimeline, why: str) -> None:
        log.info("failover withdrawn", group=str(group.key), why=why, evidence=timeline.evidence)
        withdraw(group, timeline, self._observer)

    def _finish(self, group: Group, timeline: FailoverTimeline, outcome: Outcome) -> None:
        timeline.outcome = outcome
        group.in_progress = None
        group.last_failover = timeline
        group.open_incident(timeline)
        log.info(
            "failover ended",
            group=str(group.key),
            outcome=outcome.value,
            trigger=timeline.trigger.value,
            steps=timeline.milliseconds(),
            to=timeline.to_broker_id,
            epoch=timeline.epoch_after,
        )
        self._observer.master_changed(timeline)
        if outcome is Outcome.NO_ELIGIBLE_REPLICA:
            # This incident ends here; the time without a master goes on, and belongs to the one that finds the next.
            group.incidents.close()
            group.masterless_since_seconds = max(timeline.steps.values())
        group.changed()

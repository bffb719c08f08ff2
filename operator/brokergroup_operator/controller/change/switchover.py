"""Moving a living master elsewhere without losing an acknowledged message; at once if its pod is about to go (`Drain`).

The order is in `controller_core/change.py`: the plan is written before the old master hears anything (1), the old master
acknowledges nothing from then on (2), its slaves catch up (3), the election is committed (4). Nothing is restored while its fate is
unknown. Until the election is durable everything is undone if a step fails, by another plane if this one dies (`takeover.py`).
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import structlog

from brokergroup_operator.controller.change.executor import Executor, decided_at_last
from brokergroup_operator.controller.group import elections
from brokergroup_operator.controller.group.changes import is_unclean
from brokergroup_operator.controller.group.group import Group, PremiseGoneError
from brokergroup_operator.controller.peers import broker_calls, ha_links
from brokergroup_operator.controller.peers.broker_calls import FENCING_MIN_IN_SYNC_REPLICAS, REFUSES_SENDS_SECONDS
from brokergroup_operator.controller.peers.services import Part, Services, is_running
from brokergroup_operator.observe import group_view as view
from brokergroup_operator.observe.timeline import Cause, FailoverTimeline, Kind, Outcome, Step, Trigger
from brokergroup_operator.records.store import GroupKey, RecordStoreError
from controller_core.change import Commit, Level, Quiet
from controller_core.decision import ControllerCode, Decision
from controller_core.model import BrokerGroupRecord, Change, ChangeKind, Phase, Restore
from controller_core.requests import BeginChange, ElectMaster
from controller_core.step import step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from brokergroup_operator.controller.directory.group_directory import GroupBinding

log = structlog.get_logger(__name__)


class MetadataCheck(Protocol):
    """Which topics and groups of the master a member lacks (`upkeep/metadata_guard.py`)."""

    async def lacking_now(
        self, group: Group, record: BrokerGroupRecord, broker_id: int, *, within_seconds: float
    ) -> tuple[view.MetadataDifference, ...]:
        """Return what this member lacks, after waiting at most this long for its next copy."""

    async def why_incomplete(
        self, group: Group, record: BrokerGroupRecord, broker_id: int, *, within_seconds: float
    ) -> str:
        """Why this member is not known to have all of it; empty if it has."""

    def refused(
        self, group: Group, record: BrokerGroupRecord, differences: Collection[view.MetadataDifference]
    ) -> None:
        """A switchover was refused for these."""


@dataclass(slots=True, kw_only=True)
class _Run:
    """One switchover under way. `planned`: only a member that holds every acknowledged message may win."""

    group: Group
    # As it was when the switchover began, with the master that is replaced.
    record: BrokerGroupRecord
    old: int
    election: ElectMaster
    drain_seconds: float = math.inf
    planned: bool = True
    cause: Cause = Cause.PLANNED_SWITCHOVER
    timeline: FailoverTimeline = field(init=False)
    # The old master's configuration (26) as it was read last.
    shown: Mapping[str, str] = field(default_factory=dict)
    decided: asyncio.Future[Decision] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def __post_init__(self) -> None:
        self.timeline = timeline = elections.new_timeline(self.group, self.record, self.old, Trigger.REQUESTED)
        timeline.kind, timeline.planned_cause, timeline.last_sign_of_life_seconds = Kind.SWITCHOVER, self.cause, None

    @property
    def address(self) -> str:
        """The old master's; empty if it is not known."""
        return self.record.address_of(self.old) or ""


class Switchover(Part):
    def __init__(
        self,
        services: Services,
        *,
        executor: Executor,
        metadata: MetadataCheck,
        binding_now: Callable[[GroupKey], Awaitable[GroupBinding | None]],
    ) -> None:
        super().__init__(services)
        self._executor, self._metadata, self._binding_now = executor, metadata, binding_now

    async def move(
        self,
        group: Group,
        *,
        from_broker_id: int | None,
        to_broker_id: int | None,
        deadline_seconds: float,
        only_staying: bool = False,
        waits_for_metadata: bool = True,
        cause: Cause = Cause.PLANNED_SWITCHOVER,
    ) -> view.SwitchoverResult:
        """Move the mastership as `GroupView.switch_master` says; return when all were told, or at the deadline.

        With `only_staying`, not to a member whose pod is about to go as well. Without `waits_for_metadata` also to one that
        lacks topics or groups of the master.
        """
        deadline_at_seconds = self._now_seconds + deadline_seconds
        record = await group.load_again()
        if record is None or (master := record.granted_master_id) is None:
            raise view.SwitchoverRefusedError(f"group {group.key} has no master that could be moved")
        if from_broker_id not in (None, master) or to_broker_id == master:
            return view.SwitchoverResult(from_broker_id=master, to_broker_id=master, epoch=record.master_epoch)
        leaving = elections.members_leaving(group) if only_staying else frozenset[int]()
        election = ElectMaster(
            broker_id=to_broker_id, designate_elect=to_broker_id is not None, passed_over=leaving | {master}
        )
        election = elections.but_the_unsteady(group, election)
        if waits_for_metadata:
            election = await self._with_metadata(group, record, election, deadline_seconds / 2)
        now = group.record
        if now is None or (now.master_epoch, now.granted_master_id) != (record.master_epoch, master):
            raise view.SwitchoverRefusedError(f"group {group.key}: the master was changed by others meanwhile")
        drain_seconds = deadline_at_seconds - self._now_seconds
        run = _Run(group=group, record=now, old=master, election=election, drain_seconds=drain_seconds, cause=cause)
        self._begin(run)
        elected = (await asyncio.shield(run.decided)).record
        await group.changes.wait_for_end(deadline_at_seconds - self._now_seconds)
        assert elected is not None
        assert elected.master_broker_id is not None
        return view.SwitchoverResult(
            from_broker_id=master,
            to_broker_id=elected.master_broker_id,
            epoch=elected.master_epoch,
            milliseconds=run.timeline.took_milliseconds,
            phases=run.timeline.milliseconds(),
            confirmed=Step.ROLE_CHANGED in run.timeline.steps,
        )

    async def why_incomplete(self, group: Group, broker_id: int) -> str:
        """Why this member is not known to have the master's topics and groups, after the time of one copy; empty if it has them."""
        record = group.record
        if record is None or record.granted_master_id is None:
            return "there is no master"
        within_seconds = self._settings.metadata_copy_seconds
        return await self._metadata.why_incomplete(group, record, broker_id, within_seconds=within_seconds)

    async def _with_metadata(
        self, group: Group, record: BrokerGroupRecord, election: ElectMaster, within_seconds: float
    ) -> ElectMaster:
        """Return the election, passing over members that lack topics or groups of the master; raise if none is left."""
        deadline_seconds = self._now_seconds + min(within_seconds, self._settings.metadata_copy_seconds)
        found: list[view.MetadataDifference] = []
        while True:
            trial = step(record, election, group.live(), group.binding.settings)
            target = trial.record.master_broker_id if trial.record is not None else None
            if trial.code != ControllerCode.SUCCESS or target is None:
                return election  # refused with its reason where the switchover begins
            left_seconds = max(0.0, deadline_seconds - self._now_seconds)
            missing = await self._metadata.lacking_now(group, record, target, within_seconds=left_seconds)
            if not missing:
                return election
            found += missing
            others = replace(election, passed_over=election.passed_over | {target})
            if step(record, others, group.live(), group.binding.settings).code != ControllerCode.SUCCESS:
                self._metadata.refused(group, record, found)
                first = missing[0]
                raise view.SwitchoverRefusedError(
                    f"group {group.key}: broker {target} lacks {len(missing)} of the master's metadata, as "
                    f"{first.kind.value} {first.name!r}: it would be lost (upstream #9804)"
                )
            election = others

    async def decide(self, group: Group, *, from_broker_id: int, election: ElectMaster) -> Decision:
        """Move the mastership for an administrator's ElectMaster; return the durable decision, the rest goes on beside."""
        ends_at_seconds = self._now_seconds + self._settings.election_waits_seconds
        while group.master_change is not None and (left_seconds := ends_at_seconds - self._now_seconds) > 0:
            # An election that a broker asked for is told to the others: over in a moment, and no reason to refuse a person.
            await group.changes.wait_for_end(left_seconds)
        record = await group.load_again()
        if record is None:
            raise view.SwitchoverRefusedError(f"group {group.key} has no record")
        await group.changes.leave_off_telling()  # right before it begins: the next tick would take the telling up again
        run = _Run(group=group, record=record, old=from_broker_id, election=election, planned=False)
        self._begin(run)
        return await asyncio.shield(run.decided)

    def _begin(self, run: _Run) -> None:
        """Start the task of a switchover that may begin; raise `SwitchoverRefusedError` with the reason if it may not."""
        run.drain_seconds = min(run.drain_seconds, self._settings.drain_deadline_seconds)
        if (refusal := _refusal(run)) is not None:
            raise view.SwitchoverRefusedError(f"group {run.group.key}: {refusal}")
        run.group.changes.run(self._run(run), f"rmq:switchover {run.group.key}", decided=run.decided)

    async def _run(self, run: _Run) -> None:
        group, timeline = run.group, run.timeline
        group.incidents.begins(timeline)
        self._observer.master_lost(timeline)
        group.configuration.changed(run.old)
        change: Change | None = None
        try:
            change = await self._begin_quieting(run)
            lost = await self._carry_out(run, change)
        except (broker_calls.BrokerCallError, view.SwitchoverFailedError, RecordStoreError, PremiseGoneError) as error:
            # No incident: a drain that has not quieted the master yet (it is retried, or a failover comes first), or whose master
            # does not answer any more (the failover reports it); and a change that another plane made or has taken over.
            is_over = change is None or isinstance(error, broker_calls.BrokerCallError) or not group.is_live(run.old)
            is_nothing = is_over and run.cause is Cause.DRAIN
            is_moved = group.record is not None and group.record.master_epoch > timeline.epoch_before
            is_anothers = group.change is not None and group.change.carried_out_by != self._planes.own_address
            if is_nothing or is_moved or is_anothers:
                elections.withdraw(group, timeline, str(error))
            else:
                elections.finish(group, timeline, Outcome.CANCELLED)
            raise view.SwitchoverFailedError(f"group {group.key}: switchover given up: {error}") from error
        if lost:
            elections.withdraw(group, timeline, "another plane took the change over")
        else:
            elections.finish(group, timeline)

    async def _begin_quieting(self, run: _Run) -> Change:
        """Step 1: write the plan with the old master's minimum."""
        run.shown = await self._calls.broker_config(run.address)
        previous = broker_calls.live_minimum(run.shown)
        if previous in (None, FENCING_MIN_IN_SYNC_REPLICAS) or run.group.binding.closed:
            previous = await self._minimum_to_restore(run.group, previous)
        kind = ChangeKind.DRAIN if run.cause is Cause.DRAIN else ChangeKind.SWITCHOVER
        plan = self._executor.plan(kind, run.cause, started_at=run.timeline.started_at)
        restore = Restore(broker_id=run.old, min_in_sync_replicas=previous)
        wanted = replace(plan, phase=Phase.QUIETING, from_broker_id=run.old, restore=restore)
        decision = await run.group.decide(BeginChange(change=wanted, master_epoch=run.record.master_epoch))
        if decision.code != ControllerCode.SUCCESS or decision.record is None or decision.record.change is None:
            raise view.SwitchoverFailedError(decision.why)
        run.timeline.change_id = decision.record.change_id
        return decision.record.change

    async def _minimum_to_restore(self, group: Group, found: int | None) -> int:
        """Return the minimum that the old master gets back, if it has 99, does not say, or its group is closed: then 99.

        One found at 99 gets 99 also if the API does not answer: the keeper restores a leftover, and what a closed group
        acknowledges is lost.
        """
        now = await self._binding_now(group.key)
        if now is None and found == FENCING_MIN_IN_SYNC_REPLICAS:
            return FENCING_MIN_IN_SYNC_REPLICAS
        now = now or group.binding
        if now.closed or now.deleting:
            return FENCING_MIN_IN_SYNC_REPLICAS
        if found is None or found == FENCING_MIN_IN_SYNC_REPLICAS:
            return now.settings.min_in_sync_replicas
        return found

    async def _carry_out(self, run: _Run, change: Change) -> bool:
        """Run the course; return whether another plane took the change over."""

        async def quiet() -> bool:
            await self._calls.set_min_in_sync_replicas(run.address, FENCING_MIN_IN_SYNC_REPLICAS, shown=run.shown)
            return True

        async def level() -> bool:
            run.election = await self._drained(run)
            return True

        async def commit() -> bool:
            run.decided.set_result(await self._commit(run, change))
            return True

        hands, timeline = {Quiet: quiet, Level: level, Commit: commit}, run.timeline
        course = self._executor.course_of(run.group, change, acting=frozenset(), hands=hands, timeline=timeline)
        await self._executor.run(course)
        if not run.decided.done():
            raise view.SwitchoverFailedError("the change was taken over by another plane, or the master was lost")
        return course.lost

    async def _still_quiet(self, address: str) -> None:
        """Raise if the old master may acknowledge again: members that had caught up may lack what it did. Let it refuse sends for
        longer if it soon would not.
        """
        shown = await self._calls.broker_config(address)
        if (found := broker_calls.live_minimum(shown)) not in (None, FENCING_MIN_IN_SYNC_REPLICAS):
            raise view.SwitchoverFailedError(f"{address} acknowledges again: its minInSyncReplicas was set to {found}")
        left_seconds = broker_calls.refuses_sends_seconds(shown)
        if left_seconds is not None and left_seconds < REFUSES_SENDS_SECONDS / 2:  # the store was away for that long
            await self._calls.set_min_in_sync_replicas(address, FENCING_MIN_IN_SYNC_REPLICAS, shown=shown)

    async def _drained(self, run: _Run) -> ElectMaster:
        """Step 3: return the election with only members left to win that have caught up."""
        group, record, election = run.group, run.record, run.election
        deadline_seconds = self._now_seconds + run.drain_seconds
        while self._now_seconds < deadline_seconds:
            status = await self._calls.ha_status(run.address)
            in_sync = [link for link in status.ha_connection_info if link.in_sync]
            if in_sync and all(link.diff == 0 for link in in_sync):
                hosts = group.binding.hosts_of_links(record, record.replicas)
                level = ha_links.level_members(hosts, elections.live_members(group, record), status)
                # A member without a link has not: a Java master whose link to it broke acknowledges without it at once. A
                # requested target must have caught up itself, if it is in the SyncStateSet.
                if level is None or election.designated not in record.sync_state_set - level:
                    is_open = run.planned and not election.designate_elect
                    behind = record.replicas.keys() - level if level is not None and is_open else frozenset[int]()
                    return replace(election, passed_over=election.passed_over | behind)
            await asyncio.sleep(0.005)
        raise view.SwitchoverFailedError(f"slaves of {run.address} not level within {run.drain_seconds:g} s")

    async def _commit(self, run: _Run, change: Change) -> Decision:
        """Step 4: commit, if master and target are as they were; retried until the store says whether the write has arrived."""
        group, timeline = run.group, run.timeline
        election = replace(run.election, plan=self._executor.plan(change.kind, change.cause))

        def premise(now: BrokerGroupRecord | None) -> bool:
            if now is None or now.change is None:
                return False
            expected = (change.id, change.carried_out_by, run.record.master_epoch, run.record.granted_master_id)
            found = (now.change.id, now.change.carried_out_by, now.master_epoch, now.granted_master_id)
            is_clean = not run.planned or not is_unclean(step(now, election, group.live(), group.settings))
            return found == expected and is_clean

        async def while_quiet() -> Decision:
            await self._still_quiet(run.address)
            return await group.decide(election, timeline=timeline, premise=premise)

        decision = await decided_at_last(while_quiet, key=group.key, waits="election")
        if decision.code != ControllerCode.SUCCESS or decision.record is None:
            raise view.SwitchoverFailedError(decision.why)
        elections.note_election(group, timeline, decision)
        return decision


def _refusal(run: _Run) -> str | None:
    """Return why this switchover may not begin now."""
    # Only a change that restores a minimum may still be under way, or an election that a person's supersedes.
    group, change = run.group, run.record.change if run.group.is_changing else None
    is_waited_for = change is not None and change.phase is not Phase.RESTORING
    is_superseded = not run.planned and group.changes.elected(change)
    if group.master_change is not None or (is_waited_for and not is_superseded):
        return "a change of master is under way"
    if not group.is_live(run.old):
        return f"master {run.old} is not alive, a failover replaces it"
    if run.drain_seconds <= 0:
        return "no time is left until the deadline"
    trial = step(run.record, run.election, group.live(), group.binding.settings)
    if trial.code != ControllerCode.SUCCESS:
        return trial.why
    if run.planned and is_unclean(trial):
        return f"{trial.why}: no broker that is not in sync is made master of a living group"
    return None if run.address else f"the address of broker {run.old} is not known"


@dataclass(slots=True)
class _DrainCare:
    """The move of one group that is under way, and when the next may begin; None: none is wanted."""

    move: asyncio.Task[None] | None = None
    not_before_seconds: float | None = None


class Drain(Part):
    """Moves a master off a pod that is about to go. Woken by the plane's tick and by the pod watch.

    A Java master that gets a SIGTERM leaves its group without a master for some 9 s; a switchover takes a quarter of a second.
    The preStop hook holds the SIGTERM back meanwhile (`fence/`). The plane of rank 0 acts at once, the others later.
    A pod that was removed by force is gone from the API at once, and its broker runs for one to three seconds (`dialled_at`).
    """

    def __init__(self, services: Services, switchover: Switchover) -> None:
        super().__init__(services)
        self._switchover = switchover

    def look_at(self, group: Group) -> None:
        """Begin to move the master if its pod is about to go and no change is under way. Cheap."""
        master, care = group.granted_master_id, group.care(_DrainCare)
        if master is None or master not in elections.members_leaving(group) or group.is_leaving:
            care.not_before_seconds = None
            return
        if group.master_change is not None or is_running(care.move) or not group.is_live(master):
            return
        turn_seconds = self._planes.rank(group.key) * self._settings.drain_rank_delay_seconds
        now_seconds = self._now_seconds
        if care.not_before_seconds is None:
            care.not_before_seconds = now_seconds + turn_seconds
        if now_seconds < care.not_before_seconds:
            return
        care.move = self._tasks.start(self._move(group, master), f"rmq:drain {group.key}")

    async def _move(self, group: Group, master: int) -> None:
        log.info("master's pod is about to go: moved first", group=str(group.key), broker_id=master)
        try:
            result = await self._switchover.move(
                group,
                from_broker_id=master,
                to_broker_id=None,
                deadline_seconds=self._settings.switchover_deadline_seconds,
                only_staying=True,
                # A failover a moment later would lose what the next master lacks all the same.
                waits_for_metadata=master not in elections.members_removed(group),
                cause=Cause.DRAIN,
            )
        except (view.GroupViewError, RecordStoreError) as error:
            log.warning("master about to go and not moved yet", group=str(group.key), error=str(error))
            care = group.care(_DrainCare)
            care.not_before_seconds = self._now_seconds + self._settings.drain_again_seconds
            return
        log.info("master moved off its pod", group=str(group.key), to=result.to_broker_id, epoch=result.epoch)

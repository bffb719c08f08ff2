"""Whether the record has gone back in time: what brokers report against it, which of them act as master, and what they hold
(safety rules 2 and 3; docs/concepts/architecture.md, "Recovery of the record").
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.controller.group.group import Group, PremiseGoneError
from brokergroup_operator.controller.peers.services import Part, Services, doubled, is_running
from brokergroup_operator.records.store import RecordStoreError
from controller_core.decision import ControllerCode, Decision
from controller_core.holdings import News, quiet_after, report_is_news, waiting_jump
from controller_core.requests import AlterSyncStateSet, RegisterBroker, ReportAhead, ReportHoldings
from controller_core.sync_state import believes_in_more, counts_on_another_set, only_the_dead_stop_it

if TYPE_CHECKING:
    from collections.abc import Callable

    from controller_core.model import BrokerGroupRecord, Replica

# A heartbeat of the last process may come after the registration of the next; two may not.
BEATS_TO_MOVE = 2
POLL_SECONDS = 0.05
REPORT_POLL_SECONDS = 0.02
# A member that did not answer is asked again for its report after pauses that double.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 2.0
# Of all groups. When a whole cluster has no masters, the others wait for their turn.
MOST_QUESTIONS = 64

log = structlog.get_logger(__name__)


class HoldingsWatch(Part):
    """Compares every heartbeat of every group; `on_news` is called after a report has changed a record.

    News are committed as `ReportHoldings`, built after the record was read, so that the table knows which seats that record has:
    marks of all members together, every `mark_pause_seconds`, other news at once.
    """

    def __init__(self, services: Services, *, recovery: Recovery, on_news: Callable[[Group], None]) -> None:
        super().__init__(services)
        self._recovery, self._on_news = recovery, on_news

    def heard(self, group: Group, broker_id: int) -> None:
        """Compare the heartbeat that was just taken. Cheap."""
        record, entry, settings = group.record, group.table.entry(broker_id), group.binding.settings
        if record is None or entry is None:
            return
        notes = group.holdings
        quiet = notes.quiet.get(broker_id) if notes.epoch_jump is None else None
        if quiet is not None and quiet.goes_on(record, settings, entry.replica, entry.seen):
            return
        holding = group.table.holding(broker_id)
        if holding is None:
            return
        news = report_is_news(record, holding, settings)
        notes.quiet[broker_id] = quiet_after(record, holding, settings) if news is News.NOTHING else None
        if news is News.JUMP or notes.epoch_jump is not None:
            self._note_jump(group, record)
        if news in (News.NOTHING, News.JUMP) or is_running(notes.report) or not group.patience.is_over:
            return
        if news is News.MARK:
            if self._now_seconds < notes.next_mark_seconds:
                return
            group.holdings.next_mark_seconds = self._now_seconds + self._settings.mark_pause_seconds
        group.holdings.report = self._tasks.start(self._report(group, news), f"rmq:report {group.key}")

    async def _report(self, group: Group, news: News) -> None:
        """Report all members together: a commit costs the same."""

        def report() -> ReportHoldings:
            found = (group.table.holding(broker_id) for broker_id in sorted(group.live()))
            return ReportHoldings(holdings=tuple(holding for holding in found if holding is not None))

        if news is News.FLOOR:
            await self._recovery.find_incumbent(group)
        try:
            decision = await group.decide(report)
        except RecordStoreError as error:
            log.warning("holdings not reported yet", group=str(group.key), error=str(error))
            group.patience.failed(error.retry_after_seconds)
            return
        if decision.changed:
            self._on_news(group)

    def _note_jump(self, group: Group, record: BrokerGroupRecord) -> None:
        """Note an epoch that waits for a person, if a living member reports one; reported once for each epoch."""
        jump = waiting_jump(record, group.live(), group.binding.settings)
        if jump == group.holdings.epoch_jump:
            return
        group.holdings.epoch_jump = jump
        if jump is not None:
            what = "epoch too far above the record: no election before it is accepted"
            log.error(what, group=str(group.key), epoch=jump)
            self._observer.epoch_jump(group.key, jump)
        group.changed()


@dataclass(slots=True)
class _Disputes:
    """Those of one group, and since when they have lasted."""

    # By replica: the epochs of its last 1001 that the record does not have.
    ahead: dict[int, tuple[ReportAhead, float]] = field(default_factory=dict)
    # Under which epochs the master is refused, and whether for dead members.
    apart: tuple[tuple[int, int, bool] | None, float] = (None, 0.0)


class DisputedSets(Part):
    """Changes the record if a master's 1001 shows again and again that the two disagree (`controller_core/sync_state.py`).

    One such request may have been queued, and is refused. A master that repeats it for a while knows a commit that the record has
    forgotten (the epoch is raised above it), proposes from another set because an earlier 1001 was lost or refused, or is kept from
    a larger set by dead members only.
    """

    async def answered(self, group: Group, wanted: AlterSyncStateSet, decision: Decision) -> Decision:
        """Return the final decision on a 1001; the first one was this."""
        await self._raise_if_ahead(group, wanted, refused=decision.code != ControllerCode.SUCCESS)
        record, disputes = group.record, group.care(_Disputes)
        _note_refused(group, record, wanted, decision)
        if decision.code == ControllerCode.SUCCESS or record is None:
            disputes.apart = (None, 0.0)
            return decision
        is_apart = counts_on_another_set(record, wanted)
        if not is_apart and not only_the_dead_stop_it(record, wanted, group.live()):
            return decision
        if not self._was_refused_long_enough(group, record, for_the_dead=not is_apart):
            return decision
        if is_apart:
            what, proposed = "the master proposes from another set, and is answered the record's", wanted.sync_state_set
            log.warning(what, group=str(group.key), proposed=sorted(proposed), recorded=sorted(record.sync_state_set))
        return await group.decide(replace(wanted, said_again=True))

    async def _raise_if_ahead(self, group: Group, wanted: AlterSyncStateSet, *, refused: bool) -> None:
        said = group.care(_Disputes).ahead
        ahead = believes_in_more(group.record, wanted, group.binding.settings) if refused else None
        if ahead is None:
            said.pop(wanted.master_broker_id or 0, None)
            return
        before, since_seconds = said.get(ahead.broker_id, (None, 0.0))
        if before != ahead:
            said[ahead.broker_id] = (ahead, self._now_seconds)
            log.warning("a 1001 knows more than the record", group=str(group.key), believed=ahead)
        elif self._now_seconds - since_seconds >= self._settings.believed_again_seconds:
            del said[ahead.broker_id]
            await group.decide(ahead)

    def _was_refused_long_enough(self, group: Group, record: BrokerGroupRecord, *, for_the_dead: bool) -> bool:
        """Whether it was refused for the same for longer than a master needs to learn the set by its own poll (1004)."""
        disputes, refused = group.care(_Disputes), (record.master_epoch, record.sync_state_set_epoch, for_the_dead)
        before, since_seconds = disputes.apart
        if before != refused:
            disputes.apart = (refused, self._now_seconds)
            return False
        too_early = self._now_seconds - since_seconds < self._settings.set_apart_seconds
        if too_early or group.master_change is not None or group.is_changing:
            return False
        disputes.apart = (None, 0.0)
        return True


def _note_refused(
    group: Group, record: BrokerGroupRecord | None, wanted: AlterSyncStateSet, decision: Decision
) -> None:
    """Note a refused 1001 of the present epochs that only adds members, for `upkeep/links.py`."""
    if record is None or decision.code == ControllerCode.SUCCESS or not group.binding.settings.masters_shrink_first:
        return
    epochs = record.master_epoch, record.sync_state_set_epoch
    is_of_now = (wanted.master_broker_id, wanted.master_epoch, wanted.sync_state_set_epoch) == (
        record.granted_master_id,
        *epochs,
    )
    if is_of_now and wanted.sync_state_set > record.sync_state_set:
        group.refused_set.members, group.refused_set.epochs = wanted.sync_state_set - record.sync_state_set, epochs
        group.look_soon()


class AdoptionDesk(Part):
    """Proposes to the core brokers whose id or address the record does not know: a Java broker registers only when it starts.

    A `RegisterBroker` is proposed for an unknown id (the core adopts it), and for another address, if the pod that the id is
    kept for reports it twice and it is not the granted master, whose registration would mean a new process.
    """

    def heard(self, group: Group, broker_id: int, address: str, requester: str | None) -> None:
        """A heartbeat came. Cheap if all is known."""
        if not group.loaded or not address:
            return
        members, replica = group.members, _known(group, broker_id)
        if replica is not None and _moved(group, replica) is not None and broker_id != group.granted_master_id:
            members.moved_beats[broker_id] += 1
            if members.moved_beats[broker_id] < BEATS_TO_MOVE:
                return
        elif replica is not None:
            members.moved_beats.pop(broker_id, None)
            return
        if self._now_seconds >= members.not_proposed_until_seconds.get(broker_id, 0.0):
            members.not_proposed_until_seconds[broker_id] = self._now_seconds + self._settings.adoption_pause_seconds
            request = _registration(group, broker_id, address, requester)
            work = self._propose(group, broker_id, request, is_known=replica is not None)
            self._tasks.start(work, f"rmq:adopt {group.key}")

    async def _propose(self, group: Group, broker_id: int, request: RegisterBroker, *, is_known: bool) -> None:
        def premise(now: BrokerGroupRecord | None) -> bool:
            if now is None:
                return True
            # An id that became known meanwhile is moved by two heartbeats, like any other. The granted master's registration would
            # mean a new process, also where the record has lost its id.
            return now.granted_master_id != broker_id and (is_known or now.claimed_replica(broker_id) is None)

        try:
            decision = await group.decide(request, premise=premise)
        except PremiseGoneError:
            return  # another plane, or the broker itself, was faster
        except RecordStoreError as error:
            log.warning("broker not taken in yet", group=str(group.key), broker_id=broker_id, error=str(error))
            return
        if decision.code != ControllerCode.SUCCESS:
            log.warning("unknown broker not adopted", group=str(group.key), broker_id=broker_id, why=decision.why)


def _known(group: Group, broker_id: int) -> Replica | None:
    return group.record.claimed_replica(broker_id) if group.record is not None else None


def _moved(group: Group, replica: Replica | None) -> str | None:
    """Return where the member's own pod says it is, if the record says otherwise."""
    if replica is None or not replica.reserved_for:
        return None
    told = group.members.whereabouts.get(replica.broker_id)
    return told if told != replica.address else None


def _registration(group: Group, broker_id: int, address: str, requester: str | None = None) -> RegisterBroker:
    """Return what the member's process would send: from the pod that the id is kept for, or, if it is unknown, this one."""
    replica = _known(group, broker_id)
    return RegisterBroker(
        cluster_name=group.binding.cluster_name,
        broker_name=group.binding.broker_name,
        broker_id=broker_id,
        broker_address=address,
        requester=replica.reserved_for if replica is not None else requester,
    )


class Recovery(Part):
    """Asks (907) which brokers act as master while the record names none (hole C).

    The acknowledgements of the acting master count, so it is preferred unless another member has a higher epoch
    (`ElectMaster.incumbent`). Other acting masters are told first: a third replica must not stay linked to one of them while
    another is elected. `find_incumbent` asks before the record loses its master: a Python master whose poll (1004) is
    answered without one stops acknowledging.
    """

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self.reports = FreshReports(services)

    async def find_incumbent(self, group: Group) -> None:
        """Note which members act as master, until one of the highest epoch is found, or all were or could have been heard."""
        while True:
            group.recovery.acting = acting = await self._find_acting(group)
            record, live = group.record, group.live()
            highest = max((replica.epoch for replica in live.values()), default=-1)
            if acting and acting[0] in live and live[acting[0]].epoch >= highest:
                return
            if record is None or group.could_hear_all:
                return
            if all(one.broker_id in live for one in record.replicas.values() if one.registered):
                return
            await asyncio.sleep(POLL_SECONDS)

    async def acting_masters(self, group: Group) -> tuple[int, ...]:
        """Return the members that act as master, or did for `find_incumbent`; first the one whose acknowledgements count."""
        try:
            for broker_id in sorted(group.live()):
                address = _moved(group, _known(group, broker_id))
                if address is not None and broker_id != group.granted_master_id:
                    request = _registration(group, broker_id, address)
                    await group.decide(request, premise=lambda now: now is not None and now.granted_master_id is None)
        except (RecordStoreError, PremiseGoneError) as error:
            log.warning("addresses not followed yet", group=str(group.key), error=str(error))
        if acting := await self._find_acting(group):
            return acting
        live = group.live()
        noted = tuple(one for one in group.recovery.acting if one in live)
        if not noted:
            # None acts as master now: reports from now on are complete, and members that stay silent time out.
            group.table.ask_anew(self._now_seconds)
            await self.reports.gather(group, group.longest_silence_seconds)
        return noted

    async def _find_acting(self, group: Group) -> tuple[int, ...]:
        live, found = group.live(), await self._calls.masters(_addresses(group))

        def weight(broker_id: int) -> tuple[int, int, int]:
            # The highest epoch first, then the one with more slaves.
            epoch = live[broker_id].epoch if broker_id in live else -1
            return (-epoch, -len(found[broker_id].ha_connection_info), broker_id)

        return tuple(sorted(found, key=weight))


def _addresses(group: Group) -> dict[int, str]:
    """Return where the living members are, by their own word if an older record says otherwise (safety rule 8)."""
    found = {}
    for broker_id, heard in sorted(group.live().items()):
        member = _known(group, broker_id)
        address = _moved(group, member) or (member.address if member is not None else "")
        if address and heard.address in ("", address):
            found[broker_id] = address
    return found


@dataclass(slots=True)
class _Question:
    """Of one member: after which loss, the one under way, and when it may be asked again."""

    lost_seconds: float | None
    task: asyncio.Task[None] | None = None
    times: int = 0
    not_before_seconds: float = 0.0


class _Questions(dict[int, _Question]):
    """Those of one group, by broker id."""


class FreshReports(Part):
    """What the living members hold now: asked of them (1007) after a loss, because a heartbeat may be a second old. Where the
    SyncStateSet is in doubt, the core elects only by such reports (`controller_core/election.py`).
    """

    _under_way = 0

    def ask(self, group: Group) -> list[asyncio.Task[None]]:
        """Begin to ask those whose reports are older than the master's loss; return the questions under way."""
        stale, now_seconds, asking = _stale(group), self._now_seconds, group.care(_Questions)
        for broker_id, address in stale.items():
            question = asking.get(broker_id)
            if question is None or question.lost_seconds != group.table.lost_seconds:
                question = asking[broker_id] = _Question(group.table.lost_seconds)
            may_ask = now_seconds >= question.not_before_seconds and self._under_way < MOST_QUESTIONS
            if may_ask and not is_running(question.task):
                self._under_way += 1
                work = self._read_report(group, broker_id, address, question)
                question.task = self._tasks.start(work, f"rmq:report {group.key}", on_end=self._ended)
        tasks = (asking[broker_id].task for broker_id in stale)
        return [task for task in tasks if task is not None and not task.done()]

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._under_way -= 1

    async def gather(self, group: Group, timeout_seconds: float) -> None:
        """Return when every living member was heard after the master's loss, or after this long."""
        deadline_seconds = self._now_seconds + timeout_seconds
        while _stale(group) and self._now_seconds < deadline_seconds:
            if questions := self.ask(group):
                await asyncio.wait(questions, timeout=REPORT_POLL_SECONDS)
            else:
                await asyncio.sleep(REPORT_POLL_SECONDS)

    def are_heard_out(self, group: Group) -> bool:
        """Whether the members have had the time of a silent one to report since the master's loss."""
        lost_seconds = group.table.lost_seconds
        return lost_seconds is not None and self._now_seconds - lost_seconds >= group.longest_silence_seconds

    async def _read_report(self, group: Group, broker_id: int, address: str, question: _Question) -> None:
        before, record, binding = group.table.entry(broker_id), group.record, group.binding
        report = await self._calls.end_of_log(address, binding.cluster_name, binding.broker_name, broker_id)
        if report is None:
            pause_seconds = doubled(FIRST_PAUSE_SECONDS, question.times, LONGEST_PAUSE_SECONDS)
            question.not_before_seconds = self._now_seconds + pause_seconds
            question.times += 1
            return
        question.times = 0
        # Not if the member was heard meanwhile, the master was lost again, or another one elected: it may be older than that.
        if group.table.entry(broker_id) is before and group.record is record:
            group.table.reported(broker_id, epoch=report[0], max_offset=report[1])
            group.changed()


def _stale(group: Group) -> dict[int, str]:
    """Return the living members that may lead and whose reports are older than the master's loss, and where they are."""
    record, settings = group.record, group.binding.settings
    if record is None:
        return {}
    return {
        broker_id: address
        for broker_id, replica in group.live().items()
        if not (replica.fresh and replica.has_reported)
        and settings.may_be_master(broker_id)
        and (address := record.address_of(broker_id)) is not None
    }

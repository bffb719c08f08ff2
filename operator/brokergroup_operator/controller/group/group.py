"""One broker group inside the controller plane: decisions one after the other, each durable before its answer leaves.

`decide` is the only way a record changes (`test_a_record_changes_by_one_method`).
"""

from __future__ import annotations

import asyncio
import time
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from brokergroup_operator.controller.group import notes
from brokergroup_operator.controller.group.changes import Incidents, OwnChanges, awaited_steps
from brokergroup_operator.controller.peers.services import Patience
from brokergroup_operator.observe.timeline import FailoverTimeline, Step
from brokergroup_operator.records.store import RecordConflictError, RecordStoreError, RecordUnavailableError
from controller_core.decision import BrokerAdopted, Decision, EpochFloorRaised, MasterElected, SeatsLost
from controller_core.liveness import HeartbeatTable
from controller_core.requests import ElectMaster, Request
from controller_core.step import step

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.controller.directory.group_directory import GroupBinding
    from brokergroup_operator.controller.settings import PlaneSettings
    from brokergroup_operator.observe.observer import Observer
    from brokergroup_operator.records.store import RecordStore, StoredRecord
    from controller_core.model import BrokerGroupRecord, Change, LiveReplica
    from controller_core.settings import ControllerSettings

    Premise = Callable[[BrokerGroupRecord | None], bool]
    Wanted = Request | Callable[[], Request]

log = structlog.get_logger(__name__)

Care = TypeVar("Care")


class PremiseGoneError(Exception):
    """The record is not any more what made the caller ask for this decision; nothing was decided."""


class Group:
    """What the plane holds of one group. It is needed after a restart only to be faster."""

    binding: GroupBinding
    # Whether this process saw the record change to this master and epoch, rather than found it so.
    saw_master_begin = False
    # The BrokerGroup is declared no more.
    gone = False

    def __init__(
        self,
        binding: GroupBinding,
        *,
        store: RecordStore,
        settings: PlaneSettings,
        observer: Observer,
        on_change: Callable[[Group], None],
        on_wake: Callable[[Group], None],
    ) -> None:
        self._store, self._settings, self.observer = store, settings, observer
        self._on_change, self._on_wake = on_change, on_wake
        self.key = binding.key
        self.table = HeartbeatTable(settings.startup_timeout_seconds)
        self.met_seconds = asyncio.get_running_loop().time()
        # Groups are looked at spread over time, not all in one turn of the loop.
        self.stagger = zlib.crc32(str(binding.key).encode()) / 2**32
        # Most parts have one owner, which their classes name.
        self.changes = OwnChanges(settings, look_soon=self.look_soon, changed=self.changed)
        self.incidents = Incidents(observer)
        self.crash_loops = notes.CrashLoops()
        self.addresses = notes.AddressNotes()
        self.members = notes.MemberNotes(regular_heartbeat_seconds=settings.regular_heartbeat_seconds)
        self.configuration = notes.ConfigurationNotes()
        self.links, self.unheard = notes.LinkNotes(), notes.UnheardNotes()
        self.refused_set = notes.RefusedSetNotes()
        self.holdings, self.silence = notes.HoldingsNotes(), notes.SilenceNotes()
        self.waking, self.recovery = notes.WakingNotes(), notes.ActingNotes()
        self.registrations = notes.RegistrationNotes()
        self._cares: dict[type, Any] = {}
        self.bind(binding)
        # Under which epoch the master answered 1008 or was heard as such; said itself (907, a heartbeat) that it is master; and
        # denied that by 907.
        self.confirmed_epoch = self._vouched_epoch = self._denied_epoch = 0
        # Until when a look would find nothing new; 0.0: a look is due.
        self.rests_until_seconds = 0.0
        self._lock = asyncio.Lock()
        self._stored: StoredRecord | None = None
        # What the store's watch delivered last.
        self._delivered: StoredRecord | None = None
        # Since when the record has named its master in its epoch, as far as this plane saw it.
        self.master_known_seconds = self.met_seconds
        # Whether the record was read, and is not known to have moved since; and whether it ever was.
        self.loaded = self._was_read = False
        self._unanswered = notes.UnansweredWrites()
        self._decisions: set[asyncio.Task[Decision]] = set()
        # With the store; elections do not ask it.
        self.patience = Patience(first_seconds=0.2, longest_seconds=1.0)
        self._read_error: RecordUnavailableError | None = None

    def care(self, kind: type[Care]) -> Care:
        """Return what a part of the plane remembers of this group, in a type of its own."""
        if kind not in self._cares:
            self._cares[kind] = kind()
        found: Care = self._cares[kind]
        return found

    @property
    def settings(self) -> ControllerSettings:
        """What to decide by: the spec, and which brokers are not known to keep its minimum yet (safety rule 1)."""
        wanted = self.binding.settings
        if not wanted.shrink_floor:
            return wanted
        said, least = self.configuration.minimums, wanted.min_in_sync_replicas
        # One that has not answered may acknowledge alone as the next master. Silent members too: a decision has asked who is heard
        # a moment before this, or later.
        members = {*self.table.entries(), *(self.record.replicas if self.record is not None else ())}
        return replace(wanted, keep_no_floor=frozenset(one for one in members if said.get(one, 0) < least))

    @property
    def record(self) -> BrokerGroupRecord | None:
        """The copy of the record: as of the last read or commit here. Good for looking, not for granting."""
        return self._stored.record if self._stored is not None else None

    @property
    def change(self) -> Change | None:
        return self.record.change if self.record is not None else None

    @property
    def granted_master_id(self) -> int | None:
        return self.record.granted_master_id if self.record is not None else None

    def live(self) -> dict[int, LiveReplica]:
        return self.table.live(asyncio.get_running_loop().time())

    def is_live(self, broker_id: int) -> bool:
        entry = self.table.entry(broker_id)
        return entry is not None and entry.alive(asyncio.get_running_loop().time())

    def changed(self) -> None:
        """Notify watchers of this group that its snapshot has changed."""
        self.look_soon()
        self._on_change(self)

    def look_soon(self) -> None:
        self.rests_until_seconds = 0.0
        self._on_wake(self)

    def rest(self, now_seconds: float, master: int, until_seconds: float) -> None:
        """Look again then, or sooner: before the master's deadline, when a slave falls silent, or when something changes."""
        entry = self.table.entry(master)
        is_busy = self.incidents.is_open or self.master_change or self.waking.wakes
        if entry is None or is_busy or self.members.reported_dead or self.binding.leaving_hosts:
            return
        look_again_seconds = entry.deadline_seconds - self._settings.small_rpc_deadline_seconds
        rest_seconds = self._settings.rest_seconds * (0.5 + self.stagger)
        silent_from = [one.deadline_seconds for one in self.table.entries().values() if one.alive(now_seconds)]
        self.rests_until_seconds = min(now_seconds + rest_seconds, look_again_seconds, until_seconds, *silent_from)

    def distrust_copy(self, version: str | None = None) -> None:
        """Let the record be read again; not if this version is the one held."""
        if version is None or self._stored is None or self._stored.version != version:
            self.loaded = False
            self.look_soon()

    def take_watched(self, delivered: StoredRecord) -> bool:
        """Take the record that the store's watch has delivered as the copy; return False if it must be read instead.

        A watch may be behind what was read or written here, but not behind itself: then the store was restored from an older copy.
        """
        before, self._delivered = self._delivered, delivered
        held = self._stored
        if held is None or not self.loaded or self._lock.locked() or held.uid != delivered.uid:
            return False
        if not (held.version.isdecimal() and delivered.version.isdecimal()):
            return False  # no order is known: the watch may be behind what was read or written here
        if before is not None and int(delivered.version) < int(before.version):
            return False
        if int(delivered.version) > int(held.version):
            self._take(delivered)
        return True

    @property
    def master_change(self) -> asyncio.Task[None] | None:
        """This plane's failover, switchover or takeover under way."""
        return self.changes.task

    @property
    def is_changing(self) -> bool:
        """Whether the record has a change of master for which something is left to do."""
        return self.change is not None and self.change.key != self.changes.over and not self.change.is_told

    def heard(self, broker_id: int, epoch: int, *, came_back: bool) -> None:
        """Take a heartbeat. If its epoch file has the record's epoch, the master is master in deed."""
        record = self.record
        if record is not None and broker_id == record.granted_master_id and epoch >= record.master_epoch > 0:
            self._vouch(record.master_epoch)
            self.confirm_master(record.master_epoch)
        if self.members.reported_dead:
            self.members.lives(broker_id, asyncio.get_running_loop().time())
        if came_back:
            self.members.reported_dead.pop(broker_id, None)
            self.changed()

    def bind(self, binding: GroupBinding) -> None:
        self.waking.declared(hibernated=binding.hibernated)
        self.binding = binding
        self.gone = False

    def undeclared(self) -> None:
        self.gone = True

    @property
    def is_leaving(self) -> bool:
        """Whether the group is being deleted, is gone, or hibernates: losing its master is no incident."""
        return self.binding.deleting or self.gone

    def new_process(self, broker_id: int) -> None:
        """Forget what a member's former process was told or had configured."""
        self.members.new_process(broker_id)
        self.changes.told.pop(broker_id, None)
        self.configuration.changed(broker_id)
        self.recovery.new_process(broker_id)
        self.changed()

    def silent_for_seconds(self, broker_id: int) -> float:
        return asyncio.get_running_loop().time() - self.last_heard_seconds(broker_id)

    @property
    def longest_silence_seconds(self) -> float:
        """For how long a living member may be silent."""
        return self.binding.heartbeat_timeout_seconds or self._settings.heartbeat_timeout_seconds

    @property
    def could_hear_all(self) -> bool:
        """Whether this plane has known the group for long enough to have heard every living member."""
        met_for_seconds = asyncio.get_running_loop().time() - self.met_seconds
        return met_for_seconds >= self.longest_silence_seconds + self._settings.broker_rescan_seconds

    def not_heard_yet(self) -> frozenset[int]:
        """Return the registered members that this plane has not heard yet, while it may be too new to have heard them."""
        record, heard = self.record, self.table.entries()
        if record is None or self.could_hear_all:
            return frozenset()
        members = record.replicas.values()
        return frozenset(one.broker_id for one in members if one.registered and one.broker_id not in heard)

    def last_heard_seconds(self, broker_id: int) -> float:
        """Return when this member was heard last, or since when this plane could have heard it."""
        if (entry := self.table.entry(broker_id)) is not None:
            return entry.last_seen_seconds
        return self.master_known_seconds if broker_id == self.granted_master_id else self.met_seconds

    def open_incident(self, timeline: FailoverTimeline) -> None:
        self.incidents.open(timeline, awaited=awaited_steps(self.binding, self._settings))
        self._note_in_sync()

    def confirm_master(self, epoch: int) -> None:
        if epoch <= self.confirmed_epoch:
            return
        self.confirmed_epoch = epoch
        self.incidents.role_changed(epoch)
        self._note_in_sync()
        self.changed()

    def master_said(self, epoch: int, *, is_master: bool) -> None:
        """The master reports this role by its own 907, after it was told this epoch."""
        if is_master:
            self._vouch(epoch)
        denied_epoch = 0 if is_master else epoch
        if denied_epoch != self._denied_epoch:
            self._denied_epoch = denied_epoch
            self.changed()

    def _vouch(self, epoch: int) -> None:
        if epoch > self._vouched_epoch:
            self._vouched_epoch = epoch
            self.changed()

    def _note_in_sync(self) -> None:
        if self.record is not None and len(self.record.sync_state_set) >= self.binding.settings.min_in_sync_replicas:
            self.incidents.in_sync()

    @property
    def writable(self) -> bool:
        """Whether a write can be acknowledged: a live master that says so itself, and enough live members in sync.

        An answer to 1008 is not enough: a broker that ignores it answers as well. A dead member may stay in the set.
        """
        record = self.record
        if record is None or record.granted_master_id is None:
            return False
        return (
            self._vouched_epoch >= record.master_epoch
            and self._denied_epoch != record.master_epoch
            and self._acknowledges(record.granted_master_id)
            and sum(map(self._acknowledges, record.sync_state_set)) >= self.binding.settings.min_in_sync_replicas
        )

    def _acknowledges(self, broker_id: int) -> bool:
        """Whether this member can acknowledge. A slave without heartbeats does if the master has a link to it and it answers.

        A master without heartbeats does if it answers as master: it may not know this plane yet.
        """
        silence = self.unheard.silences.get(broker_id)
        answers = silence is not None and silence.acknowledges and broker_id not in self.members.reported_dead
        return answers or self.is_live(broker_id)

    async def load_again(self) -> BrokerGroupRecord | None:
        """Return the record, read from the store whatever the copy says: voluntary changes begin with the truth."""
        self.distrust_copy()
        return await self.load()

    async def load(self) -> BrokerGroupRecord | None:
        """Return the record, read from the store unless the copy is good. Callers that waited for one read share its failure."""
        if not self.loaded:
            known_error = self._read_error
            async with self._lock:
                if not self.loaded:
                    error = self._read_error
                    if error is not None and (error is not known_error or not self.patience.is_over):
                        raise RecordUnavailableError(str(error)) from error
                    try:
                        await self._read(self._settings.record_deadline_seconds)
                    except RecordStoreError as error:
                        self.patience.failed(error.retry_after_seconds)
                        raise
        return self.record

    async def decide(
        self,
        wanted: Wanted,
        *,
        linearizable: bool = True,
        timeline: FailoverTimeline | None = None,
        premise: Premise | None = None,
    ) -> Decision:
        """Decide, commit, and return the decision once it is durable. Raise `RecordStoreError`: then nothing is granted.

        It runs to its end even if its caller has left: a commit that is cut off would be a write with an unknown outcome.
        A request that is built of members' reports is a function, called after each read of the record: a report counts under
        the record that was known by then (`HeartbeatTable.note_seats`). A `premise` must hold for the record that is decided
        on, also after others moved it; else `PremiseGoneError` is raised.
        """
        work = self._decide(wanted, linearizable, timeline, premise)
        task = asyncio.create_task(work, name=f"rmq:decide {self.key}")
        self._decisions.add(task)
        task.add_done_callback(self._decided)
        return await asyncio.shield(task)

    async def _decide(
        self, wanted: Wanted, linearizable: bool, timeline: FailoverTimeline | None, premise: Premise | None
    ) -> Decision:
        clock = asyncio.get_running_loop().time
        async with self._lock:
            deadline_seconds = clock() + self._settings.record_deadline_seconds
            read_again = linearizable or not self.loaded
            while True:
                left_seconds = deadline_seconds - clock()
                if left_seconds <= 0:
                    raise RecordUnavailableError(f"record of {self.key}: others were faster until the deadline")
                if read_again:
                    await self._read(left_seconds)
                request = wanted() if callable(wanted) else wanted
                if (written := self._unanswered.take(request, self.record)) is not None:
                    return self._concluded(request, written, timeline)
                if premise is not None and not premise(self.record):
                    raise PremiseGoneError(f"record of {self.key} has moved on")
                decision = step(self.record, request, self.live(), self.settings)
                decision = self.changes.with_the_end(decision, is_reported=not self.incidents.has_untold)
                if timeline is not None:
                    timeline.reach(Step.DECIDED, time.monotonic())
                # A refusal from the copy may be old news: it counts only when the record was read for it.
                left_seconds = deadline_seconds - clock()
                final = read_again if not decision.changed else await self._committed(request, decision, left_seconds)
                read_again = True
                if final:
                    return self._concluded(request, decision, timeline)

    def _concluded(self, request: Request, decision: Decision, timeline: FailoverTimeline | None) -> Decision:
        if isinstance(request, ElectMaster):
            self.observer.election_decided(self.key, decision)
        if timeline is not None and decision.changed:
            timeline.reach(Step.COMMITTED, time.monotonic())
        return decision

    async def _committed(self, request: Request, decision: Decision, left_seconds: float) -> bool:
        """Commit; return False if another plane was faster."""
        before, replaced = self.record, self._stored
        try:
            self._stored = await self._store.commit(self.key, decision.record, replaced, max(left_seconds, 0.05))
        except RecordStoreError as error:
            self.loaded = False  # unknown or refused: whatever comes next begins with a look at the store
            if isinstance(error, RecordConflictError):
                self.observer.record_conflict(self.key, before)
                return False
            if isinstance(error, RecordUnavailableError):
                self._unanswered.note(notes.UnansweredWrite(request, replaced, decision, error.write_id))
            raise
        self.loaded = True
        self._note_record(before)
        self._is_durable(before, decision)
        self._note_in_sync()
        self.changed()
        return True

    async def _read(self, deadline_seconds: float) -> None:
        try:
            stored = await self._store.read(self.key, deadline_seconds=deadline_seconds)
        except RecordUnavailableError as error:
            self._read_error = error
            raise
        self._read_error = None
        self.patience.answered()
        self._take(stored)

    def _take(self, stored: StoredRecord | None) -> None:
        """Make this the copy, and note what is new."""
        before, was = self._stored, self.record
        self._stored, self.loaded = stored, True
        self._note_record(was)
        if (written := self._unanswered.find(self._stored)) is not None:
            self._is_durable(written.before, written.decision)
        else:
            self.incidents.moved_by_another(was, self.record)
        if self._stored != before:
            self._note_in_sync()
            self.changed()

    def _note_record(self, was: BrokerGroupRecord | None) -> None:
        """Note what the copy changes: another master, or the same one in a new epoch, begins to be known."""
        now, first_read, self._was_read = self.record, not self._was_read, True
        self.changes.saw(self.change)
        self.table.note_seats(now, asyncio.get_running_loop().time())
        if now is None or first_read:
            return
        if was is None or (was.granted_master_id, was.master_epoch) != (now.granted_master_id, now.master_epoch):
            self.master_known_seconds = asyncio.get_running_loop().time()
            self.saw_master_begin = was is not None
            if was is not None and now.granted_master_id is not None:
                self.waking.elected(hibernated=self.binding.hibernated)

    def _is_durable(self, before: BrokerGroupRecord | None, decision: Decision) -> None:
        log.info("committed", group=str(self.key), why=decision.why, code=int(decision.code))
        was = before.change if before is not None else None
        now = decision.record.change if decision.record is not None else None
        if was is not None:
            is_own, epoch = was.key in self.changes.carried_out, self.confirmed_epoch
            self.incidents.superseded_by(decision, was, self.binding, is_own=is_own, confirmed_epoch=epoch)
        if now is not None and (was is None or was.key != now.key or (now.is_decided and not was.is_decided)):
            self.changes.wrote(now)
        if self.record is not None:
            self._note_commit(before, self.record, decision)

    def _note_commit(self, before: BrokerGroupRecord | None, after: BrokerGroupRecord, decision: Decision) -> None:
        was_master = before.granted_master_id if before is not None else None
        if after.granted_master_id is not None:
            self.incidents.masterless(None)
        elif was_master is not None:
            self.incidents.masterless(time.monotonic())
        self.observer.record_changed(self.key, before, after, decision.why)
        for event in decision.events:
            match event:
                case SeatsLost():
                    if was_master in event.broker_ids:
                        self.recovery.deposed_in_office = True
                    for broker_id in sorted(event.broker_ids):
                        self.observer.seat_lost(self.key, broker_id, decision.why)
                case EpochFloorRaised():
                    self.observer.epoch_floor_raised(self.key, event.epoch, decision.why)
                case BrokerAdopted():
                    self.observer.broker_adopted(self.key, event.replica.broker_id)
                case MasterElected():
                    self.recovery.elected()

    async def stop(self) -> None:
        await asyncio.gather(*self._decisions, return_exceptions=True)

    def _decided(self, task: asyncio.Task[Decision]) -> None:
        self._decisions.discard(task)
        if not task.cancelled():
            task.exception()  # the caller may have left at its deadline

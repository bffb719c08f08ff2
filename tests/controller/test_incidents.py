"""One loss is one incident, whichever plane carried the change out; a master that is lost again and again is passed over."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.controller.group.changes import Incidents
from brokergroup_operator.controller.group.notes import CrashLoops
from brokergroup_operator.observe.events import EventObserver, GroupEvent
from brokergroup_operator.observe.incidents import IncidentLog
from brokergroup_operator.observe.observer import ObserverGroup
from brokergroup_operator.observe.timeline import FailoverTimeline, Kind, Outcome, Step, Trigger
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import DEFAULT_DEADLINE_SECONDS, GroupKey, RecordUnavailableError
from controller_core.model import Change, ChangeKind, Phase
from controller_core.requests import RegisterBroker
from controller_core.step import step
from rocketmq_remoting.codes import RequestCode
from tests.controller.conftest import record_of, snapshot_of
from tests.controller.world import (
    ALL_THREE,
    KEY,
    LOOSE,
    STRICT,
    Fencer,
    Notes,
    Record,
    Store,
    Stored,
    World,
    Write,
    knows,
    stored_in,
)
from tests.support.fake_broker import CLUSTER, NAME, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from brokergroup_operator.controller.change.fencing import FenceOutcome
    from brokergroup_operator.controller.directory.group_directory import GroupBinding

FAILOVER_REASONS = ("MasterLost", "FailoverStarted", "FailoverCompleted", "FailoverCancelled")


# The fence is slow: a second fence by another plane would show.
FENCE_SECONDS = 0.1


class SlowFencer(Fencer):
    """Kills the fake broker after all planes have started; confirms a second kill of it as well."""

    def __init__(self, group: World, *, planes: int) -> None:
        super().__init__(group)
        self._planes = planes
        self.begun = 0
        self.running = 0
        self.most_at_once = 0

    async def fence(
        self, binding: GroupBinding, broker_id: int, address: str, *, deadline_seconds: float
    ) -> FenceOutcome:
        self.begun += 1
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        try:
            await eventually(lambda: self.begun >= self._planes, what="all planes to fence")
            await asyncio.sleep(FENCE_SECONDS)
            return await super().fence(binding, broker_id, address, deadline_seconds=deadline_seconds)
        finally:
            self.running -= 1


class Told(Notes):
    """One plane's reports and Events."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[GroupEvent] = []

    def post(self, event: GroupEvent) -> None:
        self.events.append(event)


@pytest.mark.parametrize("how", ["frozen", "killed"])
async def test_three_planes_see_one_loss_and_one_tells_it(group: World, how: str) -> None:
    fencer, told = SlowFencer(group, planes=1), [Told() for _ in range(3)]
    observers = [ObserverGroup([one, EventObserver(one)]) for one in told]
    planes = await group.peers(3, observers=observers, fencers=[fencer] * 3)
    await group.three()
    await knows(*planes)
    for one in told:
        one.events.clear()
    master = group.master()
    if how == "frozen":
        master.freeze()
    else:
        await master.kill()
    await eventually(lambda: any(one.closed for one in told), what="the incident to be closed")
    await eventually(
        lambda: all(snapshot_of(plane).writable and snapshot_of(plane).in_progress is None for plane in planes),
        what="every plane to be done with it",
    )
    incidents = [timeline for one in told for timeline in one.closed]
    assert [(one.outcome, one.from_broker_id, one.epoch_after) for one in incidents] == [(Outcome.COMPLETED, 1, 2)]
    reasons = [event.reason for one in told for event in one.events if event.reason in FAILOVER_REASONS]
    assert reasons == ["MasterLost", "FailoverStarted", "FailoverCompleted"]
    shown = [snapshot_of(plane).last_failover for plane in planes]
    assert [one for one in shown if one is not None] == incidents
    if how == "frozen":
        # Two fences in sequence are possible: on a busy machine a late heartbeat ends the first.
        assert fencer.most_at_once == 1, "the plan was in the record before the fence: no other plane began one"


# A change that is not ended, and an incident that is not given up, for as long as a test takes.
UNENDED: dict[str, Any] = {"end_of_change_seconds": 600.0, "incident_deadline_seconds": 600.0}


async def was_told_as_one_failover(group: World) -> None:
    """Wait until the change ends, and check that it was the loss of 1, and an incident."""
    await eventually(lambda: group.notes.closed or group.notes.withdrawn, what="the change to end")
    told = [(one.from_broker_id, one.epoch_after, one.outcome) for one in group.notes.closed]
    assert told == [(1, 2, Outcome.COMPLETED)]


class EndRefused(Store):
    """Does not answer the next `left` writes that remove a change of master from the record or mark it as delivered."""

    left = 0

    async def put(self, record: Record, expected: Stored, write: Write) -> Stored:
        before = expected.record.change if expected is not None else None
        after = record.change if record is not None else None
        ends = before is not None and before.phase is Phase.TELLING and (after is None or after.is_told)
        if ends and self.left:
            self.left -= 1
            raise RecordUnavailableError("no answer in time")
        return await write()


async def test_an_end_that_the_store_did_not_take_is_written_by_the_plane_that_told_of_it(group: World) -> None:
    """Otherwise another plane finds the change without progress, takes it over and reports it a second time."""
    store = EndRefused()
    await group.serving(store)
    store.left = 2
    await group.master().kill()
    await eventually(lambda: group.notes.closed, what="the incident to be closed")
    await eventually(lambda: not store.left, what="the end of the change to be refused")
    await eventually(lambda: (stored := store.watched(KEY)) and stored.record.change is None, what="the change to end")
    incident = await group.incident()
    assert (incident.outcome, incident.epoch_after) == (Outcome.COMPLETED, 2)


class LateView(Store):
    """One plane's view of a store that another plane writes to: its watch delivers nothing while `late` is set."""

    def __init__(self, shared: MemoryRecordStore) -> None:
        super().__init__(shared)
        self.late = False
        self._seen: dict[GroupKey, Stored] = {}
        shared.subscribe(lambda key, version: None if self.late else self._tell(key, version))

    def watched(self, key: GroupKey) -> Stored:
        if not self.late and self.shared is not None:
            self._seen[key] = self.shared.watched(key)
        return self._seen.get(key)


async def test_a_masters_new_process_that_registers_elsewhere_and_asks_here_is_one_incident(group: World) -> None:
    """Issue 30, b: one kill opened no incident. The electing plane had not read yet that the master was lost."""
    shared = MemoryRecordStore()
    view = LateView(shared)
    _plane, (first, *_) = await group.serving(view)
    view.late = True
    before = await stored_in(shared)
    registered = RegisterBroker(cluster_name=CLUSTER, broker_name=NAME, broker_id=1, broker_address=first.address)
    await shared.commit(KEY, step(before.record, registered, {}, STRICT).record, before)
    answer = await first.ask(RequestCode.CONTROLLER_ELECT_MASTER, brokerId=1, designateElect="false")
    view.late = False
    assert (answer.code, (answer.ext_fields or {}).get("masterEpoch")) == (0, "2")
    await was_told_as_one_failover(group)


class MuteAfterTold(LateView):
    """Writes that a change was delivered to all brokers; from then on it answers nothing until `mute` is cleared."""

    mute = False

    async def read(self, key: GroupKey, *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS) -> Stored:
        if self.mute:
            raise RecordUnavailableError("no answer in time")
        return await super().read(key, deadline_seconds=deadline_seconds)

    async def put(self, record: Record, expected: Stored, write: Write) -> Stored:
        if self.mute:
            raise RecordUnavailableError("no answer in time")
        written = await write()
        if record is not None and record.change is not None and record.change.is_told:
            self.mute = self.late = True
            raise RecordUnavailableError("no answer in time", write_id=written.write_id if written else "")
        return written


@pytest.mark.parametrize("again", [False, True], ids=["another master", "the same master again"])
async def test_a_change_that_another_plane_supersedes_while_the_store_is_mute_is_still_an_incident(
    group: World, again: bool
) -> None:
    """The other plane read the completed delivery and left the incident to this one, which never learned that its write landed.

    With `again` this plane learned it, and then waited ten minutes because the next election had the same winner.
    """
    shared = MemoryRecordStore()
    view = MuteAfterTold(shared)
    plane, (first, *_) = await group.three_under(
        view, settings=ALL_THREE, end_of_change_seconds=0.5, incident_deadline_seconds=600.0
    )
    await eventually(lambda: snapshot_of(plane).writable and record_of(plane).change is None, what="a group at rest")
    await first.kill()
    await eventually(lambda: view.mute, what="the write that all were told")
    assert not group.notes.closed
    before = await stored_in(shared)
    winner = before.record.master_broker_id or 0
    elected = replace(
        before.record,
        master_broker_id=winner if again else 5 - winner,
        master_epoch=3,
        change=None,
        change_id=before.record.change_id + 1,
    )
    await shared.commit(KEY, elected, before)
    view.mute = view.late = False
    plane.record_moved(KEY, None)
    await was_told_as_one_failover(group)


async def test_a_change_that_a_plane_supersedes_which_dies_before_it_tells_is_still_an_incident(group: World) -> None:
    store = MemoryRecordStore()
    plane, (first, *_) = await group.serving(store, settings=ALL_THREE, **UNENDED)
    await first.kill()
    await eventually(lambda: (last := snapshot_of(plane).last_failover) and last.epoch_after == 2, what="the failover")
    before = await stored_in(store)
    assert before.record.change is not None
    assert before.record.change.phase is Phase.TELLING
    another = 5 - (before.record.master_broker_id or 0)
    elected = replace(before.record, master_broker_id=another, master_epoch=3, change=None)
    await store.commit(KEY, elected, before)
    await was_told_as_one_failover(group)


async def test_a_dead_planes_change_that_this_plane_supersedes_is_an_incident_at_once(group: World) -> None:
    """Simulation, seed 1434: the plane died 45 ms after its election, before its next look."""
    store = MemoryRecordStore()
    _plane, (first, second, _) = await group.serving(store)
    before = await stored_in(store)
    change = Change(
        id=before.record.change_id + 1,
        kind=ChangeKind.FAILOVER,
        phase=Phase.TELLING,
        carried_out_by="127.0.0.1:1",
        from_broker_id=1,
        to_broker_id=2,
        epoch=2,
        before=before.record.as_before,
    )
    elected = replace(before.record, master_broker_id=2, master_epoch=2, change=change, change_id=change.id)
    await store.commit(KEY, elected, before)
    await first.kill()
    await second.kill()
    order = group.notes.order
    await eventually(lambda: ("master_committed", 3) in order, what="the next election")
    assert order.index(("incident_closed", 2)) < order.index(("master_committed", 3))


async def test_a_dead_planes_change_whose_master_goes_on_under_a_higher_epoch_is_a_completed_incident(
    group: World,
) -> None:
    """All were told, a slave was taken out of the set by a renewal, and the plane died before the incident ended."""
    store = MemoryRecordStore()
    plane, _ = await group.serving(store)
    before = await stored_in(store)
    change = Change(
        id=before.record.change_id + 1,
        kind=ChangeKind.FAILOVER,
        phase=Phase.RESTORING,
        carried_out_by="127.0.0.1:1",
        from_broker_id=2,
        to_broker_id=1,
        epoch=2,
        before=before.record.as_before,
    )
    await store.commit(KEY, replace(before.record, master_epoch=3, change=change, change_id=change.id), before)
    incident = await group.incident()
    assert (incident.outcome, incident.epoch_after) == (Outcome.COMPLETED, 2)
    assert record_of(plane).master_epoch == 3


async def test_a_change_that_its_own_plane_supersedes_is_an_incident_at_once(group: World) -> None:
    """This one too may die before it has told the brokers of the next master."""
    plane, (first, *_) = await group.serving(settings=ALL_THREE, **UNENDED)
    await first.kill()
    await eventually(lambda: record_of(plane).sync_state_set == {2, 3} and group.notes.changed, what="the failover")
    next_master = group.brokers[5 - group.master().broker_id]
    next_master.role_change_waits = asyncio.Event()
    await group.master().kill()
    await eventually(lambda: record_of(plane).master_epoch == 3, what="the next election")
    await was_told_as_one_failover(group)
    next_master.role_change_waits.set()


# ---- The incident log: one line when a change of master begins, one when it is durable, one when it ends.


async def test_a_failover_and_a_switchover_are_noted_before_anybody_is_told(group: World, tmp_path: Path) -> None:
    path = tmp_path / "incidents.jsonl"
    order, log = group.notes.order, IncidentLog(path)
    log.start()
    plane, (master, _, _) = await group.serving(observer=ObserverGroup([log, group.notes]))

    def noted(epoch: int) -> bool:
        return order == [("master_lost", None), ("master_committed", epoch), ("incident_closed", epoch)]

    order.clear()
    await plane.switch_master(KEY, from_broker_id=1)
    await eventually(partial(noted, 2), what="the switchover")
    await eventually(lambda: snapshot_of(plane).writable and len(record_of(plane).sync_state_set) == 3)
    order.clear()
    await group.master().kill()
    await eventually(partial(noted, 3), what="the failover")
    await log.stop()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["kind"], line["epoch"], line["outcome"]) for line in lines[-2:]] == [
        ("switchover", 2, "completed"),
        ("failover", 3, "completed"),
    ]
    assert not path.with_name("incidents.jsonl.open").exists()
    assert master.broker_id == 1


# ---- A crash-looping master is passed over with a growing penalty while another member can lead (F38).


def _lost_at(*times_seconds: float) -> CrashLoops:
    loops = CrashLoops()
    for epoch, now_seconds in enumerate(times_seconds, start=1):
        loops.master_lost(1, epoch, now_seconds)
    return loops


@pytest.mark.parametrize(
    ("lost_at", "penalty_seconds"),
    [((0.0,), 0.0), ((0.0, 10.0), 60.0), ((0.0, 10.0, 20.0), 120.0), ((0.0, 1.0, 2.0, 3.0), 240.0)],
)
def test_the_penalty_doubles_with_each_loss(lost_at: tuple[float, ...], penalty_seconds: float) -> None:
    loops, last = _lost_at(*lost_at), lost_at[-1]
    if penalty_seconds:
        assert loops.penalised(last + penalty_seconds - 0.001) == {1}
    assert loops.penalised(last + penalty_seconds) == frozenset()


def test_a_loop_costs_at_most_one_election_a_minute() -> None:
    """The member crashes ten seconds after each of its elections, and wins whenever no penalty holds it back."""
    loops, elections = CrashLoops(), list[float]()
    now_seconds, master = 0.0, 1
    while now_seconds < 3600.0:
        if master == 1 and now_seconds % 10.0 == 0.0:
            loops.master_lost(1, len(elections) + 1, now_seconds)
            master = 2 if loops.penalised(now_seconds) else 1
            elections.append(now_seconds)
        elif master == 2 and not loops.penalised(now_seconds):
            master = 1  # the worst case: the other member is lost the moment the penalty ends
            elections.append(now_seconds)
        now_seconds += 1.0
    assert len([at for at in elections if at > 60.0]) <= 60
    assert len(elections) < 20


def test_a_quiet_time_forgives() -> None:
    loops = _lost_at(0.0, 10.0)
    loops.master_lost(1, 3, 10.0 + 60.0 + 601.0)
    assert loops.penalised(10.0 + 60.0 + 601.0) == frozenset()


def test_one_loss_counts_once() -> None:
    loops = CrashLoops()
    for _ in range(5):
        loops.master_lost(1, 7, 1.0)
    assert loops.penalised(1.0) == frozenset()


async def test_a_looping_master_is_passed_over_among_equals(group: World) -> None:
    """Its process is back before a plane misses it. An election among equals prefers the old master, but only once."""
    plane, _ = await group.three_under()
    looping = group.master().broker_id
    masters = []

    def has_epoch_above(epoch: int) -> bool:
        return record_of(plane).master_epoch > epoch

    for _ in range(2):
        await eventually(lambda: record_of(plane).sync_state_set == {1, 2, 3}, what="all in sync")
        await eventually(lambda: snapshot_of(plane).writable)
        epoch = record_of(plane).master_epoch
        await group.brokers[looping].restarted()
        await eventually(partial(has_epoch_above, epoch), what="a new epoch")
        await eventually(lambda: snapshot_of(plane).writable)
        masters.append(record_of(plane).master_broker_id)
        if masters[-1] != looping:
            break
    assert masters[-1] != looping


async def test_a_looping_master_that_is_the_only_one_leads(group: World) -> None:
    plane = await group.plane(settings=LOOSE)
    only = await group.broker(minimum=1)
    for _ in range(4):
        await eventually(lambda: snapshot_of(plane).writable)
        only = await only.restarted()
        await eventually(lambda: snapshot_of(plane).writable, what="it to lead again")
    assert record_of(plane).master_broker_id == 1


@pytest.mark.parametrize(
    ("epoch", "completes"), [(4, False), (5, True), (7, True)], ids=["older", "its own", "renewed"]
)
async def test_by_which_epoch_its_master_completes_an_incident(epoch: int, completes: bool) -> None:
    """A master that denied its role goes on under a higher epoch, and says so then."""
    notes = Notes()
    incidents, incident = (
        Incidents(notes),
        FailoverTimeline(KEY, CLUSTER, NAME, Kind.FAILOVER, Trigger.SILENCE, 1, 4, 0.0),
    )
    incident.epoch_after, incident.outcome = 5, Outcome.INCOMPLETE
    incidents.open(incident)
    incidents.role_changed(epoch)
    assert (incident.outcome is Outcome.COMPLETED) == completes
    assert (Step.ROLE_CHANGED in incident.steps) == completes
    assert notes.changed == ([incident] if completes else [])

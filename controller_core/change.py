"""A change of master: the planes' requests about it, and what comes next in it (`next_effects`).

A change that waits for its election keeps out others that would begin so. It does not keep out an election: a plane that knows
that the master is dead elects, and the plan becomes that election's. A decided change is superseded by the next one.

Effects may be repeated, so a plane that takes a change over begins with nothing observed and comes to the same end. The orders
are data in tests/core/traces/change_*.txt; docs/concepts/architecture.md says why they matter to Java brokers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from controller_core.decision import (
    ChangeWritten,
    ControllerCode,
    Decision,
    MasterRenewed,
    SyncStateSetAltered,
    decided,
    refused,
)
from controller_core.holdings import epoch_seen_above
from controller_core.model import MAX_EPOCH, BrokerGroupRecord, Change, ChangeKind, Live, Phase, Restore, draw_ids
from controller_core.requests import BeginChange, EndChange, Ending, RenewMaster, TakeOverChange
from controller_core.settings import ControllerSettings

# How long the old master's slaves may take for its late messages; then it is told all the same.
CATCH_UP_SECONDS = 0.3
MOVES_A_LIVING_MASTER = frozenset({ChangeKind.SWITCHOVER, ChangeKind.DRAIN})


def begin_change(record: BrokerGroupRecord, request: BeginChange) -> Decision:
    """Give the change the next id. It restores the minimum that an earlier change has still to restore."""
    wanted = request.change
    if not record.is_known or not record.is_granted(wanted.from_broker_id, request.master_epoch):
        return _refused(record, f"{wanted.from_broker_id} is not master of epoch {request.master_epoch}")
    under_way = record.change
    if under_way is not None and under_way.waits_for_election:
        by = under_way.carried_out_by
        return _refused(record, f"change {under_way.id} ({under_way.kind}) is under way, carried out by {by}")
    left = under_way.restore if under_way is not None else None
    if left is not None and wanted.restore is not None and left.broker_id != wanted.restore.broker_id:
        left = None  # one minimum is remembered; the keeper finds the other one
    change = replace(wanted, id=record.change_id + 1, restore=left or wanted.restore, before=record.as_before)
    why = f"change {change.id} ({change.kind}) begins: {change.phase}"
    return decided(record, None, why, ChangeWritten(change=change))


def take_over_change(record: BrokerGroupRecord, request: TakeOverChange) -> Decision:
    """Take over a change that has not moved since it was looked at: one that has moved belongs to a living plane."""
    if record.change != request.change:
        return _refused(record, f"change {request.change.id} has moved on")
    by, before = request.carried_out_by, request.change.carried_out_by
    why = f"change {request.change.id} is carried out by {by} from now on, not by {before}"
    return decided(record, None, why, ChangeWritten(change=replace(request.change, carried_out_by=by)))


def end_change(record: BrokerGroupRecord, request: EndChange) -> Decision:
    """Give the change up, note that all were told, or take it out of the record, if it is still that one and this plane's."""
    change = record.change
    if change is None or (change.id, change.carried_out_by) != (request.change_id, request.carried_out_by):
        return _refused(record, f"change {request.change_id} is over, or carried out by another plane")
    left: Change | None = None
    if request.how is Ending.GIVEN_UP:
        if not change.waits_for_election:
            return _refused(record, f"change {change.id} has its election: {change.phase}")
        left = replace(change, phase=Phase.RESTORING) if change.restore is not None else None
    elif request.how is Ending.TOLD:
        if not change.is_decided:
            return _refused(record, f"change {change.id} has no election: {change.phase}")
        left = change.told
    return decided(record, None, f"change {change.id} ({change.kind}) {request.how}", ChangeWritten(change=left))


def _refused(record: BrokerGroupRecord, why: str) -> Decision:
    return refused(record, ControllerCode.CONTROLLER_INVALID_MASTER, None, why)


def renew_master(record: BrokerGroupRecord, request: RenewMaster, live: Live, settings: ControllerSettings) -> Decision:
    """Raise the epoch of this master, if it is still master under that epoch, and alive; the set and the eligible stay.

    By two for a cure; by as many as one may jump if it denies its role, for it was told an epoch that no controller committed.
    By one to take members `without` a link out of the set: with the new epoch (1008) a Java master takes it at once.
    """
    if not record.is_granted(request.broker_id, request.master_epoch):
        return _refused(record, f"{request.broker_id} is not master of epoch {request.master_epoch}")
    if request.broker_id not in live:
        return _refused(record, f"the master {request.broker_id} is not alive")
    if epoch_seen_above(record, live) is not None:
        return _refused(record, "rule 3: a replica reports a higher epoch than the record's")
    set_epoch = record.sync_state_set_epoch + bool(request.without)
    if max(record.master_epoch, set_epoch) + request.epochs > MAX_EPOCH:
        return _refused(record, "there is no epoch left")
    if request.without:
        return _renew_without(record, request, live, settings)
    why = f"the master {request.broker_id} goes on under epoch {record.master_epoch + request.epochs}"
    return decided(record, None, why, MasterRenewed(epochs=request.epochs, plan=request.plan))


def _renew_without(
    record: BrokerGroupRecord, request: RenewMaster, live: Live, settings: ControllerSettings
) -> Decision:
    """Raise the epoch, and take the members out. The others hold all that is acknowledged: they were in the set as well.

    Not below the floor, nor beside another dead member: the master would acknowledge no more than before. Not during a change of
    master: under another epoch it would be over, and a quieted master would get its minimum back.
    """
    change = record.change
    if change is not None and not change.is_told:
        return _refused(record, f"change {change.id} ({change.kind}) is under way: {change.phase}")
    left, out = record.sync_state_set - request.without, draw_ids(request.without)
    if request.broker_id not in left or not request.without <= record.sync_state_set:
        return _refused(record, f"{out} are not slaves in the set {draw_ids(record.sync_state_set)}")
    if len(left) < settings.floor or not left <= live.keys():
        return _refused(record, f"without {out} the set is {draw_ids(left)}: below the floor, or not alive")
    why = f"the master {request.broker_id} goes on under epoch {record.master_epoch + request.epochs} without {out}"
    smaller = SyncStateSetAltered(sync_state_set=left)
    return decided(record, None, f"{why}: it has no link to them", smaller, MasterRenewed(epochs=request.epochs))


@dataclass(frozen=True, slots=True)
class _OfOneBroker:
    broker_id: int


class Fence(_OfOneBroker):
    """Make sure that the silent master's process runs no more."""


class Quiet(_OfOneBroker):
    """25: `minInSyncReplicas=99`, so that the old master acknowledges nothing from now on."""


class Level(_OfOneBroker):
    """907 until every linked slave has caught up with the old master."""


class CatchUp(_OfOneBroker):
    """907 likewise, right before the old master loses its links: a message that it took before it was quieted may come into its
    log after `Level`, and a Java master acknowledges what it has when its last link breaks (hole A).
    """


@dataclass(frozen=True, slots=True)
class Commit:
    """Elect, by compare-and-set."""


@dataclass(frozen=True, slots=True)
class Probe:
    """907 to these members: which of them act as master?"""

    broker_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Unregister(_OfOneBroker):
    """104 at every NameServer for a member that is master no more."""

    early: bool = False


@dataclass(frozen=True, slots=True)
class Tell(_OfOneBroker):
    """1008: the master under this epoch. `of_another`: another member as master (a cure)."""

    epoch: int
    of_another: bool = False


@dataclass(frozen=True, slots=True)
class Point(_OfOneBroker):
    """906: the new master's HA address, or one where nothing listens."""

    nowhere: bool = False


class Prove(_OfOneBroker):
    """907 to the new master after it answered its 1008: does it say that it is master?"""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Write that the change has no election, so that its effect on a broker can be undone."""


@dataclass(frozen=True, slots=True)
class Forget:
    """Take the change out of the record."""


Effect = (
    Fence | Quiet | Level | CatchUp | Commit | Probe | Unregister | Tell | Point | Prove | Restore | GiveUp | Forget
)


@dataclass(frozen=True, slots=True)
class Ended:
    at_seconds: float
    confirmed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The longest waits of the stages for brokers that others do not depend on, besides each effect's own deadline."""

    slaves_first_seconds: float = 0.3
    slaves_first_unfenced_seconds: float = 1.5
    early_unregister_seconds: float = 0.1
    fence_seconds: float = 3.0


@dataclass(slots=True, kw_only=True, eq=False)
class Observed:
    """What this plane sees, and what it has begun. `told` answered 1008 under the record's epoch; `due` may be told (again) now.

    `acting` say by 907 that they are master; None: they were not asked. `unheard` may yet be heard here for the first time.
    `fenced`: the old master's death is confirmed; `heard`: it was heard again. `dead_by_pod_fence`: the fence in its pod kills
    it before another one is elected. `since_seconds`: when this plane first saw the change in this phase.
    """

    alive: frozenset[int] = frozenset()
    told: frozenset[int] = frozenset()
    due: frozenset[int] | None = None
    acting: frozenset[int] | None = None
    unheard: frozenset[int] = frozenset()
    fenced: bool = False
    heard: bool = False
    dead_by_pod_fence: bool = False
    may_not_elect_before_seconds: float = 0.0
    since_seconds: float = 0.0
    takes_over: bool = False
    begun: dict[Effect, float] = field(default_factory=dict)
    ended: dict[Effect, Ended] = field(default_factory=dict)

    def is_confirmed(self, effect: Effect) -> bool:
        return effect in self.ended and self.ended[effect].confirmed

    def failed(self, effect: Effect) -> bool:
        return effect in self.ended and not self.ended[effect].confirmed


@dataclass(frozen=True, slots=True)
class Next:
    """What to begin now, and when to ask again at the latest. `releases`: 1004 may answer the new state, until then that of before.
    `settled`: callers need not wait any longer.
    """

    effects: tuple[Effect, ...] = ()
    until_seconds: float | None = None
    releases: bool = False
    settled: bool = False


@dataclass(frozen=True, slots=True)
class Stage(Next):
    """Effects that begin together. The next stage begins when those of `waits_for`, or all, have ended, or after `at_most_seconds`;
    with `until_seconds`, at that time.
    """

    waits_for: tuple[Effect, ...] | None = None
    at_most_seconds: float | None = None


def next_effects(record: BrokerGroupRecord, seen: Observed, now_seconds: float, pace: Pace) -> Next:
    """Return what the stages begin, up to the first one that is not over."""
    effects: list[Effect] = []
    releases = settled = False
    reached_seconds, until_seconds = seen.since_seconds, None
    for stage in _course(record, seen, now_seconds, pace):
        releases, settled = releases or stage.releases, settled or stage.settled
        effects += [one for one in stage.effects if one not in seen.begun]
        waits_for = stage.effects if stage.waits_for is None else stage.waits_for
        begun_seconds = max([reached_seconds, *(seen.begun.get(one, now_seconds) for one in stage.effects)])
        if stage.until_seconds is not None and now_seconds < stage.until_seconds:
            until_seconds = stage.until_seconds
            break
        # Over because all that it waits for has ended; the next stage's own time counts from the last of these ends.
        if all(one in seen.ended for one in waits_for):
            reached_seconds = max([begun_seconds, *(seen.ended[one].at_seconds for one in waits_for)])
            continue
        # Or because its time is over; without a time it lasts until its effects have ended.
        until_seconds = None if stage.at_most_seconds is None else begun_seconds + stage.at_most_seconds
        if until_seconds is None or now_seconds < until_seconds:
            break
        reached_seconds, until_seconds = until_seconds, None
    return Next(effects=tuple(effects), until_seconds=until_seconds, releases=releases, settled=settled)


def _course(  # noqa: PLR0911 - one return per phase and kind is the plainest table there is
    record: BrokerGroupRecord, seen: Observed, now_seconds: float, pace: Pace
) -> Sequence[Stage]:
    change = record.change
    if change is None:
        return _agreement(record, seen)
    before = change.before
    if before is not None and not change.is_decided and before.master_epoch != record.master_epoch:
        return _restoring(change, seen)  # an operator that knows no changes has elected since
    match change.phase:
        case Phase.FENCING:
            return _fencing(change, seen, now_seconds, pace)
        case Phase.QUIETING:
            return _quieting(change, seen)
        case Phase.RESTORING:
            return _restoring(change, seen)
        case Phase.TELLING:
            if (change.to_broker_id, change.epoch) != (record.master_broker_id, record.master_epoch):
                return _restoring(change, seen)  # the same, after the election
            if change.kind is ChangeKind.CURE:
                return _cure(record, change, seen, pace)
            if change.kind in MOVES_A_LIVING_MASTER:
                return _move(record, change, seen, pace)
            return _replacement(record, change, seen, pace)


def _fencing(change: Change, seen: Observed, now_seconds: float, pace: Pace) -> Sequence[Stage]:
    old = change.from_broker_id or 0
    over = max(seen.since_seconds + pace.fence_seconds, seen.may_not_elect_before_seconds)
    if (seen.heard and not seen.fenced) or seen.failed(Commit()):
        return (Stage((GiveUp(),)),)
    if seen.fenced or now_seconds >= over:
        return (Stage((Commit(),)),)
    return (Stage((Fence(old),), waits_for=()), Stage(until_seconds=over))


def _quieting(change: Change, seen: Observed) -> Sequence[Stage]:
    """Quiet the old master, wait until its slaves have caught up, elect. Another plane's is given up: its caller asks again."""
    old = change.from_broker_id or 0
    steps: tuple[Effect, ...] = (Quiet(old), Level(old), Commit())
    if seen.takes_over or any(seen.failed(step) for step in steps):
        return (Stage((GiveUp(),)),)
    return tuple(Stage((step,)) for step in steps)


def _restoring(change: Change, seen: Observed) -> Sequence[Stage]:
    left = change.restore
    restore = (left,) if left is not None and left.broker_id in seen.alive else ()
    return (Stage(restore), Stage((Forget(),), settled=True, releases=True))


def _replacement(record: BrokerGroupRecord, change: Change, seen: Observed, pace: Pace) -> Sequence[Stage]:
    """A master was lost, or there was none: the slaves first, then the new one."""
    master, gone = change.to_broker_id or 0, change.from_broker_id
    slaves = _tells(record, seen.alive - {master}, seen)
    may_live = change.unfenced and not seen.dead_by_pod_fence
    wait = pace.slaves_first_unfenced_seconds if may_live else pace.slaves_first_seconds
    return (
        *_depose(record, seen, pace),
        Stage((Unregister(gone),) if gone is not None and gone != master else ()),
        Stage(slaves, at_most_seconds=wait),
        Stage(_tells(record, {master}, seen)),
        *_ending(record, change, slaves, seen, pace),
    )


def _move(record: BrokerGroupRecord, change: Change, seen: Observed, pace: Pace) -> Sequence[Stage]:
    """A living master is moved: it is told first and closes its links; told later, the others would dial it again."""
    old, master = change.from_broker_id or 0, change.to_broker_id or 0
    others = _tells(record, seen.alive - {old, master}, seen)
    new = _tells(record, {master}, seen)
    nowhere = tuple(Point(one, nowhere=True) for one in sorted(seen.alive - {old}))
    is_told = old in seen.told or Tell(old, record.master_epoch) in seen.begun
    return (
        Stage((Unregister(old, early=True),), at_most_seconds=pace.early_unregister_seconds),
        Stage(nowhere),
        Stage((CatchUp(old),) if not is_told else (), at_most_seconds=CATCH_UP_SECONDS),
        Stage(_tells(record, {old}, seen)),  # also one that is silent: the others wait for it or its time
        Stage((Unregister(old),)),
        Stage((*new, *others), waits_for=new, releases=True),
        *_ending(record, change, (*_tells(record, {old}, seen), *others), seen, pace),
    )


def _cure(record: BrokerGroupRecord, change: Change, seen: Observed, pace: Pace) -> Sequence[Stage]:
    """A wrong link ends only by a change of role: two epochs, and another master under the first of them."""
    master, slave = change.to_broker_id or 0, change.slave or 0
    others = _tells(record, seen.alive - {master, slave}, seen)
    new = _tells(record, {master}, seen)
    cured = _tells(record, {slave} & seen.alive, seen)
    elsewhere = (Tell(slave, record.master_epoch - 1, of_another=True),) if slave in seen.alive else ()
    return (
        Stage((*new, *others), waits_for=new),
        Stage(elsewhere),
        Stage(cured, releases=True),
        *_ending(record, change, (*others, *cured), seen, pace),
    )


def _agreement(record: BrokerGroupRecord, seen: Observed) -> Sequence[Stage]:
    """No change is under way: tell the members that have not answered for this epoch, stale masters before the others."""
    master = record.master_broker_id or 0
    due = _tells(record, seen.alive if seen.due is None else seen.alive & seen.due, seen)
    if record.granted_master_id is None or not due:
        return (Stage(settled=True, releases=True),)
    asked = frozenset(tell.broker_id for tell in due)
    if seen.acting is None:
        return (Stage((Probe(asked | seen.unheard),), releases=True),)
    stale = seen.acting - {master}
    if stale - seen.alive:
        return (Stage(settled=True, releases=True),)  # it will be heard, or could have been: the others wait
    never_told = bool(stale) or (master in asked and master not in seen.acting)
    gone = sorted(one for one in record.replicas if one in stale or one not in seen.alive) if never_told else []
    first = _tells(record, stale, seen)
    told = tuple(tell for tell in due if tell.broker_id not in stale)
    followers = (tell for tell in (*first, *told) if tell.broker_id != master and seen.is_confirmed(tell))
    points = tuple(Point(tell.broker_id) for tell in followers)
    return (
        Stage(first, releases=True),
        Stage(tuple(Unregister(one) for one in gone)),
        Stage(told, waits_for=()),
        Stage((*points, *_proof(record, seen)), waits_for=(*told, *points)),
        Stage(settled=True),
    )


def _depose(record: BrokerGroupRecord, seen: Observed, pace: Pace) -> Sequence[Stage]:
    """Other acting masters are told first: a third replica linked to one goes on acknowledging to it (hole C)."""
    if seen.acting is None:
        return (Stage((Probe(seen.alive - seen.told),)),)
    stale = sorted((seen.acting - {record.master_broker_id}) & seen.alive)
    return (
        Stage(_tells(record, stale, seen), at_most_seconds=pace.slaves_first_unfenced_seconds),
        Stage(tuple(Unregister(one) for one in stale)),
    )


def _ending(
    record: BrokerGroupRecord, change: Change, slaves: tuple[Tell, ...], seen: Observed, pace: Pace
) -> Sequence[Stage]:
    """906 to each slave that was told, also to late ones; then what must be restored, and the end."""
    # In this course or before it; of the latter not the master.
    answered = {tell.broker_id for tell in slaves if seen.is_confirmed(tell)}
    told = sorted(answered | ((seen.told & seen.alive) - {record.master_broker_id}))
    points = tuple(Point(one) for one in told)
    left = change.restore
    restore: tuple[Effect, ...] = ()
    if left is not None and left.broker_id in seen.alive:
        # Also where it is master again: the one that was to follow it died in the midst of the switchover.
        is_told = left.broker_id in told
        if is_told or (left.broker_id == record.master_broker_id and left.broker_id in seen.told):
            restore = (left,)
    late = [tell for tell in slaves if tell not in seen.ended]
    return (
        Stage(
            (*points, *_proof(record, seen)),
            waits_for=(*points, *late),
            at_most_seconds=pace.slaves_first_unfenced_seconds,
            releases=True,
            settled=left is None,
        ),
        Stage(restore),
        Stage((), waits_for=(*points, *late), settled=True),
        Stage((Forget(),)),
    )


def _proof(record: BrokerGroupRecord, seen: Observed) -> tuple[Prove, ...]:
    """A broker that was told an epoch from nowhere answers 1008 as well: only its 907 shows that it is no master."""
    master = record.master_broker_id or 0
    return (Prove(master),) if seen.is_confirmed(Tell(master, record.master_epoch)) else ()


def _tells(record: BrokerGroupRecord, broker_ids: Iterable[int], seen: Observed) -> tuple[Tell, ...]:
    """1008 to these, except those that answered under this epoch before this course."""
    tells = (Tell(one, record.master_epoch) for one in sorted(broker_ids))
    return tuple(tell for tell in tells if tell.broker_id not in seen.told or tell in seen.begun)

"""Retire: a whole group leaves once everything in it is read.

- *ReadOnly*: the ConfigMap, then every broker gets `brokerPermission=4`, until every running one has it.
- *Draining*: the master is asked how far topics reach and are read, until nothing is unread for long enough.
- *Closing*: every broker also gets `minInSyncReplicas=99`, and a Java broker refuses all sends, until two looks some time apart
  find the same log and nothing unread.
- *Deleting*: a last look; if it finds the same, the deletion is noted in the status and sent; until the group is gone.

The configuration is part of what the group's brokers should have (`decide/retiring.py`), so it holds for a new master too. Each
step is in the status before anything is done for it. What a step rests on is read again in the next: an operator that died between
the last look and the deletion looks again. Until the deletion, the end of the operation gives the write permission back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_operation import MAX_UNREAD_TOPICS, Retirement, RetirementStep
from brokergroup_operator.api.brokergroup_status import ConditionStatus, ConditionType
from brokergroup_operator.api.storage_fields import RetentionPolicy
from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.reconcile.decide import retiring, unread
from brokergroup_operator.reconcile.decide.configuration_drift import told
from brokergroup_operator.reconcile.operations import plan as plans
from brokergroup_operator.reconcile.operations.procedures.premises import CHANGE_POLL_SECONDS, Case, asked, first
from brokergroup_operator.reconcile.see import observed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokergroup_operator.api.brokergroup_operation import RetireRequest
    from brokergroup_operator.reconcile.decide.unread import Look
    from brokergroup_operator.reconcile.see.observed import Observed

# Of what a member lacks.
NAMES_SHOWN: Final = 5
# Between two looks at the master while consumers read: longer, the longer the operation has run.
LOOK_SECONDS: Final = 2.0
LONGEST_LOOK_SECONDS: Final = 30.0
LOOK_SHARE: Final = 0.05
# A broker forgets subscriptions with its process, and a new master may not have had them: consumers send them every 30 s.
READERS_APPEAR_SECONDS: Final = 120.0
# So long the log must not change after nothing may be acknowledged any more: a Java broker may store a send that it took before.
CLOSED_SECONDS: Final = 3.0
# If a master acknowledges for so long after it was closed, another writer has opened it.
CLOSE_SECONDS: Final = 30.0
# A closed group waits no longer for a member that holds a seat and is away: its disk may be lost, and only a Rebuild helps then,
# which waits for the end of this operation. By up to CLOSE_SECONDS less: `since` is written no more often.
AWAY_SECONDS: Final = 600.0
# Of the topics that are given up, so many are named in a plan.
TOPICS_NAMED: Final = 3


def begin_retire(case: Case) -> plans.Beginning:
    beginning = case.begun(
        case.group_is_not_there(),
        _is_another_group(case),
        case.paused(),
        case.seen.wanted_by_cluster,
        case.no_master(),
        message=f"{case.group} takes no more sends, and is deleted once everything is read",
        steps=_steps(case),
        not_now=_metadata_diverged(case),
    )
    if not isinstance(beginning, plans.Start):
        return beginning
    begun = Retirement(step=RetirementStep.READ_ONLY, group_uid=observed.uid(case.seen.group_object))
    return replace(beginning, retirement=begun)


def _is_another_group(case: Case) -> str:
    """Why the group is not the one for which the operation was created: that one was deleted, and this one made since."""
    group, asked_for = case.seen.group_object, case.operation.status.group_uid
    created = observed.seconds_of(observed.metadata(group).get("creationTimestamp"))
    is_another = asked_for is not None and observed.uid(group) != asked_for
    if not is_another and created <= observed.created_seconds(case.operation.raw):
        return ""
    return f"BrokerGroup {case.group} was created after this operation, which is for an earlier group of this name"


def _metadata_diverged(case: Case) -> plans.Wait | None:
    """A member lacks a topic or an offset: the topic may be of a master that is gone, with messages; and a consumer group without
    an offset may be one that has not read all.
    """
    snapshot = case.seen.snapshot
    if snapshot is not None and snapshot.metadata_diverged:
        # Offsets that are there and older hold nothing up, as in an update. They are of this group's queues, and mean nothing once
        # it is deleted. Until then the master's count; as master a member with older ones shows more unread messages, never fewer.
        what = told([one.text for one in snapshot.missing_metadata], NAMES_SHOWN)
    else:
        # A plane that has just started has compared nothing yet: the status has what the one before it found.
        found = observed.condition_in(case.seen.group_object, ConditionType.METADATA_DIVERGED.value)
        what = str(found.get("message")) if found.get("status") == ConditionStatus.TRUE.value else ""
    if not what:
        return None
    why = f"waits: {case.group} is MetadataDiverged: {what}"
    return plans.Wait(message=why, look_again_seconds=CHANGE_POLL_SECONDS)


def _steps(case: Case) -> Iterator[str]:
    request = asked(case.spec.retire)
    yield "give every broker brokerPermission=4: producers leave for other groups"
    yield f"wait until every consumer group has read every topic{_given_up(request)}; delayed messages are delivered first"
    yield "let no broker acknowledge any more (minInSyncReplicas=99), and look once more"
    keeps = case.seen.group.spec.storage.retention.when_deleted is RetentionPolicy.RETAIN
    claims = "its claims stay" if keeps else "its claims are deleted WITH THEIR DATA"
    yield f"delete BrokerGroup {case.group}: {claims} (spec.storage.retention.whenDeleted)"


def _given_up(request: RetireRequest) -> str:
    topics = request.abandon_topics
    more = f" and {len(topics) - TOPICS_NAMED} more" if len(topics) > TOPICS_NAMED else ""
    return f", but for {', '.join(topics[:TOPICS_NAMED])}{more}" if topics else ""


def judge_retire(case: Case) -> plans.Judgement:  # noqa: PLR0911 (one return per reason)
    now = case.operation.status.retirement
    if now is None:
        return plans.Fail(message="its status lacks status.retirement, which says whose group it is about")
    if observed.uid(case.seen.group_object) != now.group_uid:
        return judge_without_group(case)
    if observed.being_deleted(case.seen.group_object):
        if now.delete_sent:
            return plans.GoOn(message=f"{case.group} is being deleted: {len(case.seen.pods)} pods are still there")
        return plans.Fail(message=f"{case.group} is being deleted, and not by this operation: not everything was read")
    if case.seen.wanted_by_cluster:
        return plans.Fail(message=f"given up: {case.seen.wanted_by_cluster}")
    if why := first(case.group_is_not_there(), case.paused(), case.no_master()):
        # The configuration may be another one by then: what was read is read again.
        kept = now if now.step is RetirementStep.READ_ONLY else _draining_without_position(now)
        return plans.GoOn(message=f"waits: {why}", retirement=kept)
    match now.step:
        case RetirementStep.READ_ONLY:
            return _judge_read_only(case, now)
        case RetirementStep.DRAINING:
            return _judge_draining(case, now)
        case _:
            return _judge_closed(case, now)


def judge_without_group(case: Case) -> plans.Judgement:
    """The group is gone, or another one has its name."""
    now = case.operation.status.retirement
    if now is not None and now.delete_sent:
        figures = plans.Figures(
            from_broker_id=case.before.from_broker_id,
            epoch=now.epoch,
            milliseconds=round(case.running_seconds * 1000),
        )
        message = f"{case.group} was deleted: everything was read in epoch {now.epoch}"
        return plans.Done(message=message, figures=figures)
    return plans.Fail(message=f"BrokerGroup {case.group} was deleted, and not by this operation")


def _judge_read_only(case: Case, now: Retirement) -> plans.GoOn:
    if missing := retiring.pods_not_configured(case.seen):
        return plans.GoOn(message=f"waits until {', '.join(missing)} takes no sends")
    return plans.GoOn(message=f"{case.group} takes no sends; looks for unread messages", retirement=_draining(now))


def _judge_draining(case: Case, now: Retirement) -> plans.GoOn:  # noqa: PLR0911 (one return per reason)
    look, effect = case.outcome.look, plans.ReadOffsets(pause_seconds=_pause_seconds(case))
    if case.outcome.running:
        return plans.GoOn(message=case.before.message)
    if why := _takes_sends(case):
        return plans.GoOn(message=f"waits: {why}", retirement=_draining_without_position(now), effect=effect)
    if look is None:
        return plans.GoOn(message=_not_known(case), retirement=_draining_without_position(now), effect=effect)
    now = _watched(case, now, look)
    if look.unread:
        message = f"waits for {unread.described(look.unread)}"
        return plans.GoOn(message=message, retirement=_draining(now, look), effect=effect)
    if why := _readers_may_be_missing(case, now, look):
        return plans.GoOn(message=f"waits: {why}", retirement=_draining(now), effect=effect)
    soon = plans.ReadOffsets(pause_seconds=LOOK_SECONDS)
    if now.since is None or look.position != now.position:
        begun = replace(_draining(now), position=look.position, since=rfc3339(look.read_at_unix_seconds))
        message = f"everything is read; waits {look.settle_seconds:.0f} s for more"
        return plans.GoOn(message=message, retirement=begun, effect=soon)
    if not _has_passed(case, now, look, look.settle_seconds):
        return plans.GoOn(message=case.before.message, effect=soon)
    closing = _closing_without_position(case, replace(_draining(now), epoch=look.epoch))
    return plans.GoOn(message="everything is read; lets no broker acknowledge any more", retirement=closing)


def _pause_seconds(case: Case) -> float:
    """Until the next look while something is unread: a look asks for every topic, and the wait may take days."""
    return min(LONGEST_LOOK_SECONDS, max(LOOK_SECONDS, LOOK_SHARE * case.running_seconds))


def _takes_sends(case: Case) -> str:
    """Which broker is not known to refuse sends."""
    if missing := retiring.pods_not_configured(case.seen):
        return f"{', '.join(missing)} does not have brokerPermission=4 yet"
    look = case.outcome.look
    if look is None or not look.takes_sends:
        return ""
    return f"broker {look.master_id}, the master, takes sends (brokerPermission)"


def _watched(case: Case, now: Retirement, look: Look) -> Retirement:
    """With the consumer groups that were seen, and the time of the first look in this epoch: of the start's epoch, the start."""
    now = replace(now, readers=list(look.readers))
    if now.watched_epoch == look.epoch:
        return now
    is_first = now.watched_epoch is None and look.epoch == case.before.epoch
    since = case.operation.status.started_at if is_first else rfc3339(look.read_at_unix_seconds)
    return replace(now, watched_epoch=look.epoch, watched_since=since)


def _readers_may_be_missing(case: Case, now: Retirement, look: Look) -> str:
    """Why a consumer group may read a topic that this master does not know of yet; empty if all had the time to appear."""
    snapshot = case.seen.snapshot
    changes = (snapshot.last_failover, snapshot.last_switchover) if snapshot is not None else ()
    was_just_elected = any(one is not None and one.epoch_after == look.epoch for one in changes)
    if look.epoch == case.before.epoch and not was_just_elected:
        # Master since before the start, and of no election that this operator has seen: only its process may be new.
        return _process_is_new(look)
    is_new = _lasts_seconds(case, now.watched_since, look) < READERS_APPEAR_SECONDS
    why = f"broker {look.master_id} is a new master: its consumers have {READERS_APPEAR_SECONDS:.0f} s to appear"
    return why if is_new else _process_is_new(look)


def _process_is_new(look: Look) -> str:
    booted = look.booted_at_unix_seconds
    if booted is None or look.read_at_unix_seconds - booted >= READERS_APPEAR_SECONDS:
        return ""
    return f"broker {look.master_id} has just started: its consumers have {READERS_APPEAR_SECONDS:.0f} s to appear"


def _judge_closed(case: Case, now: Retirement) -> plans.GoOn | plans.Fail:  # noqa: PLR0911 (one return per reason)
    """Closing and Deleting: nothing may be acknowledged; one look fixes the end of the log, the next ones find the same."""
    if case.outcome.running:
        return plans.GoOn(message=case.before.message)
    if missing := retiring.pods_not_configured(case.seen):
        closing = _closing_without_position(case, now)
        if case.now_seconds - observed.seconds_of(closing.since) >= AWAY_SECONDS:
            return _given_up_for(missing)
        message = f"waits until {', '.join(missing)} acknowledges nothing"
        return plans.GoOn(message=message, retirement=closing)
    if (look := case.outcome.look) is None:
        is_deleting = now.step is RetirementStep.DELETING
        effect = _deletion(now) if is_deleting else plans.ReadOffsets(pause_seconds=0.0)
        return plans.GoOn(message=_not_known(case), retirement=_nothing_missing(case, now), effect=effect)
    closed_for_seconds = look.read_at_unix_seconds - observed.seconds_of(now.since)
    if look.acknowledges and now.position is None and closed_for_seconds < CLOSE_SECONDS:
        # A look from before, or the broker was closed a moment ago.
        return plans.GoOn(message=case.before.message, effect=plans.ReadOffsets(pause_seconds=0.0))
    if why := _not_closed(case, look):
        back = _draining(replace(now, readers=list(look.readers)))
        return plans.GoOn(message=f"goes back to reading: {why}", retirement=back)
    if not look.steady:
        effect = plans.ReadOffsets(pause_seconds=LOOK_SECONDS)
        message = "waits until every member of the SyncStateSet has the master's whole log"
        closing = _closing_without_position(case, now)
        return plans.GoOn(message=message, retirement=_nothing_missing(case, closing) or closing, effect=effect)
    if now.position != look.log_end:
        since = rfc3339(look.read_at_unix_seconds)
        fixed = replace(now, step=RetirementStep.CLOSING, position=look.log_end, since=since, delete_sent=False)
        message = "everything is read and nothing is acknowledged any more; looks once more"
        return plans.GoOn(message=message, retirement=fixed, effect=plans.ReadOffsets(pause_seconds=CLOSED_SECONDS))
    if not _has_passed(case, now, look, CLOSED_SECONDS):
        return plans.GoOn(message=case.before.message, effect=plans.ReadOffsets(pause_seconds=1.0))
    deleting = replace(now, step=RetirementStep.DELETING)
    return plans.GoOn(message=f"deletes {case.group}", retirement=deleting, effect=_deletion(now))


def _given_up_for(missing: list[str]) -> plans.Fail:
    why = (
        f"given up: for ten minutes {', '.join(missing)} could not be made to acknowledge nothing, and may come back as"
        " master with an older configuration. If its disk is lost, rebuild it, and retire the group again"
    )
    return plans.Fail(message=why)


def _deletion(now: Retirement) -> plans.DeleteDrained:
    return plans.DeleteDrained(group_uid=now.group_uid)


def hindrance_of(seen: Observed, operation_uid: str, look: Look) -> str:  # noqa: PLR0911 (one return per reason)
    """Why the group must not be deleted now, by what was just read; empty: nothing stands against it."""
    operation = next((one for one in seen.operations if one.uid == operation_uid), None)
    if operation is None or not operation.is_running:
        return "the operation was deleted or is over"
    case, now = Case(seen=seen, operation=operation), operation.status.retirement
    if now is None or now.step is not RetirementStep.DELETING:
        return "the operation went back to reading"
    if not seen.group_object or observed.uid(seen.group_object) != now.group_uid:
        return "another group has its name"
    if observed.being_deleted(seen.group_object):
        return "it is being deleted"
    if observed.annotations_of(seen.group_object).get(names.ANNOTATION_CLOSED_BY) != operation_uid:
        return f"the annotation {names.ANNOTATION_CLOSED_BY} is not of this operation"
    if missing := retiring.pods_not_configured(seen):
        return f"{', '.join(missing)} may acknowledge"
    same_end = look.steady and look.log_end == now.position
    return first(
        seen.wanted_by_cluster,
        case.group_is_not_there(),
        case.paused(),
        _master_changes(seen),
        _not_closed(case, look),
        "" if same_end else "the end of the master's log has moved, or a slave lacks some of it",
    )


def _master_changes(seen: Observed) -> str:
    snapshot = seen.snapshot
    if snapshot is None:
        return "the controller plane does not know the group"
    # The record was read from the API: another plane may have begun a change of which this plane's watch has not heard yet.
    change = seen.record.change if seen.record is not None else None
    is_recorded = change is not None and not change.is_told
    return "a change of master is under way" if snapshot.moves_master or is_recorded else ""


def _not_closed(case: Case, look: Look) -> str:
    """Why the look does not show a closed group in which everything is read, in the epoch in which it was."""
    now = case.operation.status.retirement
    recorded = (case.seen.master, case.seen.epoch)
    if now is None or (look.master_id, look.epoch) != recorded or look.epoch != now.epoch:
        return f"the master is broker {case.seen.master} in epoch {case.seen.epoch} now"
    if look.takes_sends or look.acknowledges:
        keys = "brokerPermission, minInSyncReplicas, startAcceptSendRequestTimeStamp"
        return f"broker {look.master_id}, the master, acknowledges again ({keys})"
    return f"unread again: {unread.described(look.unread)}" if look.unread else _process_is_new(look)


def _draining(now: Retirement, look: Look | None = None) -> Retirement:
    """Draining from the beginning."""
    found = () if look is None else look.unread
    return Retirement(
        step=RetirementStep.DRAINING,
        group_uid=now.group_uid,
        unread_topics=len(found),
        unread=list(found[:MAX_UNREAD_TOPICS]),
        watched_epoch=now.watched_epoch,
        watched_since=now.watched_since,
        readers=now.readers,
    )


def _draining_without_position(now: Retirement) -> Retirement:
    """Draining, with what the last look found unread."""
    return replace(now, step=RetirementStep.DRAINING, epoch=None, position=None, since=None, delete_sent=False)


def _closing_without_position(case: Case, now: Retirement) -> Retirement:
    """Closing from the beginning; `since` is when that was, or when a look last found no member missing."""
    if now.step is RetirementStep.CLOSING and now.position is None:
        return now
    since = rfc3339(case.now_seconds)
    return replace(now, step=RetirementStep.CLOSING, position=None, since=since, delete_sent=False)


def _nothing_missing(case: Case, now: Retirement) -> Retirement | None:
    """Return Closing with a `since` of now, from which a member that is missed later is waited for; None: leave the status.

    At most once in `CLOSE_SECONDS`, since each is a write.
    """
    if now.step is not RetirementStep.CLOSING or now.position is not None:
        return None
    is_old = case.now_seconds - observed.seconds_of(now.since) >= CLOSE_SECONDS
    return replace(now, since=rfc3339(case.now_seconds)) if is_old else None


def _has_passed(case: Case, now: Retirement, look: Look, seconds: float) -> bool:
    """Whether it was so for so long by this look. Times in a status have whole seconds, so one more."""
    return _lasts_seconds(case, now.since, look) >= seconds + 1.0


def _lasts_seconds(case: Case, since: str | None, look: Look) -> float:
    """How long before the look this time of the status was, as far as this process has seen it: an operator that ran before, on
    another machine, may have written it by a clock that is minutes off.
    """
    written, own = observed.seconds_of(since), case.outcome.asks_since_unix_seconds
    if written > look.read_at_unix_seconds and own:
        return look.read_at_unix_seconds - own
    return look.read_at_unix_seconds - max(written, own)


def _not_known(case: Case) -> str:
    failed = case.outcome.failed or case.outcome.refused
    return f"waits: {failed}" if failed else case.before.message

"""Retire: a whole group leaves once everything in it is read.

- *ReadOnly*: every broker gets `brokerPermission=4`, until every running one has it.
- *Draining*: the master is asked how far topics reach and are read, until nothing is unread for long enough.
- *Closing*: every broker also gets `minInSyncReplicas=99`, until two looks some time apart find the same log and nothing unread.
- *Deleting*: a last look, and right behind it the deletion; until the group is gone.

The configuration is part of what the group's brokers should have (`decide/retiring.py`), so it holds for a new master too. Each
step is in the status before anything is done for it. What a step rests on is read again in the next: an operator that died between
the last look and the deletion looks again. Until the deletion, the end of the operation gives the write permission back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from brokergroup_operator.api.brokergroup_operation import MAX_UNREAD_TOPICS, Retirement, RetirementStep
from brokergroup_operator.api.storage_fields import RetentionPolicy
from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.reconcile.decide import retiring, unread
from brokergroup_operator.reconcile.operations import plan as plans
from brokergroup_operator.reconcile.operations.procedures.premises import Case, asked, first
from brokergroup_operator.reconcile.see import observed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokergroup_operator.api.brokergroup_operation import UnreadTopic
    from brokergroup_operator.observe.group_offsets import GroupOffsets
    from brokergroup_operator.reconcile.see.observed import Observed

# Between two looks at the master while consumers read.
LOOK_SECONDS: Final = 2.0
# So long the log must not change after nothing may be acknowledged any more: a Java broker may store a send that it took before.
CLOSED_SECONDS: Final = 3.0
# A master that was told to acknowledge nothing and still does so after this time was told otherwise by another.
CLOSE_SECONDS: Final = 30.0


def begin_retire(case: Case) -> plans.Beginning:
    beginning = case.begun(
        case.group_is_not_there(),
        case.paused(),
        case.seen.wanted_by_cluster,
        case.no_master(),
        message=f"{case.group} takes no more sends, and is deleted once everything is read",
        steps=_steps(case),
    )
    if not isinstance(beginning, plans.Start):
        return beginning
    begun = Retirement(step=RetirementStep.READ_ONLY, group_uid=observed.uid(case.seen.group_object))
    return replace(beginning, retirement=begun)


def _steps(case: Case) -> Iterator[str]:
    request = asked(case.spec.retire)
    yield "give every broker brokerPermission=4: producers leave for other groups"
    given_up = f", but for {', '.join(request.abandon_topics)}" if request.abandon_topics else ""
    yield f"wait until every consumer group has read every topic{given_up}; delayed messages are delivered first"
    yield "let no broker acknowledge any more (minInSyncReplicas=99), and look once more"
    keeps = case.seen.group.spec.storage.retention.when_deleted is RetentionPolicy.RETAIN
    claims = "its claims stay" if keeps else "its claims are deleted WITH THEIR DATA"
    yield f"delete BrokerGroup {case.group}: {claims} (spec.storage.retention.whenDeleted)"


def judge_retire(case: Case) -> plans.Judgement:  # noqa: PLR0911 (one return per reason)
    now = case.operation.status.retirement
    if now is None:
        return plans.Fail(message="its status lacks status.retirement, which says whose group it is about")
    if observed.uid(case.seen.group_object) != now.group_uid:
        return judge_without_group(case)
    if observed.being_deleted(case.seen.group_object):
        if now.step is RetirementStep.DELETING:
            return plans.GoOn(message=f"{case.group} is being deleted: {len(case.seen.pods)} pods are still there")
        return plans.Fail(message=f"{case.group} is being deleted, and not by this operation: not everything was read")
    if case.seen.wanted_by_cluster:
        return plans.Fail(message=f"given up: {case.seen.wanted_by_cluster}")
    if why := first(case.group_is_not_there(), case.paused(), case.no_master()):
        # What was read is read again: the configuration may be another one by then.
        again = now if now.step is RetirementStep.READ_ONLY else _unsettled(now)
        return plans.GoOn(message=f"waits: {why}", retirement=again)
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
    if now is not None and now.step is RetirementStep.DELETING:
        figures = plans.Figures(
            from_broker_id=case.before.from_broker_id,
            epoch=now.epoch,
            milliseconds=round(case.running_seconds * 1000),
        )
        message = f"{case.group} was deleted: everything was read in epoch {now.epoch}"
        return plans.Done(message=message, figures=figures)
    return plans.Fail(message=f"BrokerGroup {case.group} was deleted, and not by this operation")


def _judge_read_only(case: Case, now: Retirement) -> plans.GoOn:
    if missing := retiring.not_told(case.seen):
        return plans.GoOn(message=f"waits until {', '.join(missing)} takes no sends")
    return plans.GoOn(message=f"{case.group} takes no sends; looks for unread messages", retirement=_again(now))


def _judge_draining(case: Case, now: Retirement) -> plans.GoOn:  # noqa: PLR0911 (one return per reason)
    offsets, look = case.outcome.offsets, plans.ReadOffsets(pause_seconds=LOOK_SECONDS)
    if case.outcome.running:
        return plans.GoOn(message=case.before.message)
    if why := _takes_sends(case):
        return plans.GoOn(message=f"waits: {why}", retirement=_unsettled(now), effect=look)
    if offsets is None:
        return plans.GoOn(message=_not_known(case), retirement=_unsettled(now), effect=look)
    if found := _unread(case, offsets):
        return plans.GoOn(message=f"waits for {unread.told(found)}", retirement=_again(now, found), effect=look)
    position, seconds = unread.position_of(offsets), unread.settle_seconds(offsets)
    if now.since is None or position != now.position:
        begun = replace(_again(now), position=position, since=rfc3339(offsets.read_at_unix_seconds))
        return plans.GoOn(message=f"everything is read; waits {seconds:.0f} s for more", retirement=begun, effect=look)
    if not _has_passed(now, offsets, seconds):
        return plans.GoOn(message=case.before.message, effect=look)
    closing = _closing(case, replace(_again(now), epoch=offsets.epoch))
    return plans.GoOn(message="everything is read; lets no broker acknowledge any more", retirement=closing)


def _takes_sends(case: Case) -> str:
    """Which broker is not known to refuse sends."""
    if missing := retiring.not_told(case.seen):
        return f"{', '.join(missing)} was not told to take no sends"
    offsets = case.outcome.offsets
    is_open = offsets is not None and offsets.takes_sends
    return f"broker {offsets.master_id}, the master, takes sends (brokerPermission)" if is_open and offsets else ""


def _judge_closed(case: Case, now: Retirement) -> plans.GoOn:  # noqa: PLR0911 (one return per reason)
    """Closing and Deleting: nothing may be acknowledged; one look fixes the end of the log, the next ones find the same."""
    if case.outcome.running:
        return plans.GoOn(message=case.before.message)
    if missing := retiring.not_told(case.seen):
        message = f"waits until {', '.join(missing)} acknowledges nothing"
        return plans.GoOn(message=message, retirement=_closing(case, now))
    if (offsets := case.outcome.offsets) is None:
        is_deleting = now.step is RetirementStep.DELETING
        effect = _deletion(now) if is_deleting else plans.ReadOffsets(pause_seconds=0.0)
        return plans.GoOn(message=_not_known(case), effect=effect)
    if (
        offsets.acknowledges
        and now.position is None
        and case.now_seconds - observed.seconds_of(now.since) < CLOSE_SECONDS
    ):
        # A look from before, or the broker was told a moment ago.
        return plans.GoOn(message=case.before.message, effect=plans.ReadOffsets(pause_seconds=0.0))
    if why := _not_closed(case, offsets):
        return plans.GoOn(message=f"goes back to reading: {why}", retirement=_again(now))
    if not offsets.steady:
        effect = plans.ReadOffsets(pause_seconds=LOOK_SECONDS)
        message = "waits until every slave has the master's whole log"
        return plans.GoOn(message=message, retirement=_closing(case, now), effect=effect)
    if now.position != offsets.log_end:
        since = rfc3339(offsets.read_at_unix_seconds)
        fixed = replace(now, step=RetirementStep.CLOSING, position=offsets.log_end, since=since)
        message = "everything is read and nothing is acknowledged any more; looks once more"
        return plans.GoOn(message=message, retirement=fixed, effect=plans.ReadOffsets(pause_seconds=CLOSED_SECONDS))
    if not _has_passed(now, offsets, CLOSED_SECONDS):
        return plans.GoOn(message=case.before.message, effect=plans.ReadOffsets(pause_seconds=1.0))
    deleting = replace(now, step=RetirementStep.DELETING)
    return plans.GoOn(message=f"deletes {case.group}", retirement=deleting, effect=_deletion(now))


def _deletion(now: Retirement) -> plans.DeleteDrained:
    return plans.DeleteDrained(group_uid=now.group_uid)


def hindrance_of(seen: Observed, operation_uid: str, offsets: GroupOffsets) -> str:
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
    if missing := retiring.not_told(seen):
        return f"{', '.join(missing)} may acknowledge"
    same_end = offsets.steady and offsets.log_end == now.position
    return first(
        seen.wanted_by_cluster,
        case.group_is_not_there(),
        case.paused(),
        _not_closed(case, offsets),
        "" if same_end else "the end of the master's log has moved, or a slave lacks some of it",
    )


def _not_closed(case: Case, offsets: GroupOffsets) -> str:
    """Why the look does not show a closed group in which everything is read, in the epoch in which it was."""
    now = case.operation.status.retirement
    recorded = (case.seen.master, case.seen.epoch)
    if now is None or (offsets.master_id, offsets.epoch) != recorded or offsets.epoch != now.epoch:
        return f"the master is broker {case.seen.master} in epoch {case.seen.epoch} now"
    if offsets.takes_sends or offsets.acknowledges:
        return f"broker {offsets.master_id}, the master, acknowledges again (brokerPermission, minInSyncReplicas)"
    found = _unread(case, offsets)
    return f"unread again: {unread.told(found)}" if found else ""


def _unread(case: Case, offsets: GroupOffsets) -> list[UnreadTopic]:
    request = asked(case.spec.retire)
    return unread.unread_topics(
        offsets, abandoned=request.abandon_topics, without_groups=request.abandon_consumer_groups
    )


def _again(now: Retirement, found: list[UnreadTopic] | None = None) -> Retirement:
    """Draining from the beginning."""
    return Retirement(
        step=RetirementStep.DRAINING,
        group_uid=now.group_uid,
        unread_topics=len(found or ()),
        unread=(found or [])[:MAX_UNREAD_TOPICS],
    )


def _unsettled(now: Retirement) -> Retirement:
    """Draining, with what was last known to be unread."""
    return replace(now, step=RetirementStep.DRAINING, epoch=None, position=None, since=None)


def _closing(case: Case, now: Retirement) -> Retirement:
    """Closing from the beginning; `since` is when that was."""
    if now.step is RetirementStep.CLOSING and now.position is None:
        return now
    return replace(now, step=RetirementStep.CLOSING, position=None, since=rfc3339(case.now_seconds))


def _has_passed(now: Retirement, offsets: GroupOffsets, seconds: float) -> bool:
    """Whether it was so for so long by this look. Times in a status have whole seconds, so one more."""
    return offsets.read_at_unix_seconds - observed.seconds_of(now.since) >= seconds + 1.0


def _not_known(case: Case) -> str:
    failed = case.outcome.failed or case.outcome.refused
    return f"waits: {failed}" if failed else case.before.message

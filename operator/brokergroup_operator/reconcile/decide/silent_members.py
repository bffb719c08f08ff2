"""When a slave that runs is replaced because no controller hears it, or no role change (1008) links it. Pure.

Its pod is deleted and made anew on the same claim, after the controller plane has tried what it can
(`controller/upkeep/silent_members.py`, `links.py`). Such a slave is no failover candidate, so a restart may cost writes and
nothing else: one at a time, not the master, and only if enough others acknowledge (tests/reconcile/test_silent_members.py). The
pause doubles with each replacement, which the status counts.
"""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from brokergroup_operator.api import names, times
from brokergroup_operator.api.brokergroup_status import MemberState, Reason
from brokergroup_operator.api.durability import acknowledgement_rule
from brokergroup_operator.reconcile.plan import Step, Verb
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.observed import moment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.reconcile.decide.course import Course
    from brokergroup_operator.reconcile.identity import Member
    from brokergroup_operator.reconcile.see.members import Standing
    from brokergroup_operator.reconcile.see.observed import Observed

# So many heartbeat timeouts, and at least so long: a broker that registers late is not restarted for it.
TIMEOUTS_BEFORE_REPLACING: Final = 10
LEAST_SECONDS_BEFORE_REPLACING: Final = 30.0
LONGEST_PAUSE_SECONDS: Final = 3600.0
# A member that was in sync for so long after its last replacement begins with the first pause again.
FORGOTTEN_AFTER_SECONDS: Final = 3600.0


@dataclass(frozen=True)
class Replacements:
    """How often a member's process was replaced because it was not heard or not linked, and when last (RFC 3339)."""

    count: int
    at: str


def repair_step(seen: Observed, standings: Mapping[int, Standing]) -> Step | None:
    """What is done about the unheard or unlinked member whose turn is first; None if every one that runs is heard and linked."""
    silent = [(_due(seen, one), one) for one in standings.values() if _is_unheard_by_all(one)]
    unregistered = [(_due(seen, one), one) for one in standings.values() if _never_registered(one)]
    lost = (one for one in standings.values() if one.runs and not one.is_held and one.view.lost_link is not None)
    unlinked = [(_due(seen, one), one) for one in lost]
    # A process that is only starting is not reported.
    amiss = [*silent, *unlinked, *((due_at, one) for due_at, one in unregistered if due_at <= moment(seen.now))]
    if not amiss:
        return None
    due_at, first = min(amiss, key=lambda found: found[0])
    if moment(seen.now) < due_at:
        return _step(Verb.WAIT, first, f"if it stays so, its process is replaced at {times.told(due_at)}")
    if waiting := _waits_for(seen, standings, first):
        return _step(Verb.WAIT, first, f"its process is not replaced yet: {waiting}")
    if cost := _costs_writes(seen, standings, first):
        return _step(Verb.REFUSE, first, cost)
    return _step(Verb.REPLACE, first, f"its process is replaced{_attempts_before(first)}")


def replacements_after(seen: Observed, course: Course, member: Member) -> Replacements | None:
    """What the status notes of this member, the replacement that this pass decides included."""
    known, step = _replacements(seen, member.broker_id), course.repairing
    if step in course.steps and step is not None and step.verb is Verb.REPLACE and step.member == member:
        return Replacements(_counted(seen, known) + 1, seen.now)
    if known is None:
        return None
    age_seconds = (moment(seen.now) - moment(known.at)).total_seconds()
    forgotten = course.standings[member.broker_id].in_sync and age_seconds >= FORGOTTEN_AFTER_SECONDS
    return None if forgotten else known


def _attempts_before(one: Standing) -> str:
    if one.view.lost_link is not None:
        return f"; its role change was sent {one.view.lost_link.told} times, in vain"
    told = one.view.silence.told_to_register if one.view.silence is not None else 0
    return f"; asked {told} times to register, in vain" if told else ""


def _is_unheard_by_all(one: Standing) -> bool:
    return one.state is MemberState.UNHEARD and not one.is_master and not one.view.heard_elsewhere


def _never_registered(one: Standing) -> bool:
    is_silent = not one.is_live and not one.view.heard_elsewhere
    return one.runs and one.is_ready and not one.is_held and not one.is_registered and is_silent and not one.is_master


def _step(verb: Verb, one: Standing, what: str) -> Step:
    amiss = Reason.MEMBERS_NOT_HEARD if one.view.lost_link is None else Reason.MEMBERS_NOT_LINKED
    reason = amiss if verb is Verb.REFUSE else Reason.REPAIRING_MEMBERS
    return Step(verb=verb, reason=reason, why=f"{one.told}; {what}", member=one.member, amiss=amiss)


def _due(seen: Observed, one: Standing) -> dt.datetime:
    """When it is due, counted from the start of its present process: a new one gets the whole time again."""
    known, failover = _replacements(seen, one.member.broker_id), seen.group.spec.failover
    timeouts_seconds = TIMEOUTS_BEFORE_REPLACING * failover.heartbeat_timeout_milliseconds / 1000
    bound_seconds = max(LEAST_SECONDS_BEFORE_REPLACING, timeouts_seconds)
    if _never_registered(one):
        bound_seconds *= 2  # where it failed to, it tries again by itself first
    pause_seconds = min(bound_seconds * 2.0 ** min(_counted(seen, known), 20), LONGEST_PAUSE_SECONDS)
    begun = [moment(known.at)] if known else []
    if one.view.silence is not None:
        begun.append(dt.datetime.fromtimestamp(one.view.silence.since_unix_seconds, tz=dt.UTC))
    begun += [moment(text) for text in _starts(seen, one)]
    if one.view.lost_link is not None and not begun:
        return moment(seen.now)  # the controller plane has waited for as long already
    since, pause = max(begun, default=moment(seen.now)), dt.timedelta(seconds=pause_seconds)
    changed = moment(seen.credentials_changed_at) if seen.credentials_changed_at else since
    # With the changed Secret it may register by itself. A Secret that is written again and again puts it off for an hour at most.
    return min(max(since, changed), since + dt.timedelta(seconds=LONGEST_PAUSE_SECONDS)) + pause


def _counted(seen: Observed, known: Replacements | None) -> int:
    """How many replacements make the pause longer: none from before the Secret of its credentials changed."""
    if known is None or (seen.credentials_changed_at and moment(seen.credentials_changed_at) > moment(known.at)):
        return 0
    return known.count


def _starts(seen: Observed, one: Standing) -> list[str]:
    """When its pod was made, when its container last started, when it became ready, and when it was no longer held stopped."""
    pod = seen.pods[one.member.pod]
    status: dict[str, Any] = observed.pod_status(pod)
    containers = [(item.get("state") or {}).get("running") or {} for item in status.get("containerStatuses") or []]
    times = [observed.metadata(pod).get("creationTimestamp")]
    times += [item.get("startedAt") for item in containers]
    times.append(_started_again_at(pod))
    times += [item.get("lastTransitionTime") for item in status.get("conditions") or [] if item.get("type") == "Ready"]
    return [str(one) for one in times if one]


def _started_again_at(pod: JsonObject) -> str | None:
    """Return the time in the pod's annotation; None for a text that is no RFC 3339 time, which a user can write there."""
    text = observed.annotations_of(pod).get(names.ANNOTATION_STARTED_AT, "")
    with suppress(ValueError):
        return text if moment(text).tzinfo is not None else None
    return None


def _replacements(seen: Observed, broker_id: int) -> Replacements | None:
    members: list[dict[str, Any]] = (seen.group_object.get("status") or {}).get("members") or []
    mine = next((one for one in members if one.get("brokerId") == broker_id), {})
    return Replacements(int(mine["replacements"]), str(mine["replacedAt"])) if mine.get("replacedAt") else None


def _waits_for(seen: Observed, standings: Mapping[int, Standing], one: Standing) -> str:
    """What the step waits for because it passes by itself: a change of master, or another member that is under way."""
    snapshot, record = seen.snapshot, seen.record
    if snapshot is None or record is None or record.granted_master_id is None or not snapshot.hears_master:
        return "no master that serves writes is heard"
    if snapshot.moves_master:
        return "a change of master is under way"
    # One that is not heard either may be not ready for that very reason: each would wait for the other.
    away = [
        other.member.pod
        for other in standings.values()
        # One that is held stopped does not come back by itself; without it fewer acknowledge, which is counted below.
        if other is not one
        and not other.is_held
        and not (other.runs and (other.is_ready or other.state is MemberState.UNHEARD))
    ]
    return f"{', '.join(away)} is not ready" if away else ""


def _costs_writes(seen: Observed, standings: Mapping[int, Standing], one: Standing) -> str:
    """Why it must stay as it is until a person decides; the empty text if enough others acknowledge."""
    if not one.view.acknowledges and not one.disk_goes:
        return ""
    needed = acknowledgement_rule(seen.group.spec).minimum_in_sync
    if one.disk_goes and one.has_seat:
        needed = max(needed, 2)  # its copy goes with its pod
    others = sum(1 for other in standings.values() if other is not one and other.view.acknowledges)
    if others >= needed:
        return ""
    return (
        f"its process is not replaced by itself, for without it {others} would acknowledge, and {needed} are needed:"
        f" kubectl delete pod {one.member.pod}, when writes may wait for it"
    )

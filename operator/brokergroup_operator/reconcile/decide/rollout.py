"""Rolling updates: which pods run something else than they should, and the next step to make them new. Pure.

What a pod was made from stands in its annotations. Slaves are replaced one by one, each back in sync before the next, then the
master, as `masterUpdate` says; learners come first, then brokers that serve in a pod that is not ready. A member that gives the
group nothing is replaced at once, so a bad image can be taken back. Any other waits until the group is `FailoverSafe` and all
others are in sync: an update whose first pod does not come up touches no second one. Outside the windows of `updateStrategy` only
what is broken, stays without a seat or not ready, or is asked for is replaced. What only the operator's release or its number of
pods decides restarts no broker (docs/adr/0019).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

from brokergroup_operator.api import broker_keys, names, pod_fence
from brokergroup_operator.api.brokergroup_operation import OperationType
from brokergroup_operator.api.brokergroup_status import ConditionStatus, ConditionType, Reason
from brokergroup_operator.api.update_fields import MasterUpdate, UpdateType
from brokergroup_operator.observe.timeline import Cause
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.decide import renewed_certificate, tls_order, versions, windows
from brokergroup_operator.reconcile.plan import Step, Verb
from brokergroup_operator.reconcile.render import broker_config, certificate
from brokergroup_operator.reconcile.render.addressing import address_is_lost, place_of
from brokergroup_operator.reconcile.render.containers import with_times_of
from brokergroup_operator.reconcile.render.pods import build_pod, made_as
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.members import comes_back_held, membership, wanted_learners
from brokergroup_operator.reconcile.see.pod_trouble import pod_trouble

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.update_fields import UpdateStrategySpec
    from brokergroup_operator.reconcile.identity import Member
    from brokergroup_operator.reconcile.plan import Verdict
    from brokergroup_operator.reconcile.see.members import Standing
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.settings import ReconcileSettings


class RestartReason(StrEnum):
    """Why a pod is restarted. They stand in Events and conditions, and in docs/concepts/life.md."""

    POD_CHANGED = "PodChanged"
    CONFIGURATION_CHANGED = "ConfigurationChanged"
    CONFIGURATION_KEY_REMOVED = "ConfigurationKeyRemoved"
    CERTIFICATE_RENEWED = "CertificateRenewed"
    RESTARTED_AT = "RestartedAt"
    RESTART_OPERATION = "RestartOperation"


# A member that is not in sync for so long holds an update up, and waits for no window. A full copy may take longer: no error.
PATIENCE_SECONDS: Final = 600.0
# A user asked for the restart itself, so it is done whatever updateStrategy.type says.
ASKED_FOR = frozenset({RestartReason.RESTARTED_AT, RestartReason.RESTART_OPERATION})


@dataclass(frozen=True)
class Outdated:
    member: Member
    why: RestartReason


def outdated_members(
    seen: Observed, members: Sequence[Member], settings: ReconcileSettings, *, going: bool = False
) -> list[Outdated]:
    """In the order of broker ids, without pods that are missing or going. `going`: instead those that are going, and outdated."""
    result = []
    for member in members:
        pod = seen.pods.get(member.pod)
        if pod is None or observed.being_deleted(pod) is not going:
            continue
        if (place := place_of(seen.group, member, seen.services)) is not None and place.missing:
            continue  # its Service is being made again: until it has an address, what the pod should run is unknown
        if (why := restart_reason(seen, member, pod, settings)) is not None:
            result.append(Outdated(member, why))
    return result


def restart_reason(
    seen: Observed, member: Member, pod: JsonObject, settings: ReconcileSettings
) -> RestartReason | None:
    """A restart that a user asked for comes first: it is done whatever updateStrategy.type says."""
    have = observed.annotations_of(pod)
    mark = observed.annotations_of(seen.group_object).get(names.ANNOTATION_RESTARTED_AT)
    if mark is not None and have.get(names.ANNOTATION_RESTARTED_AT) != mark:
        return RestartReason.RESTARTED_AT
    if _named_by_restart(seen, member, pod):
        return RestartReason.RESTART_OPERATION
    as_made = versions.with_version_of(seen, pod, certificate.with_key_of(with_times_of(seen.group, pod), pod))
    as_told = seen if as_made is seen.group else dataclasses.replace(seen, group=as_made)
    if not made_as(pod, wanted_pod(as_told, member, settings)):
        return RestartReason.POD_CHANGED
    if not broker_config.started_as(pod, as_made, settings):
        return RestartReason.CONFIGURATION_CHANGED
    # The time until which a closed broker refuses sends is in no file, and passes by itself.
    given = broker_config.given_to(pod).keys() - {broker_keys.ACCEPTS_SENDS_FROM}
    if given - broker_config.hot_values(seen.group, settings).keys():
        return RestartReason.CONFIGURATION_KEY_REMOVED
    return RestartReason.CERTIFICATE_RENEWED if renewed_certificate.is_renewed(seen, member, pod) else None


@observed.derived
def wanted_pod(seen: Observed, member: Member, settings: ReconcileSettings) -> JsonObject:
    """The pod of the member as it would be made now, with the marks that say what it was made from."""
    place, learner = place_of(seen.group, member, seen.services), member.broker_id in wanted_learners(seen)
    pod = build_pod(seen.group, member, settings, place=place, learner=learner)
    annotations = observed.annotations_of(pod)
    if comes_back_held(seen, member):
        annotations[names.ANNOTATION_STOPPED] = pod_fence.STANDS
    annotations[names.ANNOTATION_GROUP_UID] = observed.uid(seen.group_object)
    annotations[names.ANNOTATION_HOT_CONFIG] = json.dumps(
        broker_config.hot_values(seen.group, settings), sort_keys=True
    )
    if (mark := observed.annotations_of(seen.group_object).get(names.ANNOTATION_RESTARTED_AT)) is not None:
        annotations[names.ANNOTATION_RESTARTED_AT] = mark
    if seen.operation is not None:
        annotations[names.ANNOTATION_OPERATION] = str(seen.operation.metadata.get("uid", ""))
    return pod | {"metadata": pod["metadata"] | {"annotations": annotations}}


def _named_by_restart(seen: Observed, member: Member, pod: JsonObject) -> bool:
    operation = seen.operation
    if operation is None or operation.spec.type is not OperationType.RESTART or operation.spec.restart is None:
        return False
    named = operation.spec.restart.broker_ids
    return (not named or member.broker_id in named) and made_before(seen, pod)


def made_before(seen: Observed, obj: JsonObject) -> bool:
    """Whether the object is older than the running operation. Of one made in the second of its start, its mark decides."""
    operation = seen.operation
    if operation is None or operation.status is None or operation.status.started_at is None:
        return False
    if observed.annotations_of(obj).get(names.ANNOTATION_OPERATION) == str(operation.metadata.get("uid", "")):
        return False
    created = observed.metadata(obj).get("creationTimestamp")
    return created is None or observed.moment(str(created)) <= observed.moment(operation.status.started_at)


def members_awaited(
    seen: Observed, standings: Mapping[int, Standing], due: Sequence[Outdated], refused: Standing | None
) -> Mapping[int, Standing]:
    """Return the members that an update waits for: without the one whose leave is refused, where that one can't get ready.

    It may be refused for the very slave whose turn makes that slave ready: each would wait for the other. Where the turn is that
    of a slave that works, the update waits: the one that can't get ready may have been updated first.
    """
    turns = {item.member for item in due}
    mends = any(one.lacks_readiness and one.member in turns and not one.is_master for one in standings.values())
    if refused is None or not mends or refused.member in turns or not refused.lacks_readiness:
        return standings
    pod = seen.pods.get(refused.member.pod)
    if pod is None or not _stays_unready(seen, pod):
        return standings
    return {broker_id: one for broker_id, one in standings.items() if one is not refused}


def rollout_steps(
    seen: Observed,
    standings: Mapping[int, Standing],
    outdated: Sequence[Outdated],
    safe: Verdict,
    awaited: Mapping[int, Standing],
) -> list[Step]:
    """The steps of this pass; several for members that give nothing. `standings`: of those that stay, or cannot leave."""
    if outdated and tls_order.lost_file(seen.group.spec.tls):
        why = f"No pod is replaced{tls_order.why_none_is_made(seen.group)}"
        return [Step(verb=Verb.REFUSE, reason=Reason.AUTHORITIES_HELD, why=why)]
    strategy = _strategy(seen, standings)
    wanted = due_now(outdated, strategy)
    if not wanted:
        return [_left_to_a_person(outdated)] if outdated else []
    due = [item for item in wanted if not standings[item.member.broker_id].claim_goes]
    if not due:
        why = observed.why_not_stopped([item.member.pod for item in wanted])
        return [Step(verb=Verb.REFUSE, reason=Reason.CLAIM_BEING_DELETED, why=why)]
    has_master = any(standing.is_master for standing in standings.values())
    held = [one.member.pod for one in standings.values() if one.is_held]
    due = [item for item in due if item.member.pod not in held]
    idle = [item for item in due if _gives_nothing(standings[item.member.broker_id], has_master=has_master)]
    opening = windows.opening_now(seen)
    if not (opening.is_open or _lacks_members_for_long(seen)):
        # One that catches up works: it waits for the window. A broken one does not, or a bad image could not be taken back.
        idle = [item for item in idle if item.why in ASKED_FOR or _is_broken(standings[item.member.broker_id])]
    if idle:
        return [_replace(item, "gives the group nothing as it is") for item in idle]
    now = [item for item in due if opening.is_open or _does_not_wait(seen, item, standings[item.member.broker_id])]
    waits = _waiting(seen, awaited, held, due, now, opening)
    return [waits if waits is not None else _next_turn(standings, now, strategy, safe)]


def _waiting(
    seen: Observed,
    standings: Mapping[int, Standing],
    held: Sequence[str],
    due: Sequence[Outdated],
    now: Sequence[Outdated],
    opening: windows.Opening,
) -> Step | None:
    """What the update waits for: a broker that is held stopped, a member that is not back, a window; None: it goes on `now`."""
    if held:
        why = f"{', '.join(held)} is stopped by spec.maintenance.stoppedBrokers: the update goes on when it has started again"
        return Step(verb=Verb.WAIT, reason=Reason.WAITING_FOR_PERSON, why=why)
    if waiting := _not_back(seen, standings, now):
        later = "" if now else f"; {opening.told}"
        return Step(verb=Verb.WAIT, reason=Reason.ROLLING_UPDATE, why=f"Waiting for {waiting} to be in sync{later}")
    if now:
        return None
    pods = ", ".join(f"{item.member.pod} ({item.why.value})" for item in due)
    # Without ids it restarts all of them: also those that are up to date.
    ids = [str(item.member.broker_id) for item in due] if len(due) < len(standings) else []
    command = " ".join(["kubectl brokergroup restart", identity.name_of(seen.group), *ids])
    return windows.waiting_step(opening, f"Outdated: {pods}", command)


def _does_not_wait(seen: Observed, item: Outdated, standing: Standing) -> bool:
    """Whether it is replaced outside the windows too: a user asked for it, clients can't reach it, or it stays not ready."""
    if item.why in ASKED_FOR or address_is_lost(seen, item.member):
        return True
    return standing.lacks_readiness and _stays_unready(seen, seen.pods[item.member.pod])


def _stays_unready(seen: Observed, pod: JsonObject) -> bool:
    """Whether it is no longer taken for a pod that is about to be ready: a container fails, or it has taken too long."""
    since = observed.not_ready_since(pod)
    is_late = since is not None and (observed.moment(seen.now) - since).total_seconds() >= PATIENCE_SECONDS
    return is_late or pod_trouble(pod, now=seen.now) is not None


def _strategy(seen: Observed, standings: Mapping[int, Standing]) -> UpdateStrategySpec:
    """As the spec says; but a master whose address is lost can't be asked to hand over: it is restarted as it is."""
    strategy = seen.group.spec.update_strategy
    if any(one.is_master and address_is_lost(seen, one.member) for one in standings.values()):
        return msgspec.structs.replace(strategy, master_update=MasterUpdate.RESTART)
    return strategy


def due_now(outdated: Sequence[Outdated], strategy: UpdateStrategySpec) -> list[Outdated]:
    """Return the pods that the operator replaces by itself."""
    return [item for item in outdated if strategy.type is UpdateType.ROLLING or item.why in ASKED_FOR]


def _left_to_a_person(outdated: Sequence[Outdated]) -> Step:
    pods = ", ".join(item.member.pod for item in outdated)
    why = f"{pods}: updateStrategy.type is OnDelete, so a pod changes once a user deletes it"
    return Step(verb=Verb.WAIT, reason=Reason.WAITING_FOR_PERSON, why=why)


def _gives_nothing(standing: Standing, *, has_master: bool) -> bool:
    """Whether its restart costs nothing: it has no seat yet, or it is not heard and not ready, so that only its disk counts."""
    if not standing.is_live:
        # One with a seat whose disk goes with its pod contributes: that disk may be the last that has everything.
        return not standing.is_ready and not standing.contributes
    settled_learner = standing.is_learner and standing.in_sync
    return has_master and not standing.is_master and not standing.has_seat and not settled_learner


def _is_broken(standing: Standing) -> bool:
    return not (standing.is_live and standing.is_ready)


def _lacks_members_for_long(seen: Observed) -> bool:
    """Whether a member without a seat is no longer taken for one that catches up: its configuration may keep it out."""
    found = observed.condition_in(seen.group_object, ConditionType.REPLICATION_HEALTHY.value)
    if found.get("status") != ConditionStatus.FALSE:
        return False
    lacking = observed.moment(seen.now) - observed.moment(str(found["lastTransitionTime"]))
    return lacking >= dt.timedelta(seconds=PATIENCE_SECONDS)


def _not_back(seen: Observed, standings: Mapping[int, Standing], now: Sequence[Outdated]) -> str:
    """Return what an update waits for: pods that are not back, whatever the reason, and members that are still to be made.

    Not a broker that serves in an outdated pod that is not ready: a container of the former template may fail for ever, and only
    the pod's own turn ends that.
    """
    turns = {item.member for item in now}
    under_way = [
        one.member.pod
        for one in standings.values()
        if not one.is_back and not (one.lacks_readiness and one.member in turns)
    ]
    to_come = len(membership(seen).to_reserve)
    return ", ".join(under_way + ([f"{to_come} new members"] if to_come else []))


def _next_turn(
    standings: Mapping[int, Standing],
    due: Sequence[Outdated],
    strategy: UpdateStrategySpec,
    safe: Verdict,
) -> Step:
    slaves = [item for item in due if not standings[item.member.broker_id].is_master]
    # First those whose pods are not ready: while they last the group is not FailoverSafe, and they take no client of a Service.
    slaves.sort(key=lambda item: not standings[item.member.broker_id].lacks_readiness)
    if len(standings) == 1:
        return _replace(due[0], "the group has no other member")
    if learners := [item for item in slaves if standings[item.member.broker_id].is_learner]:
        return _replace(learners[0], "a learner's turn: nothing rests on it")
    if _master_votes_alone(standings):
        return _replace((slaves or due)[0], "only the master votes")
    if not safe.holds:
        return _turn_while_unsafe(slaves, due, strategy, safe)
    if slaves:
        return _replace(slaves[0], "its turn")
    return _masters_turn(due[0], strategy)


def _master_votes_alone(standings: Mapping[int, Standing]) -> bool:
    """The group has no other voter to hand over to, and will not get one: it is updated as a group of one is."""
    voters = [standing for standing in standings.values() if not standing.will_learn]
    return len(voters) == 1 and voters[0].is_master


def _turn_while_unsafe(
    slaves: Sequence[Outdated], due: Sequence[Outdated], strategy: UpdateStrategySpec, safe: Verdict
) -> Step:
    """Where every slave has priority 0, none may take over anyway: a slave is replaced all the same, the master with `Restart`."""
    why = f"Not FailoverSafe: {safe.message}"
    if safe.reason is Reason.NOBODY_MAY_FOLLOW:
        if slaves:
            return _replace(slaves[0], "its turn; it has priority 0, so no failover counts on it")
        if strategy.master_update is MasterUpdate.RESTART:
            return _masters_turn(due[0], strategy)
        why += "; or set spec.updateStrategy.masterUpdate to Restart, which stops writes meanwhile"
    return Step(verb=Verb.REFUSE, reason=safe.reason, why=why)


def _masters_turn(master: Outdated, strategy: UpdateStrategySpec) -> Step:
    if strategy.master_update is MasterUpdate.RESTART:
        return _replace(master, "the master's turn, restarted as it is")
    if strategy.master_update is MasterUpdate.SUPERVISED and master.why not in ASKED_FOR:
        why = f"Only the master {master.member.pod} is left: switch over when it suits, and it is restarted then"
        return Step(verb=Verb.WAIT, reason=Reason.WAITING_FOR_PERSON, why=why)
    why, cause = "the master is updated last, as a slave", Cause.ROLLING_UPGRADE
    return Step(verb=Verb.SWITCH, reason=Reason.ROLLING_UPDATE, why=why, member=master.member, cause=cause)


def _replace(item: Outdated, why: str) -> Step:
    return Step(verb=Verb.REPLACE, reason=Reason.ROLLING_UPDATE, why=f"{item.why.value}: {why}", member=item.member)

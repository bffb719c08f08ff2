"""The conditions that are there only while they are true. Pure.

Alarms wait for a person, and say what that person can do; what each rests on is in docs/concepts/architecture.md: rule 7
(Unfenced), rule 3 (EpochJump, Recovering), rule 2 (SeatLost). The others say what a user asked for, and what is less than
promised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names, times
from brokergroup_operator.api.brokergroup import Signature
from brokergroup_operator.api.brokergroup_status import ConditionType, Reason
from brokergroup_operator.api.durability import acknowledgement_rule, voting_replicas
from brokergroup_operator.api.pod_fence import trust_without_confirmation
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.decide import renewed_certificate, tls_order
from brokergroup_operator.reconcile.decide.claims import growing_claims
from brokergroup_operator.reconcile.decide.configuration_drift import told
from brokergroup_operator.reconcile.decide.course import GIVES_TURN_BACK
from brokergroup_operator.reconcile.plan import Step, Verb, yes
from brokergroup_operator.reconcile.render.broker_config import minimum_in_force
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.members import membership

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.decide.course import Course
    from brokergroup_operator.reconcile.plan import Verdict
    from brokergroup_operator.reconcile.see.members import Standing
    from brokergroup_operator.reconcile.see.observed import Observed


_CONSEQUENCE: Final = {
    Signature.DISABLED: "Brokers wait for it before they start",
    Signature.ACCEPTED: "Brokers wait for it before they start; running ones are known by their address",
    Signature.REQUIRED: "No request of this group's brokers is heard until then",
}


def all_alarms(seen: Observed, course: Course) -> dict[ConditionType, Verdict | None]:
    """Each condition's verdict, or None where there is no reason for it; the alarms last."""
    return {
        ConditionType.PAUSED: paused(seen),
        ConditionType.HIBERNATED: hibernated(seen),
        ConditionType.BROKERS_STOPPED: brokers_stopped(seen, course),
        ConditionType.METADATA_DIVERGED: metadata_diverged(seen),
        ConditionType.DEGRADED_DURABILITY: degraded_durability(seen, course),
        ConditionType.CONFIGURATION_DRIFTED: configuration_drifted(seen, course),
        ConditionType.FENCED: fenced(seen),
        ConditionType.VOLUME_RESIZING: volume_resizing(seen),
        ConditionType.CLAIM_TERMINATING: claim_terminating(seen),
        ConditionType.UNFENCED: unfenced(seen),
        ConditionType.EPOCH_JUMP: epoch_jump(seen),
        ConditionType.RECOVERING: recovering(seen),
        ConditionType.SEAT_LOST: seat_lost(seen),
        ConditionType.CREDENTIALS_MISSING: credentials_missing(seen),
        ConditionType.OBJECTIVE_INVALID: objective_invalid(seen),
        ConditionType.TLS_CHANGING: tls_changing(seen),
        ConditionType.CLIENT_CERTIFICATE_ENDING: renewed_certificate.ending(seen, _waiting(seen, course)),
    }


def claim_terminating(seen: Observed) -> Verdict | None:
    """A user or a tool deleted a claim that a pod uses: a deletion can't be taken back, only outlived."""
    pods = observed.pods_on_going_claims(seen)
    if not pods or observed.being_deleted(seen.group_object):
        return None
    group, namespace = identity.name_of(seen.group), identity.namespace_of(seen.group)
    ids = {member.pod: member.broker_id for member in membership(seen).members}
    claims = [claim for each in pods.values() for claim in each]
    volumes = [str(seen.claims[claim]["spec"].get("volumeName") or f"(the volume of {claim})") for claim in claims]
    rebuilds = [f"kubectl brokergroup rebuild {group} {ids[pod]} -n {namespace}" for pod in pods if pod in ids]
    return yes(
        Reason.CLAIM_BEING_DELETED,
        f"Being deleted under a running pod: claim {', '.join(claims)}. The data goes when pod {', '.join(pods)} stops,"
        " and the operator does not stop it. A deletion can't be taken back: find what deletes (docs/tasks/gitops.md), then"
        f" replace one member after the other while the group is FailoverSafe: {'; '.join(rebuilds)}."
        " To keep a volume beyond that:"
        f""" kubectl patch pv {" ".join(volumes)} -p '{{"spec":{{"persistentVolumeReclaimPolicy":"Retain"}}}}'""",
    )


def unfenced(seen: Observed) -> Verdict | None:
    """A failover elected beside a master that may still have run, and may run still. From the record, so any plane shows it."""
    if seen.record is None or not seen.record.unfenced:
        return None
    old = " and ".join(f"broker {broker_id}" for broker_id in sorted(seen.record.unfenced))
    why = trust_without_confirmation(seen.group.spec)
    trust = f" But {why}." if why else ""
    return yes(
        Reason.FENCE_NOT_CONFIRMED,
        f"{old} was replaced as master, and no failover could confirm its death: what it acknowledged since then may be lost."
        f"{trust} It is over when it is in sync again, or no member any more",
    )


def epoch_jump(seen: Observed) -> Verdict | None:
    """Return the alarm if a broker reports a master epoch too far above the record's; no failover begins until it is settled.

    The broker's epoch is wrong, or the record was restored from an old backup. None if no epoch waits for a person.
    """
    epoch = seen.snapshot.epoch_jump if seen.snapshot else None
    if epoch is None:
        return None
    known = seen.record.master_epoch if seen.record else 0
    annotation = f"{names.ANNOTATION_ACCEPT_EPOCH}={epoch}"
    group = f"{identity.name_of(seen.group)} -n {identity.namespace_of(seen.group)}"
    return yes(
        Reason.EPOCH_FAR_ABOVE_RECORD,
        f"A broker reports master epoch {epoch}, the record says {known}: no replica is elected until this is settled"
        f"{_unreadable_acceptance(seen)}."
        f" If the record was restored from an old backup, accept it: kubectl annotate brokergroup {group} {annotation}."
        " If it is wrong (another group's disk, a forged request), stop the broker and delete its claim:"
        " it comes back empty and catches up.",
    )


def _unreadable_acceptance(seen: Observed) -> str:
    try:
        names.accepted_epoch(seen.group_object)
    except names.AnnotationError as error:
        return f" ({error})"
    return ""


def recovering(seen: Observed) -> Verdict | None:
    """No member holds a seat by the record, although brokers have data: all of them are heard before one is elected."""
    record = seen.record
    if record is None or not record.is_first_election:
        return None
    registered = sorted(replica.broker_id for replica in record.replicas.values() if replica.registered)
    live = seen.snapshot.live if seen.snapshot else {}
    silent = [broker_id for broker_id in registered if broker_id not in live]
    missing = max(0, seen.group.spec.replicas - len(registered))
    waiting = "every registered broker is heard"
    if silent:
        waiting = f"waiting for brokers {', '.join(map(str, silent))} (one that is gone for good: mqadmin cleanBrokerMetadata)"
    if missing:
        waiting += f", and for {missing} that have not registered"
    next_one = f"The best of all is elected: {waiting}"
    if any(replica.was_adopted for replica in record.replicas.values()):
        what = "The record knew nothing of brokers that have data; they were adopted."
        return yes(Reason.RECORD_REBUILT_FROM_BROKERS, f"{what} {next_one}")
    if record.master_epoch > 0 and registered:
        what = f"The record was behind its brokers and goes on above epoch {record.master_epoch}."
        return yes(Reason.RECORD_BEHIND_BROKERS, f"{what} {next_one}")
    return None


def seat_lost(seen: Observed) -> Verdict | None:
    """No member is left that is known to have every acknowledged message. There are two ways out, and a person chooses."""
    record = seen.record
    if record is None or not record.lost_seats:
        return None
    known = [record.replicas[broker_id] for broker_id in sorted(record.lost_seats) if broker_id in record.replicas]
    marks = ", ".join(f"broker {one.broker_id} (epoch {one.held_epoch}, offset {one.held_offset})" for one in known)
    return yes(
        Reason.EVERY_SEAT_LOST,
        f"The last replicas that had every acknowledged message came back with less than they had held: {marks}."
        " Either give one of them its volume back (an empty mount, a wrong claim): it is elected once it reports at least that."
        " Or give up what is missing: set spec.failover.uncleanElection to Allowed (with durability Available or Fast),"
        " and the best of those that are left is elected",
    )


def credentials_missing(seen: Observed) -> Verdict | None:
    problem, consequence = seen.credentials_problem, _CONSEQUENCE[seen.group.spec.security.signature]
    return yes(problem.reason, f"{problem}. {consequence}") if problem is not None else None


def objective_invalid(seen: Observed) -> Verdict | None:
    """Reports and alerts cannot go by `spec.slo`. Brokers do not depend on it, so the group stays Ready."""
    zone = seen.group.spec.slo.time_zone
    what = (
        f"spec.slo.timeZone is {zone!r}: no such time zone; {times.EXPECTED_ZONE}."
        " Until it is corrected, SLA reports judge the group by the objective of all groups"
    )
    return yes(Reason.TIME_ZONE_UNKNOWN, what) if times.is_unknown(zone) else None


def tls_changing(seen: Observed) -> Verdict | None:
    """Pods were made with another TLS than the spec's, or may not have the spec's authorities yet."""
    if not (what := tls_order.on_its_way(seen)):
        return None
    return yes(Reason.AUTHORITIES_HELD if tls_order.why_held(seen) else Reason.STEP_BY_STEP, what)


# So many names of what a slave lacks stand in the message.
NAMES_SHOWN: Final = 5


def paused(seen: Observed) -> Verdict | None:
    why = "spec.maintenance.paused: nothing but the status is changed. Failovers go on"
    return yes(Reason.BY_SPEC, why) if seen.group.spec.maintenance.paused else None


def hibernated(seen: Observed) -> Verdict | None:
    is_reached = seen.group.spec.maintenance.hibernated and not seen.pods
    return yes(Reason.NOTHING_RUNS, "No pod runs; claims, broker ids and the record are kept") if is_reached else None


def _waiting(seen: Observed, course: Course) -> Step | None:
    """The step of the rolling update that waits for a window or a person, also where that is the end of a pause."""
    if seen.group.spec.maintenance.paused:
        return Step(verb=Verb.WAIT, reason=Reason.WAITING_FOR_PERSON, why="spec.maintenance.paused is true")
    return next((step for step in course.rollout if step.reason in GIVES_TURN_BACK), None)


def brokers_stopped(seen: Observed, course: Course) -> Verdict | None:
    """Brokers are held stopped by the spec; their pods and volumes stay."""
    held = [one for one in course.standings.values() if one.is_held]
    if not held:
        return None
    what = [
        f"broker {one.member.broker_id} (pod {one.member.pod}){' is stopping' if one.is_live else ''}" for one in held
    ]
    why = f"spec.maintenance.stoppedBrokers holds {', '.join(what)}"
    return yes(Reason.BY_SPEC, f"{why}. To start one again: {start_command(seen, held[0])}")


def start_command(seen: Observed, one: Standing) -> str:
    """Return the command that starts a broker which is held stopped."""
    group, namespace = identity.name_of(seen.group), identity.namespace_of(seen.group)
    return f"kubectl brokergroup start-broker {group} {one.member.broker_id} -n {namespace}"


def metadata_diverged(seen: Observed) -> Verdict | None:
    """A slave lacks what the master has besides the log: a failover to it would lose it (upstream issue 9804)."""
    differences = seen.snapshot.metadata_diverged if seen.snapshot else ()
    shown = f"Missing or older than on the master: {told([one.text for one in differences], NAMES_SHOWN)}"
    return yes(Reason.METADATA_DIVERGED, shown) if differences else None


def configuration_drifted(seen: Observed, course: Course) -> Verdict | None:
    """Brokers run with other values than they were given, by their own word (26)."""
    broken = [one for one in course.drifts if one.breaks_durability]
    rest = [one for one in course.drifts if not one.breaks_durability]
    what = "Not put back while the group is paused" if seen.group.spec.maintenance.paused else "Being put back"
    left = (
        f"Changed beside the operator, and left so: {told(rest)}. Write what you want into the spec, or give the broker"
        " the expected value (mqadmin updateBrokerConfig), or restart the pod"
    )
    texts = [*([f"{what}: {told(broken)}"] if broken else []), *([left] if rest else [])]
    return yes(Reason.CONFIGURATION_DRIFTED, ". ".join(texts)) if texts else None


def degraded_durability(seen: Observed, course: Course) -> Verdict | None:
    """Fewer disks have every acknowledged message than two, where two are wanted; as far as the master is heard."""
    record, snapshot = seen.record, seen.snapshot
    rule, voters = acknowledgement_rule(seen.group.spec), voting_replicas(seen.group.spec)
    if record is None or snapshot is None or not rule.all_acknowledge or voters == 1:
        return None
    if record.granted_master_id not in snapshot.live:
        # What a master that is not heard acknowledges is not known here; Available says that it is not heard.
        return None
    broken = [one for one in course.drifts if one.breaks_durability]
    if masters := [one for one in broken if one.member.broker_id == record.granted_master_id]:
        what = f"The master acknowledges otherwise than the spec says: {told(masters)}"
        return yes(Reason.CONFIGURATION_DRIFTED, what)
    live = [broker_id for broker_id, one in course.standings.items() if one.view.acknowledges]
    if len(live) >= min(2, voters):
        return None
    pod = membership(seen).pod_of(record.granted_master_id)
    if minimum_in_force(seen, seen.pods.get(pod)) > len(live):
        consequence = "no write is acknowledged until another is in sync"
    else:
        consequence = "what is acknowledged now is on that disk alone"
    holders = ", ".join(map(str, live)) or "none"
    silent = ", ".join(map(str, sorted(record.sync_state_set.difference(live))))
    doubt = f"not heard here: {silent}; unless they still answer the master, " if silent else ""
    return yes(Reason.BELOW_DURABILITY, f"In sync and alive: {holders}; {doubt}{consequence}")


def fenced(seen: Observed) -> Verdict | None:
    """A silent master's pod is being killed, and is not seen dead yet."""
    pods = [name for name, pod in sorted(seen.pods.items()) if names.FINALIZER_FENCE in observed.finalizers_of(pod)]
    what = f"{', '.join(pods)} was silent and is stopped before another serves"
    return yes(Reason.MASTER_STOPPED, what) if pods else None


def volume_resizing(seen: Observed) -> Verdict | None:
    """Claims ask for more than their volumes have; the storage class gives it while the broker runs, if it can."""
    growing = growing_claims(seen)
    return yes(Reason.RESIZE_PENDING, f"Growing: {', '.join(growing)}") if growing else None

"""The conditions that are there only while they are true, and are no alarm by themselves: what a user asked for, and what is less
than promised. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_status import ConditionType, Reason
from brokergroup_operator.api.durability import acknowledgement_rule, voting_replicas
from brokergroup_operator.reconcile.decide.claims import growing_claims
from brokergroup_operator.reconcile.decide.configuration_drift import told
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.verdict import yes

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.decide.course import Course
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.verdict import Verdict

# So many names of what a slave lacks stand in the message.
NAMES_SHOWN: Final = 5


def all_states(seen: Observed, course: Course) -> dict[ConditionType, Verdict | None]:
    """Each state's verdict, or None where it is not so."""
    return {
        ConditionType.PAUSED: paused(seen),
        ConditionType.HIBERNATED: hibernated(seen),
        ConditionType.METADATA_DIVERGED: metadata_diverged(seen),
        ConditionType.DEGRADED_DURABILITY: degraded_durability(seen, course),
        ConditionType.CONFIGURATION_DRIFTED: configuration_drifted(seen, course),
        ConditionType.FENCED: fenced(seen),
        ConditionType.VOLUME_RESIZING: volume_resizing(seen),
    }


def paused(seen: Observed) -> Verdict | None:
    if not seen.group.spec.maintenance.paused:
        return None
    return yes(Reason.BY_SPEC, "spec.maintenance.paused: nothing but the status is changed. Failovers go on")


def hibernated(seen: Observed) -> Verdict | None:
    """Hibernation was asked for, and is reached."""
    if not seen.group.spec.maintenance.hibernated or seen.pods:
        return None
    return yes(Reason.NOTHING_RUNS, "No pod runs; claims, broker ids and the record are kept")


def metadata_diverged(seen: Observed) -> Verdict | None:
    """A slave lacks what the master has besides the log: a failover to it would lose it (upstream issue 9804)."""
    differences = seen.snapshot.metadata_diverged if seen.snapshot else ()
    if not differences:
        return None
    shown = "; ".join(f"broker {one.broker_id}: {one.kind.value} {one.name}" for one in differences[:NAMES_SHOWN])
    more = f"; and {len(differences) - NAMES_SHOWN} more" if len(differences) > NAMES_SHOWN else ""
    return yes(Reason.METADATA_DIVERGED, f"Missing or older than on the master: {shown}{more}")


def configuration_drifted(seen: Observed, course: Course) -> Verdict | None:
    """Brokers run with other values than they were given, by their own word (26)."""
    if not course.drifts:
        return None
    broken = [one for one in course.drifts if one.breaks_durability]
    rest = [one for one in course.drifts if not one.breaks_durability]
    what = "Not put back while the group is paused" if seen.group.spec.maintenance.paused else "Being put back"
    texts = [f"{what}: {told(broken)}"] if broken else []
    if rest:
        texts.append(
            f"Changed beside the operator, and left so: {told(rest)}. Write what you want into the spec, or give the broker"
            " the expected value (mqadmin updateBrokerConfig), or restart the pod"
        )
    return yes(Reason.CONFIGURATION_DRIFTED, ". ".join(texts))


def degraded_durability(seen: Observed, course: Course) -> Verdict | None:
    """Fewer disks have every acknowledged message than two, where two are wanted; as far as the master is heard."""
    record, snapshot = seen.record, seen.snapshot
    rule, voters = acknowledgement_rule(seen.group.spec), voting_replicas(seen.group.spec)
    if record is None or snapshot is None or not rule.all_acknowledge or voters == 1:
        return None
    if record.granted_master_id not in snapshot.live:
        # What a master that is not heard acknowledges is not known here; Available says that it is not heard.
        return None
    masters = [
        one for one in course.drifts if one.breaks_durability and one.member.broker_id == record.granted_master_id
    ]
    if masters:
        return yes(
            Reason.CONFIGURATION_DRIFTED, f"The master acknowledges otherwise than the spec says: {told(masters)}"
        )
    live = [broker_id for broker_id, one in course.standings.items() if one.view.acknowledges]
    if len(live) >= min(2, voters):
        return None
    if rule.minimum_in_sync > len(live):
        consequence = "no write is acknowledged until another is in sync"
    else:
        consequence = "what is acknowledged now is on that disk alone"
    holders = ", ".join(str(broker_id) for broker_id in live) or "none"
    silent = ", ".join(str(broker_id) for broker_id in sorted(record.sync_state_set.difference(live)))
    doubt = f"not heard here: {silent}; unless they still answer the master, " if silent else ""
    return yes(Reason.BELOW_DURABILITY, f"In sync and alive: {holders}; {doubt}{consequence}")


def fenced(seen: Observed) -> Verdict | None:
    """A silent master's pod is being killed, and is not seen dead yet."""
    pods = [name for name, pod in sorted(seen.pods.items()) if names.FINALIZER_FENCE in observed.finalizers_of(pod)]
    if not pods:
        return None
    return yes(Reason.MASTER_STOPPED, f"{', '.join(pods)} was silent and is stopped before another serves")


def volume_resizing(seen: Observed) -> Verdict | None:
    """Claims ask for more than their volumes have; the storage class gives it while the broker runs, if it can."""
    growing = growing_claims(seen)
    if not growing:
        return None
    return yes(Reason.RESIZE_PENDING, f"Growing: {', '.join(growing)}")

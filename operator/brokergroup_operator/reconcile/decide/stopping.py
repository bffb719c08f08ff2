"""`spec.maintenance.stoppedBrokers`: whose broker is stopped now, and why one is not (docs/adr/0027). Pure.

The order is an annotation of the pod. It is given when the others acknowledge writes without the member, under the rule of every
voluntary step; a master hands over first. Then the claim notes it: the pod that follows a lost one has the order from its start. A
member with the order counts as away, so no second one is stopped where the group could not spare both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.api import names, pod_fence
from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.api.durability import acknowledgement_rule
from brokergroup_operator.kube.resources import PERSISTENT_VOLUME_CLAIMS, PODS
from brokergroup_operator.reconcile.decide.failover_safe import able_to_follow
from brokergroup_operator.reconcile.decide.scale_in import nothing_is_known
from brokergroup_operator.reconcile.plan import Note, PatchMetadata, Step, Verb
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.members import membership

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.reconcile.identity import Member
    from brokergroup_operator.reconcile.plan import Action, Verdict
    from brokergroup_operator.reconcile.see.members import Standing
    from brokergroup_operator.reconcile.see.observed import Observed

FIELD = "spec.maintenance.stoppedBrokers"


def stopping_step(seen: Observed, standings: Mapping[int, Standing], at_rest: Verdict) -> Step | None:
    """Return the step towards the first broker that is to be stopped and can be, else the refusal of the first; None for none."""
    refusals: list[Step] = []
    for broker_id in sorted(seen.group.spec.maintenance.stopped_brokers):
        step = _step(seen, standings, broker_id, at_rest)
        if step is not None and step.acts:
            return step
        refusals += [step] if step is not None else []
    return refusals[0] if refusals else None


def _step(seen: Observed, standings: Mapping[int, Standing], broker_id: int, at_rest: Verdict) -> Step | None:
    one = standings.get(broker_id)
    if one is None or not pod_fence.wanted(seen.group.spec):
        return _invalid(seen, standings, broker_id)
    # One that a failover made master after its order was given hands over first, as any other; `taken_back` takes the order off it.
    if (one.is_held and not one.is_master) or not one.has_pod or one.is_going:
        return None
    return _ordered(seen, standings, one, at_rest)


def _ordered(seen: Observed, standings: Mapping[int, Standing], one: Standing, at_rest: Verdict) -> Step:
    if nothing_is_known(seen):
        why = f"{one.member.pod} is to be stopped; waiting to hear the master"
        return Step(verb=Verb.WAIT, reason=Reason.STOPPING_BROKER, why=why, member=one.member)
    if why := _why_not(seen, standings, one):
        return Step(verb=Verb.REFUSE, reason=Reason.STOP_REFUSED, why=f"{one.member.pod} is not stopped: {why}")
    if why := _not_yet(seen, one, at_rest):
        told = f"{one.member.pod} is to be stopped, and waits: {why}"
        return Step(verb=Verb.WAIT, reason=Reason.STOPPING_BROKER, why=told, member=one.member)
    why = f"{FIELD} has broker {one.member.broker_id}"
    if one.is_master:
        to = able_to_follow(seen)[0]
        return Step(verb=Verb.SWITCH, reason=Reason.STOPPING_BROKER, why=why, member=one.member, to_broker_id=to)
    if not pod_fence.knows_orders(seen.pods[one.member.pod]):
        why += "; its pod is of an earlier release, and made anew first"
        return Step(verb=Verb.REPLACE, reason=Reason.STOPPING_BROKER, why=why, member=one.member)
    return Step(verb=Verb.HOLD, reason=Reason.STOPPING_BROKER, why=why, member=one.member)


def _invalid(seen: Observed, standings: Mapping[int, Standing], broker_id: int) -> Step | None:
    """Refuse an id that is no member, or a group without fences. None while the id may still come, or is about to leave."""
    if not pod_fence.wanted(seen.group.spec):
        why = f"{FIELD} is {seen.group.spec.maintenance.stopped_brokers}: expected none while"
        why += " spec.failover.isolation.enabled is false, for the fence in the pod stops a broker"
        return Step(verb=Verb.REFUSE, reason=Reason.INVALID_SPEC, why=why)
    members = membership(seen)
    if members.to_reserve or not standings or any(one.broker_id == broker_id for one in members.members):
        return None
    expected = ", ".join(map(str, standings))
    why = f"{FIELD} has {broker_id}, which is no member: expected broker ids among {expected}"
    return Step(verb=Verb.REFUSE, reason=Reason.INVALID_SPEC, why=why)


def _why_not(seen: Observed, standings: Mapping[int, Standing], one: Standing) -> str:
    """Why the member can't be spared; the empty text if it can."""
    if seen.record is None or seen.record.granted_master_id is None:
        return "no broker is master, and an election may need it"
    if one.disk_goes and not pod_fence.knows_orders(seen.pods[one.member.pod]):
        return "its pod is of an earlier release and would be made anew first, and its disk goes with its pod"
    if _gives_nothing(one):
        return ""
    needed = acknowledgement_rule(seen.group.spec).minimum_in_sync
    left = [other for other in standings.values() if other is not one and not other.is_held and other.view.acknowledges]
    if len(left) < needed:
        named = ", ".join(str(other.member.broker_id) for other in left) or "none"
        return f"without it {len(left)} would acknowledge writes (broker {named}), and {needed} are needed"
    return ""


def _not_yet(seen: Observed, one: Standing, at_rest: Verdict) -> str:
    """What a member waits for that can be spared as such: the rule of every voluntary step."""
    if _gives_nothing(one):
        return ""
    # A slave that no failover counts on anyway may go, as in an update.
    if not at_rest.holds and (one.is_master or at_rest.reason is not Reason.NOBODY_MAY_FOLLOW):
        return f"not FailoverSafe: {at_rest.message}"
    return "no other member can take over from it" if one.is_master and not able_to_follow(seen) else ""


def _gives_nothing(one: Standing) -> bool:
    """Whether the broker neither serves nor acknowledges.

    A ready one with a seat may do both: an operator that has just started hears no broker.
    """
    return not one.is_master and (not one.has_seat or not (one.is_live or one.is_ready or one.view.acknowledges))


def order(seen: Observed, member: Member, why: str) -> Iterator[Action]:
    """Give the order to the pod that was seen."""
    told = f"Stopping the broker of pod {member.pod}; the pod stays: {why}"
    note = Note(reason="BrokerStopping", message=told, related=member.pod)
    if (pod := seen.pods.get(member.pod)) is not None:
        yield _marked(PODS, pod, pod_fence.STANDS, why, note)


def taken_back(seen: Observed) -> Iterator[Action]:
    """Take the order off pods and claims of brokers that are to run, and note on claims which brokers were stopped.

    A failover may have made a broker master after its order. It hands over first, and until then a crash must not hold it stopped.
    """
    wanted = set(seen.group.spec.maintenance.stopped_brokers)
    for member in membership(seen).members:
        pod, claim = seen.pods.get(member.pod), seen.claims.get(member.pod)
        stands = pod is not None and pod_fence.is_stop_ordered(pod)
        is_noted = claim is not None and pod_fence.is_stop_ordered(claim)
        is_master = member.broker_id == seen.master
        if is_master or member.broker_id not in wanted:
            why = f"{FIELD} does not have broker {member.broker_id}"
            if is_master:
                why = f"broker {member.broker_id} is master, and hands over before it is stopped"
            told = f"The broker of pod {member.pod} is not held stopped any more: {why}"
            if stands and pod is not None and not observed.being_deleted(pod):
                note = Note(reason="BrokerStarting", message=told, related=member.pod)
                yield _marked(PODS, pod, None, why, note, {names.ANNOTATION_STARTED_AT: seen.now})
            if is_noted and claim is not None:
                yield _marked(PERSISTENT_VOLUME_CLAIMS, claim, None, why)
        elif stands and claim is not None and not is_noted:
            yield _marked(PERSISTENT_VOLUME_CLAIMS, claim, pod_fence.STANDS, "its broker is stopped")


def _marked(
    resource: Resource,
    obj: JsonObject,
    value: str | None,
    why: str,
    note: Note | None = None,
    also: Mapping[str, str] | None = None,
) -> Action:
    return PatchMetadata(
        reason=why,
        note=note,
        resource=resource,
        name=str(obj["metadata"]["name"]),
        uid=observed.uid(obj),
        change={"annotations": {names.ANNOTATION_STOPPED: value, **(also or {})}},
    )

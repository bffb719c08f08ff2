"""May the master be lost now without losing an acknowledged message, and with writes served again at once? Pure.

Everything voluntary asks this: rolling updates, scale in, disruption budgets, moving a master. What is unknown means "no". How
many candidates are needed follows from the durability: a new master must find enough members to acknowledge with; in a group
too small for that, all its slaves must be candidates. A slave of priority 0 counts as a copy once another slave may take over.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.api.durability import acknowledgement_rule, voting_replicas
from brokergroup_operator.kube.pods import node_of
from brokergroup_operator.observe.member_view import member_view
from brokergroup_operator.observe.timeline import Cause, Kind
from brokergroup_operator.reconcile.decide.configuration_drift import told
from brokergroup_operator.reconcile.plan import Step, Verb, no, yes
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.members import held, membership, never_masters, standings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from brokergroup_operator.api.brokergroup import BrokerGroupSpec
    from brokergroup_operator.observe.group_view import GroupSnapshot
    from brokergroup_operator.reconcile.decide.configuration_drift import Drift
    from brokergroup_operator.reconcile.plan import Verdict
    from brokergroup_operator.reconcile.see.members import Standing
    from brokergroup_operator.reconcile.see.observed import Observed
    from controller_core.model import BrokerGroupRecord


def failover_safe(seen: Observed, drifts: Sequence[Drift] = (), *, serving: Collection[int] = ()) -> Verdict:
    """FailoverSafe for what a pass saw: a learner is no candidate, nor a member whose pod is not ready or is going.

    `serving`: ids that count although their pods are not ready.
    """
    known = standings(seen)
    unready = {broker_id for broker_id, one in known.items() if not one.is_ready}
    away = never_masters(seen) | (unready - set(serving))
    away |= {member.broker_id for member in membership(seen).volume_lost} | held(seen)
    facts = {broker_id: one.fact for broker_id, one in known.items()}
    verdict = judge(seen.group.spec, seen.record, seen.snapshot, away=away, facts=facts)
    broken = [drift for drift in drifts if drift.breaks_durability]
    if not broken or not verdict.holds:
        return verdict
    # No count of members says what an acknowledged message is on.
    return no(Reason.CONFIGURATION_DRIFTED, f"Acknowledgements are not what spec.durability says: {told(broken)}")


def unsafe_now(seen: Observed) -> str:
    """Why the master can't be lost at this moment, for an operation: the group's status may be minutes old. Empty if it can."""
    verdict = failover_safe(seen)
    return "" if verdict.holds else f"{verdict.reason.value}: {verdict.message}"


def judge(  # noqa: PLR0911 (one return per reason)
    spec: BrokerGroupSpec,
    record: BrokerGroupRecord | None,
    snapshot: GroupSnapshot | None,
    *,
    away: Collection[int] = (),
    facts: Mapping[int, str] | None = None,
) -> Verdict:
    """The same from the controller plane's view. `away`: ids that can't take over; `facts`: sentences about members."""
    if record is None or snapshot is None or (master := record.granted_master_id) is None:
        return no(Reason.NO_MASTER, "No broker is master")
    if snapshot.in_progress is not None and snapshot.in_progress.kind is Kind.FAILOVER:
        return no(Reason.FAILING_OVER, "The master is lost; another is being elected")
    if snapshot.epoch_jump is not None:
        return no(Reason.EPOCH_FAR_ABOVE_RECORD, "No replica is elected until the epoch jump is settled")
    if not snapshot.writable:
        return why_not_writable(spec, record, snapshot)
    if not snapshot.hears_master:
        return no(Reason.MEMBERS_NOT_HEARD, f"broker {master}: {member_view(record, snapshot, master).fact()}")
    if voting_replicas(spec) == 1 and (spec.replicas == 1 or master not in away):
        kind = "of one replica" if spec.replicas == 1 else "whose master alone is no learner"
        return no(Reason.NOT_ENOUGH_CANDIDATES, f"A group {kind} has no member to fail over to")
    if facts is None:
        facts = {one: member_view(record, snapshot, one).fact() for one in record.sync_state_set}
    return _count(spec, record, snapshot, _linked_in_sync(record, snapshot, away), facts)


def why_not_writable(spec: BrokerGroupSpec, record: BrokerGroupRecord, snapshot: GroupSnapshot) -> Verdict:
    """Why a group with a master can acknowledge no write: too few members in sync, or a master that has not confirmed its role."""
    master, needed = record.granted_master_id, acknowledgement_rule(spec).minimum_in_sync
    able = [one for one in record.sync_state_set if member_view(record, snapshot, one).may_acknowledge]
    if master in able and len(able) < needed and not snapshot.awaits_confirmation:
        told = f"In sync and alive: {_ids(able)}; by the spec a write needs {needed}"
        return no(Reason.NOT_ENOUGH_IN_SYNC_REPLICAS, told)
    return no(Reason.MASTER_NOT_READY, f"Broker {master} has not confirmed that it is master in its epoch")


def _count(
    spec: BrokerGroupSpec,
    record: BrokerGroupRecord,
    snapshot: GroupSnapshot,
    linked: list[int],
    facts: Mapping[int, str],
) -> Verdict:
    master = record.master_broker_id
    # Slaves of the SyncStateSet that could acknowledge a new master's writes but may not be master.
    copies = [one for one in linked if is_barred(spec, snapshot, one)]
    whole = [one for one in linked if one not in copies]
    found, needed = _with_metadata(whole, snapshot), candidates_needed(spec)
    if found and len(found) + len(copies) >= needed:
        also = f", {_ids(copies)} (priority 0) can acknowledge" if copies else ""
        told = f"Beside master {master}, {_ids(found)} can take over{also}; {needed} needed"
        return yes(Reason.ENOUGH_CANDIDATES, told)
    if whole and len(whole) + len(copies) >= needed:
        lacking = _ids(one for one in whole if one not in found)
        return no(Reason.METADATA_DIVERGED, f"Broker {lacking} lacks metadata that the master has")
    views = [member_view(record, snapshot, one) for one in sorted(record.sync_state_set - {master})]
    unlinked = [one.broker_id for one in views if one.heard and one.linked is False]
    unheard = [one.broker_id for one in views if one.runs_unheard]
    for reason, missing in ((Reason.MEMBERS_NOT_HEARD, unheard), (Reason.MEMBERS_NOT_LINKED, unlinked)):
        if missing and len(whole) + len(copies) + len(unlinked) + len(unheard) >= needed:
            return no(reason, _facts(facts, [*unheard, *unlinked]))
    if not found and 1 + len(copies) >= voting_replicas(spec):
        return no(
            Reason.NOBODY_MAY_FOLLOW,
            f"Every other member than master {master} (broker {_ids(copies)}) has election priority 0, which bars it from"
            " mastership: give one of them another priority in spec.failover.priorities",
        )
    named = ", ".join([*map(str, found), *(f"{broker_id} (priority 0)" for broker_id in copies)]) or "none"
    short = (
        f"Beside master {master}, {needed} live members in sync are needed, one of them to take over; there is {named}"
    )
    others = [one for one in sorted(facts) if one not in {master, *found, *copies}]
    return no(Reason.NOT_ENOUGH_CANDIDATES, f"{short}; {_facts(facts, others)}" if others else short)


def _facts(facts: Mapping[int, str], broker_ids: Iterable[int]) -> str:
    return "; ".join(f"broker {one}: {facts.get(one, 'unknown')}" for one in broker_ids)


def candidates_needed(spec: BrokerGroupSpec) -> int:
    """How many must be able to take over. At least one; not more than there are slaves that vote."""
    return max(1, min(acknowledgement_rule(spec).minimum_in_sync, voting_replicas(spec) - 1))


def _linked_in_sync(record: BrokerGroupRecord, snapshot: GroupSnapshot, away: Collection[int]) -> list[int]:
    others = sorted(record.sync_state_set - {record.master_broker_id, *away})
    return [broker_id for broker_id in others if member_view(record, snapshot, broker_id).counts]


def _with_metadata(broker_ids: Iterable[int], snapshot: GroupSnapshot) -> list[int]:
    """Without those that lack metadata of the master's. Older offsets hold nothing up: no waiting mends a slave that can't copy."""
    incomplete = snapshot.incomplete_members
    return [broker_id for broker_id in broker_ids if broker_id not in incomplete]


def is_barred(spec: BrokerGroupSpec, snapshot: GroupSnapshot, broker_id: int) -> bool:
    """Whether its priority keeps it from mastership. As in elections, the spec wins over what its heartbeats say."""
    by_spec = {entry.broker_id: entry.priority for entry in spec.failover.priorities}
    if broker_id in by_spec:
        return by_spec[broker_id] == 0
    return broker_id in snapshot.live and snapshot.live[broker_id].election_priority == 0


def _ids(broker_ids: Iterable[int]) -> str:
    return ", ".join(map(str, broker_ids))


# Why a group is not FailoverSafe although its master serves, and a member that has caught up with it may take over.
SHORT_OF_CANDIDATES: Final = frozenset(
    {Reason.NOT_ENOUGH_CANDIDATES, Reason.METADATA_DIVERGED, Reason.MEMBERS_NOT_LINKED}
)


def mastership_step(seen: Observed, *, at_rest: Verdict, updating: Collection[int] = ()) -> Step | None:
    """Return the step that moves mastership, or refuses to: off a drained node, from a barred member, or to the preferred one.

    A disruption budget keeps the master from eviction until then. `updating`: ids still to be replaced, or about to leave.
    """
    safe, spec, known = at_rest.holds, seen.group.spec, standings(seen)
    master = next((standing for standing in known.values() if standing.is_master), None)
    if master is None or seen.record is None or seen.snapshot is None:
        return None
    learners, able = never_masters(seen), able_to_follow(seen)
    if on_draining_node(seen, master):
        why = f"the node of master {master.member.pod} is being drained"
        if not able or not (safe or _may_leave_unsafe(seen, at_rest)):
            why += ", and no member elsewhere can take over"
            return Step(verb=Verb.REFUSE, reason=Reason.NOT_ENOUGH_CANDIDATES, why=why)
        return replace(_move(master, able[0], why), cause=Cause.DRAIN)
    # A member gets it after its own update: else update and preference would move it to and fro.
    updated = [broker_id for broker_id in able if broker_id not in updating]
    if safe and updated and is_barred(spec, seen.snapshot, master.member.broker_id):
        return _move(master, updated[0], f"{master.member.pod} has priority 0, which bars it from mastership")
    preferred = spec.failover.preferred_master
    if safe and preferred in updated:
        return _move(master, preferred, f"broker {preferred} is preferred")
    why = (
        f"spec.failover.preferredMaster is broker {preferred}, an async learner (spec.replication.learners: those with the highest"
        " ids), which is never master: name another one"
    )
    return Step(verb=Verb.REFUSE, reason=Reason.INVALID_SPEC, why=why) if preferred in learners else None


def able_to_follow(seen: Observed) -> list[int]:
    """Return the ids that mastership may be moved to: in sync, on a node that stays, and not to be stopped."""
    if seen.record is None or seen.snapshot is None:
        return []
    known, spec = standings(seen), seen.group.spec
    away = {*never_masters(seen), *held(seen), *spec.maintenance.stopped_brokers}
    linked = (known[one] for one in _linked_in_sync(seen.record, seen.snapshot, away) if one in known)
    elsewhere = [one.member.broker_id for one in linked if one.in_sync and not on_draining_node(seen, one)]
    return [one for one in _with_metadata(elsewhere, seen.snapshot) if not is_barred(spec, seen.snapshot, one)]


def _may_leave_unsafe(seen: Observed, at_rest: Verdict) -> bool:
    """Whether one member elsewhere is enough to leave a drained node: the group may lose its spare, but not its master."""
    # kubectl drain evicts a slave of that node as it cordons; if it can't come back elsewhere, the master would stay for good.
    running = seen.snapshot is not None and seen.snapshot.in_progress is not None
    return not running and at_rest.reason in SHORT_OF_CANDIDATES


def _move(master: Standing, to_broker_id: int | None, why: str) -> Step:
    return Step(verb=Verb.SWITCH, reason=Reason.MOVING_MASTER, why=why, member=master.member, to_broker_id=to_broker_id)


def on_draining_node(seen: Observed, standing: Standing) -> bool:
    """False for all where nodes can't be read: then only the pod's preStop hook hands the role over."""
    name = node_of(seen.pods.get(standing.member.pod))
    return name in seen.nodes and observed.is_draining(seen.nodes[name])

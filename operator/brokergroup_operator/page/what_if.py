"""What would happen if a member went away now? Pure, with the same functions that decide when it happens.

A lost master is put to the election itself (``controller_core.step``), so the answer names the broker that the election policy
chooses, or says why it chooses none. A lost slave is a matter of counting the members that can still acknowledge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from brokergroup_operator.api.brokergroup import BrokerGroup
from brokergroup_operator.api.brokergroup_status import ConditionStatus, Durability
from brokergroup_operator.api.durability import (
    acknowledgement_rule,
    beyond_voters,
    effective_durability,
    with_durability,
)
from brokergroup_operator.controller.directory.group_directory import binding_of
from brokergroup_operator.observe.member_view import member_view
from brokergroup_operator.reconcile.decide.failover_safe import judge
from controller_core.decision import ControllerCode
from controller_core.requests import ElectMaster
from controller_core.step import step

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.observe.group_view import GroupSnapshot
    from controller_core.model import BrokerGroupRecord
    from controller_core.settings import ControllerSettings

# By the status: the pod is not ready, or nothing is known of the broker.
_AWAY_STATES = frozenset(
    {"OutOfSync", "Unheard", "NotReady", "Lost", "Pending", "Registering", "Stopped", "Learning", "Fenced"}
)


@dataclass(frozen=True, slots=True)
class Answer:
    """``holds``: writes go on, or are back after a failover, and nothing acknowledged is lost. ``text`` says why."""

    holds: bool
    text: str


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the group's manifest asks for, as far as these answers need it."""

    group: BrokerGroup
    settings: ControllerSettings
    away: frozenset[int]
    learners: frozenset[int]
    # What the status says is amiss with members: it knows their pods.
    messages: Mapping[int, str]

    @property
    def minimum_in_sync(self) -> int:
        """Below that many in the SyncStateSet a write is refused."""
        return acknowledgement_rule(self.group.spec).minimum_in_sync


def wishes_of(group_object: JsonObject | None, record: BrokerGroupRecord | None) -> Wishes | None:
    """Out of the BrokerGroup as the API has it; None without one, or where it cannot be read."""
    if group_object is None:
        return None
    try:
        group = with_durability(msgspec.convert(group_object, BrokerGroup))
        settings = binding_of(group_object).settings
    except (msgspec.ValidationError, ValueError):
        return None
    learners = beyond_voters(
        record.replicas if record is not None else (),
        replicas=group.spec.replicas,
        learners=group.spec.replication.learners,
    )
    members = (group_object.get("status") or {}).get("members") or []
    away = {int(member["brokerId"]) for member in members if member.get("state") in _AWAY_STATES}
    messages = {int(member["brokerId"]): str(member["message"]) for member in members if member.get("message")}
    return Wishes(group, settings, frozenset(away) | learners, learners, messages)


def fact_of(wishes: Wishes | None, snapshot: GroupSnapshot, broker_id: int) -> str:
    """What is amiss with a member, in the words of the status; of what has changed since, as it is now. Empty: nothing."""
    view = member_view(snapshot.record, snapshot, broker_id)
    is_learner = wishes is not None and broker_id in wishes.learners
    is_well = view.heard and view.linked is not False and view.in_set is not is_learner
    fact = "" if is_well else view.fact(is_learner=is_learner)
    written = wishes.messages.get(broker_id, "") if wishes is not None else ""
    return written if written.startswith(fact) else fact


def may_lose_its_master(wishes: Wishes, snapshot: GroupSnapshot) -> tuple[Answer, str]:
    """The answer of the condition FailoverSafe as of this snapshot, and its reason."""
    ids = snapshot.record.replicas if snapshot.record is not None else ()
    facts = {broker_id: fact for broker_id in ids if (fact := fact_of(wishes, snapshot, broker_id))}
    verdict = judge(wishes.group.spec, snapshot.record, snapshot, away=wishes.away, facts=facts)
    return Answer(verdict.status is ConditionStatus.TRUE, verdict.message), verdict.reason.value


def without_members(wishes: Wishes, snapshot: GroupSnapshot, lost: Collection[int]) -> Answer:
    """What the group is like when these are lost at once."""
    record = snapshot.record
    if record is None:
        return Answer(holds=False, text="Nothing is known of this group yet")
    live = {broker_id: replica for broker_id, replica in snapshot.live.items() if broker_id not in lost}
    silences = {broker_id: silence for broker_id, silence in snapshot.silences.items() if broker_id not in lost}
    after = replace(snapshot, live=live, silences=silences)
    master = record.granted_master_id
    if master is None:
        return Answer(holds=False, text="No broker is master now")
    if master in lost:
        return _without_master(wishes, snapshot, after, lost)
    return _without_slaves(wishes, after, lost)


def _without_slaves(wishes: Wishes, after: GroupSnapshot, lost: Collection[int]) -> Answer:
    record = after.record
    assert record is not None
    left = sorted(one for one in record.sync_state_set if member_view(record, after, one).acknowledges)
    needed, count = wishes.minimum_in_sync, len(left)
    if not set(lost) & record.sync_state_set:
        return Answer(holds=True, text=f"It is not in the SyncStateSet: {_ids(left)} go on as they are")
    if count < needed:
        return Answer(
            holds=False, text=f"Writes are refused: {_ids(left) or 'no member'} in sync, {needed} needed to acknowledge"
        )
    safe = judge(wishes.group.spec, record, after, away=wishes.away | set(lost)).status is ConditionStatus.TRUE
    then = "the master may be lost after that too" if safe else "the master must not be lost until it is back"
    return Answer(holds=True, text=f"Writes go on with {_ids(left)}; {then}")


def _without_master(wishes: Wishes, before: GroupSnapshot, after: GroupSnapshot, lost: Collection[int]) -> Answer:
    record = before.record
    assert record is not None
    settings = replace(wishes.settings, zones=_zones(after), never_elect=wishes.learners)
    request = ElectMaster(passed_over=frozenset(lost))
    decision = step(record, request, after.live, settings)
    if decision.code is not ControllerCode.SUCCESS or decision.record is None:
        return Answer(holds=False, text=f"No replica could be elected: {decision.why}")
    elected, epoch = decision.record.master_broker_id, decision.record.master_epoch
    told = f"Broker {elected} becomes master in epoch {epoch}"
    if decision.record.unclean_elections > record.unclean_elections:
        return Answer(holds=False, text=f"{told}, uncleanly: acknowledged messages may be lost")
    if effective_durability(wishes.group.spec) is Durability.FAST:
        behind = _bytes_behind(before, record.master_broker_id, elected)
        return Answer(holds=False, text=f"{told}; Fast promises nothing across a failover: {behind} bytes may be lost")
    able = [one for one in record.sync_state_set if member_view(record, after, one).counts]
    if len(able) < wishes.minimum_in_sync:
        needed = wishes.minimum_in_sync
        return Answer(
            holds=False, text=f"{told}; writes are refused until {needed} are in sync ({len(able)} can follow at once)"
        )
    if elected in after.incomplete_members:
        return Answer(holds=False, text=f"{told}, and lacks metadata that the present master has")
    again = (
        ", consumers receive some messages again"
        if elected in {one.broker_id for one in after.metadata_diverged}
        else ""
    )
    return Answer(holds=True, text=f"{told}; nothing acknowledged is lost{again}, and {len(able)} can acknowledge")


def _bytes_behind(snapshot: GroupSnapshot, master: int | None, elected: int | None) -> int:
    ends = [snapshot.live[one].max_offset for one in (master or 0, elected or 0) if one in snapshot.live]
    return max(0, ends[0] - ends[1]) if len(ends) == 2 else 0


def _zones(snapshot: GroupSnapshot) -> dict[int, str]:
    return {broker_id: facts["zone"] for broker_id, facts in snapshot.member_facts.items() if facts.get("zone")}


def _ids(broker_ids: Collection[int]) -> str:
    return ", ".join(str(broker_id) for broker_id in sorted(broker_ids))

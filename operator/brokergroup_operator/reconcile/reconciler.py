"""One pass over one group: fetch, evaluate, apply. The only stateful thing is what the API server holds.

A pass first evaluates what the watches last said, and ends there if nothing is to do. Otherwise it reads the group from the API and
evaluates that: no action and no turn is ever decided by the cache.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.api.names import operator_of
from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.kube.errors import ApiError, is_away
from brokergroup_operator.observe.group_view import GroupUnknownError, GroupViewError
from brokergroup_operator.observe.incidents import NoSink
from brokergroup_operator.observe.metrics import ConditionGauges
from brokergroup_operator.reconcile.act.refusals import Refusals, Refused
from brokergroup_operator.reconcile.evaluate import evaluate
from brokergroup_operator.reconcile.other_groups import HostPorts, Turn, outdated_since
from brokergroup_operator.reconcile.render.broker_config import broker_name
from brokergroup_operator.reconcile.see.circumstances import CircumstanceWatch, circumstances_of_plan
from brokergroup_operator.reconcile.see.fetch import UnreadableGroupError
from brokergroup_operator.reconcile.see.members import lacking_members, voters_wanted

if TYPE_CHECKING:
    from brokergroup_operator.observe.incidents import CircumstanceSink
    from brokergroup_operator.reconcile.act.apply import PlanApplier
    from brokergroup_operator.reconcile.operations.runner import OperationRunner
    from brokergroup_operator.reconcile.other_groups import BrokerNames, RollingTurns
    from brokergroup_operator.reconcile.plan import Plan
    from brokergroup_operator.reconcile.see.fetch import GroupFetcher
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.settings import ReconcileSettings
    from brokergroup_operator.records.store import GroupKey

log = structlog.get_logger(__name__)
# The controller plane learns of a new group by its own watch and is there in a moment; one that is not is asked ever more seldom.
GROUP_UNKNOWN_SECONDS = 0.2
GROUP_UNKNOWN_AT_MOST_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Passed:
    """What a pass saw, None where it saw nothing that is ours, and in how many seconds to look again."""

    look_again_seconds: float | None
    seen: Observed | None = None
    # Read from the API, and nothing was done to the group since.
    is_newest: bool = False


class GroupPass:
    """A pass over a group and then one over its operations, which runs also if the first fails. Both go by the same view."""

    def __init__(self, reconciler: Reconciler, operations: OperationRunner) -> None:
        self._reconciler = reconciler
        self._operations = operations

    async def run(self, key: GroupKey) -> float | None:
        """Returns in how many seconds to look again."""
        outcomes = self._operations.outcomes(key)
        failed: Exception | None = None
        passed = Passed(look_again_seconds=None)
        try:
            passed = await self._reconciler.run_pass(key)
        except (ApiError, GroupViewError, UnreadableGroupError) as error:
            if isinstance(error, ApiError) and is_away(error):
                raise
            failed = error
        operation_seconds = await self._operations.run_pass(key, passed.seen, outcomes, is_newest=passed.is_newest)
        if failed is not None:
            raise failed
        both = (passed.look_again_seconds, operation_seconds)
        return min((value for value in both if value is not None), default=None)


class Reconciler:
    """Runs passes. What it remembers is what the API server said to the last one, for the status to show."""

    def __init__(
        self,
        fetcher: GroupFetcher,
        applier: PlanApplier,
        settings: ReconcileSettings,
        turns: RollingTurns,
        broker_names: BrokerNames,
        *,
        host_ports: HostPorts | None = None,
        circumstances: CircumstanceSink | None = None,
        conditions: ConditionGauges | None = None,
    ) -> None:
        self._fetcher = fetcher
        self._applier = applier
        self._settings = settings
        self._turns = turns
        self._broker_names = broker_names
        self._host_ports = host_ports or HostPorts()
        self._refusals = Refusals()
        # In how many passes in a row the controller plane did not know the group.
        self._unknown: Counter[GroupKey] = Counter()
        self._circumstances = circumstances or NoSink()
        self._conditions = conditions or ConditionGauges()
        self._watch = CircumstanceWatch()

    async def run_pass(self, key: GroupKey) -> Passed:
        """Bring the group one step nearer to its spec."""
        # Fences trust what the operator does: another authority reaches them without a restart of either.
        self._settings = self._settings.refreshed()
        try:
            if (settled := await self._settled(key)) is not None:
                return settled
            seen = await self._fetch_ours(key)
        except UnreadableGroupError as error:
            self._turns.step_aside(key)
            if operator_of(error.group_object) in {None, self._settings.operator}:
                await self._applier.tell_unreadable(error, now=rfc3339(time.time()))
            raise
        except BaseException:
            self._turns.step_aside(key)
            raise
        if seen is None:
            self._refusals.forget(key)
            self._turns.tell(key, Turn.NONE, since="")
            self._unknown.pop(key, None)
            self._conditions.forget(key)
            self._broker_names.forget(key)
            self._host_ports.forget(key)
            return Passed(look_again_seconds=None)
        self._note_conditions(key, seen)
        plan = self._decide(key, self._refusals.of(key, seen.group_object).shown_to(seen))
        # Before anything is done: what is done to a pod is noted although we may die while we do it.
        seen = replace(seen, now=rfc3339(time.time()))
        await self._circumstances.note([*self._watch.look(seen), *circumstances_of_plan(plan, seen)])
        try:
            ids_reserved = await self._applier.carry_out(key, plan, seen)
        except ApiError as error:
            self._refusals.note(key, error)
            raise
        except GroupUnknownError as error:
            self._unknown[key] += 1
            log.info("reconcile.waits_for_controller_plane", group=str(key), error=str(error))
            pause_seconds = GROUP_UNKNOWN_SECONDS * 2.0 ** min(self._unknown[key] - 1, 20)
            return Passed(look_again_seconds=min(pause_seconds, GROUP_UNKNOWN_AT_MOST_SECONDS), seen=seen)
        self._unknown.pop(key, None)
        self._refusals.carried_out(key)
        # Reserved ids are in the record now: the pods they are for can be created at once.
        again_seconds = 0.0 if ids_reserved else plan.look_again_seconds
        return Passed(look_again_seconds=again_seconds, seen=seen, is_newest=not plan.actions)

    async def _settled(self, key: GroupKey) -> Passed | None:
        """Return the pass by what the watches last said if its plan does nothing; None: the API must be read."""
        seen = await self._fetcher.look(key)
        if seen is None or operator_of(seen.group_object) != self._settings.operator:
            return None
        if self._refusals.of(key, seen.group_object) != Refused():
            return None  # only a pass that was carried out ends a refusal
        plan = self._evaluated(key, seen, now=rfc3339(time.time()))
        if plan.actions or plan.turn is not self._turns.of(key):
            return None
        self._note_conditions(key, seen)
        await self._circumstances.note(self._watch.look(replace(seen, now=rfc3339(time.time()))))
        return Passed(look_again_seconds=plan.look_again_seconds, seen=seen)

    def _note_conditions(self, key: GroupKey, seen: Observed) -> None:
        """As the status has them now. What this pass writes is an event that begins the next; a pass that fails changes nothing."""
        status = seen.group_object.get("status") or {}
        self._conditions.note(
            key,
            cluster_name=seen.group.spec.broker_cluster_name,
            broker_name=broker_name(key.name, seen.group.spec),
            conditions=status.get("conditions") or (),
            created=(seen.group_object.get("metadata") or {}).get("creationTimestamp"),
            voting_replicas=voters_wanted(seen),
            lacking_members=lacking_members(replace(seen, now=rfc3339(time.time()))),
        )

    async def _fetch_ours(self, key: GroupKey) -> Observed | None:
        """The group, once it is ours; None where it is gone, or another operator's."""
        seen = await self._fetcher.fetch(key)
        if seen is None:
            await self._applier.mend_left_claims(key)
            return None
        now = rfc3339(time.time())
        ours = await self._applier.take(seen.group_object, operator=self._settings.operator, now=now)
        return None if ours is None else replace(seen, group_object=ours)

    def _decide(self, key: GroupKey, seen: Observed) -> Plan:
        """Decide without an await: between reading the turns and recording this group's, no other group's turn changes."""
        now = rfc3339(time.time())
        self._broker_names.note(seen.group_object, seen.record)
        self._host_ports.note(seen.group_object)
        plan = self._evaluated(key, seen, now=now)
        self._turns.tell(key, plan.turn, since=outdated_since(seen.group_object, now=now))
        return plan

    def _evaluated(self, key: GroupKey, seen: Observed, *, now: str) -> Plan:
        """The plan, by what this plane knows of other groups."""
        seen = replace(
            seen,
            broker_name_taken=self._broker_names.taken(key),
            host_ports_shared=self._host_ports.shared(key),
            rolling_before=self._turns.before(key, since=outdated_since(seen.group_object, now=now)),
        )
        return evaluate(seen, self._settings, now=now)

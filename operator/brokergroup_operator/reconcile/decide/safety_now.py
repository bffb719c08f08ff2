"""FailoverSafe computed now, for operations that must not rest on the status that an earlier pass wrote.

The status of a group is as old as its last pass: a slave may have died since, and passes may fail for minutes. An operation that
kills a master or moves it checks this as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.api.brokergroup_status import ConditionStatus
from brokergroup_operator.api.durability import beyond_voters, runs_as_learner
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.decide.failover_safe import judge
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.fetch import UnreadableGroupError, read_group
from brokergroup_operator.reconcile.see.members import latest_by_pod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.observe.group_view import GroupSnapshot
    from controller_core.model import BrokerGroupRecord


def unsafe_now(
    group_object: JsonObject,
    record: BrokerGroupRecord | None,
    snapshot: GroupSnapshot | None,
    pods: Mapping[str, JsonObject],
) -> str:
    """Why the master can't be lost at this moment; the empty text if it can."""
    try:
        group = read_group(group_object)
    except UnreadableGroupError as error:
        return str(error)
    away = [
        replica.broker_id
        for replica in (record.replicas.values() if record else ())
        if replica.reserved_for
        and (
            not observed.pod_is_ready(pods.get(replica.reserved_for)) or runs_as_learner(pods.get(replica.reserved_for))
        )
    ]
    ids = [one.broker_id for one in latest_by_pod(record, identity.name_of(group)).values()]
    learners = beyond_voters(ids, replicas=group.spec.replicas, learners=group.spec.replication.learners)
    verdict = judge(group.spec, record, snapshot, away={*away, *learners})
    return "" if verdict.status is ConditionStatus.TRUE else f"{verdict.reason.value}: {verdict.message}"

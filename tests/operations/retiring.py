"""A Retire in each of its steps, pods with what each broker was given, and what a master answers about its topics."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec import structs

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_operation import Retirement
from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.observe.group_offsets import GroupOffsets, TopicOffsets
from brokergroup_operator.reconcile.decide.unread import look_at
from brokergroup_operator.reconcile.operations.plan import NOTHING_ASKED, GoOn, Outcome
from rocketmq_remoting.broker_protocol import QueueOffsets
from tests.operations import world
from tests.operations.world import GROUP_UID, NOW, expect, group, operation, running, scene, thing

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.operations.plan import Verdict
    from brokergroup_operator.reconcile.see.observed import Observed, Operation

DAY = 86_400
OPEN, READ_ONLY, CLOSED = (
    {"brokerPermission": "6"},
    {"brokerPermission": "4"},
    {
        "brokerPermission": "4",
        "minInSyncReplicas": "99",
        "startAcceptSendRequestTimeStamp": str(int(NOW + 30 * DAY) * 1000),
    },
)
WANTED = "RocketMQCluster shop wants it"
SHUT: dict[str, Any] = {"acknowledges": False, "log_end": 1000}
FIXED: dict[str, Any] = {"epoch": 5, "position": 1000, "since": rfc3339(NOW - 10)}


def topic(*queues: tuple[int, int], readers: tuple[str, ...] = ()) -> TopicOffsets:
    """Return a topic of queues with these first and next offsets."""
    found = {number: QueueOffsets(first, end) for number, (first, end) in enumerate(queues) if end}
    return TopicOffsets(queues=found, readers=frozenset(readers))


def offsets(topics: dict[str, TopicOffsets] | None = None, **changes: Any) -> GroupOffsets:
    """Return a master's answer: by default of a group that takes no sends, and in which everything is read."""
    base: dict[str, Any] = {
        "master_id": 1, "epoch": 5, "cluster_name": "DefaultCluster", "read_at_unix_seconds": NOW,
        "takes_sends": False, "acknowledges": True, "log_end": 1000, "steady": True,
    }  # fmt: skip
    return GroupOffsets(**{**base, **changes, "topics": topics or {}})


def said(*, abandoned: tuple[str, ...] = (), **changes: Any) -> Outcome:
    return Outcome(look=look_at(offsets(**changes), abandoned=abandoned))


UNREAD = {"t": topic((0, 5), readers=("a",))}


def pods(given: dict[str, str], *, missing: tuple[int, ...] = (), **of_one: dict[str, str]) -> dict[str, Any]:
    """Return the pods with what each broker was given last; by pod name where it differs."""
    found = {f"orders-{number}": thing(f"orders-{number}") for number in (1, 2, 3) if number not in missing}
    for name, pod in found.items():
        values = of_one.get(name.replace("-", "_"), given)
        pod["metadata"]["annotations"] = {names.ANNOTATION_HOT_CONFIG: json.dumps(values)}
    return found


def retiring(step: str, *, section: dict[str, Any] | None = None, uid: str = GROUP_UID, **fields: Any) -> Operation:
    item = running("Retire", **(section or {}))
    assert item.raw["status"]
    status = item.raw["status"] | {"retirement": {"step": step, "groupUid": uid, **fields}}
    found = operation("Retire", status=status, **(section or {}))
    del found.raw["metadata"]["ownerReferences"]
    return found


def judged(
    item: Operation, outcome: Outcome = NOTHING_ASKED, *, given: dict[str, str] = CLOSED, **changes: Any
) -> Verdict:
    return world.judged(item, outcome, **{"pods": pods(given), **changes})


def seen_by(item: Operation, *, given: dict[str, str] = CLOSED, **changes: Any) -> Observed:
    return scene(item, **{"pods": pods(given), **changes})


def step_of(verdict: Verdict) -> str:
    """Return the step that it goes on to; the empty text: it stays where it is."""
    found = expect(GoOn, verdict).retirement
    return "" if found is None else found.step.value


def noted(verdict: Verdict) -> Retirement:
    """Return what the status notes of a Retire that goes on."""
    return expect(Retirement, expect(GoOn, verdict).retirement)


def effect_of(verdict: Verdict) -> type | None:
    effect = expect(GoOn, verdict).effect
    return None if effect is None else type(effect)


def with_metadata(made: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    made = made or group()
    return made | {"metadata": made["metadata"] | fields}


DELETED, RENEWED = with_metadata(deletionTimestamp=rfc3339(NOW)), with_metadata(uid="another")


def seen_since(outcome: Outcome, seconds_ago: float) -> Outcome:
    """The same of a process that has asked for so long."""
    return structs.replace(outcome, asks_since_unix_seconds=NOW - seconds_ago)

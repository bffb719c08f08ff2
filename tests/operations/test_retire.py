"""When a Retire begins, of which group, and how it ends. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from brokergroup_operator.api.brokergroup_operation import Retirement, RetirementStep
from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.observe.group_view import MetadataDifference, MetadataKind
from brokergroup_operator.reconcile.operations.evaluate import PROCEDURES, evaluate, next_status
from brokergroup_operator.reconcile.operations.plan import Done, Fail, GoOn, Reject, Start, Wait
from brokergroup_operator.reconcile.operations.procedures.premises import Case
from tests.operations.retiring import DELETED, FIXED, RENEWED, WANTED, judged, retiring, seen_by, with_metadata
from tests.operations.world import GROUP_UID, NOW, begun, expect, group, operation, record, scene

# ---- its beginning


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"group": group(maintenance={"paused": True})}, "orders is paused"),
        ({"record": record(master=None)}, "orders has no master now"),
        ({"wanted_by_cluster": WANTED}, WANTED),
    ],
)
def test_what_stands_against_its_beginning(changes: dict[str, Any], why: str) -> None:
    assert why in expect(Reject, begun("Retire", **changes)).message


def test_a_group_that_is_not_failover_safe_can_be_retired() -> None:
    """It restarts no broker, and what its master acknowledged is read whatever a slave lacks."""
    verdict = expect(Start, begun("Retire", group=group(safe=False)))
    assert verdict.retirement == Retirement(step=RetirementStep.READ_ONLY, group_uid=GROUP_UID)
    assert verdict.steps[-1] == "delete BrokerGroup orders: its claims stay (spec.storage.retention.whenDeleted)"


def test_it_is_not_owned_by_the_group_that_it_deletes() -> None:
    asked = operation("Retire")
    asked.raw["metadata"]["ownerReferences"] = []
    assert [type(step).__name__ for step in evaluate(scene(asked), {}).steps] == ["WriteStatus"]


# ---- metadata that a member lacks


def diverged() -> dict[str, Any]:
    """Return the group with this condition in its status."""
    made, kind = group(), "MetadataDiverged"
    made["status"]["conditions"].append(
        {"type": kind, "status": "True", "reason": kind, "message": "broker 2: topic t"}
    )
    return made


OLDER = MetadataDifference(2, MetadataKind.CONSUMER_OFFSET, "payments@billing", only_older=True)
MISSING_OFFSET = MetadataDifference(2, MetadataKind.CONSUMER_OFFSET, "payments@audit")
MISSING_TOPIC = MetadataDifference(3, MetadataKind.TOPIC, "refunds")
OF_THE_MASTER = MetadataDifference(1, MetadataKind.CONSUMER_OFFSET, "payments@audit")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"metadata_diverged": (MISSING_TOPIC,)}, "broker 3: Topic refunds", id="a topic"),
        pytest.param({"metadata_diverged": (MISSING_TOPIC, OLDER)}, "broker 3: Topic refunds", id="a topic, and older offsets"),
        pytest.param({"metadata_diverged": (MISSING_OFFSET,)}, "broker 2: ConsumerOffset payments@audit", id="an offset"),
        pytest.param({"metadata_diverged": (OF_THE_MASTER,)}, "broker 1: ConsumerOffset payments@audit",
            id="an offset of a former master, which the present one lacks"),
        pytest.param({"group": diverged(), "metadata_diverged": (MISSING_TOPIC,)}, "broker 3: Topic refunds",
            id="what the plane knows now"),
        pytest.param({"group": diverged()}, "broker 2: topic t", id="by the status: a new plane has compared nothing yet"),
        pytest.param({"group": diverged(), "snapshot": None}, "broker 2: topic t", id="by the status: no plane knows the group"),
    ],
)  # fmt: skip
def test_it_does_not_begin_while_a_member_lacks_metadata(changes: dict[str, Any], message: str) -> None:
    assert expect(Wait, begun("Retire", **changes)).message == f"waits: orders is MetadataDiverged: {message}"


@pytest.mark.parametrize("made", [group(), diverged()], ids=["before the next pass", "MetadataDiverged by its status"])
def test_older_offsets_of_a_member_hold_no_retire_up(made: dict[str, Any]) -> None:
    """A 5.5.0 slave that the operator cannot write offsets at would hold it up for ever (apache/rocketmq #10284)."""
    expect(Start, begun("Retire", group=made, metadata_diverged=(OLDER,)))


# ---- only the group that it was created for


def test_one_that_waits_names_its_group_and_retires_no_later_one() -> None:
    first = operation("Retire")
    waits = next_status(Case(seen=scene(first), operation=first), Wait(message="waits for another"))
    assert waits.group_uid == GROUP_UID
    later = operation("Retire", status={"phase": "Pending", "groupUid": GROUP_UID})
    verdict = PROCEDURES[later.asked.spec.type].begin(Case(seen=scene(later, group=RENEWED), operation=later))
    assert "for an earlier group of this name" in expect(Reject, verdict).message


def test_a_group_that_is_younger_than_the_operation_is_not_retired() -> None:
    """The operator was away while the group was deleted and made again."""
    young = with_metadata(creationTimestamp=rfc3339(NOW))
    assert "for an earlier group of this name" in expect(Reject, begun("Retire", group=young)).message


# ---- its end


NOT_BY_THIS = "orders is being deleted, and not by this operation: not everything was read"
GONE = "BrokerGroup orders was deleted, and not by this operation"


@pytest.mark.parametrize(
    ("step", "changes", "end", "message"),
    [
        ("Sent", {"group": DELETED}, GoOn, "orders is being deleted: 3 pods are still there"),
        ("Sent", {"group": None}, Done, "orders was deleted: everything was read in epoch 5"),
        ("Sent", {"group": RENEWED}, Done, "orders was deleted: everything was read in epoch 5"),
        ("Deleting", {"group": DELETED}, Fail, NOT_BY_THIS),
        ("Deleting", {"group": None}, Fail, GONE),
        ("Deleting", {"group": RENEWED}, Fail, GONE),
        ("Draining", {"group": DELETED}, Fail, NOT_BY_THIS),
        ("Draining", {"group": None}, Fail, GONE),
        ("Draining", {"group": RENEWED}, Fail, GONE),
        ("Closing", {"wanted_by_cluster": WANTED}, Fail, f"given up: {WANTED}"),
        ("Deleting", {"wanted_by_cluster": WANTED}, Fail, f"given up: {WANTED}"),
    ],
)  # fmt: skip
def test_its_end(step: str, changes: dict[str, Any], end: type, message: str) -> None:
    item = retiring("Deleting", deleteSent=True, **FIXED) if step == "Sent" else retiring(step, **FIXED)
    seen = seen_by(item, **changes)
    written = next(iter(evaluate(seen, {}).steps))
    verdict = judged(item, **changes) if changes.get("group", 1) is not None else None
    assert (verdict is None) or type(verdict) is end
    assert written.status.result.message == message  # type: ignore[union-attr]
    phases: dict[type, str] = {GoOn: "Running", Done: "Succeeded", Fail: "Failed"}
    assert written.status.phase.value == phases[end]  # type: ignore[union-attr]

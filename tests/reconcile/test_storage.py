"""Disks that go with their pods, and a volume of its own for the commit log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from brokergroup_operator.api import names
from brokergroup_operator.reconcile.plan import ApplyObject, DeleteObject
from brokergroup_operator.reconcile.render import children
from brokergroup_operator.reconcile.render.broker_config import broker_properties
from brokergroup_operator.reconcile.render.pods import build_pod
from brokergroup_operator.reconcile.see.members import membership
from tests.reconcile import builders as b
from tests.reconcile.cases import with_pods
from tests.reconcile.golden_files import compare
from tests.reconcile.passes import run, told

EPHEMERAL: dict[str, Any] = {"storage": {"ephemeral": {"sizeLimit": "2Gi"}}}
COMMIT_LOG: dict[str, Any] = {"storage": {"commitLog": {"size": "100Gi", "storageClassName": "fast"}}}
LOGS = [names.commit_log_claim_name(f"orders-{one}") for one in (1, 2, 3)]


def settled(**spec: Any) -> Any:
    seen = b.settled(**spec)
    if "ephemeral" in spec["storage"]:
        return replace(seen, claims={})
    logs = (b.bound(b.stored(children.build_commit_log_claim(seen.group, b.member(one)))) for one in (1, 2, 3))
    return replace(seen, claims={**seen.claims, **b.by_name(*logs)})


@pytest.mark.parametrize("implementation", ["Java", "Python"])
def test_the_pod_and_the_claim_of_a_commit_log_of_its_own(implementation: str) -> None:
    of = b.group(implementation=implementation, **COMMIT_LOG)
    shown = [children.build_commit_log_claim(of, b.member(2)), build_pod(of, b.member(2), b.SETTINGS)]
    compare(f"commitlog-{implementation.lower()}.yaml", yaml.safe_dump_all(shown, sort_keys=False, width=120))
    properties = broker_properties("orders", of.spec, b.SETTINGS)
    assert properties["storePathCommitLog"] == "${COMMIT_LOG_DIR}/commitlog"
    assert properties["storePathEpochFile"].startswith("${STORE_DIR}/")


def test_an_ephemeral_pod_has_no_claim() -> None:
    pod = build_pod(b.group(**EPHEMERAL), b.member(1), b.SETTINGS)
    assert pod["spec"]["volumes"][0] == {"name": "store", "emptyDir": {"sizeLimit": "2Gi"}}
    assert "persistentVolumeClaim" not in str(pod)


@pytest.mark.parametrize("spec", [EPHEMERAL, COMMIT_LOG], ids=["ephemeral", "commitLog"])
def test_nothing_is_done_to_a_settled_group(spec: dict[str, Any]) -> None:
    assert told(run(settled(**spec))) == []


def test_the_loss_of_an_ephemeral_pod_is_the_loss_of_its_disk() -> None:
    """Its id is never used again: what comes has an empty disk."""
    seen = settled(**EPHEMERAL)
    members = membership(replace(seen, pods=b.without(seen.pods, "orders-2")))
    assert [one.broker_id for one in members.volume_lost] == [2]
    assert [one.pod for one in members.to_reserve] == ["orders-4"]


def test_the_loss_of_a_commit_log_is_the_loss_of_the_disk() -> None:
    seen = settled(**COMMIT_LOG)
    gone = replace(seen, pods=b.without(seen.pods, "orders-2"), claims=b.without(seen.claims, LOGS[1]))
    assert [one.broker_id for one in membership(gone).volume_lost] == [2]
    assert membership(replace(gone, claims=seen.claims)).volume_lost == ()


@pytest.mark.parametrize("phase", ["Failed", "Pending"])
def test_an_empty_commit_log_never_joins_the_identity_of_the_old_one(phase: str) -> None:
    """The log's claim was made anew while the failed pod still stood there; the next one found its old id, and no messages."""
    whole = settled(**COMMIT_LOG)
    seen = with_pods(whole, lambda pod: pod["status"].update(phase=phase), "orders-2")
    seen = replace(seen, claims=b.without(seen.claims, LOGS[1]))
    actions = run(seen).actions
    assert [action.name for action in actions if isinstance(action, DeleteObject)] == ["orders-2"]
    assert LOGS[1] not in [action.object["metadata"]["name"] for action in actions if isinstance(action, ApplyObject)]
    after = membership(replace(seen, pods=b.without(seen.pods, "orders-2")))
    assert [one.broker_id for one in after.volume_lost] == [2]
    assert [one.pod for one in after.to_reserve] == ["orders-4"]


def test_a_pod_that_runs_without_a_claim_for_its_log_is_left_running() -> None:
    seen = settled(**COMMIT_LOG)
    assert told(run(replace(seen, claims=b.without(seen.claims, LOGS[1])))) == []


def test_an_ephemeral_group_says_so_when_it_is_made() -> None:
    seen = settled(**EPHEMERAL)
    fresh = {**seen.group_object, "metadata": {**seen.group_object["metadata"], "finalizers": []}}
    notes = [action.note.reason for action in run(replace(seen, group_object=fresh)).actions if action.note]
    assert notes == ["EphemeralStorage"]


def test_each_claim_of_a_member_grows_by_its_own_wish() -> None:
    seen = settled(**COMMIT_LOG)
    larger = b.changed(
        seen,
        group=b.group(storage={"commitLog": {"size": "200Gi", "storageClassName": "fast"}}),
        group_object=b.group_object(storage={"commitLog": {"size": "200Gi", "storageClassName": "fast"}}),
    )
    grown = {
        step.object["metadata"]["name"]: step.object["spec"]["resources"]["requests"]["storage"]
        for step in run(larger).actions
        if isinstance(step, ApplyObject) and step.resource.kind == "PersistentVolumeClaim"
    }
    assert grown == dict.fromkeys(LOGS, "200Gi")


def test_who_has_left_leaves_no_commit_log_behind_where_that_was_asked_for() -> None:
    wish = {"storage": {**COMMIT_LOG["storage"], "retention": {"whenScaled": "Delete"}}}
    seen = settled(**wish)
    log, store = seen.claims[LOGS[0]], seen.claims["orders-1"]
    marks = {names.ANNOTATION_LEAVING: "4"}
    fourth = {
        "orders-4": store | {"metadata": store["metadata"] | {"name": "orders-4", "annotations": marks}},
        "orders-4-commitlog": log | {"metadata": log["metadata"] | {"name": "orders-4-commitlog"}},
    }
    assert told(run(replace(seen, claims={**seen.claims, **fourth}))) == [
        "delete PersistentVolumeClaim orders-4-commitlog",
        "delete PersistentVolumeClaim orders-4",
    ]

"""Claims: grown, marked when their member leaves, discarded only where that was asked for and the mark is there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.reconcile.decide.claims import growing_claims, marked_as_leaving
from brokergroup_operator.reconcile.plan import ApplyObject
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.passes import run, told

DELETE: dict[str, Any] = {"storage": {"retention": {"whenScaled": "Delete"}}}


def test_the_mark_comes_before_the_id_is_forgotten() -> None:
    seen = c.wishing(c.settled(replicas=4), replicas=3)
    stopped = c.live(c.without_pods(seen, "orders-4"), 1, 2, 3)
    assert told(run(stopped)) == ["apply PersistentVolumeClaim orders-4"]
    assert told(run(c.marked(stopped, "orders-4"))) == ["forget 4"]


def left(*, marked: bool, **spec: Any) -> Any:
    """Id 4 has left; its claim is still there."""
    seen = c.settled(**spec)
    claim = next(iter(seen.claims.values()))
    annotations = {names.ANNOTATION_LEAVING: "4"} if marked else {}
    fourth = claim | {"metadata": claim["metadata"] | {"name": "orders-4", "annotations": annotations}}
    return replace(seen, claims={**seen.claims, "orders-4": fourth})


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (left(marked=True, **DELETE), ["delete PersistentVolumeClaim orders-4"]),
        (left(marked=True), []),
        (left(marked=False, **DELETE), []),
    ],
    ids=["Delete", "Retain", "no mark: perhaps a lost record"],
)
def test_the_claim_of_one_who_has_left(seen: Any, expected: list[str]) -> None:
    assert told(run(seen)) == expected


def test_a_copy_of_a_claim_is_somebodys_backup() -> None:
    """Made with `kubectl get -o yaml` and another name, it carries our labels and even the mark."""
    seen = left(marked=True, **DELETE)
    claims = {**b.without(seen.claims, "orders-4"), "orders-4-backup": seen.claims["orders-4"]}
    assert told(run(replace(seen, claims=claims))) == []


def test_a_mark_on_a_member_that_stays_is_taken_off() -> None:
    seen = c.settled(**DELETE)
    [marked] = [one for one in marked_as_leaving(seen, b.member(3)) if isinstance(one, ApplyObject)]
    claims = {**seen.claims, "orders-3": b.bound(marked.object)}
    assert told(run(replace(seen, claims=claims))) == ["apply PersistentVolumeClaim orders-3"]


def test_a_claim_that_a_higher_id_carries_is_not_marked() -> None:
    seen = c.settled()
    assert seen.record is not None
    fourth = replace(seen.record.replicas[1], broker_id=4)
    seen = replace(seen, record=replace(seen.record, next_broker_id=5, replicas={**seen.record.replicas, 4: fourth}))
    assert list(marked_as_leaving(seen, b.member(1))) == []


@pytest.mark.parametrize(("capacity", "growing"), [("8Gi", []), ("8192Mi", []), ("4Gi", ["orders-2"]), (None, [])])
def test_a_claim_grows_until_its_volume_has_the_size(capacity: str | None, growing: list[str]) -> None:
    seen = c.settled()
    claim = seen.claims["orders-2"]
    status = {"phase": "Bound"} | ({"capacity": {"storage": capacity}} if capacity else {})
    assert growing_claims(replace(seen, claims={**seen.claims, "orders-2": claim | {"status": status}})) == growing


def test_a_claim_that_somebody_made_larger_stays_so() -> None:
    """An autoscaler of volumes: asking for the smaller size would be refused in every pass."""
    seen = c.settled()
    name, claim = next(iter(seen.claims.items()))
    spec = claim["spec"] | {"resources": {"requests": {"storage": "64Gi"}}}
    larger = replace(seen, claims={**seen.claims, name: claim | {"spec": spec}})
    sizes = [
        step.object["spec"]["resources"]["requests"]["storage"]
        for step in run(larger).actions
        if isinstance(step, ApplyObject) and step.object["metadata"]["name"] == name
    ]
    assert set(sizes) == {"64Gi"}

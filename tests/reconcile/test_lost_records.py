"""The record is gone, and pods with it: the claims are all that says which disks the group has, and none may be passed over."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.durability import runs_as_learner
from brokergroup_operator.kube.resources import PODS
from brokergroup_operator.reconcile.plan import ApplyObject
from brokergroup_operator.reconcile.render import children
from brokergroup_operator.reconcile.render.addressing import build_member_service
from brokergroup_operator.reconcile.see.members import membership
from controller_core.model import BrokerGroupRecord, Replica
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.cases import condition, lines_of, run

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed


def claims_of(*ids: int, left: tuple[int, ...] = ()) -> dict[str, dict[str, Any]]:
    """The claims of members with these ids; those of `left` are marked."""
    made = {one: b.bound(b.stored(children.build_claim(b.group(), b.member(one)))) for one in (*ids, *left)}
    for one in left:
        made[one]["metadata"]["annotations"][names.ANNOTATION_LEAVING] = str(one)
    return b.by_name(*made.values())


def all_lost(*ids: int, left: tuple[int, ...] = (), **spec: Any) -> Observed:
    """Neither a record nor a pod is left, but these claims."""
    seen = c.settled(**spec)
    return replace(seen, claims=claims_of(*ids, left=left), pods={}, record=None, snapshot=None, state_object=None)


def adopted(*ids: int) -> BrokerGroupRecord:
    """The record that is made again from these brokers."""
    replicas = {
        one: Replica(one, f"10.0.0.{one}:10911;adopted", f"10.0.0.{one}:10911", f"orders-{one}", registered=True)
        for one in ids
    }
    return BrokerGroupRecord("DefaultCluster", "orders", next_broker_id=max(ids) + 1, replicas=replicas)


def made(seen: Observed) -> list[str]:
    """What a pass makes: ids that it reserves, claims and pods."""
    return [one for one in lines_of(run(seen)) if one.startswith(("reserve", "apply Pod ", "apply Persistent"))]


@pytest.mark.parametrize(
    ("ids", "left"),
    [((1, 4, 5), ()), ((4, 5, 6), ()), ((1, 4, 5), (2,)), ((4, 5, 6), (1,)), ((3, 4), (1, 2)), ((1, 4), ())],
)
def test_members_come_back_on_the_claims_there_are(ids: tuple[int, ...], left: tuple[int, ...]) -> None:
    """With new ids from 1 they began beside these: with an empty disk, or that of one that had left, the stale one was elected."""
    seen = all_lost(*ids, left=left)
    assert made(seen) == [f"apply Pod orders-{one}" for one in ids]
    assert condition(seen, "Stalled")[0] == "False"
    assert condition(seen, "Ready") == ("False", "MembersPending")
    assert condition(seen, "Reconciling") == ("True", "CreatingMembers")


@pytest.mark.parametrize("ids", [(1, 2, 3), (2, 3), (3,)])
def test_where_the_next_ids_are_those_of_the_claims_these_are_reserved(ids: tuple[int, ...]) -> None:
    """Then also a claim on which no broker has run yet gets the id of its name."""
    assert [one.pod for one in membership(all_lost(*ids)).to_reserve] == ["orders-1", "orders-2", "orders-3"]


def test_an_id_for_a_disk_that_is_gone_comes_when_those_of_the_others_are_known() -> None:
    """The ids below theirs have had disks."""
    back = replace(all_lost(1, 5), pods=b.by_name(*(b.running_pod(b.group(), one) for one in (1, 5))))
    assert made(back) == []
    assert made(replace(back, record=adopted(1))) == []
    assert made(replace(back, record=adopted(1, 5))) == ["reserve orders-6"]


@pytest.mark.parametrize("going", [False, True])
def test_a_pod_that_runs_and_the_claims_of_two_that_do_not(*, going: bool) -> None:
    """Also while the pod of one is about to go: its disk stays."""
    pods = b.by_name(b.running_pod(b.group(), 4), *([b.running_pod(b.group(), 1)] if going else []))
    seen = replace(all_lost(1, 4, 5), pods=pods)
    seen = c.going(seen, "orders-1") if going else seen
    expected = ["apply Pod orders-5"] if going else ["apply Pod orders-1", "apply Pod orders-5"]
    assert made(seen) == expected
    assert made(replace(seen, record=adopted(4))) == expected


def test_more_claims_than_members_wait_for_a_person() -> None:
    """A first election hears as many as the spec has: it could do without the newest."""
    seen = all_lost(1, 2, 4, 5)
    assert made(seen) == []
    assert condition(seen, "Stalled") == ("True", "NoEligibleReplica")
    told = c.conditions(seen)["Stalled"]["message"]
    assert "orders-1, orders-2, orders-4, orders-5 are 4 claims, expected at most 3" in told
    assert "Set spec.replicas to 4" in told
    grown = all_lost(1, 2, 4, 5, replicas=4)
    assert made(grown) == [f"apply Pod orders-{one}" for one in (1, 2, 4, 5)]


def test_claims_beside_enough_running_pods_are_left_alone() -> None:
    """Running brokers are newer than a disk on which none runs, and are not disturbed."""
    pods = b.by_name(*(b.running_pod(b.group(), one) for one in (1, 4, 5)))
    seen = replace(all_lost(1, 2, 4, 5), pods=pods)
    assert made(seen) == []
    assert condition(seen, "Stalled")[0] == "False"


def test_a_claim_that_the_record_does_not_know_is_no_member() -> None:
    """An administrator cleaned its id, or no record had it: while seats say whose data counts, no disk comes back by itself."""
    seen = c.settled()
    beside = replace(seen, claims={**seen.claims, **claims_of(7)})
    assert made(beside) == []
    short = c.wishing(beside, replicas=4)
    assert [line for line in made(short) if line.startswith("reserve")] == ["reserve orders-4"]


def test_a_group_that_is_hibernated_makes_no_pod() -> None:
    assert made(all_lost(1, 4, 5, maintenance={"hibernated": True})) == []


def test_a_member_that_comes_back_has_its_service_and_waits_for_that_alone() -> None:
    """No Service was made for it, and one that was there was deleted: its pod waited for the address for ever."""
    lost = all_lost(1, 4, 5, network={"addressing": "ServiceIP"})
    services = [one for one in lines_of(run(lost)) if "Service orders-" in one]
    assert {f"apply Service orders-{one}" for one in (1, 4, 5)} <= set(services)
    made_before = [build_member_service(lost.group, b.member(one), slot=0) for one in (1, 4, 5)]
    there = {one["metadata"]["name"]: b.stored(one) for one in made_before}
    for number, one in enumerate(there.values(), start=1):
        one["spec"]["clusterIP"] = f"10.96.0.{number}"
    seen = replace(lost, services={**lost.services, **there})
    assert not [one for one in lines_of(run(seen)) if one.startswith("delete Service")]
    assert made(seen) == [f"apply Pod orders-{one}" for one in (1, 4, 5)]


def test_learners_come_back_as_learners() -> None:
    seen = all_lost(1, 4, 5, replication={"learners": 1})
    pods = [one.object for one in run(seen).actions if isinstance(one, ApplyObject) and one.resource == PODS]
    assert [one["metadata"]["name"] for one in pods if runs_as_learner(one)] == ["orders-5"]

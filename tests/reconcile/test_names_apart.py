"""Two groups, or a group and a cluster, whose names begin alike: no two objects of a kind get one name, or the owner says so."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import msgspec
import pytest

from brokergroup_operator.api.brokergroup import BrokerGroup
from brokergroup_operator.api.pod_fence import FenceKeys
from brokergroup_operator.api.rocketmq_cluster import RocketMQCluster
from brokergroup_operator.reconcile.clusters import parts
from brokergroup_operator.reconcile.identity import Member
from brokergroup_operator.reconcile.render import children
from brokergroup_operator.reconcile.render.addressing import build_member_service
from brokergroup_operator.reconcile.render.children import build_disruption_budgets
from brokergroup_operator.reconcile.render.pods import build_pod
from brokergroup_operator.reconcile.see.foreign import is_ours
from tests.reconcile.builders import SETTINGS

TAILS = (
    "",
    "-1",
    "-2",
    "-1-1",
    "-master",
    "-members",
    "-broker",
    "-1-commitlog",
    "-commitlog",
    "-fence",
    "-0",
    "-nameserver",
    "-proxy",
)
GROUPS = [f"x{tail}" for tail in TAILS]
KEYS = FenceKeys(b"0" * 32)


def group(name: str) -> BrokerGroup:
    spec = {"storage": {"commitLog": {}}, "network": {"addressing": "ServiceIP"}}
    metadata = {"name": name, "namespace": "shop", "uid": f"uid-of-{name}"}
    return msgspec.convert({"metadata": metadata, "spec": spec}, BrokerGroup)


def of_group(name: str) -> list[dict[str, Any]]:
    one = group(name)
    made = [
        children.build_config_map(one, SETTINGS),
        children.build_members_service(one),
        children.build_master_service(one),
        *build_disruption_budgets(one, open_for_one=True),
        {"kind": "Secret", "metadata": {"name": KEYS.secret_name(name, f"uid-of-{name}")}},
        # Beside it, by its own name: the record and the group's own object.
        {"kind": "BrokerGroupState", "metadata": {"name": name}},
        {"kind": "BrokerGroup", "metadata": {"name": name}},
    ]
    for broker_id in (1, 2, 11):
        member = Member(broker_id=broker_id, pod=f"{name}-{broker_id}")
        made += [
            children.build_claim(one, member),
            children.build_commit_log_claim(one, member),
            build_member_service(one, member, slot=0),
            build_pod(one, member, SETTINGS),
        ]
    return made


def of_cluster(name: str) -> list[dict[str, Any]]:
    obj = {
        "metadata": {"name": name, "namespace": "shop", "uid": f"uid-of-cluster-{name}"},
        "spec": {"proxy": {}, "nameServer": {"replicas": 3}},
    }
    cluster = msgspec.convert(obj, RocketMQCluster)
    pods = [{"kind": "Pod", "metadata": {"name": f"{name}-nameserver-{ordinal}", "labels": {}}} for ordinal in range(3)]
    return [
        *parts.name_servers(cluster, SETTINGS),
        *parts.proxies(cluster, SETTINGS),
        *parts.broker_groups(cluster, obj),
        *pods,
    ]


def meeting(makers: dict[str, list[dict[str, Any]]]) -> dict[tuple[str, str], list[str]]:
    """Kind and name of what several of them make."""
    made: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for maker, objects in makers.items():
        for obj in objects:
            made[obj["kind"], obj["metadata"]["name"]].append(maker)
    return {place: who for place, who in made.items() if len(who) > 1}


def test_no_two_groups_make_one_object() -> None:
    assert meeting({name: of_group(name) for name in GROUPS}) == {}


def test_a_cluster_and_a_group_meet_where_the_group_is_called_like_a_part() -> None:
    """Each leaves what is the other's alone and names it: `NameTaken` of the group, `NotOurs` of the cluster (`see/foreign.py`)."""
    met = meeting({"cluster x": of_cluster("x")} | {name: of_group(name) for name in GROUPS})
    assert met == {
        ("BrokerGroup", "x-0"): ["cluster x", "x-0"],
        ("PodDisruptionBudget", "x-nameserver"): ["cluster x", "x-nameserver"],
        ("Pod", "x-nameserver-1"): ["cluster x", "x-nameserver"],
        ("Pod", "x-nameserver-2"): ["cluster x", "x-nameserver"],
        ("PodDisruptionBudget", "x-proxy"): ["cluster x", "x-proxy"],
    }


@pytest.mark.parametrize(("one", "other"), list(itertools.permutations(("x", "x-1", "x-nameserver", "x-proxy"), 2)))
def test_neither_takes_the_others_for_its_own(one: str, other: str) -> None:
    own = {"metadata": group(one).metadata}
    assert not any(is_ours(obj, own) for obj in of_group(other) if "labels" in obj["metadata"])
    taken = [obj for obj in of_cluster("x") if obj["kind"] in {"PodDisruptionBudget", "Pod"} and one != "x"]
    assert not any(is_ours(obj, own) for obj in taken)

"""Ready and Stalled are never both True, whatever is told: of two that are, `kubectl wait` takes one and kstatus the other."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from brokergroup_operator.api.rocketmq_cluster import RocketMQCluster
from brokergroup_operator.reconcile.act.refusals import Refused
from brokergroup_operator.reconcile.clusters.standing import Seen, is_settled, status_of
from brokergroup_operator.reconcile.clusters.topics import TopicsStanding
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.passes import status_of as status_of_group
from tests.reconcile.test_conditions import CASES

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed

WORDS = "the words"
# What can be amiss beside all that the cases of the conditions have.
HINDRANCES: dict[str, Any] = {
    "nothing": {},
    "the API server refuses an object": {"refusal": WORDS},
    "a node port is taken": {"refusal": WORDS, "node_port_taken": True},
    "an object is another's": {"name_taken": WORDS},
    "the broker name is another group's": {"broker_name_taken": WORDS},
    "a ConfigMap is missing": {"config_problem": WORDS},
}


@pytest.mark.parametrize("seen", [case[1] for case in CASES], ids=[f"{case[2]}: {case[0]}" for case in CASES])
def test_of_a_group(seen: Observed) -> None:
    for hindrance, found in HINDRANCES.items():
        told = {one["type"]: one for one in status_of_group(dataclasses.replace(seen, **found))["conditions"]}
        if told["Stalled"]["status"] == "True":
            assert (told["Ready"]["status"], told["Reconciling"]["status"]) == ("False", "False"), hindrance
        if hindrance != "nothing":
            assert told["Ready"]["status"] == "False", hindrance


def test_a_group_that_is_whole_says_why_it_is_not_ready() -> None:
    seen = Refused(name_taken=WORDS).shown_to(c.settled())
    told = {one["type"]: (one["status"], one["reason"], one["message"]) for one in status_of_group(seen)["conditions"]}
    assert told["Ready"] == ("False", "NameTaken", WORDS)
    assert told["Stalled"] == ("True", "NameTaken", WORDS)


def cluster(**seen: Any) -> Seen:
    """One that lacks nothing."""
    metadata = {"name": "shop", "namespace": "default", "uid": "u", "generation": 1}
    obj = {"metadata": metadata, "spec": {"nameServer": {"replicas": 1}}}
    condition = {kind: {"type": kind, "status": "True"} for kind in ("Ready", "Available", "FailoverSafe")}
    group = {
        "metadata": {"name": "shop-0", "generation": 1},
        "status": {"observedGeneration": 1, "conditions": list(condition.values())},
    }
    servers = {
        "metadata": {"generation": 1},
        "spec": {"replicas": 1},
        "status": {"observedGeneration": 1, "updatedReplicas": 1, "readyReplicas": 1},
    }
    whole: dict[str, Any] = {
        "cluster": msgspec.convert(obj, RocketMQCluster),
        "cluster_object": obj,
        "name_servers": servers,
        "groups": {"shop-0": group},
    }
    return Seen(**(whole | seen))


GROUP = cluster().groups["shop-0"]
CLUSTERS: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    # Reasons of Ready and of Stalled.
    "whole": ({}, ("AllReady", "NothingToDo")),
    "an object is another's": ({"strangers": ("Service shop-nameserver",)}, ("NotOurs", "NotOurs")),
    "a part is refused": ({"refusals": (WORDS,)}, ("Refused", "Refused")),
    "a group too many": (
        {"groups": {"shop-0": GROUP, "shop-1": GROUP | {"metadata": {"name": "shop-1", "generation": 1}}}},
        ("GroupsBeyondCount", "GroupsBeyondCount"),
    ),
    "a topic differs": ({"topics": TopicsStanding(desired=0, differing=("t",))}, ("TopicDiffers", "TopicDiffers")),
    "no NameServer, and a part is refused": (
        {"name_servers": None, "refusals": (WORDS,)},
        ("NameServersPending", "Refused"),
    ),
}


@pytest.mark.parametrize("case", list(CLUSTERS))
def test_of_a_cluster(case: str) -> None:
    changed, reasons = CLUSTERS[case]
    status = status_of(cluster(**changed), now=b.NOW)
    told = {one.type: one for one in status.conditions or ()}
    assert (told["Ready"].reason, told["Stalled"].reason) == reasons
    assert sum(told[kind].status == "True" for kind in ("Ready", "Reconciling", "Stalled")) == 1
    assert is_settled(status) is (case != "no NameServer, and a part is refused")

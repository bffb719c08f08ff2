"""Two groups on their nodes' own network: where the scheduler finds no free ports, the group says whose they are."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from brokergroup_operator.reconcile.other_groups import HostPorts
from brokergroup_operator.records.store import GroupKey
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.passes import status_of

OTHER = GroupKey("team-b", "payments")
NO_PORTS = "0/3 nodes are available: 3 node(s) didn't have free ports for the requested pod ports"


def group(key: GroupKey, *, addressing: str = "HostNetwork", **network: Any) -> dict[str, Any]:
    metadata = {"namespace": key.namespace, "name": key.name}
    return {"metadata": metadata, "spec": {"network": {"addressing": addressing, **network}}}


@pytest.mark.parametrize(
    ("own", "other", "told"),
    [
        ({}, {}, "the fast port below spec.network.listenPort 10909 is a port of team-b/payments too"),
        ({}, {"listenPort": 20911, "haPort": 10912}, "spec.network.haPort 10912 is a port of team-b/payments too"),
        ({}, {"listenPort": 10914}, "spec.network.haPort 10912 is a port of team-b/payments too"),
        ({}, {"listenPort": 20911, "haPort": 20912}, ""),
        ({}, {"addressing": "PodIP"}, ""),
        ({"addressing": "ServiceIP"}, {}, ""),
    ],
    ids=[
        "the same",
        "one of them",
        "another one's fast port",
        "others",
        "the other on its pods' network",
        "ours on Services",
    ],
)
def test_whose_ports_they_are(own: dict[str, Any], other: dict[str, Any], told: str) -> None:
    ports = HostPorts()
    ports.keep_only([group(b.KEY, **own), group(OTHER, **other)])
    assert ports.shared(b.KEY).startswith(told)
    assert bool(ports.shared(b.KEY)) is bool(told)
    ports.forget(OTHER)
    assert ports.shared(b.KEY) == ""


@pytest.mark.parametrize(
    ("words", "is_told"), [(NO_PORTS, True), ("0/3 nodes are available: 3 Insufficient cpu", False)]
)
def test_a_pod_without_a_node_says_whose_they_are(words: str, *, is_told: bool) -> None:
    seen = c.settled()
    pod = dict(seen.pods["orders-2"])
    pod["status"] = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}],
    }
    ports = HostPorts()
    ports.note(group(b.KEY))
    ports.note(group(OTHER))
    seen = dataclasses.replace(seen, pods={**seen.pods, "orders-2": pod}, host_ports_shared=ports.shared(b.KEY))
    [stalled] = [one for one in status_of(seen)["conditions"] if one["type"] == "Stalled"]
    assert stalled["reason"] == "MemberNotScheduled"
    assert words in stalled["message"]
    assert ("spec.network.listenPort 10911 is a port of team-b/payments too" in stalled["message"]) is is_told

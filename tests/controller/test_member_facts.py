"""What is known of members: by labels of nodes, pods and the BrokerGroup; of one whose pod is gone what was known last."""

from __future__ import annotations

from typing import Any

from brokergroup_operator.api import names
from brokergroup_operator.controller.directory.kubernetes_binding import (
    NodePlace,
    member_facts,
    place_of_node,
    tenant_of,
)


def pod(broker_id: int, node: str = "", **labels: str) -> dict[str, Any]:
    own = {names.LABEL_BROKER_GROUP: "orders", names.LABEL_BROKER_ID: str(broker_id), **labels}
    return {"metadata": {"name": f"orders-{broker_id}", "labels": own}, "spec": {"nodeName": node}}


def test_labels_tell() -> None:
    labels = {names.LABEL_ZONE: "a", names.LABEL_RACK: "r7", names.LABEL_TENANT: "shop"}
    assert place_of_node({"metadata": {"labels": labels}}) == NodePlace("a", "r7")
    assert place_of_node({"metadata": {}}) == NodePlace()
    assert tenant_of({"metadata": {"labels": labels}}) == "shop"
    assert tenant_of({"metadata": {}}) == ""


def test_a_member_has_the_facts_that_somebody_tells() -> None:
    pods = [pod(1, "n1", **{names.LABEL_APP_VERSION: "5.5.0"}), pod(2, "n2"), pod(3)]
    facts = member_facts({}, pods, {"n1": NodePlace("a", "r7"), "n2": None}, "shop")
    assert facts == {
        1: {"node": "n1", "zone": "a", "rack": "r7", "version": "5.5.0", "tenant": "shop"},
        2: {"node": "n2", "tenant": "shop"},
    }


def test_what_was_known_of_a_member_outlives_its_pod_and_not_its_move() -> None:
    before = member_facts({}, [pod(1, "n1"), pod(2, "n2")], {"n1": NodePlace("a")}, "")
    after = member_facts(before, [pod(2, "n3")], {}, "")
    assert after == {1: {"node": "n1", "zone": "a"}, 2: {"node": "n3"}}

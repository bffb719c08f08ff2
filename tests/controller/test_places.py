"""Members that are known by an address that is not their pod's: who is behind it, and what a dead or a new pod says of it."""

from __future__ import annotations

from typing import Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.controller.directory.group_directory import GroupBinding, PodPlace
from brokergroup_operator.controller.directory.kubernetes_binding import binding_of, is_at, place_of
from brokergroup_operator.controller.directory.places import (
    advertises,
    ha_address_of,
    hosts_of_links,
    probe_address,
    process_address,
)
from brokergroup_operator.controller.peers.broker_calls import BrokerCallError
from brokergroup_operator.records.store import GroupKey
from controller_core.model import BrokerGroupRecord, Replica

KEY = GroupKey("shop", "orders")
KNOWN = "10.96.0.1:10911"


def binding(**fields: Any) -> GroupBinding:
    return GroupBinding(key=KEY, cluster_name="c", broker_name="orders", **fields)


def translated(**fields: Any) -> GroupBinding:
    return binding(translated=True, places={"orders-1": PodPlace(ip="10.1.0.7", address=KNOWN)}, **fields)


def pod(address: str | None = None, *, ip: str = "10.1.0.7", node: str = "192.168.0.3") -> dict[str, Any]:
    annotations = {} if address is None else {names.ANNOTATION_ADDRESS: address}
    metadata = {"namespace": "shop", "name": "orders-1", "annotations": annotations}
    return {"metadata": metadata, "status": {"podIP": ip, "hostIP": node}}


def test_a_pod_is_where_it_says_that_it_is_known() -> None:
    assert place_of(pod()) is None
    assert place_of(pod(KNOWN)) == PodPlace(ip="10.1.0.7", address=KNOWN)
    assert place_of(pod(":30102")) == PodPlace(ip="10.1.0.7", address="192.168.0.3:30102")
    assert place_of(pod(":30102", node="")) is None, "not placed on a node yet"


@pytest.mark.parametrize(
    ("of", "address", "expected"),
    [
        (pod(), "10.1.0.7:10911", True),
        (pod(), "10.1.0.8:10911", False),
        (pod(KNOWN), KNOWN, True),
        # By its own address too: that is how a process is looked for whose pod may have been made again.
        (pod(KNOWN), "10.1.0.7:10911", True),
        (pod(KNOWN, ip="10.1.0.8"), "10.1.0.7:10911", False),
        # Two members behind one node are told apart by the port.
        (pod(":30102"), "192.168.0.3:30102", True),
        (pod(":30107"), "192.168.0.3:30102", False),
        # The one before it had the same address: a pod that has not begun says nothing of that one's death.
        (pod(KNOWN, ip=""), KNOWN, False),
    ],
)
def test_who_is_at_an_address(of: dict[str, Any], address: str, *, expected: bool) -> None:
    assert is_at(of, address) is expected


def test_links_are_known_by_the_hosts_of_pods() -> None:
    replicas = {
        1: Replica(1, "a", KNOWN, reserved_for="orders-1", registered=True),
        2: Replica(2, "b", "10.1.0.9:10911", reserved_for="orders-2", registered=True),
    }
    record = BrokerGroupRecord("c", "orders", 3, replicas, 1, 1, frozenset({1, 2}), 1)
    assert hosts_of_links(translated(), record, [1, 2]) == {1: "10.1.0.7", 2: "10.1.0.9"}
    assert hosts_of_links(binding(), record, [1]) == {1: "10.96.0.1"}


def test_a_refusal_counts_only_where_the_process_itself_listened() -> None:
    """A Service without an endpoint refuses whoever dials it, also while the broker lives."""
    assert probe_address(binding(), "10.1.0.7:10911", None) == "10.1.0.7:10911"
    assert probe_address(translated(), KNOWN, "10.1.0.7") == "10.1.0.7:10911"
    assert probe_address(translated(), KNOWN, "10.1.0.5") is None, "that process was in another pod"
    assert probe_address(translated(), KNOWN, "192.168.0.3") is None, (
        "a node that translates: it refuses whoever dials it"
    )
    assert probe_address(translated(), KNOWN, None) is None


def test_a_process_is_looked_for_at_the_pod_that_it_was_heard_from() -> None:
    assert process_address(binding(), "10.1.0.7:10911", "10.1.0.9") == "10.1.0.7:10911"
    assert process_address(translated(), KNOWN, "10.1.0.5") == "10.1.0.5:10911"
    assert process_address(translated(), KNOWN, None) is None


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (binding(), "10.96.0.1:10912"),
        (binding(ha_port=12000), "10.96.0.1:12000"),
        (translated(ha_port=10912), "10.96.0.1:10912"),
        (translated(ha_port=10912, log_at_pods=True), "10.1.0.7:10912"),
    ],
)
def test_where_the_log_is_served(of: GroupBinding, expected: str) -> None:
    assert ha_address_of(of, KNOWN) == expected


def test_an_address_that_is_none_links_nobody() -> None:
    with pytest.raises(BrokerCallError, match="expected host:port"):
        ha_address_of(binding(), "somewhere")


@pytest.mark.parametrize(
    ("addressing", "expected"),
    [
        ({}, (False, False)),
        ({"addressing": "HostNetwork"}, (False, False)),
        ({"addressing": "ServiceIP"}, (True, False)),
        ({"addressing": "NodePort", "firstNodePort": 30100}, (True, True)),
        ({"addressing": "LoadBalancer"}, (True, True)),
    ],
)
def test_what_the_group_says(addressing: dict[str, Any], expected: tuple[bool, bool]) -> None:
    obj: dict[str, Any] = {
        "metadata": {"namespace": "shop", "name": "orders"},
        "spec": {"network": {"haPort": 12000, **addressing}},
    }
    found = binding_of(obj)
    assert (found.translated, found.log_at_pods, found.ha_port) == (*expected, 12000)
    assert not found.ephemeral
    obj["spec"]["storage"] = {"ephemeral": {"sizeLimit": "2Gi"}}
    assert binding_of(obj).ephemeral


def test_a_pod_registers_the_address_that_it_carries_and_no_other() -> None:
    assert advertises(translated(), "orders-1", KNOWN)
    assert not advertises(translated(), "orders-1", "10.96.0.2:10911")
    assert not advertises(translated(), "orders-2", KNOWN)

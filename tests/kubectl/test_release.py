"""`release`: a group in deletion without an operator to finish it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kubectl.cluster import BrokerGroup, Lease, PersistentVolumeClaim, Pod

if TYPE_CHECKING:
    from tests.kubectl.bench import Bench

LONG_AGO = "2026-01-01T00:00:00.000000Z"
ALWAYS = "2999-01-01T00:00:00.000000Z"
OF_ORDERS = {"labels": {names.LABEL_BROKER_GROUP: "orders"}}


def deleted_group(bench: Bench, *, renewed: str | None, policy: str = "Background") -> None:
    """With pods, one of them held by the fence, a claim, and the Lease of its operator."""
    bench.create_group()
    metadata: dict[str, Any] = {"finalizers": [names.FINALIZER_BROKER_GROUP]}
    if renewed is not None:
        metadata["annotations"] = {names.ANNOTATION_OPERATOR: f"{bench.namespace}/its-lease"}
        spec = {"holderIdentity": "operator-0_1", "leaseDurationSeconds": 3, "renewTime": renewed}
        bench.create(Lease, "its-lease", spec=spec)
    path = bench.path(BrokerGroup, "orders")
    bench.api("PATCH", path, {"metadata": metadata})
    containers = [{"name": "broker", "image": "broker"}]
    uid = bench.get(BrokerGroup, "orders")["metadata"]["uid"]
    owner = {"apiVersion": names.API_VERSION, "kind": names.BROKER_GROUP_KIND, "name": "orders", "uid": uid}
    owned = OF_ORDERS | {"ownerReferences": [owner]}
    bench.create(Pod, "orders-1", metadata=owned, spec={"containers": containers})
    held = owned | {"finalizers": [names.FINALIZER_FENCE, "example.com/other"]}
    bench.create(Pod, "orders-2", metadata=held, spec={"containers": containers})
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    bench.create(PersistentVolumeClaim, "orders-1", metadata=OF_ORDERS, spec=claim)
    bench.api("DELETE", path, {"propagationPolicy": policy})


def groups(bench: Bench) -> list[str]:
    return [item["metadata"]["name"] for item in bench.items(BrokerGroup)]


def test_a_group_goes_once_its_operator_is_gone(bench: Bench) -> None:
    """On a real cluster `kubectl delete bg` hung for ever after `helm uninstall`."""
    deleted_group(bench, renewed=LONG_AGO)
    assert groups(bench) == ["orders"]
    said = bench.must("release", "orders", "--confirm", "orders").splitlines()
    assert said[0] == (
        "goes with the group, by the cluster's garbage collector: pods (orders-1, orders-2), Services, ConfigMap,"
        " PodDisruptionBudgets and NetworkPolicy"
    )
    assert said[1].startswith("stays, with the data: claims (orders-1) and the record brokergroupstate/orders;")
    label = f"-l {names.LABEL_BROKER_GROUP}=orders"
    assert said[2] == (
        f"  to delete them for good: kubectl delete -n {bench.namespace} persistentvolumeclaims {label} &&"
        f" kubectl delete -n {bench.namespace} brokergroupstates orders"
    )
    assert said[3] == f"brokergroup.{names.GROUP}/orders released"
    assert groups(bench) == []
    assert bench.get(Pod, "orders-2")["metadata"]["finalizers"] == ["example.com/other"]
    assert bench.get(PersistentVolumeClaim, "orders-1")


def test_of_an_orphaned_group_it_says_that_everything_stays(bench: Bench) -> None:
    """The garbage collector has finished by then: the group no longer shows how it was deleted."""
    deleted_group(bench, renewed=LONG_AGO, policy="Orphan")
    assert bench.get(BrokerGroup, "orders")["metadata"]["finalizers"] == [names.FINALIZER_BROKER_GROUP]
    said = bench.must("release", "orders", "--confirm", "orders").splitlines()
    assert said[0].startswith("stays, by --cascade=orphan: pods (orders-1, orders-2), Services")
    assert groups(bench) == []
    assert "deletionTimestamp" not in bench.get(Pod, "orders-1")["metadata"]


def test_nothing_is_released_while_an_operator_is_alive(bench: Bench) -> None:
    deleted_group(bench, renewed=ALWAYS)
    for more in ((), ("--operator-is-gone",)):
        said = bench.run("release", "orders", "--confirm", "orders", *more)
        assert said.code == 1
        assert "renewed its Lease 0s ago (operator-0); the operator itself stops the brokers" in said.err
    assert groups(bench) == ["orders"]
    assert names.FINALIZER_FENCE in bench.get(Pod, "orders-2")["metadata"]["finalizers"]


def test_where_no_lease_proves_it_a_person_has_to_say_so(bench: Bench) -> None:
    deleted_group(bench, renewed=None)
    said = bench.run("release", "orders", "--confirm", "orders")
    assert said.code == 9
    assert "sure that none runs? Say --operator-is-gone" in said.err
    assert groups(bench) == ["orders"]
    bench.must("release", "orders", "--confirm", "orders", "--operator-is-gone")
    assert groups(bench) == []


@pytest.mark.parametrize("arguments", [(), ("--confirm", "other")])
def test_it_wants_the_name(bench: Bench, arguments: tuple[str, ...]) -> None:
    deleted_group(bench, renewed=LONG_AGO)
    assert bench.run("release", "orders", *arguments).code == 7
    assert "stays, with the data" in bench.must("release", "orders", "--dry-run")
    assert groups(bench) == ["orders"]
    assert names.FINALIZER_FENCE in bench.get(Pod, "orders-2")["metadata"]["finalizers"]


def test_only_what_is_being_deleted_and_held_by_us(bench: Bench) -> None:
    bench.create_group()
    said = bench.run("release", "orders", "--yes")
    assert said.code == 1
    assert (
        f"is not being deleted, nothing was done; first: kubectl delete brokergroup -n {bench.namespace} orders"
        in said.err
    )
    path = bench.path(BrokerGroup, "orders")
    bench.api("PATCH", path, {"metadata": {"finalizers": ["example.com/other"]}})
    bench.api("DELETE", path)
    said = bench.run("release", "orders", "--yes")
    assert (said.code, said.err) == (
        1,
        f"{bench.namespace}/orders: the operator's finalizer does not hold it; its finalizers: example.com/other",
    )

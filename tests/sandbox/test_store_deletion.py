"""How objects go: preconditions, finalizers, the grace period of pods, owners, NAMESPACES, definitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kube_sandbox.api_server.errors import StatusError
from kube_sandbox.api_server.kinds.builtin import CLAIMS, CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, PODS
from kube_sandbox.api_server.requests import Deletion, Write
from kube_sandbox.api_server.subresources import bind, evict
from kube_sandbox.api_server.verbs import Target

if TYPE_CHECKING:
    from kube_sandbox.api_server.resource_types import ResourceType
    from kube_sandbox.api_server.store.object_store import ObjectStore


def _exists(store: ObjectStore, resource: ResourceType, name: str, namespace: str = "default") -> bool:
    return store.storage.get(resource.storage_key, (namespace, name)) is not None


@pytest.fixture
def running_pod(store: ObjectStore) -> dict[str, Any]:
    spec = {"containers": [{"name": "c", "image": "x"}], "terminationGracePeriodSeconds": 20}
    store.create(PODS, "default", {"metadata": {"name": "p", "labels": {"app": "x"}}, "spec": spec})
    bind(store, Target(PODS, "default", "p", "binding"), {"target": {"kind": "Node", "name": "n"}}, Write())
    return store.get(PODS, "default", "p").obj


def test_preconditions_must_hold(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    made = store.create(things, "default", thing()).obj["metadata"]
    for options in (Deletion(uid="other"), Deletion(resource_version="1")):
        with pytest.raises(StatusError, match=r"in the precondition .* does not match") as caught:
            store.delete(things, "default", "one", options)
        assert caught.value.code == 409
    store.delete(things, "default", "one", Deletion(uid=made["uid"], resource_version=made["resourceVersion"]))
    assert not _exists(store, things, "one")


def test_a_running_pod_has_the_shortest_grace_that_was_asked_for(
    store: ObjectStore, running_pod: dict[str, Any]
) -> None:
    for asked, seconds in ((None, 20), (5, 5), (50, 5)):
        version, gone = store.delete(PODS, "default", "p", Deletion(grace_period_seconds=asked))
        meta = version.obj["metadata"]
        assert not gone
        assert (meta["deletionGracePeriodSeconds"], meta["deletionTimestamp"]) == (
            seconds,
            f"2027-01-15T08:00:{seconds:02}Z",
        )


def test_eviction_asks_the_disruption_budget(store: ObjectStore, running_pod: dict[str, Any]) -> None:
    budgets = store.resource("policy", "v1", "poddisruptionbudgets")
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}
    store.create(budgets, "default", {"metadata": {"name": "b"}, "spec": spec})
    target = Target(PODS, "default", "p", "eviction")
    with pytest.raises(StatusError, match="disruption budget") as caught:
        evict(store, target, {}, Write())
    assert caught.value.code == 429
    allowed = {"status": {"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}}
    store.patch(budgets, "default", "b", allowed, Write(), subresource="status")
    evict(store, target, {}, Write())
    assert "deletionTimestamp" in store.get(PODS, "default", "p").obj["metadata"]
    # Nobody else is let go until the disruption controller has counted again.
    status = store.get(budgets, "default", "b").obj["status"]
    assert (status["disruptionsAllowed"], list(status["disruptedPods"])) == (0, ["p"])


def _owned_by(owner: dict[str, Any], *, blocks: bool = False) -> dict[str, Any]:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": blocks,
    }


def _config_map(name: str, *owners: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": name, "ownerReferences": list(owners)}}


def test_dependents_follow_their_last_owner(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    maps = store.resource("", "v1", "configmaps")
    first, second = (store.create(things, "default", thing(name)).obj for name in ("one", "two"))
    store.create(maps, "default", _config_map("both", _owned_by(first), _owned_by(second)))
    store.create(maps, "default", _config_map("only", _owned_by(first)))
    store.delete(things, "default", "one")
    store.create(maps, "default", _config_map("late", _owned_by(first)))
    assert _exists(store, maps, "only"), "the collector works in the background"
    store.run_background()
    assert not _exists(store, maps, "only")
    assert not _exists(store, maps, "late"), "one whose owner is gone is collected at birth"
    assert [owner["name"] for owner in store.get(maps, "default", "both").obj["metadata"]["ownerReferences"]] == ["two"]
    store.delete(things, "default", "two")
    store.run_background()
    assert not _exists(store, maps, "both")


def test_foreground_deletion_waits_for_blocking_dependents(
    store: ObjectStore, things: ResourceType, thing: Any
) -> None:
    maps = store.resource("", "v1", "configmaps")
    owner = store.create(things, "default", thing()).obj
    held = _config_map("held", _owned_by(owner, blocks=True))
    held["metadata"]["finalizers"] = ["example.dev/hold"]
    store.create(maps, "default", held)
    store.delete(things, "default", "one", Deletion(propagation="Foreground"))
    store.run_background()
    assert _exists(store, things, "one")
    store.patch(maps, "default", "held", {"metadata": {"finalizers": None}}, Write())
    store.run_background()
    assert not _exists(store, things, "one")


def test_orphans_lose_their_owner_and_stay(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    maps = store.resource("", "v1", "configmaps")
    owner = store.create(things, "default", thing()).obj
    store.create(maps, "default", _config_map("orphan", _owned_by(owner)))
    store.delete(things, "default", "one", Deletion(propagation="Orphan"))
    store.run_background()
    assert not _exists(store, things, "one")
    assert "ownerReferences" not in store.get(maps, "default", "orphan").obj["metadata"]


def test_a_namespace_empties_itself_first(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    store.create(NAMESPACES, "", {"metadata": {"name": "lab"}})
    held = thing()
    held["metadata"]["finalizers"] = ["example.dev/hold"]
    store.create(things, "lab", held)
    version, gone = store.delete(NAMESPACES, "", "lab")
    assert (gone, version.obj["status"]["phase"]) == (False, "Terminating")
    store.run_background()
    with pytest.raises(StatusError, match="because it is being terminated") as caught:
        store.create(things, "lab", thing("two"))
    assert caught.value.code == 403
    store.patch(things, "lab", "one", {"metadata": {"finalizers": None}}, Write())
    store.run_background()
    assert not _exists(store, NAMESPACES, "lab", namespace="")


def test_a_definition_takes_its_objects_along(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    store.create(things, "default", thing())
    watch = store.watch(things, since=store.storage.revision)
    store.delete(CUSTOM_RESOURCE_DEFINITIONS, "", "things.example.dev")
    store.run_background()
    assert not _exists(store, CUSTOM_RESOURCE_DEFINITIONS, "things.example.dev", namespace="")
    assert [event.type for event in watch.take()] == ["DELETED"]
    assert watch.closed
    with pytest.raises(LookupError):
        store.resource("example.dev", "v1", "things")


HOLD = "example.dev/hold"


@pytest.mark.parametrize(
    ("bound", "finalizers", "left"),
    [
        pytest.param(True, [], ["kubernetes.io/pvc-protection"], id="a pod on a node uses it"),
        pytest.param(False, [], None, id="the pod has no node"),
        pytest.param(False, [HOLD], [HOLD], id="another finalizer"),
    ],
)
def test_a_claim_goes_only_when_no_pod_uses_it(
    store: ObjectStore, bound: bool, finalizers: list[str], left: list[str] | None
) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    made = store.create(CLAIMS, "default", {"metadata": {"name": "data", "finalizers": finalizers}, "spec": spec})
    assert made.obj["metadata"]["finalizers"] == [*finalizers, "kubernetes.io/pvc-protection"]
    assert "pvc-protection" not in str(made.obj["metadata"].get("managedFields")), "no manager owns what admission adds"
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    body = {"metadata": {"name": "user"}, "spec": {"containers": [{"name": "c", "image": "x"}], "volumes": volumes}}
    store.create(PODS, "default", body)
    if bound:
        bind(store, Target(PODS, "default", "user", "binding"), {"target": {"name": "n"}}, Write())

    store.delete(CLAIMS, "default", "data")
    store.run_background()
    kept = store.storage.get(CLAIMS.storage_key, ("default", "data"))
    assert (kept.obj["metadata"]["finalizers"] if kept else None) == left
    if bound:
        store.delete(PODS, "default", "user", Deletion(grace_period_seconds=0))
        store.run_background()
        assert not _exists(store, CLAIMS, "data")

"""Server-side apply: shares, conflicts, force, taking back (https://kubernetes.io/docs/reference/using-api/server-side-apply/)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kube_sandbox.api_server.errors import StatusError
from kube_sandbox.api_server.requests import Write
from kube_sandbox.api_server.store.field_sets import from_fields_v1, to_fields_v1

if TYPE_CHECKING:
    from kube_sandbox.api_server.resource_types import ResourceType
    from kube_sandbox.api_server.store.object_store import ObjectStore


def _apply(
    store: ObjectStore, things: ResourceType, body: dict[str, Any], manager: str, **options: Any
) -> dict[str, Any]:
    subresource = options.pop("subresource", "")
    write = Write(field_manager=manager, **options)
    return store.apply(things, "default", body["metadata"]["name"], body, write, subresource=subresource).obj


def _managers(obj: dict[str, Any]) -> dict[tuple[str, str], Any]:
    return {
        (entry["manager"], entry["operation"]): entry["fieldsV1"] for entry in obj["metadata"].get("managedFields", [])
    }


def test_apply_creates_and_owns_what_it_names(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    made = _apply(store, things, thing(config={"a": "1"}), "alice")
    assert made["spec"]["replicas"] == 3, "defaults are there, and nobody's"
    assert _managers(made) == {("alice", "Apply"): {"f:spec": {"f:config": {"f:a": {}}, "f:mode": {}}}}


def test_two_managers_share_an_object(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    _apply(store, things, thing(config={"a": "1"}, parts=[{"id": 1, "code": "x"}]), "alice")
    body = thing(config={"b": "2"}, parts=[{"id": 2, "code": "y"}])
    del body["spec"]["mode"]
    merged = _apply(store, things, body, "bob")
    assert merged["spec"]["config"] == {"a": "1", "b": "2"}
    assert [part["id"] for part in merged["spec"]["parts"]] == [1, 2]
    assert _managers(merged)["bob", "Apply"] == {
        "f:spec": {
            "f:config": {"f:b": {}},
            "f:parts": {'k:{"id":2}': {".": {}, "f:code": {}, "f:id": {}}},
        }
    }


def test_changing_what_another_owns_is_a_conflict_unless_forced(
    store: ObjectStore, things: ResourceType, thing: Any
) -> None:
    _apply(store, things, thing(replicas=3), "alice")
    with pytest.raises(StatusError) as caught:
        _apply(store, things, thing(replicas=4), "bob")
    assert (caught.value.code, caught.value.reason) == (409, "Conflict")
    assert caught.value.message == 'Apply failed with 1 conflict: conflict with "alice": .spec.replicas'
    assert caught.value.details == {
        "causes": [{"reason": "FieldManagerConflict", "message": 'conflict with "alice"', "field": ".spec.replicas"}]
    }
    forced = _apply(store, things, thing(replicas=4), "bob", force=True)
    assert forced["spec"]["replicas"] == 4
    assert _managers(forced)["alice", "Apply"] == {"f:spec": {"f:mode": {}}}
    agreed = _apply(store, things, thing(replicas=4), "carol")
    assert _managers(agreed)["carol", "Apply"] == {"f:spec": {"f:mode": {}, "f:replicas": {}}}


def test_a_conflict_with_an_updater_names_its_version(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    store.create(things, "default", thing(replicas=3, config={"a": "1"}), Write(field_manager="kubectl-edit"))
    with pytest.raises(StatusError) as caught:
        _apply(store, things, thing(replicas=4, config={"a": "2"}), "bob")
    assert caught.value.message == (
        'Apply failed with 2 conflicts: conflicts with "kubectl-edit" using example.dev/v1:\n'
        "- .spec.replicas\n- .spec.config.a"
    )


def test_what_is_not_applied_any_more_is_taken_back(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    _apply(
        store,
        things,
        thing(replicas=5, config={"a": "1", "b": "2"}, parts=[{"id": 1, "code": "x"}, {"id": 2, "code": "y"}]),
        "alice",
    )
    store.patch(things, "default", "one", {"spec": {"config": {"c": "3"}}}, Write(field_manager="bob"))
    left = _apply(store, things, thing(config={"b": "2"}, parts=[{"id": 2, "code": "y"}]), "alice")
    assert left["spec"] == {
        "mode": "Small",
        "replicas": 3,
        "config": {"b": "2", "c": "3"},
        "parts": [{"id": 2, "code": "y"}],
    }


def test_applying_the_same_again_changes_nothing(
    store: ObjectStore, things: ResourceType, thing: Any, clock: Any
) -> None:
    first = _apply(store, things, thing(replicas=5), "alice")
    clock.now += 60
    revision = store.storage.revision
    assert _apply(store, things, thing(replicas=5), "alice") == first
    assert store.storage.revision == revision


def test_status_is_applied_apart(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    _apply(store, things, thing(), "alice")
    body = {"apiVersion": "example.dev/v1", "kind": "Thing", "metadata": {"name": "one"}}
    conditions = [{"type": "Ready", "status": "True"}]
    applied = _apply(
        store,
        things,
        {**body, "status": {"conditions": conditions}, "spec": {"mode": "Big"}},
        "bob",
        subresource="status",
    )
    assert applied["spec"]["mode"] == "Small"
    assert applied["status"] == {"conditions": conditions}
    other = [{"type": "Live", "status": "True"}]
    both = _apply(store, things, {**body, "status": {"conditions": other}}, "carol", subresource="status")
    assert [condition["type"] for condition in both["status"]["conditions"]] == ["Ready", "Live"]
    with pytest.raises(StatusError, match="not found"):
        _apply(store, things, {**body, "metadata": {"name": "absent"}, "status": {}}, "bob", subresource="status")


def test_updates_take_over_the_fields_they_change(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    _apply(store, things, thing(replicas=5), "alice")
    changed = store.patch(things, "default", "one", {"spec": {"replicas": 6}}, Write(field_manager="bob")).obj
    assert _managers(changed) == {
        ("alice", "Apply"): {"f:spec": {"f:mode": {}}},
        ("bob", "Update"): {"f:spec": {"f:replicas": {}}},
    }
    removed = store.patch(
        things,
        "default",
        "one",
        [{"op": "remove", "path": "/spec/replicas"}],
        Write(field_manager="carol"),
        kind="json",
    ).obj
    assert removed["spec"]["replicas"] == 3
    assert _managers(removed)["carol", "Update"] == {"f:spec": {"f:replicas": {}}}


def test_a_builtin_kind_is_merged_by_the_keys_of_its_lists(store: ObjectStore) -> None:
    pods = store.resource("", "v1", "pods")
    body = {
        "metadata": {"name": "p", "finalizers": ["a.dev/x"]},
        "spec": {"containers": [{"name": "c", "image": "x", "ports": [{"containerPort": 80}]}]},
    }
    store.apply(pods, "default", "p", body, Write(field_manager="alice"))
    body["metadata"] = {"name": "p", "finalizers": ["b.dev/y"]}
    body["spec"] = {"containers": [{"name": "c", "image": "y"}]}
    merged = store.apply(pods, "default", "p", body, Write(field_manager="bob", force=True)).obj
    assert merged["metadata"]["finalizers"] == ["a.dev/x", "b.dev/y"]
    assert merged["spec"]["containers"][0]["image"] == "y"
    assert merged["spec"]["containers"][0]["ports"] == [{"containerPort": 80, "protocol": "TCP"}]


def test_field_sets_survive_their_json() -> None:
    paths = {("f:a",), ("f:a", "f:b"), ("f:c", 'k:{"x":1}'), ("f:c", 'k:{"x":1}', "f:y"), ("f:d", 'v:"e"')}
    fields = to_fields_v1(paths)
    assert fields == {
        "f:a": {".": {}, "f:b": {}},
        "f:c": {'k:{"x":1}': {".": {}, "f:y": {}}},
        "f:d": {'v:"e"': {}},
    }
    assert from_fields_v1(fields) == paths

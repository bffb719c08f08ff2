"""The store without sockets: what no conversation of tests/parity shows of writes, apply, lists and watches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kube_sandbox.api_server.errors import StatusError
from kube_sandbox.api_server.kinds.builtin import CUSTOM_RESOURCE_DEFINITIONS, PODS
from kube_sandbox.api_server.requests import Selection, Write
from kube_sandbox.api_server.store.object_store import ObjectStore
from kube_sandbox.api_server.store.writes import patched
from kube_sandbox.api_server.values import clone

if TYPE_CHECKING:
    from kube_sandbox.api_server.resource_types import ResourceType


def _refused(code: int, reason: str, call: Any) -> StatusError:
    with pytest.raises(StatusError) as caught:
        call()
    assert (caught.value.code, caught.value.reason) == (code, reason)
    return caught.value


def _apply(
    store: ObjectStore, resource: ResourceType, body: dict[str, Any], manager: str, **options: Any
) -> dict[str, Any]:
    subresource = options.pop("subresource", "")
    write = Write(field_manager=manager, **options)
    return store.apply(resource, "default", body["metadata"]["name"], body, write, subresource=subresource).obj


def _managers(obj: dict[str, Any]) -> dict[tuple[str, str], Any]:
    return {(entry["manager"], entry["operation"]): entry["fieldsV1"] for entry in obj["metadata"]["managedFields"]}


def test_a_new_object_gets_its_identity_from_the_server(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    body = thing()
    body["metadata"].update({"uid": "mine", "resourceVersion": "7", "creationTimestamp": "1999-01-01T00:00:00Z"})
    meta = store.create(things, "default", body).obj["metadata"]
    assert meta["uid"] != "mine"
    assert meta["creationTimestamp"] == "2027-01-15T08:00:00Z"
    assert meta["generation"] == 1
    assert meta["resourceVersion"] == str(store.storage.revision)


def test_generated_names_differ(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    body = thing()
    body["metadata"] = {"generateName": "many-"}
    names = {store.create(things, "default", body).obj["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("many-") and len(name) == 10 for name in names)


def test_a_uid_names_one_incarnation(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    old = clone(store.create(things, "default", thing()).obj)
    store.delete(things, "default", "one")
    new = store.create(things, "default", thing())
    old["metadata"]["resourceVersion"] = new.obj["metadata"]["resourceVersion"]
    error = _refused(409, "Conflict", lambda: store.update(things, "default", "one", old))
    assert "Precondition failed: UID" in error.message
    stale = {"metadata": {"uid": "another", "resourceVersion": "1"}}
    _refused(409, "Conflict", lambda: store.patch(things, "default", "one", stale, Write()))


def test_generation_counts_changes_of_the_spec_only(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    store.create(things, "default", thing())
    store.patch(things, "default", "one", {"metadata": {"labels": {"a": "b"}}}, Write())
    store.patch(things, "default", "one", {"status": {"replicas": 2}}, Write(), subresource="status")
    assert store.get(things, "default", "one").obj["metadata"]["generation"] == 1
    store.patch(things, "default", "one", {"spec": {"replicas": 4}}, Write())
    assert store.get(things, "default", "one").obj["metadata"]["generation"] == 2


def test_a_write_that_changes_nothing_commits_nothing(
    store: ObjectStore, things: ResourceType, thing: Any, clock: Any
) -> None:
    applied = _apply(store, things, thing(), "alice")
    clock.now += 60
    revision = store.storage.revision
    assert _apply(store, things, thing(), "alice") == applied
    assert store.update(things, "default", "one", applied).obj == applied
    store.patch(things, "default", "one", {"spec": {"mode": "Small"}}, Write())
    assert store.storage.revision == revision


def test_dry_run_judges_but_does_not_commit(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    store.create(things, "default", thing(), Write(dry_run=True))
    assert store.list_objects(things).items == []
    _refused(422, "Invalid", lambda: store.create(things, "default", thing(replicas=99), Write(dry_run=True)))


def test_strategic_merge_patch_knows_the_keys_of_lists() -> None:
    containers = [
        {"name": "a", "image": "x", "env": [{"name": "K", "value": "1"}, {"name": "L", "value": "2"}]},
        {"name": "b", "image": "y", "args": ["1"]},
        {"name": "c", "image": "y"},
    ]
    metadata = {"finalizers": ["x.dev/one"], "labels": {"a": "b"}}
    patch = {
        "metadata": {"finalizers": ["x.dev/two"], "labels": {"a": None}},
        "spec": {
            "$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
            "containers": [
                {"name": "a", "image": "z", "env": [{"name": "K", "$patch": "delete"}]},
                {"name": "b", "args": ["2"]},
                {"name": "c", "$patch": "delete"},
                {"name": "d", "image": "w"},
            ],
        },
    }
    assert patched("strategic", {"metadata": metadata, "spec": {"containers": containers}}, patch) == {
        "metadata": {"finalizers": ["x.dev/one", "x.dev/two"], "labels": {}},
        "spec": {
            "containers": [
                {"name": "a", "image": "z", "env": [{"name": "L", "value": "2"}]},
                {"name": "b", "image": "y", "args": ["2"]},
                {"name": "d", "image": "w"},
            ],
        },
    }
    nameless = {"spec": {"containers": [{"image": "z"}]}}
    _refused(400, "BadRequest", lambda: patched("strategic", {"spec": {"containers": containers}}, nameless))


def test_the_body_must_fit_the_request(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    store.create(things, "default", thing())
    body = thing("two")
    body["metadata"]["resourceVersion"] = "5"
    error = _refused(400, "BadRequest", lambda: store.update(things, "default", "one", body))
    assert error.message == "the name of the object (two) does not match the name on the URL (one)"
    elsewhere = thing("two")
    elsewhere["metadata"]["namespace"] = "kube-system"
    _refused(400, "BadRequest", lambda: store.create(things, "default", elsewhere))


def test_built_in_objects_are_read_strictly(store: ObjectStore) -> None:
    write = Write()
    body = {
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "x", "imagePullpolicy": "Never"}]},
    }
    stored = store.create(PODS, "default", body, write)
    assert write.warnings == ['unknown field "spec.containers[0].imagePullpolicy"']
    assert stored.obj["spec"]["containers"][0]["imagePullPolicy"] == "Always"
    error = _refused(400, "BadRequest", lambda: store.create(PODS, "default", body, Write(field_validation="Strict")))
    assert 'strict decoding error: unknown field "spec.containers[0].imagePullpolicy"' in error.message


def test_managers_that_apply_the_same_share_it(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    for manager in ("alice", "bob"):
        made = _apply(store, things, thing(replicas=4), manager)
    share: dict[str, Any] = {"f:spec": {"f:mode": {}, "f:replicas": {}}}
    assert _managers(made) == {("alice", "Apply"): share, ("bob", "Apply"): share}


def test_status_is_applied_apart(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    _apply(store, things, thing(), "alice")
    body = {"apiVersion": "example.dev/v1", "kind": "Thing", "metadata": {"name": "one"}, "spec": {"mode": "Big"}}
    for manager, kind in (("bob", "Ready"), ("carol", "Live")):
        status = {"conditions": [{"type": kind, "status": "True"}]}
        both = _apply(store, things, {**body, "status": status}, manager, subresource="status")
    assert both["spec"]["mode"] == "Small"
    assert [condition["type"] for condition in both["status"]["conditions"]] == ["Ready", "Live"]
    absent = {**body, "metadata": {"name": "absent"}, "status": {}}
    _refused(404, "NotFound", lambda: _apply(store, things, absent, "bob", subresource="status"))


def test_a_field_that_is_removed_is_owned_with_its_default(
    store: ObjectStore, things: ResourceType, thing: Any
) -> None:
    _apply(store, things, thing(replicas=6), "alice")
    remove = [{"op": "remove", "path": "/spec/replicas"}]
    removed = store.patch(things, "default", "one", remove, Write(field_manager="carol"), kind="json").obj
    assert removed["spec"]["replicas"] == 3
    assert _managers(removed)["carol", "Update"] == {"f:spec": {"f:replicas": {}}}


def test_a_builtin_kind_is_merged_by_the_keys_of_its_lists(store: ObjectStore) -> None:
    for manager, image, more in (("alice", "x", {"ports": [{"containerPort": 80}]}), ("bob", "y", {})):
        body = {
            "metadata": {"name": "p", "finalizers": [f"{manager}.dev/x"]},
            "spec": {"containers": [{"name": "c", "image": image, **more}]},
        }
        merged = _apply(store, PODS, body, manager, force=True)
    assert merged["metadata"]["finalizers"] == ["alice.dev/x", "bob.dev/x"]
    assert merged["spec"]["containers"][0]["image"] == "y"
    assert merged["spec"]["containers"][0]["ports"] == [{"containerPort": 80, "protocol": "TCP"}]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("tier=1", ["a"]),
        ("tier==2", ["b"]),
        ("tier!=1", ["b", "c"]),
        ("tier in (1, 2),!old", ["a"]),
        ("tier notin (1)", ["b", "c"]),
        ("tier", ["a", "b"]),
        ("!tier", ["c"]),
        ("", ["a", "b", "c"]),
    ],
)
def test_label_selectors(
    store: ObjectStore, things: ResourceType, thing: Any, selector: str, expected: list[str]
) -> None:
    for name, labels in (("a", {"tier": "1"}), ("b", {"tier": "2", "old": "yes"}), ("c", {})):
        body = thing(name)
        body["metadata"]["labels"] = labels
        store.create(things, "default", body)
    listed = store.list_objects(things, Selection(label_selector=selector)).items
    assert [version.obj["metadata"]["name"] for version in listed] == expected


def test_a_deletion_has_its_own_revision_and_a_closed_watch_gets_no_more(
    store: ObjectStore, things: ResourceType, thing: Any
) -> None:
    made = store.create(things, "default", thing())
    watch = store.watch(things, since=made.resource_version)
    store.delete(things, "default", "one")
    (event,) = watch.take()
    assert event.version.obj["metadata"]["resourceVersion"] == str(store.storage.revision)
    watch.close()
    store.create(things, "default", thing())
    assert watch.take() == []


def test_the_forgotten_past_is_gone(definition: dict[str, Any], thing: Any) -> None:
    store = ObjectStore(history_length=3)
    store.create(CUSTOM_RESOURCE_DEFINITIONS, "", definition)
    things = store.resource("example.dev", "v1", "things")
    versions = [store.create(things, "default", thing(f"t{number}")).resource_version for number in range(6)]
    assert len(store.watch(things, since=versions[2]).take()) == 3
    _refused(410, "Expired", lambda: store.watch(things, since=versions[1]))
    store.storage.forget_past()
    _refused(410, "Expired", lambda: store.watch(things, since=versions[-1] - 1))


def test_a_watcher_that_never_reads_is_dropped(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    store.storage.most_pending = 2
    watch = store.watch(things, since=store.storage.revision)
    for number in range(4):
        store.create(things, "default", thing(f"t{number}"))
    assert watch.closed


def test_the_same_seed_and_clock_give_the_same_history(definition: dict[str, Any], thing: Any) -> None:
    def history() -> list[dict[str, Any]]:
        store = ObjectStore(clock=lambda: 1000.0, seed=3)
        store.create(CUSTOM_RESOURCE_DEFINITIONS, "", definition)
        things = store.resource("example.dev", "v1", "things")
        body = thing()
        body["metadata"] = {"generateName": "x-"}
        store.create(things, "default", body)
        return [version.obj for _, _, version in store.storage.everything()]

    assert history() == history()

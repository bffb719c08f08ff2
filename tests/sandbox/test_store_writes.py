"""Create, update and patch on the store without sockets: identity, compare-and-set, generation, subresources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kube_sandbox.api_server.errors import StatusError
from kube_sandbox.api_server.requests import Write
from kube_sandbox.api_server.store.writes import patched
from kube_sandbox.api_server.values import clone

if TYPE_CHECKING:
    from kube_sandbox.api_server.resource_types import ResourceType
    from kube_sandbox.api_server.store.object_store import ObjectStore


def _refused(code: int, reason: str, call: Any) -> StatusError:
    with pytest.raises(StatusError) as caught:
        call()
    assert (caught.value.code, caught.value.reason) == (code, reason)
    return caught.value


def test_a_new_object_gets_its_identity_from_the_server(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    body = thing()
    body["metadata"].update({"uid": "mine", "resourceVersion": "7", "creationTimestamp": "1999-01-01T00:00:00Z"})
    body["status"] = {"replicas": 9}
    meta = store.create(things, "default", body).obj["metadata"]
    assert meta["uid"] != "mine"
    assert meta["creationTimestamp"] == "2027-01-15T08:00:00Z"
    assert meta["generation"] == 1
    assert int(meta["resourceVersion"]) > 1
    assert "status" not in store.get(things, "default", "one").obj, "the status subresource is written apart"


def test_create_refuses_what_exists_and_namespaces_that_do_not(
    store: ObjectStore, things: ResourceType, thing: Any
) -> None:
    store.create(things, "default", thing())
    error = _refused(409, "AlreadyExists", lambda: store.create(things, "default", thing()))
    assert error.message == 'things.example.dev "one" already exists'
    error = _refused(404, "NotFound", lambda: store.create(things, "nowhere", thing()))
    assert error.message == 'namespaces "nowhere" not found'


def test_generated_names_differ(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    body = thing()
    body["metadata"] = {"generateName": "many-"}
    names = {store.create(things, "default", body).obj["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("many-") and len(name) == 10 for name in names)


def test_put_with_a_stale_resource_version_is_refused(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    first = clone(store.create(things, "default", thing()).obj)
    second = clone(first)
    first["spec"]["replicas"] = 4
    store.update(things, "default", "one", first)
    second["spec"]["replicas"] = 5
    error = _refused(409, "Conflict", lambda: store.update(things, "default", "one", second))
    assert "the object has been modified" in error.message
    assert store.get(things, "default", "one").obj["spec"]["replicas"] == 4


def test_put_names_another_incarnation_by_its_uid(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    old = clone(store.create(things, "default", thing()).obj)
    store.delete(things, "default", "one")
    new = store.create(things, "default", thing())
    old["metadata"]["resourceVersion"] = new.obj["metadata"]["resourceVersion"]
    error = _refused(409, "Conflict", lambda: store.update(things, "default", "one", old))
    assert "Precondition failed: UID" in error.message


def test_a_patch_that_names_another_uid_is_invalid(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    store.create(things, "default", thing())
    patch = {"metadata": {"uid": "another", "labels": {"a": "b"}}}
    error = _refused(422, "Invalid", lambda: store.patch(things, "default", "one", patch, Write()))
    assert 'metadata.uid: Invalid value: "another": field is immutable' in error.message
    stale = {"metadata": {"uid": "another", "resourceVersion": "1"}}
    _refused(409, "Conflict", lambda: store.patch(things, "default", "one", stale, Write()))


def test_put_without_resource_version_is_invalid_for_custom_objects(
    store: ObjectStore, things: ResourceType, thing: Any
) -> None:
    store.create(things, "default", thing())
    error = _refused(422, "Invalid", lambda: store.update(things, "default", "one", thing()))
    assert "metadata.resourceVersion: Invalid value: 0: must be specified for an update" in error.message


def test_generation_counts_changes_of_the_spec_only(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    store.create(things, "default", thing())
    store.patch(things, "default", "one", {"metadata": {"labels": {"a": "b"}}}, Write())
    store.patch(things, "default", "one", {"status": {"replicas": 2}}, Write(), subresource="status")
    assert store.get(things, "default", "one").obj["metadata"]["generation"] == 1
    store.patch(things, "default", "one", {"spec": {"replicas": 4}}, Write())
    assert store.get(things, "default", "one").obj["metadata"]["generation"] == 2


def test_status_and_spec_are_written_apart(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    created = clone(store.create(things, "default", thing()).obj)
    created["spec"]["replicas"] = 7
    created["status"] = {"replicas": 2}
    after_status = clone(store.update(things, "default", "one", created, subresource="status").obj)
    assert (after_status["spec"]["replicas"], after_status["status"]) == (3, {"replicas": 2})
    after_status["spec"]["replicas"] = 7
    after_status["status"] = {"replicas": 5}
    after_spec = store.update(things, "default", "one", after_status).obj
    assert (after_spec["spec"]["replicas"], after_spec["status"]) == (7, {"replicas": 2})


def test_a_write_that_changes_nothing_commits_nothing(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    created = store.create(things, "default", thing())
    revision = store.storage.revision
    assert store.update(things, "default", "one", created.obj).obj == created.obj
    store.patch(things, "default", "one", {"spec": {"mode": "Small"}}, Write())
    assert store.storage.revision == revision


def test_dry_run_judges_but_does_not_commit(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    store.create(things, "default", thing(), Write(dry_run=True))
    assert store.list_objects(things).items == []
    _refused(422, "Invalid", lambda: store.create(things, "default", thing(replicas=99), Write(dry_run=True)))


def test_json_patch_tests_before_it_changes(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    version = store.create(things, "default", thing()).obj["metadata"]["resourceVersion"]
    good = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": version},
        {"op": "replace", "path": "/spec/replicas", "value": 4},
    ]
    store.patch(things, "default", "one", good, Write(), kind="json")
    error = _refused(422, "Invalid", lambda: store.patch(things, "default", "one", good, Write(), kind="json"))
    assert "the server rejected our request" in error.message
    missing = [{"op": "remove", "path": "/spec/nothing"}]
    _refused(422, "Invalid", lambda: store.patch(things, "default", "one", missing, Write(), kind="json"))


def test_merge_patch_removes_by_null_and_checks_its_resource_version(
    store: ObjectStore, things: ResourceType, thing: Any
) -> None:
    store.create(things, "default", thing(config={"a": "1", "b": "2"}))
    patched = store.patch(things, "default", "one", {"spec": {"config": {"a": None, "c": "3"}}}, Write())
    assert patched.obj["spec"]["config"] == {"b": "2", "c": "3"}
    stale = {"metadata": {"resourceVersion": "1"}, "spec": {"replicas": 4}}
    _refused(409, "Conflict", lambda: store.patch(things, "default", "one", stale, Write()))


def test_strategic_merge_patch_knows_the_keys_of_lists() -> None:
    containers = [
        {"name": "a", "image": "x", "env": [{"name": "K", "value": "1"}, {"name": "L", "value": "2"}]},
        {"name": "b", "image": "y", "args": ["1"]},
        {"name": "c", "image": "y"},
    ]
    metadata = {"finalizers": ["x.dev/one"], "ownerReferences": [{"uid": "u"}, {"uid": "v"}], "labels": {"a": "b"}}
    patch = {
        "metadata": {
            "finalizers": ["x.dev/two"],
            "ownerReferences": [{"uid": "u", "$patch": "delete"}, {"uid": "none", "$patch": "delete"}],
            "labels": {"a": None},
        },
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
        "metadata": {"finalizers": ["x.dev/one", "x.dev/two"], "ownerReferences": [{"uid": "v"}], "labels": {}},
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


def test_custom_objects_have_no_strategic_merge(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    store.create(things, "default", thing())
    _refused(415, "UnsupportedMediaType", lambda: store.patch(things, "default", "one", {}, Write(), kind="strategic"))


def test_names_and_labels_are_checked(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    error = _refused(422, "Invalid", lambda: store.create(things, "default", thing("Not_A_Name")))
    assert error.message.startswith(
        'Thing.example.dev "Not_A_Name" is invalid: metadata.name: Invalid value: "Not_A_Name": a lowercase RFC 1123'
    )
    body = thing()
    body["metadata"]["labels"] = {"a": "not a label!"}
    error = _refused(422, "Invalid", lambda: store.create(things, "default", body))
    assert error.details is not None
    assert error.details["causes"][0]["field"] == "metadata.labels"


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
    pods = store.resource("", "v1", "pods")
    container = {"name": "c", "image": "x", "imagePullpolicy": "Never"}
    write = Write()
    stored = store.create(pods, "default", {"metadata": {"name": "p"}, "spec": {"containers": [container]}}, write)
    assert write.warnings == ['unknown field "spec.containers[0].imagePullpolicy"']
    assert stored.obj["spec"]["containers"][0]["imagePullPolicy"] == "Always"
    wrong = {"metadata": {"name": "q"}, "spec": {"containers": [container], "terminationGracePeriodSeconds": "5"}}
    error = _refused(400, "BadRequest", lambda: store.create(pods, "default", wrong))
    assert error.message.endswith(
        "json: cannot unmarshal string into Go struct field PodSpec.spec.terminationGracePeriodSeconds of type int64"
    )
    strict = Write(field_validation="Strict")
    body = {"metadata": {"name": "q"}, "spec": {"containers": [container]}}
    error = _refused(400, "BadRequest", lambda: store.create(pods, "default", body, strict))
    assert 'strict decoding error: unknown field "spec.containers[0].imagePullpolicy"' in error.message


def test_hardly_anything_of_a_pod_may_change(store: ObjectStore) -> None:
    pods = store.resource("", "v1", "pods")
    spec = {"containers": [{"name": "c", "image": "x"}]}
    store.create(pods, "default", {"metadata": {"name": "p"}, "spec": spec})
    store.patch(
        pods, "default", "p", {"spec": {"containers": [{"name": "c", "image": "y"}]}}, Write(), kind="strategic"
    )
    error = _refused(422, "Invalid", lambda: store.patch(pods, "default", "p", {"spec": {"nodeName": "n"}}, Write()))
    assert "spec: Forbidden: pod updates may not change fields other than" in error.message
    _refused(422, "Invalid", lambda: store.create(pods, "default", {"metadata": {"name": "q"}, "spec": {}}))

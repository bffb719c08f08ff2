"""The store without sockets: writes, apply, lists and watches beyond the conversations of tests/parity; and deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kube_sandbox.api_server.errors import StatusError
from kube_sandbox.api_server.kinds.builtin import CLAIMS, CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, PODS
from kube_sandbox.api_server.requests import Deletion, Selection, Write
from kube_sandbox.api_server.store.object_store import ObjectStore
from kube_sandbox.api_server.store.writes import patched
from kube_sandbox.api_server.subresources import bind, evict
from kube_sandbox.api_server.values import clone
from kube_sandbox.api_server.verbs import Target
from tests.parity.peer import thing

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


def test_a_new_object_gets_its_identity_from_the_server(store: ObjectStore, things: ResourceType) -> None:
    body = thing()
    body["metadata"].update({"uid": "mine", "resourceVersion": "7", "creationTimestamp": "1999-01-01T00:00:00Z"})
    meta = store.create(things, "default", body).obj["metadata"]
    assert meta["uid"] != "mine"
    assert meta["creationTimestamp"] == "2027-01-15T08:00:00Z"
    assert meta["generation"] == 1
    assert meta["resourceVersion"] == str(store.storage.revision)


def test_generated_names_differ(store: ObjectStore, things: ResourceType) -> None:
    body = thing()
    body["metadata"] = {"generateName": "many-"}
    names = {store.create(things, "default", body).obj["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("many-") and len(name) == 10 for name in names)


def test_a_uid_names_one_incarnation(store: ObjectStore, things: ResourceType) -> None:
    old = clone(store.create(things, "default", thing()).obj)
    store.delete(things, "default", "one")
    new = store.create(things, "default", thing())
    old["metadata"]["resourceVersion"] = new.obj["metadata"]["resourceVersion"]
    error = _refused(409, "Conflict", lambda: store.update(things, "default", "one", old))
    assert "Precondition failed: UID" in error.message
    stale = {"metadata": {"uid": "another", "resourceVersion": "1"}}
    _refused(409, "Conflict", lambda: store.patch(things, "default", "one", stale, Write()))


def test_a_write_that_changes_nothing_commits_nothing(store: ObjectStore, things: ResourceType, clock: Any) -> None:
    applied = _apply(store, things, thing(), "alice")
    clock.now += 60
    revision = store.storage.revision
    assert _apply(store, things, thing(), "alice") == applied
    assert store.update(things, "default", "one", applied).obj == applied
    store.patch(things, "default", "one", {"spec": {"mode": "Small"}}, Write())
    assert store.storage.revision == revision


def test_dry_run_judges_but_does_not_commit(store: ObjectStore, things: ResourceType) -> None:
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
            ]
        },
    }
    nameless = {"spec": {"containers": [{"image": "z"}]}}
    _refused(400, "BadRequest", lambda: patched("strategic", {"spec": {"containers": containers}}, nameless))


def test_the_body_must_fit_the_request(store: ObjectStore, things: ResourceType) -> None:
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


def test_managers_that_apply_the_same_share_it(store: ObjectStore, things: ResourceType) -> None:
    for manager in ("alice", "bob"):
        made = _apply(store, things, thing(replicas=4), manager)
    share: dict[str, Any] = {"f:spec": {"f:mode": {}, "f:replicas": {}}}
    assert _managers(made) == {("alice", "Apply"): share, ("bob", "Apply"): share}


def test_status_is_applied_apart(store: ObjectStore, things: ResourceType) -> None:
    _apply(store, things, thing(), "alice")
    body = {"apiVersion": "example.dev/v1", "kind": "Thing", "metadata": {"name": "one"}, "spec": {"mode": "Big"}}
    for manager, kind in (("bob", "Ready"), ("carol", "Live")):
        status = {"conditions": [{"type": kind, "status": "True"}]}
        both = _apply(store, things, {**body, "status": status}, manager, subresource="status")
    assert both["spec"]["mode"] == "Small"
    assert [condition["type"] for condition in both["status"]["conditions"]] == ["Ready", "Live"]
    absent = {**body, "metadata": {"name": "absent"}, "status": {}}
    _refused(404, "NotFound", lambda: _apply(store, things, absent, "bob", subresource="status"))


def test_a_field_that_is_removed_is_owned_with_its_default(store: ObjectStore, things: ResourceType) -> None:
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
def test_label_selectors(store: ObjectStore, things: ResourceType, selector: str, expected: list[str]) -> None:
    for name, labels in (("a", {"tier": "1"}), ("b", {"tier": "2", "old": "yes"}), ("c", {})):
        body = thing(name)
        body["metadata"]["labels"] = labels
        store.create(things, "default", body)
    listed = store.list_objects(things, Selection(label_selector=selector)).items
    assert [version.obj["metadata"]["name"] for version in listed] == expected


def test_a_deletion_has_its_own_revision_and_a_closed_watch_gets_no_more(
    store: ObjectStore, things: ResourceType
) -> None:
    made = store.create(things, "default", thing())
    watch = store.watch(things, since=made.resource_version)
    store.delete(things, "default", "one")
    (event,) = watch.take()
    assert event.version.obj["metadata"]["resourceVersion"] == str(store.storage.revision)
    watch.close()
    store.create(things, "default", thing())
    assert watch.take() == []


def test_the_forgotten_past_is_gone(definition: dict[str, Any]) -> None:
    store = ObjectStore(history_length=3)
    store.create(CUSTOM_RESOURCE_DEFINITIONS, "", definition)
    things = store.resource("example.dev", "v1", "things")
    versions = [store.create(things, "default", thing(f"t{number}")).resource_version for number in range(6)]
    assert len(store.watch(things, since=versions[2]).take()) == 3
    _refused(410, "Expired", lambda: store.watch(things, since=versions[1]))
    store.storage.forget_past()
    _refused(410, "Expired", lambda: store.watch(things, since=versions[-1] - 1))


def test_a_watcher_that_never_reads_is_dropped(store: ObjectStore, things: ResourceType) -> None:
    store.storage.most_pending = 2
    watch = store.watch(things, since=store.storage.revision)
    for number in range(4):
        store.create(things, "default", thing(f"t{number}"))
    assert watch.closed


def test_the_same_seed_and_clock_give_the_same_history(definition: dict[str, Any]) -> None:
    def history() -> list[dict[str, Any]]:
        store = ObjectStore(clock=lambda: 1000.0, seed=3)
        store.create(CUSTOM_RESOURCE_DEFINITIONS, "", definition)
        things = store.resource("example.dev", "v1", "things")
        body = thing()
        body["metadata"] = {"generateName": "x-"}
        store.create(things, "default", body)
        return [version.obj for _, _, version in store.storage.everything()]

    assert history() == history()


def _exists(store: ObjectStore, resource: ResourceType, name: str, namespace: str = "default") -> bool:
    return store.storage.get(resource.storage_key, (namespace, name)) is not None


@pytest.fixture
def running_pod(store: ObjectStore) -> dict[str, Any]:
    spec = {"containers": [{"name": "c", "image": "x"}], "terminationGracePeriodSeconds": 20}
    store.create(PODS, "default", {"metadata": {"name": "p", "labels": {"app": "x"}}, "spec": spec})
    bind(store, Target(PODS, "default", "p", "binding"), {"target": {"kind": "Node", "name": "n"}}, Write())
    return store.get(PODS, "default", "p").obj


def test_preconditions_must_hold(store: ObjectStore, things: ResourceType) -> None:
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
    # No other pod is evicted until the disruption controller has counted again.
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


def test_dependents_follow_their_last_owner(store: ObjectStore, things: ResourceType) -> None:
    maps = store.resource("", "v1", "configmaps")
    first, second = (store.create(things, "default", thing(name)).obj for name in ("one", "two"))
    store.create(maps, "default", _config_map("both", _owned_by(first), _owned_by(second)))
    store.create(maps, "default", _config_map("only", _owned_by(first)))
    store.delete(things, "default", "one")
    store.create(maps, "default", _config_map("late", _owned_by(first)))
    assert _exists(store, maps, "only"), "the collector works in the background"
    store.run_background()
    assert not _exists(store, maps, "only")
    assert not _exists(store, maps, "late"), "an object whose owner is gone is collected at its creation"
    assert [owner["name"] for owner in store.get(maps, "default", "both").obj["metadata"]["ownerReferences"]] == ["two"]
    store.delete(things, "default", "two")
    store.run_background()
    assert not _exists(store, maps, "both")


def test_foreground_deletion_waits_for_blocking_dependents(store: ObjectStore, things: ResourceType) -> None:
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


def test_orphans_lose_their_owner_and_stay(store: ObjectStore, things: ResourceType) -> None:
    maps = store.resource("", "v1", "configmaps")
    owner = store.create(things, "default", thing()).obj
    store.create(maps, "default", _config_map("orphan", _owned_by(owner)))
    store.delete(things, "default", "one", Deletion(propagation="Orphan"))
    store.run_background()
    assert not _exists(store, things, "one")
    assert "ownerReferences" not in store.get(maps, "default", "orphan").obj["metadata"]


def test_a_namespace_empties_itself_first(store: ObjectStore, things: ResourceType) -> None:
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


def test_a_definition_takes_its_objects_along(store: ObjectStore, things: ResourceType) -> None:
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
    assert "pvc-protection" not in str(made.obj["metadata"].get("managedFields")), (
        "no manager owns fields that admission adds"
    )
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

"""Lists, selectors, pages and watches on the store without sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kube_sandbox.api_server.errors import StatusError
from kube_sandbox.api_server.requests import Selection, Write
from kube_sandbox.api_server.store.object_store import ObjectStore

if TYPE_CHECKING:
    from kube_sandbox.api_server.resource_types import ResourceType
    from kube_sandbox.api_server.store.storage import Watch


def _names(store: ObjectStore, resource: ResourceType, **selection: str) -> list[str]:
    return [version.obj["metadata"]["name"] for version in store.list_objects(resource, Selection(**selection)).items]


def _told(watch: Watch) -> list[tuple[str, str]]:
    return [(event.type, event.version.obj["metadata"]["name"]) for event in watch.take()]


@pytest.fixture
def labelled(store: ObjectStore, things: ResourceType, thing: Any) -> ObjectStore:
    for name, labels in (("a", {"tier": "1"}), ("b", {"tier": "2", "old": "yes"}), ("c", {})):
        body = thing(name)
        body["metadata"]["labels"] = labels
        store.create(things, "default", body)
    return store


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
def test_label_selectors(labelled: ObjectStore, things: ResourceType, selector: str, expected: list[str]) -> None:
    assert _names(labelled, things, label_selector=selector) == expected


def test_field_selectors(labelled: ObjectStore, things: ResourceType) -> None:
    assert _names(labelled, things, field_selector="metadata.name=b") == ["b"]
    assert _names(labelled, things, field_selector="metadata.namespace=default,metadata.name!=b") == ["a", "c"]
    with pytest.raises(StatusError, match=r"field label not supported: spec\.mode") as caught:
        _names(labelled, things, field_selector="spec.mode=Big")
    assert caught.value.code == 400
    with pytest.raises(StatusError, match="unable to parse requirement"):
        _names(labelled, things, label_selector="a b")


def test_pods_are_found_by_node_and_phase(store: ObjectStore) -> None:
    pods = store.resource("", "v1", "pods")
    for name, node in (("p", "n1"), ("q", "n2")):
        spec = {"containers": [{"name": "c", "image": "x"}], "nodeName": node}
        store.create(pods, "default", {"metadata": {"name": name}, "spec": spec})
    assert _names(store, pods, field_selector="spec.nodeName=n2,status.phase=Pending") == ["q"]


def test_a_watch_resumes_from_any_remembered_revision(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    first = store.create(things, "default", thing("a"))
    store.create(things, "default", thing("b"))
    watch = store.watch(things, since=first.resource_version)
    store.delete(things, "default", "a")
    assert _told(watch) == [("ADDED", "b"), ("DELETED", "a")]
    store.patch(things, "default", "b", {"spec": {"replicas": 4}}, Write())
    assert _told(watch) == [("MODIFIED", "b")]
    watch.close()
    store.delete(things, "default", "b")
    assert _told(watch) == []


def test_deletion_is_told_under_its_own_revision(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    made = store.create(things, "default", thing())
    watch = store.watch(things, since=made.resource_version)
    store.delete(things, "default", "one")
    (event,) = watch.take()
    assert event.version.obj["metadata"]["resourceVersion"] == str(store.storage.revision)


def test_selection_turns_changes_into_arrivals_and_departures(
    store: ObjectStore, things: ResourceType, thing: Any
) -> None:
    watch = store.watch(things, Selection(label_selector="in=yes"), since=store.storage.revision)
    store.create(things, "default", thing())
    assert _told(watch) == []
    store.patch(things, "default", "one", {"metadata": {"labels": {"in": "yes"}}}, Write())
    assert _told(watch) == [("ADDED", "one")]
    store.patch(things, "default", "one", {"metadata": {"labels": {"in": "no"}}}, Write())
    assert _told(watch) == [("DELETED", "one")]


def test_the_forgotten_past_is_gone(definition: dict[str, Any], thing: Any) -> None:
    store = ObjectStore(history_length=3)
    store.create(store.resource("apiextensions.k8s.io", "v1", "customresourcedefinitions"), "", definition)
    things = store.resource("example.dev", "v1", "things")
    versions = [store.create(things, "default", thing(f"t{number}")).resource_version for number in range(6)]
    assert len(_told(store.watch(things, since=versions[2]))) == 3
    with pytest.raises(StatusError, match="too old resource version") as caught:
        store.watch(things, since=versions[1])
    assert (caught.value.code, caught.value.reason) == (410, "Expired")
    store.storage.forget_past()
    with pytest.raises(StatusError, match="too old resource version"):
        store.watch(things, since=versions[-1] - 1)


def test_a_watcher_that_never_reads_is_dropped(store: ObjectStore, things: ResourceType, thing: Any) -> None:
    store.storage.most_pending = 2
    watch = store.watch(things, since=store.storage.revision)
    for number in range(4):
        store.create(things, "default", thing(f"t{number}"))
    assert watch.closed


def test_the_same_seed_and_clock_give_the_same_history(definition: dict[str, Any], thing: Any) -> None:
    def history() -> list[dict[str, Any]]:
        store = ObjectStore(clock=lambda: 1000.0, seed=3)
        store.create(store.resource("apiextensions.k8s.io", "v1", "customresourcedefinitions"), "", definition)
        things = store.resource("example.dev", "v1", "things")
        body = thing()
        body["metadata"] = {"generateName": "x-"}
        store.create(things, "default", body)
        return [version.obj for _, _, version in store.storage.everything()]

    assert history() == history()

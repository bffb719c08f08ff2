"""The read cache: deliveries of a watch, corrections by a list, and news."""

from __future__ import annotations

from typing import Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kube.resources import BROKER_GROUP_OPERATIONS, BROKER_GROUPS, PODS
from brokergroup_operator.records.group_cache import WATCHED, GroupCache, group_of
from brokergroup_operator.records.store import GroupKey

KEY = GroupKey("shop", "orders")


def pod(name: str, *, uid: str = "", version: int = 1, group: str = KEY.name) -> dict[str, Any]:
    labels = {names.LABEL_BROKER_GROUP: group}
    metadata = {
        "namespace": KEY.namespace,
        "name": name,
        "uid": uid or f"uid-of-{name}",
        "resourceVersion": str(version),
    }
    return {"metadata": metadata | {"labels": labels}}


@pytest.fixture
def cache() -> GroupCache:
    cache = GroupCache()
    for resource in WATCHED:
        listed = [pod("orders-1"), pod("orders-2")] if resource == PODS else []
        cache.take_in(resource, listed, heard=cache.heard)
    return cache


def test_it_is_complete_once_every_kind_was_listed() -> None:
    cache = GroupCache()
    for resource in WATCHED:
        assert not cache.is_complete
        cache.take_in(resource, [], heard=0)
    assert cache.is_complete


def test_objects_are_found_by_label_by_name_or_by_the_group_that_they_name() -> None:
    assert group_of(PODS, pod("orders-1")) == KEY
    assert group_of(BROKER_GROUPS, {"metadata": {"namespace": "shop", "name": "orders"}}) == KEY
    operation: dict[str, Any] = {
        "metadata": {"namespace": "shop", "name": "move"},
        "spec": {"brokerGroupRef": {"name": "orders"}},
    }
    assert group_of(BROKER_GROUP_OPERATIONS, operation) == KEY


def test_only_another_version_is_news(cache: GroupCache) -> None:
    assert cache.hold(PODS, pod("orders-2")) == cache.hold(PODS, pod("orders-1")) == set()
    assert cache.hold(PODS, pod("orders-1", version=2)) == {KEY}
    assert cache.by_name(PODS, KEY)["orders-1"]["metadata"]["resourceVersion"] == "2"
    for name in ("orders-1", "orders-2"):
        assert cache.hold(PODS, pod(name, version=3), is_gone=True) == {KEY}
        assert cache.hold(PODS, pod(name, version=3), is_gone=True) == set()
    assert cache.all(PODS, KEY) == ()


def test_an_object_that_goes_to_another_group_is_news_of_both(cache: GroupCache) -> None:
    other = GroupKey("shop", "payments")
    assert cache.hold(PODS, pod("orders-1", version=2, group="payments")) == {KEY, other}
    assert (sorted(cache.by_name(PODS, KEY)), sorted(cache.by_name(PODS, other))) == (["orders-2"], ["orders-1"])
    listed = [pod("orders-1", version=3), pod("orders-2")]
    assert cache.take_in(PODS, listed, heard=cache.heard) == {KEY, other}
    assert cache.hold(PODS, pod("orders-1", version=4)) == {KEY}, "it is not gone"


def test_a_list_tells_which_groups_a_watch_had_wrong(cache: GroupCache) -> None:
    other = GroupKey("shop", "payments")
    listed = [pod("orders-1"), pod("orders-2", version=5), pod("payments-1", group="payments")]
    assert cache.take_in(PODS, listed, heard=cache.heard) == {KEY, other}
    assert cache.take_in(PODS, listed, heard=cache.heard) == set()


def test_a_list_is_older_than_what_a_watch_said_meanwhile(cache: GroupCache) -> None:
    heard = cache.heard
    cache.hold(PODS, pod("orders-1", version=9))
    cache.hold(PODS, pod("orders-2"), is_gone=True)
    assert cache.take_in(PODS, [pod("orders-1"), pod("orders-2")], heard=heard) == set()
    assert [one["metadata"]["resourceVersion"] for one in cache.all(PODS, KEY)] == ["9"]


def test_an_object_that_a_list_does_not_have_stays_away_though_a_watch_still_shows_it(cache: GroupCache) -> None:
    """Kopf lists again after an expired watch, and reports no deletions from that gap."""
    assert cache.take_in(PODS, [pod("orders-1")], heard=cache.heard) == {KEY}
    assert cache.hold(PODS, pod("orders-2", version=2)) == set()
    assert cache.hold(PODS, pod("orders-2", uid="another")) == {KEY}
    assert cache.by_name(PODS, KEY)["orders-2"]["metadata"]["uid"] == "another"


def test_an_object_that_a_list_has_again_is_back(cache: GroupCache) -> None:
    """Its label had been removed."""
    cache.take_in(PODS, [pod("orders-1")], heard=cache.heard)
    cache.take_in(PODS, [pod("orders-1"), pod("orders-2")], heard=cache.heard)
    assert sorted(cache.by_name(PODS, KEY)) == ["orders-1", "orders-2"]


def test_a_node_is_news_when_what_is_kept_of_it_changed(cache: GroupCache) -> None:
    assert cache.hold_node("node-1", {"spec": {}})
    assert not cache.hold_node("node-1", {"spec": {}})
    assert cache.hold_node("node-1", {"spec": {"unschedulable": True}})
    assert cache.node("node-1") == {"spec": {"unschedulable": True}}
    assert cache.hold_node("node-1", None)
    assert cache.node("node-1") is None


def test_of_managed_fields_the_cache_keeps_what_passes_read() -> None:
    """Complete managed fields are half of an object's size."""
    cache = GroupCache()
    entry = {"operation": "Apply", "time": "2026-11-28T07:00:00Z", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    ours = (names.FIELD_MANAGER_STATUS, names.FIELD_MANAGER_RECONCILE)
    entries = [entry | {"manager": manager} for manager in (*ours, names.FIELD_MANAGER_ROLE, "kubectl", "kubelet")]
    metadata = {"namespace": KEY.namespace, "name": KEY.name, "uid": "1", "resourceVersion": "1"}
    group = {"metadata": metadata | {"managedFields": entries}}
    cache.hold(BROKER_GROUPS, group)
    held = cache.one(BROKER_GROUPS, KEY)
    assert held is not None
    kept = [{"manager": manager, "time": "2026-11-28T07:00:00Z"} for manager in ours]
    assert held["metadata"]["managedFields"] == kept

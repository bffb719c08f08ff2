"""Which keys a running broker takes, and that exactly the others restart it."""

from __future__ import annotations

from typing import Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.reconcile import hot_config
from rocketmq_replica.live_settings import _SETTERS
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.test_evaluate import run, told


def test_the_python_replica_takes_every_key_that_we_call_hot() -> None:
    assert hot_config.HOT_KEYS[Implementation.REPLICA] <= _SETTERS.keys()


@pytest.mark.parametrize("implementation", ["replica", "rocketmq"])
@pytest.mark.parametrize(
    ("before", "after", "cold_changes"),
    [
        ({}, {"config": {"fileReservedTime": "24"}}, False),
        ({}, {"durability": "Available"}, False),
        ({}, {"config": {"maxMessageSize": "1000"}}, True),
        ({}, {"nameServers": ["ns:9876"]}, True),
        ({"nameServers": ["ns:9876"]}, {}, True),
        ({"nameServers": ["ns:9876"]}, {"nameServers": ["ns:9876", "ns-2:9876"]}, False),
    ],
)
def test_hot_keys_are_not_in_the_hash(
    implementation: str, before: dict[str, Any], after: dict[str, Any], cold_changes: bool
) -> None:
    hashes = {
        hot_config.cold_hash(b.group(implementation=implementation, **spec), b.SETTINGS) for spec in (before, after)
    }
    assert len(hashes) == (2 if cold_changes else 1)


@pytest.mark.parametrize("implementation", ["replica", "rocketmq"])
def test_issue_52_another_list_of_name_servers_restarts_nobody(implementation: str) -> None:
    """apache/rocketmq-operator #52, apache/rocketmq #2310: a NameServer more, and every broker was restarted."""
    before = {"implementation": implementation, "nameServers": ["ns-0:9876"]}
    seen = c.wishing(c.settled(**before), **before | {"nameServers": ["ns-0:9876", "ns-1:9876"]})
    assert c.course(seen).outdated == ()
    given = [line for line in told(run(seen)) if line.startswith("give")]
    assert [line.split()[1] for line in given] == ["orders-1", "orders-2", "orders-3"]
    assert hot_config.hot(seen.group, b.SETTINGS)["namesrvAddr"] == "ns-0:9876;ns-1:9876"


def test_java_brokers_take_more() -> None:
    spec: dict[str, Any] = {"config": {"deleteWhen": "03"}}
    assert "deleteWhen" in hot_config.hot(b.group(implementation="rocketmq", **spec), b.SETTINGS)
    assert "deleteWhen" not in hot_config.hot(b.group(implementation="replica", **spec), b.SETTINGS)


def test_a_pod_says_what_its_broker_was_given() -> None:
    pod = b.running_pod(b.group(), 1)
    assert hot_config.given_to(pod) == hot_config.hot(b.group(), b.SETTINGS)
    assert hot_config.changes(pod, {"minInSyncReplicas": "2", "inSyncReplicas": "3"}) == {"inSyncReplicas": "3"}
    for unreadable in ("", "{", "[]"):
        pod["metadata"]["annotations"][names.ANNOTATION_HOT_CONFIG] = unreadable
        assert hot_config.given_to(pod) == {}


def test_a_hot_key_that_is_taken_away_restarts_the_pods() -> None:
    """Nobody knows the value that the broker would have without it."""
    seen = c.wishing(c.settled(config={"fileReservedTime": "24"}))

    def had(pod: dict[str, Any]) -> None:
        values = '{"fileReservedTime": "24", "allAckInSyncStateSet": "true"}'
        pod["metadata"]["annotations"][names.ANNOTATION_HOT_CONFIG] = values

    found = c.course(c.with_pods(seen, had, *seen.pods))
    assert {item.why.value for item in found.outdated} == {"ConfigurationKeyRemoved"}


@pytest.mark.parametrize(
    "seen",
    [
        c.wishing(c.live(c.settled(), 1, 3), config={"fileReservedTime": "24"}),
        c.wishing(c.not_ready(c.settled(), "orders-2"), config={"fileReservedTime": "24"}),
        c.wishing(c.going(c.settled(), "orders-2"), config={"fileReservedTime": "24"}),
    ],
    ids=["silent", "not ready", "going"],
)
def test_who_can_not_be_asked_is_asked_later(seen: Any) -> None:
    given = [line.split()[1] for line in told(run(seen)) if line.startswith("give")]
    assert given == ["orders-1", "orders-3"]


def test_nobody_is_given_anything_during_a_change_of_master() -> None:
    """A switchover holds minInSyncReplicas up: we would take that away."""
    from tests.reconcile.test_evaluate import failing_over

    seen = c.wishing(c.live(c.settled(), 1, 2, 3, in_progress=failing_over()), config={"fileReservedTime": "24"})
    assert not [line for line in told(run(seen)) if line.startswith("give")]

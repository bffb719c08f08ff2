"""The configuration that brokers report (request 26), compared with what the operator gave them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api.broker_keys import same_value, watched_keys
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.reconcile.decide.configuration_drift import drifted_keys
from brokergroup_operator.reconcile.plan import PutBackBrokerConfig, SetBrokerConfig
from brokergroup_operator.reconcile.render.broker_config import broker_properties
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.passes import conditions, run

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed

JAVA = {"implementation": "Java", "nameServers": ["ns:9876"]}


def as_given(seen: Observed) -> dict[str, str]:
    """What a broker reports if only the operator has changed it."""
    values = broker_properties(b.KEY.name, seen.group.spec, b.SETTINGS)
    return {key: value for key, value in values.items() if key in watched_keys(seen.group.spec) and "${" not in value}


def saying(seen: Observed, **of_master: str) -> Observed:
    """All members report what they were given, the master these values instead; SLAVE and SYNC_MASTER by the record."""
    assert seen.snapshot is not None
    said = {one: as_given(seen) | {"brokerRole": "SYNC_MASTER" if one == 1 else "SLAVE"} for one in (1, 2, 3)}
    said[1] |= of_master
    return replace(seen, snapshot=replace(seen.snapshot, member_configuration=said))


def put_back(seen: Observed) -> dict[str, dict[str, str]]:
    return {one.pod: dict(one.values) for one in run(seen).actions if isinstance(one, PutBackBrokerConfig)}


def condition(seen: Observed, kind: str) -> tuple[str, str, str] | None:
    found = conditions(seen).get(kind)
    return (found["status"], found["reason"], found["message"]) if found else None


@pytest.mark.parametrize(
    "spec", [{}, JAVA, {"durability": "Fast"}, {"config": {"deleteWhen": "4", "slaveTimeout": "5000"}}]
)
def test_a_broker_that_runs_with_what_it_was_given_has_not_drifted(spec: dict[str, Any]) -> None:
    seen = saying(c.settled(**spec))
    assert drifted_keys(seen, b.SETTINGS) == ()
    assert condition(seen, "ConfigurationDrifted") is None
    assert (condition(seen, "UpToDate") or ())[:2] == ("True", "AllUpToDate")


@pytest.mark.parametrize(
    ("spec", "key", "found", "expected"),
    [
        ({}, "minInSyncReplicas", "1", "2"),
        ({}, "minInSyncReplicas", "3", "2"),
        ({}, "allAckInSyncStateSet", "false", "true"),
        ({}, "inSyncReplicas", "1", "2"),
        ({}, "enableAutoInSyncReplicas", "true", "false"),
        (JAVA, "enableControllerMode", "false", "true"),
        (JAVA, "brokerRole", "ASYNC_MASTER", "SYNC_MASTER"),
        (JAVA | {"config": {"flushDiskType": "SYNC_FLUSH"}}, "flushDiskType", "ASYNC_FLUSH", "SYNC_FLUSH"),
        (JAVA, "flushDiskType", "SYNC_FLUSH", "ASYNC_FLUSH"),
    ],
)
def test_what_acknowledgements_rest_on_is_put_back(spec: dict[str, Any], key: str, found: str, expected: str) -> None:
    seen = saying(c.settled(**spec), **{key: found})
    assert put_back(seen) == {"orders-1": {key: expected}}
    told = f"broker 1 (pod orders-1): {key}={found}, expected {expected}"
    assert condition(seen, "ConfigurationDrifted") == ("True", "ConfigurationDrifted", f"Being put back: {told}")
    for kind in ("FailoverSafe", "UpToDate"):
        status, reason, message = condition(seen, kind) or ("", "", "")
        assert (status, reason) == ("False", "ConfigurationDrifted")
        assert told in message
    assert (condition(seen, "DegradedDurability") or ())[:2] == ("True", "ConfigurationDrifted")


@pytest.mark.parametrize(
    ("spec", "key", "found"),
    [
        ({"config": {"fileReservedTime": "48"}}, "fileReservedTime", "1"),
        ({}, "haMaxTimeSlaveNotCatchup", "60000"),
        ({"config": {"slaveTimeout": "3000"}}, "slaveTimeout", "60000"),
        ({}, "brokerElectionPriority", "0"),
        (JAVA, "brokerPermission", "4"),
        (JAVA, "controllerAddr", "10.9.9.9:9878"),
        (JAVA, "brokerClusterName", "Another"),
        (JAVA, "namesrvAddr", "elsewhere:9876"),
    ],
)
def test_another_key_is_named_and_left(spec: dict[str, Any], key: str, found: str) -> None:
    seen = saying(c.settled(**spec), **{key: found})
    assert put_back(seen) == {}
    assert not [one for one in run(seen).actions if isinstance(one, SetBrokerConfig)]
    status, reason, message = condition(seen, "ConfigurationDrifted") or ("", "", "")
    assert (status, reason) == ("True", "ConfigurationDrifted")
    assert f"broker 1 (pod orders-1): {key}={found}, expected " in message
    assert (condition(seen, "FailoverSafe") or ("",))[0] == "True"
    assert condition(seen, "DegradedDurability") is None


@pytest.mark.parametrize("times_of", ["when its pod was made", "now"])
@pytest.mark.parametrize(
    ("key", "found"), [("", ""), ("enableControllerMode", "false"), ("flushDiskType", "SYNC_FLUSH")]
)
def test_a_pod_that_keeps_shorter_times_has_those_or_after_a_restart_in_it_the_present_ones(
    times_of: str, key: str, found: str
) -> None:
    short, long = (JAVA | {"failover": {"heartbeatTimeoutMilliseconds": one}} for one in (1200, 6000))
    made, now = c.settled(**short), c.wishing(c.settled(**short), **long)
    said = saying(now if times_of == "now" else made, **({key: found} if key else {}))
    seen = replace(now, snapshot=said.snapshot)
    cold = [one.key for one in drifted_keys(seen, b.SETTINGS) if one.key != "haHousekeepingInterval"]
    assert cold == ([key] if key else [])


@pytest.mark.parametrize(
    "change", [{"in_progress": c.failing_over()}, {"is_changing": True}], ids=["here", "elsewhere"]
)
def test_nothing_is_put_back_while_the_master_changes(change: dict[str, Any]) -> None:
    seen = saying(c.settled(), minInSyncReplicas="1")
    assert seen.snapshot is not None
    assert put_back(replace(seen, snapshot=replace(seen.snapshot, **change))) == {}


def test_what_a_switchover_left_is_the_controller_planes() -> None:
    seen = saying(c.settled(), minInSyncReplicas="99", allAckInSyncStateSet="false")
    assert put_back(seen) == {"orders-1": {"allAckInSyncStateSet": "true"}}


def test_a_paused_group_only_has_the_condition() -> None:
    seen = saying(c.settled(maintenance={"paused": True}), minInSyncReplicas="1")
    assert put_back(seen) == {}
    assert "Not put back while the group is paused" in (condition(seen, "ConfigurationDrifted") or ("", "", ""))[2]


@pytest.mark.parametrize(
    "seen",
    [
        c.settled(),
        c.live(saying(c.settled(), minInSyncReplicas="1"), 2, 3),
        c.not_ready(saying(c.settled(), minInSyncReplicas="1"), "orders-1"),
        saying(c.settled(maintenance={"hibernated": True}), minInSyncReplicas="1"),
    ],
    ids=["not read", "silent", "not ready", "hibernated"],
)
def test_a_broker_that_was_not_read_or_can_not_be_asked_is_left(seen: Observed) -> None:
    assert put_back(seen) == {}


def test_a_change_of_the_spec_is_no_drift() -> None:
    """The running brokers have what they were given; what is new is sent, or comes with the restart."""
    for config in ({"fileReservedTime": "24"}, {"flushDiskType": "SYNC_FLUSH"}):
        old = saying(c.settled(**JAVA, config={"fileReservedTime": "48"}))
        assert drifted_keys(c.wishing(old, config=config), b.SETTINGS) == ()


def test_a_secret_is_not_even_read() -> None:
    config = {"initAuthenticationUser": "{}", "aclSecretKey": "planted", "someTokenFile": "x", "fileReservedTime": "1"}
    keys = watched_keys(b.group(**JAVA, config=config).spec)
    assert "fileReservedTime" in keys
    assert keys.isdisjoint(
        {"initAuthenticationUser", "aclSecretKey", "someTokenFile", "innerClientAuthenticationCredentials"}
    )


@pytest.mark.parametrize(
    ("one", "other"), [("04", "4"), ("TRUE", "true"), ("04;05", "5;4"), ("a:1;b:2", "b:2; a:1"), ("0", "00")]
)
def test_two_texts_of_one_value(one: str, other: str) -> None:
    assert same_value(one, other)
    assert not same_value(one, f"{other}1")


def test_each_implementation_has_its_keys() -> None:
    assert "transactionTimeOut" in watched_keys(b.group(**JAVA).spec)
    assert "transactionTimeOut" not in watched_keys(b.group().spec)
    assert Implementation.PYTHON is b.group().spec.implementation

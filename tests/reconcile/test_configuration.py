"""The configuration of brokers: its sources, what running ones are given, and what they report (request 26)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.bounds import MAX_CONFIG_ENTRIES
from brokergroup_operator.api.broker_keys import HOT_KEYS, same_value, watched_keys
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.api.brokergroup_status import ConditionStatus
from brokergroup_operator.kube.resources import CONFIG_MAPS
from brokergroup_operator.reconcile.decide.configuration_drift import drifted_keys
from brokergroup_operator.reconcile.evaluate import evaluate
from brokergroup_operator.reconcile.plan import ApplyObject, PutBackBrokerConfig, SetBrokerConfig, WriteStatus
from brokergroup_operator.reconcile.render import broker_config
from brokergroup_operator.reconcile.render.broker_config import broker_properties
from brokergroup_operator.reconcile.render.pods import build_pod
from brokergroup_operator.reconcile.see.fetch import GroupFetcher, with_sources
from rocketmq_replica.controller.operator_requests import _LIVE
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.cases import condition, conditions, lines_of, message, run

if TYPE_CHECKING:
    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.reconcile.see.observed import Observed
    from tests.reconcile.world import World


BOTH = [{"configMapRef": {"name": "site"}}, {"configMapRef": {"name": "team"}}]


def config_map(**data: str) -> dict[str, Any]:
    return {"metadata": {"name": "any"}, "data": data}


def test_later_ones_win_and_the_spec_wins_over_all() -> None:
    of = b.group(configFrom=BOTH, config={"c": "spec"})
    found = {"site": config_map(a="site", b="site", c="site"), "team": config_map(b="team", c="team")}
    group, complaint = with_sources(of, found)
    assert complaint == ""
    properties = broker_properties("orders", group.spec, b.SETTINGS)
    assert properties.items() >= {"a": "site", "b": "team", "c": "spec"}.items()
    assert of.spec.config == {"c": "spec"}, "the group that was read is left alone"


def test_a_change_of_a_cold_key_is_another_configuration() -> None:
    hashes = set()
    for value in ("1", "2", "2"):
        group, _ = with_sources(b.group(configFrom=BOTH[:1]), {"site": config_map(mappedFileSizeCommitLog=value)})
        pod = build_pod(group, b.member(1), b.SETTINGS)
        hashes.add(pod["metadata"]["annotations"][names.ANNOTATION_CONFIG_HASH])
    assert len(hashes) == 2


def test_an_empty_config_map_adds_nothing() -> None:
    group, complaint = with_sources(b.group(configFrom=BOTH[:1]), {"site": {"metadata": {"name": "site"}}})
    assert (group.spec.config, complaint) == ({}, "")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, "ConfigMap site, which does not exist"),
        (config_map(brokerId="7"), "ConfigMap site: brokerId is set by the operator: the controller assigns"),
        ({"data": {"a=b": "1"}}, "ConfigMap site: 'a=b' is no Java property name"),
        (config_map(fileReservedTime="1\nbrokerId=7"), "ConfigMap site: fileReservedTime has a value of 12 characters"),
        (config_map(**{f"key{number}": "" for number in range(MAX_CONFIG_ENTRIES + 1)}), "257 keys together"),
    ],
    ids=["missing", "reserved", "no name", "smuggled", "too many"],
)
def test_what_is_bad_is_named_and_nothing_of_it_is_used(found: dict[str, Any] | None, words: str) -> None:
    of = b.group(configFrom=BOTH[:1])
    group, complaint = with_sources(of, {"site": found})
    assert words in complaint
    assert group is of


PROBLEM = "spec.configFrom names ConfigMap site, which does not exist"


def test_while_a_config_map_is_missing_nothing_is_changed_and_the_status_says_why() -> None:
    seen = b.changed(b.settled(), config_problem=PROBLEM)
    [action] = run(seen).actions
    assert isinstance(action, WriteStatus)
    assert condition(seen, "Ready")[0] == ConditionStatus.FALSE.value
    assert "ConfigMap site" in message(seen, "Ready")
    assert condition(seen, "Stalled")[0] == ConditionStatus.TRUE.value


def test_while_a_config_map_is_missing_what_is_lost_is_repaired() -> None:
    """A ConfigMap was deleted, then a node died: the pod did not come back, and the -master Service did not follow the master."""
    of_the_site = b.settled(config={"maxMessageSize": "1000"})
    seen = b.changed(of_the_site, config_problem=PROBLEM, record=b.record(master=2))
    missing = b.changed(seen, group=b.group(), group_object=b.group_object(), pods=b.without(seen.pods, "orders-3"))
    assert lines_of(run(missing)) == ["role orders-1 slave", "role orders-2 master", "apply Pod orders-3"]
    [made] = [one.object for one in run(missing).actions if isinstance(one, ApplyObject)]
    # It reads the broker.conf that the group has, and says so: it is no reason for a restart once the ConfigMap is back.
    [kept] = {pod["metadata"]["annotations"][names.ANNOTATION_CONFIG_HASH] for pod in missing.pods.values()}
    assert made["metadata"]["annotations"][names.ANNOTATION_CONFIG_HASH] == kept
    seen = b.changed(b.settled(), config_problem=PROBLEM)
    without_service = b.changed(seen, services=b.without(seen.services, "orders-master"))
    assert lines_of(run(without_service)) == ["apply Service orders-master"], "clients by that name find no master"
    assert lines_of(run(b.changed(seen, pods={}, config_maps={}))) == [], "it never had a broker.conf"


async def test_what_is_fetched_has_the_keys_of_its_config_maps(sandbox_world: World, api: KubernetesApi) -> None:
    key = sandbox_world.key
    await sandbox_world.create_group(configFrom=BOTH[:1], config={"c": "spec"})
    fetcher = GroupFetcher(api, sandbox_world.view)
    before = await fetcher.fetch(key)
    of_the_site = config_map(fileReservedTime="24") | {"metadata": {"name": "site"}}
    await api.create(CONFIG_MAPS, of_the_site, namespace=key.namespace)
    after = await fetcher.fetch(key)
    assert before is not None
    assert after is not None
    assert (before.group.spec.config, "does not exist" in before.config_problem) == ({"c": "spec"}, True)
    assert (after.group.spec.config, after.config_problem) == ({"c": "spec", "fileReservedTime": "24"}, "")
    assert after.group_object["spec"]["config"] == {"c": "spec"}


KEY: Final = "minInSyncReplicas"


def test_the_python_replica_takes_every_key_that_we_call_hot() -> None:
    assert HOT_KEYS[Implementation.PYTHON] <= _LIVE.keys()


@pytest.mark.parametrize("implementation", ["Python", "Java"])
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
        broker_config.cold_hash(b.group(implementation=implementation, **spec), b.SETTINGS) for spec in (before, after)
    }
    assert len(hashes) == (2 if cold_changes else 1)


@pytest.mark.parametrize("implementation", ["Python", "Java"])
def test_issue_52_another_list_of_name_servers_restarts_no_broker(implementation: str) -> None:
    """apache/rocketmq-operator #52, apache/rocketmq #2310: a NameServer more, and every broker was restarted."""
    before = {"implementation": implementation, "nameServers": ["ns-0:9876"]}
    seen = c.wishing(c.settled(**before), **before | {"nameServers": ["ns-0:9876", "ns-1:9876"]})
    assert c.course(seen).outdated == ()
    given = [line for line in lines_of(run(seen)) if line.startswith("give")]
    assert [line.split()[1] for line in given] == ["orders-1", "orders-2", "orders-3"]
    assert broker_config.hot_values(seen.group, b.SETTINGS)["namesrvAddr"] == "ns-0:9876;ns-1:9876"


PLANES: Final = (*b.SETTINGS.controller_addresses, "operator-2.operator:9878")
MORE_PLANES: Final = replace(b.SETTINGS, controller_addresses=PLANES)


def given_by_more_planes(seen: Observed) -> dict[str, dict[str, str]]:
    """Return what each broker is given by an operator with one plane more."""
    actions = evaluate(seen, MORE_PLANES, now=b.NOW).actions
    return {one.pod: dict(one.values) for one in actions if isinstance(one, SetBrokerConfig)}


@pytest.mark.parametrize("implementation", ["Python", "Java"])
def test_another_number_of_operator_pods_is_given_to_running_brokers(implementation: str) -> None:
    expected = {"controllerAddr": ";".join(PLANES)}
    given = given_by_more_planes(c.settled(implementation=implementation))
    assert given == {f"orders-{number}": expected for number in (1, 2, 3)}


def test_a_broker_that_does_not_know_this_plane_yet_is_given_its_address() -> None:
    """A new plane that reconciles hears no broker, and gave no broker its address: on two nodes it stayed at MasterNotReady."""
    unheard = given_by_more_planes(c.live(c.wishing(c.settled(), config={"fileReservedTime": "24"}), 1))
    assert set(unheard) == {"orders-1", "orders-2", "orders-3"}
    assert {tuple(sorted(values)) for values in unheard.values()} == {("controllerAddr", "fileReservedTime")}


def test_a_pod_says_what_its_broker_was_given() -> None:
    pod = b.running_pod(b.group(), 1)
    assert broker_config.given_to(pod) == broker_config.hot_values(b.group(), b.SETTINGS)
    assert broker_config.hot_changes(pod, {"minInSyncReplicas": "2", "inSyncReplicas": "3"}) == {"inSyncReplicas": "3"}
    for unreadable in ("", "{", "[]"):
        pod["metadata"]["annotations"][names.ANNOTATION_HOT_CONFIG] = unreadable
        assert broker_config.given_to(pod) == {}


def test_a_hot_key_that_is_taken_away_restarts_the_pods() -> None:
    """The value that the broker would have without the key is unknown."""
    seen = c.wishing(c.settled(config={"fileReservedTime": "24"}))

    def had(pod: dict[str, Any]) -> None:
        values = '{"fileReservedTime": "24", "allAckInSyncStateSet": "true"}'
        pod["metadata"]["annotations"][names.ANNOTATION_HOT_CONFIG] = values

    found = c.course(c.with_pods(seen, had, *seen.pods))
    assert {item.why.value for item in found.outdated} == {"ConfigurationKeyRemoved"}


KEPT_LONGER: Final = {"config": {"fileReservedTime": "24"}}


@pytest.mark.parametrize(
    ("seen", "asked"),
    [
        (c.with_replica(c.settled(), 2, address="10.1.0.9:10911"), ["orders-1", "orders-3"]),
        (c.not_ready(c.settled(), "orders-2"), ["orders-1", "orders-3"]),
        (c.going(c.settled(), "orders-2"), ["orders-1", "orders-3"]),
        # A switchover raises minInSyncReplicas; this pass would undo that.
        (c.live(c.settled(), 1, 2, 3, in_progress=c.failing_over()), []),
    ],
    ids=["registered as the pod before it", "not ready", "going", "the master changes"],
)
def test_a_broker_that_can_not_be_asked_is_asked_later(seen: Observed, asked: list[str]) -> None:
    lines = lines_of(run(c.wishing(seen, **KEPT_LONGER)))
    assert [line.split()[1] for line in lines if line.startswith("give")] == asked


def with_members(seen: Observed, *in_sync: int, live: tuple[int, ...] = (1, 2, 3), replicas: int = 3) -> Observed:
    return c.seen_with(seen, b.record(replicas=replicas, in_sync=in_sync), live=live)


def without_third(seen: Observed) -> Observed:
    left = c.without_pods(with_members(seen, 1, 2, live=(1, 2), replicas=2), "orders-3")
    return replace(left, claims=b.without(left.claims, "orders-3"))


def quieted(pod: dict[str, Any]) -> None:
    pod["metadata"]["annotations"][names.ANNOTATION_HOT_CONFIG] = '{"minInSyncReplicas": "99"}'


GROWING = c.wishing(c.settled(replicas=1), replicas=3)
TO_STRICT = c.wishing(c.settled(replicas=1), replicas=3, durability="Strict")
SHRINKING = c.marked(c.wishing(c.settled(), replicas=2, durability="Available"), "orders-3")
TO_ONE = c.marked(c.wishing(c.settled(), replicas=1, durability="Available"), "orders-3")
MINIMUMS: list[tuple[str, Observed, dict[str, str]]] = [
    # To three, and to Strict: the lone master refused every write at once.
    ("growing: nothing changes at the wish", TO_STRICT, {}),
    ("growing: nor when the slaves run", with_members(TO_STRICT, 1), {}),
    ("growing: one is in sync", with_members(TO_STRICT, 1, 2), {"orders-1": "2"}),
    ("growing: a silent member of the set raises nothing", with_members(GROWING, 1, 2, live=(1,)), {}),
    # What Strict acknowledges is on two disks also while one of three is away.
    ("silent members lower nothing", c.live(c.settled(), 1), {}),
    ("lost members lower nothing", with_members(c.settled(), 1, live=(1,)), {}),
    # To two, and to Available: the minimum fell before anything had stopped.
    ("shrinking: until the member has left", SHRINKING, {}),
    ("shrinking: it has left", without_third(SHRINKING), {"orders-1": "1", "orders-2": "1"}),
    # After one of two brokers had stopped, the other refused every write until the next pass. orders-3 stops in this pass.
    ("shrinking to one needs no other", TO_ONE, {"orders-1": "1", "orders-2": "1"}),
    ("nothing to do with members", c.wishing(c.settled(), durability="Available"), {f"orders-{n}": "1" for n in (1, 2, 3)}),
    # 99 is no minimum that a group had: a woken group that is also to shrink gets that of the others until orders-3 has left.
    ("kept quiet, while members leave", c.with_pods(SHRINKING, quieted, "orders-1"), {"orders-1": "2"}),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "expected"), c.table(MINIMUMS))
def test_which_minimum_each_broker_is_given(seen: Observed, expected: dict[str, str]) -> None:
    given = c.actions(seen, SetBrokerConfig)
    assert {one.pod: one.noted[KEY] for one in given if KEY in one.values} == expected


@pytest.mark.parametrize("live", [(1,), (1, 2, 3)])
def test_a_lone_master_that_grows_is_available_by_what_its_broker_was_given(live: tuple[int, ...]) -> None:
    """It acknowledges alone until another member is in sync; the status said that a write needs 2."""
    grown = with_members(GROWING, 1, live=live)
    assert condition(grown, "Available") == ("True", "MasterServesWrites")
    degraded = conditions(grown)["DegradedDurability"]
    assert degraded["status"] == "True"
    assert degraded["message"].endswith("what is acknowledged now is on that disk alone")
    assert condition(with_members(c.settled(), 1, live=(1,)), "Available") == ("False", "NotEnoughInSyncReplicas")


def test_a_broker_whose_container_was_started_again_is_given_all_keys_again() -> None:
    """The kubelet may have had the ConfigMap of a minute ago: old values ran under the note of the new ones."""

    def restart(pod: dict[str, Any]) -> None:
        pod["status"]["containerStatuses"] = [{"name": "broker", "restartCount": 1, "ready": True}]

    seen = c.with_pods(c.settled(), restart, "orders-2")
    [action] = c.actions(seen, SetBrokerConfig)
    expected = ("orders-2", broker_config.hot_values(seen.group, b.SETTINGS), 1)
    assert (action.pod, action.values, action.restarts) == expected
    assert action.note is None

    def noted(pod: dict[str, Any]) -> None:
        pod["metadata"]["annotations"][names.ANNOTATION_HOT_CONFIG_RESTARTS] = "1"

    assert c.actions(c.with_pods(seen, noted, "orders-2"), SetBrokerConfig) == []


JAVA = {"implementation": "Java", "nameServers": ["ns:9876"]}


def as_given(seen: Observed) -> dict[str, str]:
    """What a broker reports if only the operator has changed it."""
    values = broker_properties(b.KEY.name, seen.group.spec, b.SETTINGS)
    return {key: value for key, value in values.items() if key in watched_keys(seen.group.spec) and "${" not in value}


def saying(seen: Observed, **of_master: str) -> Observed:
    """All members report what they were given, the master these values instead; SLAVE and SYNC_MASTER by the record."""
    said = {one: as_given(seen) | {"brokerRole": "SYNC_MASTER" if one == 1 else "SLAVE"} for one in (1, 2, 3)}
    said[1] |= of_master
    return c.seeing(seen, member_configuration=said)


def put_back(seen: Observed) -> dict[str, dict[str, str]]:
    return {one.pod: dict(one.values) for one in run(seen).actions if isinstance(one, PutBackBrokerConfig)}


@pytest.mark.parametrize(
    "spec", [{}, JAVA, {"durability": "Fast"}, {"config": {"deleteWhen": "4", "slaveTimeout": "5000"}}]
)
def test_a_broker_that_runs_with_what_it_was_given_has_not_drifted(spec: dict[str, Any]) -> None:
    seen = saying(c.settled(**spec))
    assert drifted_keys(seen, b.SETTINGS) == ()
    assert c.shown(seen, "ConfigurationDrifted") is None
    assert c.told(seen, "UpToDate")[:2] == ("True", "AllUpToDate")


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
    assert c.told(seen, "ConfigurationDrifted") == ("True", "ConfigurationDrifted", f"Being put back: {told}")
    for kind in ("FailoverSafe", "UpToDate"):
        status, reason, message = c.told(seen, kind)
        assert (status, reason) == ("False", "ConfigurationDrifted")
        assert told in message
    assert c.told(seen, "DegradedDurability")[:2] == ("True", "ConfigurationDrifted")


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
    assert c.actions(seen, SetBrokerConfig) == []
    status, reason, message = c.told(seen, "ConfigurationDrifted")
    assert (status, reason) == ("True", "ConfigurationDrifted")
    assert f"broker 1 (pod orders-1): {key}={found}, expected " in message
    assert c.told(seen, "FailoverSafe")[0] == "True"
    assert c.shown(seen, "DegradedDurability") is None


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
    assert put_back(c.seeing(saying(c.settled(), minInSyncReplicas="1"), **change)) == {}


def test_what_a_switchover_left_is_the_controller_planes() -> None:
    seen = saying(c.settled(), minInSyncReplicas="99", allAckInSyncStateSet="false")
    assert put_back(seen) == {"orders-1": {"allAckInSyncStateSet": "true"}}


def test_a_paused_group_only_has_the_condition() -> None:
    seen = saying(c.settled(maintenance={"paused": True}), minInSyncReplicas="1")
    assert put_back(seen) == {}
    assert "Not put back while the group is paused" in c.told(seen, "ConfigurationDrifted")[2]


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
    secrets = config.keys() - {"fileReservedTime"} | {"innerClientAuthenticationCredentials"}
    assert "fileReservedTime" in keys
    assert keys.isdisjoint(secrets)


@pytest.mark.parametrize(
    ("one", "other"), [("04", "4"), ("TRUE", "true"), ("04;05", "5;4"), ("a:1;b:2", "b:2; a:1"), ("0", "00")]
)
def test_two_texts_of_one_value(one: str, other: str) -> None:
    assert same_value(one, other)
    assert not same_value(one, f"{other}1")


def test_each_implementation_has_its_keys() -> None:
    """Java brokers take more while they run, and report more."""
    for spec, takes_more in ((JAVA, True), ({"implementation": "Python"}, False)):
        group = b.group(**spec, config={"deleteWhen": "03"})
        assert ("deleteWhen" in broker_config.hot_values(group, b.SETTINGS)) is takes_more
        assert ("transactionTimeOut" in watched_keys(group.spec)) is takes_more
    assert Implementation.PYTHON is b.group().spec.implementation

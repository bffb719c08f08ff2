"""The configuration of brokers: what `spec.configFrom` adds, and which keys a running broker takes without a restart."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.bounds import MAX_CONFIG_ENTRIES
from brokergroup_operator.api.broker_keys import HOT_KEYS
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.api.brokergroup_status import ConditionStatus
from brokergroup_operator.kube.resources import CONFIG_MAPS
from brokergroup_operator.reconcile.evaluate import evaluate
from brokergroup_operator.reconcile.plan import ApplyObject, SetBrokerConfig, WriteStatus
from brokergroup_operator.reconcile.render import broker_config
from brokergroup_operator.reconcile.render.broker_config import broker_properties
from brokergroup_operator.reconcile.render.pods import build_pod
from brokergroup_operator.reconcile.see.fetch import GroupFetcher, with_sources
from rocketmq_replica.controller.operator_requests import _LIVE
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.passes import condition, conditions, lines_of, message, run

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
    assert (
        broker_properties("orders", group.spec, b.SETTINGS).items() >= {"a": "site", "b": "team", "c": "spec"}.items()
    )
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


def test_while_a_config_map_is_missing_nothing_is_changed_and_the_status_says_why() -> None:
    seen = b.changed(b.settled(), config_problem="spec.configFrom names ConfigMap site, which does not exist")
    [action] = run(seen).actions
    assert isinstance(action, WriteStatus)
    assert condition(seen, "Ready")[0] == ConditionStatus.FALSE.value
    assert "ConfigMap site" in message(seen, "Ready")
    assert condition(seen, "Stalled")[0] == ConditionStatus.TRUE.value


def test_while_a_config_map_is_missing_lost_pods_and_role_labels_are_repaired() -> None:
    """A ConfigMap was deleted, then a node died: the pod did not come back, and the -master Service did not follow the master."""
    problem = "spec.configFrom names ConfigMap site, which does not exist"
    of_the_site = {"config": {"maxMessageSize": "1000"}}
    seen = b.changed(b.settled(**of_the_site), config_problem=problem, record=b.record(master=2))
    missing = b.changed(seen, group=b.group(), group_object=b.group_object(), pods=b.without(seen.pods, "orders-3"))
    assert lines_of(run(missing)) == ["role orders-1 slave", "role orders-2 master", "apply Pod orders-3"]
    [made] = [one.object for one in run(missing).actions if isinstance(one, ApplyObject)]
    # It reads the broker.conf that the group has, and says so: it is no reason for a restart once the ConfigMap is back.
    [kept] = {pod["metadata"]["annotations"][names.ANNOTATION_CONFIG_HASH] for pod in missing.pods.values()}
    assert made["metadata"]["annotations"][names.ANNOTATION_CONFIG_HASH] == kept


def test_while_a_config_map_is_missing_a_lost_service_comes_back() -> None:
    """Without the -master Service clients by that name find no master, however the missing ConfigMap came about."""
    seen = b.changed(b.settled(), config_problem="spec.configFrom names ConfigMap site, which does not exist")
    missing = b.changed(seen, services=b.without(seen.services, "orders-master"))
    assert lines_of(run(missing)) == ["apply Service orders-master"]


def test_no_pod_is_made_where_the_group_never_had_a_broker_conf() -> None:
    seen = b.changed(b.settled(), config_problem="it does not exist", pods={}, config_maps={})
    assert lines_of(run(seen)) == []


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


MORE_PLANES: Final = replace(
    b.SETTINGS, controller_addresses=(*b.SETTINGS.controller_addresses, "operator-2.operator:9878")
)


@pytest.mark.parametrize("implementation", ["Python", "Java"])
def test_another_number_of_operator_pods_is_given_to_running_brokers(implementation: str) -> None:
    seen = c.settled(implementation=implementation)
    actions = [one for one in evaluate(seen, MORE_PLANES, now=b.NOW).actions if isinstance(one, SetBrokerConfig)]
    expected = {"controllerAddr": ";".join(MORE_PLANES.controller_addresses)}
    assert [(one.pod, one.values) for one in actions] == [(f"orders-{number}", expected) for number in (1, 2, 3)]


def test_a_broker_that_does_not_know_this_plane_yet_is_given_its_address() -> None:
    """A new plane that reconciles hears no broker, and gave no broker its address: on two nodes it stayed at MasterNotReady."""
    unheard = c.live(c.wishing(c.settled(), config={"fileReservedTime": "24"}), 1)
    actions = [one for one in evaluate(unheard, MORE_PLANES, now=b.NOW).actions if isinstance(one, SetBrokerConfig)]
    given = {one.pod: sorted(one.values) for one in actions}
    assert given == {f"orders-{number}": ["controllerAddr", "fileReservedTime"] for number in (1, 2, 3)}


def test_java_brokers_take_more() -> None:
    spec: dict[str, Any] = {"config": {"deleteWhen": "03"}}
    assert "deleteWhen" in broker_config.hot_values(b.group(implementation="Java", **spec), b.SETTINGS)
    assert "deleteWhen" not in broker_config.hot_values(b.group(implementation="Python", **spec), b.SETTINGS)


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


def _as_the_pod_before_it(seen: Observed) -> Observed:
    """Broker 2 is registered under an address that its pod does not have."""
    assert seen.record is not None
    elsewhere = replace(seen.record.replicas[2], address="10.1.0.9:10911")
    return replace(seen, record=replace(seen.record, replicas={**seen.record.replicas, 2: elsewhere}))


@pytest.mark.parametrize(
    "seen",
    [
        c.wishing(_as_the_pod_before_it(c.settled()), config={"fileReservedTime": "24"}),
        c.wishing(c.not_ready(c.settled(), "orders-2"), config={"fileReservedTime": "24"}),
        c.wishing(c.going(c.settled(), "orders-2"), config={"fileReservedTime": "24"}),
    ],
    ids=["not registered", "not ready", "going"],
)
def test_a_broker_that_can_not_be_asked_is_asked_later(seen: Any) -> None:
    given = [line.split()[1] for line in lines_of(run(seen)) if line.startswith("give")]
    assert given == ["orders-1", "orders-3"]


def test_no_broker_is_configured_during_a_change_of_master() -> None:
    """A switchover raises minInSyncReplicas; this pass would undo that."""
    seen = c.wishing(c.live(c.settled(), 1, 2, 3, in_progress=c.failing_over()), config={"fileReservedTime": "24"})
    assert not [line for line in lines_of(run(seen)) if line.startswith("give")]


def test_a_broker_whose_container_was_started_again_is_given_all_keys_again() -> None:
    """The kubelet may have had the ConfigMap of a minute ago: old values ran under the note of the new ones."""

    def restart(pod: dict[str, Any]) -> None:
        pod["status"]["containerStatuses"] = [{"name": "broker", "restartCount": 1, "ready": True}]

    seen = c.with_pods(c.settled(), restart, "orders-2")
    [action] = [one for one in run(seen).actions if isinstance(one, SetBrokerConfig)]
    assert (action.pod, action.values, action.restarts) == (
        "orders-2",
        broker_config.hot_values(seen.group, b.SETTINGS),
        1,
    )
    assert action.note is None

    def noted(pod: dict[str, Any]) -> None:
        pod["metadata"]["annotations"][names.ANNOTATION_HOT_CONFIG_RESTARTS] = "1"

    assert not [one for one in run(c.with_pods(seen, noted, "orders-2")).actions if isinstance(one, SetBrokerConfig)]


def minimums(seen: Any) -> dict[str, str]:
    """Which minInSyncReplicas each pod's broker is given by this pass, and what its pod will say it has."""
    given = [action for action in run(seen).actions if isinstance(action, SetBrokerConfig)]
    return {one.pod: one.noted[KEY] for one in given if KEY in one.values}


def test_a_group_that_grows_goes_on_taking_writes_until_its_slaves_are_in_sync() -> None:
    """To three, and to Strict: the lone master refused every write at once."""
    seen = c.wishing(c.settled(replicas=1), replicas=3, durability="Strict")
    assert minimums(seen) == {}
    grown = c.seen_with(seen, b.record(replicas=3, in_sync=(1,)), live=(1, 2, 3))
    assert minimums(grown) == {}
    joined = c.seen_with(seen, b.record(replicas=3, in_sync=(1, 2)), live=(1, 2, 3))
    assert minimums(joined) == {"orders-1": "2"}


@pytest.mark.parametrize("live", [(1,), (1, 2, 3)])
def test_a_lone_master_that_grows_is_available_by_what_its_broker_was_given(live: tuple[int, ...]) -> None:
    """It acknowledges alone until another member is in sync; the status said that a write needs 2."""
    grown = c.seen_with(c.wishing(c.settled(replicas=1), replicas=3), b.record(replicas=3, in_sync=(1,)), live=live)
    assert condition(grown, "Available") == ("True", "MasterServesWrites")
    degraded = conditions(grown)["DegradedDurability"]
    assert degraded["status"] == "True"
    assert degraded["message"].endswith("what is acknowledged now is on that disk alone")


def test_a_master_of_a_strict_group_alone_in_its_set_is_not_available() -> None:
    alone = c.seen_with(c.settled(), b.record(in_sync=(1,)), live=(1,))
    assert condition(alone, "Available") == ("False", "NotEnoughInSyncReplicas")


def test_a_member_of_the_set_that_is_silent_raises_nothing() -> None:
    seen = c.wishing(c.settled(replicas=1), replicas=3)
    silent = c.seen_with(seen, b.record(replicas=3, in_sync=(1, 2)), live=(1,))
    assert minimums(silent) == {}


def test_the_minimum_is_never_lowered_because_a_member_is_lost() -> None:
    """What Strict acknowledges is on two disks also while one of three is away."""
    assert minimums(c.live(c.settled(), 1)) == {}
    assert minimums(c.seen_with(c.settled(), b.record(in_sync=(1,)), live=(1,))) == {}


def test_a_group_that_shrinks_keeps_its_minimum_until_the_member_has_left() -> None:
    """To two, and to Available: the minimum fell before anything had stopped."""
    seen = c.marked(c.wishing(c.settled(), replicas=2, durability="Available"), "orders-3")
    assert minimums(seen) == {}
    left = c.without_pods(c.seen_with(seen, b.record(replicas=2), live=(1, 2)), "orders-3")
    assert minimums(replace(left, claims=b.without(left.claims, "orders-3"))) == {"orders-1": "1", "orders-2": "1"}


def test_a_group_that_shrinks_to_one_needs_no_other_before_the_others_leave() -> None:
    """After one of two brokers had stopped, the other refused every write until the next pass."""
    seen = c.marked(c.wishing(c.settled(), replicas=1, durability="Available"), "orders-3")
    assert minimums(seen) == {"orders-1": "1", "orders-2": "1"}  # orders-3 stops in this pass


def test_a_wish_that_has_nothing_to_do_with_members_is_given_at_once() -> None:
    assert minimums(c.wishing(c.settled(), durability="Available")) == {f"orders-{n}": "1" for n in (1, 2, 3)}


def test_a_broker_that_was_kept_quiet_takes_writes_again_while_members_leave() -> None:
    """99 is no minimum that a group had: a woken group that is also to shrink must not keep it."""

    def quieted(pod: dict[str, Any]) -> None:
        pod["metadata"]["annotations"][names.ANNOTATION_HOT_CONFIG] = '{"minInSyncReplicas": "99"}'

    shrinking = c.marked(c.wishing(c.settled(), replicas=2, durability="Available"), "orders-3")
    seen = c.with_pods(shrinking, quieted, "orders-1")
    assert minimums(seen) == {"orders-1": "2"}  # as the others, until orders-3 has left

"""spec.configFrom: what ConfigMaps add to broker.conf, and what of them is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.bounds import MAX_CONFIG_ENTRIES
from brokergroup_operator.api.brokergroup_status import ConditionStatus
from brokergroup_operator.kube.resources import CONFIG_MAPS
from brokergroup_operator.reconcile.access import ClusterAccess
from brokergroup_operator.reconcile.evaluate import evaluate
from brokergroup_operator.reconcile.plan import ApplyObject, WriteStatus
from brokergroup_operator.reconcile.render.broker_config import broker_properties
from brokergroup_operator.reconcile.render.pods import build_pod
from brokergroup_operator.reconcile.see.fetch import GroupFetcher, with_sources
from brokergroup_operator.records.store import GroupKey
from tests.reconcile import builders as b
from tests.reconcile.passes import run, told
from tests.reconcile.world import World, applier_for

if TYPE_CHECKING:
    from brokergroup_operator.kube.client import KubernetesApi
    from kube_sandbox.api_server.server import SandboxApiServer

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
    [action] = evaluate(seen, b.SETTINGS, now=b.NOW).actions

    assert isinstance(action, WriteStatus)
    conditions = {item["type"]: item for item in action.status["conditions"]}
    assert conditions["Ready"]["status"] == ConditionStatus.FALSE.value
    assert "ConfigMap site" in conditions["Ready"]["message"]
    assert conditions["Stalled"]["status"] == ConditionStatus.TRUE.value


def test_while_a_config_map_is_missing_lost_pods_and_role_labels_are_repaired() -> None:
    """Somebody deleted a ConfigMap, then a node died: neither came the pod back nor did the -master Service follow the master."""
    problem = "spec.configFrom names ConfigMap site, which does not exist"
    of_the_site = {"config": {"maxMessageSize": "1000"}}
    seen = b.changed(b.settled(**of_the_site), config_problem=problem, record=b.record(master=2))
    missing = b.changed(seen, group=b.group(), group_object=b.group_object(), pods=b.without(seen.pods, "orders-3"))
    assert told(run(missing)) == ["role orders-1 slave", "role orders-2 master", "apply Pod orders-3"]
    [made] = [one.object for one in run(missing).actions if isinstance(one, ApplyObject)]
    # It reads the broker.conf that the group has, and says so: it is no reason for a restart once the ConfigMap is back.
    [kept] = {pod["metadata"]["annotations"][names.ANNOTATION_CONFIG_HASH] for pod in missing.pods.values()}
    assert made["metadata"]["annotations"][names.ANNOTATION_CONFIG_HASH] == kept


def test_while_a_config_map_is_missing_a_lost_service_comes_back() -> None:
    """Without the -master Service clients by that name find no master, however the missing ConfigMap came about."""
    seen = b.changed(b.settled(), config_problem="spec.configFrom names ConfigMap site, which does not exist")
    missing = b.changed(seen, services=b.without(seen.services, "orders-master"))
    assert told(run(missing)) == ["apply Service orders-master"]


def test_no_pod_is_made_where_the_group_never_had_a_broker_conf() -> None:
    seen = b.changed(b.settled(), config_problem="it does not exist", pods={}, config_maps={})
    assert told(run(seen)) == []


async def test_what_is_fetched_has_the_keys_of_its_config_maps(sandbox: SandboxApiServer, api: KubernetesApi) -> None:
    applier, key = applier_for(ClusterAccess(url=sandbox.url)), GroupKey("default", "orders")
    world = World(api, applier, key)
    await world.create_group(configFrom=BOTH[:1], config={"c": "spec"})
    fetcher = GroupFetcher(api, world.view)
    before = await fetcher.fetch(key)
    of_the_site = config_map(fileReservedTime="24") | {"metadata": {"name": "site"}}
    await api.create(CONFIG_MAPS, of_the_site, namespace=key.namespace)
    after = await fetcher.fetch(key)
    await applier.close()

    assert before is not None
    assert after is not None
    assert (before.group.spec.config, "does not exist" in before.config_problem) == ({"c": "spec"}, True)
    assert (after.group.spec.config, after.config_problem) == ({"c": "spec", "fileReservedTime": "24"}, "")
    assert after.group_object["spec"]["config"] == {"c": "spec"}

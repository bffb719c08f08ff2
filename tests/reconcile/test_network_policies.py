"""spec.network.policy: the rendered NetworkPolicies, evaluated for every source at every port of every role; and their life."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup import BrokerGroup
from brokergroup_operator.api.rocketmq_cluster import RocketMQCluster
from brokergroup_operator.reconcile.clusters import parts
from brokergroup_operator.reconcile.identity import Member
from brokergroup_operator.reconcile.render import network_policies
from brokergroup_operator.reconcile.render.pods import build_pod
from brokergroup_operator.reconcile.see.foreign import with_revision
from brokergroup_operator.reconcile.settings import LeaderElectionSettings
from tests.reconcile import builders as b
from tests.reconcile.cases import lines_of, run
from tests.support.network_policy import Endpoint, admits

if TYPE_CHECKING:
    from collections.abc import Callable

SETTINGS: Final = dataclasses.replace(
    b.SETTINGS, leader_election=LeaderElectionSettings(namespace="rocketmq-system", identity="operator-0")
)


def pod_in(namespace: str, labels: dict[str, str], **of_namespace: str) -> Endpoint:
    known = {network_policies.NAMESPACE_NAME: namespace, **of_namespace}
    return Endpoint(namespace=namespace, namespace_labels=known, labels=labels)


def cluster(name: str, policy: dict[str, Any] | None, **template: Any) -> dict[str, Any]:
    network = {} if policy is None else {"policy": policy}
    spec = {
        "proxy": {"replicas": 1},
        "network": network,
        "brokerGroups": {"count": 2, "template": {"monitoring": {"exporter": True}} | template},
    }
    return {"metadata": {"name": name, "namespace": "shop", "uid": f"uid-of-{name}"}, "spec": spec}


def groups_of(obj: dict[str, Any]) -> list[BrokerGroup]:
    made = parts.broker_groups(msgspec.convert(obj, RocketMQCluster), obj)
    return [msgspec.convert(one | {"metadata": one["metadata"] | {"uid": "u"}}, BrokerGroup) for one in made]


def policies_of(obj: dict[str, Any]) -> list[dict[str, Any]]:
    of_groups = [network_policies.of_group(group, SETTINGS) for group in groups_of(obj)]
    own = parts.network_policies(msgspec.convert(obj, RocketMQCluster), SETTINGS)
    return [*own, *(one for one in of_groups if one is not None)]


def pod_of(group: BrokerGroup, number: int) -> Endpoint:
    pod = build_pod(group, Member(broker_id=number, pod=f"{group.metadata['name']}-{number}"), SETTINGS)
    return pod_in("shop", pod["metadata"]["labels"])


def part_of(name: str, component: str) -> Endpoint:
    return pod_in("shop", parts.part_pod_labels(name, component))


CLIENTS = {
    "clientsFrom": [
        {"podSelector": {"matchLabels": {"app": "checkout"}}, "namespaceSelector": {}},
        {"ipBlock": {"cidr": "192.0.2.0/25"}},
    ],
    "proxyClientsFrom": [{"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "In", "values": ["web"]}]}}],
    "metricsFrom": [{"podSelector": {"matchLabels": {"app": "prometheus"}}, "namespaceSelector": {}}],
}  # fmt: skip
FIRST, SECOND = groups_of(cluster("trade", CLIENTS))
OPERATOR: Final = {names.LABEL_COMPONENT: names.COMPONENT_OPERATOR}
SOURCES: Final = {
    "member": pod_of(FIRST, 2),
    "other group": pod_of(SECOND, 1),
    "operator": pod_in("rocketmq-system", OPERATOR),
    "false operator": pod_in("evil", OPERATOR),
    "false member": dataclasses.replace(pod_of(FIRST, 2), namespace="evil", namespace_labels={}),
    "name server": part_of("trade", parts.COMPONENT_NAME_SERVER),
    "proxy": part_of("trade", parts.COMPONENT_PROXY),
    "other cluster's proxy": part_of("other", parts.COMPONENT_PROXY),
    "client": pod_in("tenant", {"app": "checkout"}),
    "outside client": Endpoint(address="192.0.2.7"),
    "beside the block": Endpoint(address="192.0.2.200"),
    "gRPC client": pod_in("web", {"app": "site"}, team="web"),
    "prometheus": pod_in("monitoring", {"app": "prometheus"}),
    "neighbour": pod_in("shop", {"app": "blog"}),
    "internet": Endpoint(address="203.0.113.9"),
}
TARGETS: Final = {
    "broker": pod_of(FIRST, 1),
    "name server": part_of("trade", parts.COMPONENT_NAME_SERVER),
    "proxy": part_of("trade", parts.COMPONENT_PROXY),
}
TCP, UDP = "TCP", "UDP"
PORTS: Final = [
    (10909, TCP), (10911, TCP), (10912, TCP), (10913, UDP), (10913, TCP), (10911, UDP), (5557, TCP), (9876, TCP), (8080, TCP),
    (8081, TCP), (22, TCP),
]  # fmt: skip
EVERY: Final = set(SOURCES)
NAMED: Final = {"client", "outside client"}
OWN: Final = {"member", "operator"}


Table = dict[tuple[str, int, str], set[str]]


def table(clients: set[str], proxy_clients: set[str], metrics: set[str]) -> Table:
    """Which sources reach which port; a port that is not named here is closed."""
    return {
        ("broker", 10909, TCP): {*OWN, "proxy", *clients},
        ("broker", 10911, TCP): {*OWN, "proxy", *clients},
        ("broker", 10912, TCP): {"member"},
        ("broker", 10913, UDP): OWN,
        ("broker", 5557, TCP): metrics,
        ("name server", 9876, TCP): {*OWN, "other group", "proxy", *clients},
        ("proxy", 8080, TCP): proxy_clients,
        ("proxy", 8081, TCP): proxy_clients,
    }


def in_brokers(clients: set[str]) -> Table:
    """The ports of the Proxies in the brokers' processes."""
    return {("broker", 8080, TCP): {"proxy", *clients}, ("broker", 8081, TCP): {"proxy", *clients}}


LOCAL: Final[dict[str, Any]] = {"localProxy": {}}
NO_SOURCES: Final[dict[str, Any]] = {"clientsFrom": [], "proxyClientsFrom": [], "metricsFrom": []}
OF_NAMED, OF_EVERY, OF_NONE = (
    table(NAMED, {"gRPC client"}, {"prometheus"}),
    table(EVERY, EVERY, EVERY),
    table(set(), set(), set()),
)
# The policy, the template of the groups, and what is admitted.
CASES: Final[dict[str, tuple[dict[str, Any], dict[str, Any], Table]]] = {
    "sources are named": (CLIENTS, {}, OF_NAMED),
    "sources are left out": ({}, {}, OF_EVERY),
    "no sources": (NO_SOURCES, {}, OF_NONE),
    "sources are named, with localProxy": (CLIENTS, LOCAL, OF_NAMED | in_brokers(NAMED)),
    "sources are left out, with localProxy": ({}, LOCAL, OF_EVERY | in_brokers(EVERY)),
    "no sources, with localProxy": (NO_SOURCES, LOCAL, OF_NONE | in_brokers(set())),
}


@pytest.mark.parametrize("case", CASES)
def test_each_port_of_each_role_admits_exactly_what_needs_it(case: str) -> None:
    asked, template, expected = CASES[case]
    policies = policies_of(cluster("trade", asked, **template))
    admitted = {
        (target, port, protocol): {
            name for name, source in SOURCES.items() if admits(policies, source, TARGETS[target], port, protocol)
        }
        for target in TARGETS
        for port, protocol in PORTS
    }
    assert {place: found for place, found in admitted.items() if found} == {
        place: found for place, found in expected.items() if found
    }


def test_ports_follow_the_group() -> None:
    """All but those of the NameServer and the Proxy, which no field of a group moves."""
    ports = {"network": {"listenPort": 20911, "haPort": 20912}, "monitoring": {"exporter": True, "port": 5600}}
    policies = policies_of(cluster("trade", CLIENTS, **ports))
    moved = {10909: 20909, 10911: 20911, 10912: 20912, 10913: 20913, 5557: 5600}
    expected = {
        (moved.get(port, port), protocol): sources
        for (role, port, protocol), sources in OF_NAMED.items()
        if role == "broker"
    }
    for port, protocol in [*PORTS, *expected]:
        found = {name for name, one in SOURCES.items() if admits(policies, one, TARGETS["broker"], port, protocol)}
        assert found == expected.get((port, protocol), set()), (port, protocol)


def test_without_the_field_there_is_no_policy() -> None:
    assert policies_of(cluster("trade", None)) == []


def test_a_templates_own_policy_is_kept_and_admits_the_clusters_proxies() -> None:
    block = {"ipBlock": {"cidr": "198.51.100.0/24"}}
    proxies = {"podSelector": {"matchLabels": parts.part_selector("trade", parts.COMPONENT_PROXY)}}
    for asked, wanted in (({"clientsFrom": [block]}, [proxies, block]), ({"clientsFrom": []}, [proxies]), ({}, None)):
        first, _ = groups_of(cluster("trade", CLIENTS, network={"policy": asked}))
        assert first.spec.network.policy is not None
        assert msgspec.to_builtins(first.spec.network.policy.clients_from) == wanted


def test_an_exception_to_a_range_reaches_the_policy() -> None:
    block = {"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.128/25"]}}
    policies = policies_of(cluster("trade", {"clientsFrom": [block]}))
    inside, outside = Endpoint(address="192.0.2.7"), Endpoint(address="192.0.2.200")
    assert admits(policies, inside, TARGETS["broker"], 10911, TCP)
    assert not admits(policies, outside, TARGETS["broker"], 10911, TCP)


def test_an_operator_without_a_lease_is_known_by_its_label_alone() -> None:
    """`brokergroup operator` outside of a cluster, or in tests: its namespace is not known."""
    assert network_policies.operator(b.SETTINGS) == {
        "podSelector": {"matchLabels": {"brokergroup.dev/component": "operator"}},
        "namespaceSelector": {},
    }


ASKED: Final[dict[str, Any]] = {"network": {"policy": {"clientsFrom": []}}}


def policy_of(**spec: Any) -> dict[str, Any]:
    wanted = network_policies.of_group(b.group(**spec), b.SETTINGS)
    assert wanted is not None
    return wanted


def with_policy(change: Callable[[dict[str, Any]], Any]) -> list[str]:
    """Return what is done if a user has changed the policy so."""
    changed = copy.deepcopy(b.stored(policy_of(**ASKED)))
    change(changed["spec"])
    return lines_of(run(b.changed(b.settled(**ASKED), network_policies=b.by_name(changed))))


def test_it_is_made_put_back_and_left_out_again() -> None:
    assert lines_of(run(b.settled(**ASKED))) == ["apply NetworkPolicy orders-brokers"]
    there = b.by_name(b.stored(policy_of(**ASKED)))
    assert lines_of(run(b.changed(b.settled(**ASKED), network_policies=there))) == []
    assert lines_of(run(b.changed(b.settled(), network_policies=there))) == ["delete NetworkPolicy orders-brokers"]


ANYWHERE: Final = {"ipBlock": {"cidr": "0.0.0.0/0"}}
DRIFTS: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "a rule for every source and port": lambda spec: spec["ingress"].append({}),
    "every address at the HA port": lambda spec: spec["ingress"][0]["from"].append(ANYWHERE),
    "another source in place of the members": lambda spec: spec["ingress"][0].update({"from": [ANYWHERE]}),
    "a rule without its sources": lambda spec: spec["ingress"][0].pop("from"),
    "a further port": lambda spec: spec["ingress"][0]["ports"].append({"port": 10913, "protocol": "UDP"}),
    "a wider port": lambda spec: spec["ingress"][0]["ports"][0].update({"endPort": 65535}),
    "a narrowed source": lambda spec: spec["ingress"][0]["from"][0]["podSelector"]["matchLabels"].update({"a": "b"}),
    "a source in one namespace only": lambda spec: spec["ingress"][0]["from"][0].update({"namespaceSelector": {}}),
    "fewer pods": lambda spec: spec["podSelector"]["matchLabels"].update({"a": "b"}),
    "another direction": lambda spec: spec["policyTypes"].append("Egress"),
    "no rule": lambda spec: spec.pop("ingress"),
}


@pytest.mark.parametrize("drift", DRIFTS)
def test_a_policy_that_another_writer_changed_is_put_back(drift: str) -> None:
    assert with_policy(DRIFTS[drift]) == ["apply NetworkPolicy orders-brokers"]


def test_egress_that_has_no_effect_is_no_drift() -> None:
    """An apply does not take another manager's field away: the pass would apply for ever."""
    assert with_policy(lambda spec: spec.update(egress=[{}])) == []


def test_a_persons_policy_about_the_same_pods_is_left_alone() -> None:
    other = with_revision(policy_of(**ASKED))
    other["metadata"] = {"name": "of-a-person", "labels": {names.LABEL_BROKER_GROUP: "orders"}}
    assert lines_of(run(b.changed(b.settled(), network_policies=b.by_name(other)))) == []


def test_a_paused_group_keeps_its_policy_as_it_is_and_a_hibernated_one_gets_it() -> None:
    assert lines_of(run(b.settled(**ASKED, maintenance={"paused": True}))) == []
    assert "apply NetworkPolicy orders-brokers" in lines_of(run(b.settled(**ASKED, maintenance={"hibernated": True})))

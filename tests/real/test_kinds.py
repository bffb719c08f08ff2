"""The generated kinds at the real kube-apiserver: accepted, defaulted, and bad fields refused with messages that name them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import yaml

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup import BrokerGroup
from brokergroup_operator.api.rocketmq_cluster import RocketMQCluster
from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.errors import InvalidError
from brokergroup_operator.kube.resources import BROKER_GROUP_OPERATIONS, BROKER_GROUP_STATES, BROKER_GROUPS
from brokergroup_operator.reconcile.clusters import parts
from brokergroup_operator.reconcile.identity import Member
from brokergroup_operator.reconcile.render import network_policies
from brokergroup_operator.reconcile.render.addressing import Place, build_member_service
from brokergroup_operator.reconcile.render.pods import build_pod
from brokergroup_operator.reconcile.see.foreign import drifted, with_revision
from brokergroup_operator.reconcile.settings import ReconcileSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from subprocess import CompletedProcess

    from brokergroup_operator.json_object import JsonObject
    from tests.support.kube_apiserver import KubeApiserver

pytestmark = pytest.mark.real("kube-apiserver")

CRDS = Path(__file__).resolve().parents[2] / "crds"
SETTINGS = ReconcileSettings(controller_addresses=("operator-0.operator:9878",))
EXAMPLES = sorted((CRDS.parent / "examples").glob("*.yaml"))


def broker_group(**spec: Any) -> JsonObject:
    whole = {"metadata": {"name": "orders"}, "spec": {"nameServers": ["ns:9876"], **spec}}
    return {"apiVersion": names.API_VERSION, "kind": "BrokerGroup"} | whole


RECORD: JsonObject = {
    "clusterName": "DefaultCluster",
    "brokerName": "orders",
    "nextBrokerId": 4,
    "replicas": [{"brokerId": n, "registerCheckCode": f"check-{n}", "registered": True} for n in (1, 2, 3)],
    "masterBrokerId": 1,
    "masterEpoch": 5,
    "syncStateSet": [1, 2, 3],
    "syncStateSetEpoch": 7,
}
STATE: JsonObject = {
    "apiVersion": names.API_VERSION,
    "kind": "BrokerGroupState",
    "metadata": {"name": "orders"},
    "record": RECORD,
}


def create(server: KubeApiserver, namespace: str, manifest: JsonObject) -> None:
    server.must("create", "-n", namespace, "-f", "-", stdin=json.dumps(manifest))


def applied(server: KubeApiserver, manifest: JsonObject, *options: str) -> CompletedProcess[str]:
    """The answer to a strict server-side apply."""
    words = ("apply", "--server-side", "--validate=strict", *options, "-f", "-")
    return server.kubectl(*words, stdin=json.dumps(manifest))


def test_kinds_are_established_without_schema_complaints(with_kinds: KubeApiserver) -> None:
    for crd in with_kinds.get("crd")["items"]:
        conditions = {condition["type"]: condition["status"] for condition in crd["status"]["conditions"]}
        assert conditions["NamesAccepted"] == "True", crd["metadata"]["name"]
        assert conditions["Established"] == "True", crd["metadata"]["name"]
        assert conditions.get("NonStructuralSchema", "False") == "False", crd["metadata"]["name"]


def test_defaults_are_filled_in(with_kinds: KubeApiserver, namespace: str) -> None:
    create(with_kinds, namespace, broker_group())
    spec = with_kinds.get("bg", "orders", "-n", namespace)["spec"]
    assert (spec["replicas"], spec["brokerClusterName"], spec["implementation"]) == (3, "DefaultCluster", "Java")
    assert spec["failover"] == {
        "heartbeatTimeoutMilliseconds": 3000,
        "isolation": {"enabled": True},
        "delaySeconds": 0,
        "uncleanElection": "Never",
        "electionPolicy": "most-data",
        "priorities": [],
        "preferredZones": [],
    }
    assert spec["security"] == {"signature": "Accepted"}


EXPLAINED = {
    "brokergroup.spec.failover.heartbeatTimeoutMilliseconds": "Other times follow from it",
    "brokergroup.spec.failover.electionPolicy": "most-data: the replica with the highest epoch",
    "brokergroup.spec.failover.priorities.priority": "0: this broker is not elected, even if no other is left",
    "brokergroup.spec.failover.preferredZones": "topology.kubernetes.io/zone",
    "brokergroup.spec.security.signature": "Disabled: signatures are not checked",
    "brokergroup.spec.security.credentialsSecretRef": "keys accessKey and secretKey",
    "brokergroup.spec.security.certificateSecretRef": "keys tls.crt and tls.key",
    "brokergroup.status.members.seat": "came back with less than it had",
    "brokergroup.status.controller.epochJump": "no master is elected until a user accepts it",
    "brokergroup.status.uncleanElections": "may lack acknowledged messages",
    "brokergroup.spec.maintenance.paused": "Failovers, switchovers and the group's deletion go on",
    "brokergroup.spec.antiAffinity.type": "a pod without a domain of its own stays Pending",
    "brokergroup.spec.podTemplate.spec.containers": "cannot be changed here",
    "brokergroup.spec.network.addressing": "ServiceIP: the ClusterIP of a Service per member",
    "brokergroup.spec.network.firstNodePort": "Given with addressing NodePort, and with no other",
    "brokergroup.spec.storage.commitLog": "the commit log has a second claim",
    "brokergroup.spec.storage.ephemeral": "a deleted pod takes its data and its broker id with it",
    "brokergroup.spec.replication.minInSyncReplicas": "with fewer, sends fail until enough are in sync again",
    "brokergroup.spec.podTemplate.spec.containers.name": "Name of the container",
    "brokergroupoperation.spec.elect.acknowledgeDataLoss": "may be lost",
}


@pytest.mark.parametrize("field", EXPLAINED)
def test_a_field_is_explained(with_kinds: KubeApiserver, field: str) -> None:
    explained = " ".join(with_kinds.must("explain", field).split())
    assert EXPLAINED[field] in explained


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_accepted_with_strict_field_validation(
    with_kinds: KubeApiserver, namespace: str, example: Path
) -> None:
    options = ["--dry-run=server", "--validate=strict", "-n", namespace]
    done = with_kinds.kubectl("create", *options, "-f", str(example))
    assert done.returncode == 0, done.stderr


def changed(record: JsonObject, change: Callable[[JsonObject], Any]) -> JsonObject:
    copied = copy.deepcopy(record)
    change(copied)
    return copied


REFUSED_MOVES: dict[str, tuple[JsonObject, str]] = {
    "master epoch falls": ({**RECORD, "masterEpoch": 4}, "masterEpoch never falls"),
    "set epoch falls": ({**RECORD, "syncStateSetEpoch": 6}, "syncStateSetEpoch never falls"),
    "id is handed out again": (
        {**RECORD, "nextBrokerId": 3, "replicas": RECORD["replicas"][:2]},
        "nextBrokerId never falls",
    ),
    "master outside the set": ({**RECORD, "syncStateSet": [2, 3]}, "master must be in syncStateSet"),
    "other master, same epoch": ({**RECORD, "masterBrokerId": 2}, "another master needs a higher masterEpoch"),
    "check code changed": (
        changed(RECORD, lambda record: record["replicas"][0].update(registerCheckCode="other")),
        "registerCheckCode never changes",
    ),
    "id above the next": ({**RECORD, "replicas": [*RECORD["replicas"], {"brokerId": 4}]}, "below nextBrokerId"),
    "other broker name": ({**RECORD, "brokerName": "payments"}, "brokerName is immutable"),
}
ALLOWED_MOVES: dict[str, JsonObject] = {
    "election": {**RECORD, "masterBrokerId": 2, "masterEpoch": 6, "syncStateSet": [2], "syncStateSetEpoch": 8},
    "master lost": {**{k: v for k, v in RECORD.items() if k != "masterBrokerId"}, "masterEpoch": 6},
    "set shrinks": {**RECORD, "syncStateSet": [1, 2], "syncStateSetEpoch": 8},
    "id reserved": {
        **RECORD,
        "nextBrokerId": 5,
        "replicas": [*RECORD["replicas"], {"brokerId": 4, "reservedFor": "p-4"}],
    },
    "address moves": changed(RECORD, lambda record: record["replicas"][1].update(address="10.0.0.9:10911")),
}


def replace_record(server: KubeApiserver, namespace: str, record: JsonObject) -> tuple[int, str]:
    stored = server.get("bgs", "orders", "-n", namespace)
    done = server.kubectl("replace", "-n", namespace, "-f", "-", stdin=json.dumps({**stored, "record": record}))
    return done.returncode, done.stderr


@pytest.mark.parametrize("move", REFUSED_MOVES)
def test_the_record_never_goes_back(with_kinds: KubeApiserver, namespace: str, move: str) -> None:
    record, message = REFUSED_MOVES[move]
    create(with_kinds, namespace, STATE)
    code, stderr = replace_record(with_kinds, namespace, record)
    assert code != 0
    assert message in stderr
    assert with_kinds.get("bgs", "orders", "-n", namespace)["record"]["masterEpoch"] == 5


@pytest.mark.parametrize("move", ALLOWED_MOVES)
def test_the_record_goes_forward(with_kinds: KubeApiserver, namespace: str, move: str) -> None:
    create(with_kinds, namespace, STATE)
    code, stderr = replace_record(with_kinds, namespace, ALLOWED_MOVES[move])
    assert code == 0, stderr


def test_a_stale_write_of_the_record_conflicts(with_kinds: KubeApiserver, namespace: str) -> None:
    create(with_kinds, namespace, STATE)
    stale = with_kinds.get("bgs", "orders", "-n", namespace)
    assert replace_record(with_kinds, namespace, ALLOWED_MOVES["election"])[0] == 0
    stale["record"]["syncStateSetEpoch"] = 9
    done = with_kinds.kubectl("replace", "-n", namespace, "-f", "-", stdin=json.dumps(stale))
    assert done.returncode != 0
    assert "the object has been modified" in done.stderr


def test_printer_columns_show_the_decision(with_kinds: KubeApiserver, namespace: str) -> None:
    create(with_kinds, namespace, STATE)
    head, row = with_kinds.must("get", "bgs", "orders", "-n", namespace).splitlines()
    assert head.split() == ["NAME", "BROKER-NAME", "MASTER", "EPOCH", "SYNC-STATE-SET", "SET-EPOCH", "AGE"]
    assert row.split()[:4] == ["orders", "orders", "1", "5"]
    assert "[1,2,3]" in row.replace(" ", "")


CASES = yaml.safe_load((CRDS.parent / "tests" / "api" / "validation_cases.yaml").read_text(encoding="utf-8"))
RESOURCES = {resource.kind: resource for resource in (BROKER_GROUPS, BROKER_GROUP_OPERATIONS, BROKER_GROUP_STATES)}


async def complaint_about(api: KubernetesApi, namespace: str, name: str, case: JsonObject) -> str:
    """Return the API server's complaint about a case of tests/api/test_validation.py; empty if it is accepted."""
    resource = RESOURCES[case["kind"]]
    metadata = {"name": name, "namespace": namespace}
    base = {"apiVersion": names.API_VERSION, "kind": case["kind"], "metadata": metadata}
    try:
        # The server merges, as the test at the sandbox does by itself.
        whole = merged(CASES["base"][case["kind"]], case["object"])
        await api.create(resource, base | whole | {"metadata": metadata | whole.get("metadata", {})})
        if "then" in case:
            await api.patch(resource, name, case["then"], namespace=namespace)
    except InvalidError as error:
        return str(error)
    return ""


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


async def test_every_validation_case_is_answered_as_the_sandbox_answers_it(
    with_kinds: KubeApiserver, namespace: str
) -> None:
    wrong: list[str] = []
    async with KubernetesApi.from_kubeconfig(with_kinds.kubeconfig) as api:
        for number, case in enumerate(CASES["cases"]):
            said = await complaint_about(api, namespace, f"case-{number}", case)
            expected = case.get("refused", [])
            if bool(said) != bool(expected) or any(text not in said for text in expected):
                wrong.append(f"{case['name']}: expected {expected or 'to be taken'}, got {said or 'taken'}")
    assert wrong == []


MEMBER = Member(broker_id=1, pod="orders-1")


def stored_group(namespace: str, **spec: Any) -> BrokerGroup:
    """The group as the operator reads it."""
    group = broker_group(**spec)
    group["metadata"] |= {"namespace": namespace, "uid": "11111111-2222-3333-4444-555555555555"}
    return msgspec.convert(group, BrokerGroup)


def broker_pod(namespace: str, **spec: Any) -> JsonObject:
    group = stored_group(namespace, **spec)
    place = Place(host="10.96.0.9", port=10911) if group.spec.network.addressing.has_member_services else None
    return build_pod(group, MEMBER, SETTINGS, place=place)


ADDRESSINGS: dict[str, JsonObject] = {
    "ServiceIP": {"addressing": "ServiceIP"},
    "NodePort": {"addressing": "NodePort", "firstNodePort": 31200},
    "LoadBalancer": {"addressing": "LoadBalancer"},
}


@pytest.mark.parametrize(("implementation", "slot"), [("Java", 3), ("Python", 4)])
def test_the_service_of_a_member_is_taken_as_it_is_wished(
    with_kinds: KubeApiserver, namespace: str, implementation: str, slot: int
) -> None:
    for addressing, network in ADDRESSINGS.items():
        group = stored_group(namespace, implementation=implementation, network=network)
        wanted = build_member_service(group, MEMBER, slot=slot)
        done = applied(with_kinds, wanted, "--field-manager", names.FIELD_MANAGER_RECONCILE)
        assert done.returncode == 0, (addressing, done.stderr)
        stored = with_kinds.get("service", "orders-1", "-n", namespace)
        assert stored["spec"]["type"] == wanted["spec"]["type"]
        assert stored["spec"]["clusterIP"].startswith("10.96.")
        assert drifted(stored, wanted) == "", "the next pass has nothing to do"
        ports = {port["name"]: port.get("nodePort") for port in stored["spec"]["ports"]}
        if addressing == "NodePort":
            assert (ports["fast"], ports["broker"]) == (31200 + 5 * slot, 31202 + 5 * slot)
            assert stored["spec"]["externalTrafficPolicy"] == "Local"
        if addressing == "ServiceIP":
            assert set(ports.values()) == {None}
        with_kinds.must("delete", "service", "orders-1", "-n", namespace)


def test_the_real_apiserver_takes_the_policies(with_kinds: KubeApiserver, namespace: str) -> None:
    """Strictly, so no field is unknown to it; and what it stores is no drift."""
    peer = {"podSelector": {}, "namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]}}
    asked = {
        "clientsFrom": [peer, {"ipBlock": {"cidr": "fd00::/8", "except": ["fd00::/16"]}}],
        "proxyClientsFrom": [],
        "metricsFrom": [peer],
    }
    metadata = {"name": "trade", "namespace": namespace}
    template = {"monitoring": {"exporter": True}}
    spec = {"network": {"policy": asked}, "proxy": {}, "brokerGroups": {"template": template}}
    cluster = {"apiVersion": names.API_VERSION, "kind": "RocketMQCluster", "metadata": metadata, "spec": spec}
    done = applied(with_kinds, cluster)
    assert done.returncode == 0, done.stderr
    stored = with_kinds.get("rocketmqcluster", "trade", "-n", namespace)
    (group,) = parts.broker_groups(msgspec.convert(stored, RocketMQCluster), stored)
    made = applied(with_kinds, group)
    assert made.returncode == 0, made.stderr
    of_group = msgspec.convert(with_kinds.get("brokergroup", "trade-0", "-n", namespace), BrokerGroup)
    policy = network_policies.of_group(of_group, SETTINGS)
    assert policy is not None
    wanted = [policy, *parts.network_policies(msgspec.convert(stored, RocketMQCluster), SETTINGS)]
    assert [one["metadata"]["name"] for one in wanted] == ["trade-0-brokers", "trade-nameserver", "trade-proxy"]
    for one in wanted:
        done = applied(with_kinds, with_revision(one))
        assert done.returncode == 0, (one["metadata"]["name"], done.stderr)
        kept = with_kinds.get("networkpolicy", one["metadata"]["name"], "-n", namespace)
        assert drifted(kept, with_revision(one)) == "", kept["spec"]


def test_the_nodes_network_is_more_than_restricted_allows(
    with_kinds: KubeApiserver, namespace: str, restricted_namespace: str
) -> None:
    wish: JsonObject = {"network": {"addressing": "HostNetwork"}, "antiAffinity": {"type": "Required"}}
    pod = broker_pod(restricted_namespace, **wish)
    assert "hostNetwork" in applied(with_kinds, pod, "--dry-run=server").stderr
    with_kinds.must("label", "namespace", namespace, "pod-security.kubernetes.io/enforce-")
    done = applied(with_kinds, pod, "--dry-run=server")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def restricted_namespace(with_kinds: KubeApiserver, namespace: str) -> str:
    """The API server's own admission of Pod Security is in force there."""
    with_kinds.must("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    return namespace


@pytest.mark.parametrize("implementation", ["Java", "Python"])
def test_pod_security_restricted_admits_our_pods(
    with_kinds: KubeApiserver, restricted_namespace: str, implementation: str
) -> None:
    sidecar = {"name": "shipper", "image": "example/shipper:1"}
    wishes: list[JsonObject] = [
        {},
        {"podTemplate": {"spec": {"containers": [sidecar], "volumes": [{"name": "spool", "emptyDir": {}}]}}},
        {"antiAffinity": {"type": "Required"}, "podTemplate": {"spec": {"tolerations": [{"operator": "Exists"}]}}},
        {"storage": {"ephemeral": {"sizeLimit": "2Gi"}}},
        {"storage": {"commitLog": {"size": "10Gi"}}},
        *({"network": wish} for wish in ADDRESSINGS.values()),
    ]
    for wish in wishes:
        pod = broker_pod(restricted_namespace, implementation=implementation, **wish)
        done = applied(with_kinds, pod, "--dry-run=server")
        assert done.returncode == 0, (wish, done.stderr)


def test_pod_security_restricted_refuses_a_template_that_asks_for_more(
    with_kinds: KubeApiserver, restricted_namespace: str
) -> None:
    """So the test above can fail."""
    privileged = {"privileged": True, "allowPrivilegeEscalation": True}
    sidecar = {"name": "shipper", "image": "x", "securityContext": privileged}
    pod = broker_pod(restricted_namespace, podTemplate={"spec": {"containers": [sidecar]}})
    assert "violates PodSecurity" in applied(with_kinds, pod, "--dry-run=server").stderr


def test_a_typo_in_a_pod_template_is_refused_when_the_pod_is_made(with_kinds: KubeApiserver, namespace: str) -> None:
    """The operator's own server-side apply gets the error, even without a request for strictness."""
    sidecar = {"name": "shipper", "image": "x", "comand": ["sh"]}
    pod = broker_pod(namespace, podTemplate={"spec": {"containers": [sidecar]}})
    done = applied(with_kinds, pod, "--dry-run=server", "--validate=ignore")
    assert done.returncode != 0
    assert ".comand: field not declared in schema" in done.stderr


TYPO = {"failover": {"heartbeatTimeoutMiliseconds": 9000}}


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        (["create"], 'unknown field "spec.failover.heartbeatTimeoutMiliseconds"'),
        (["apply"], 'unknown field "spec.failover.heartbeatTimeoutMiliseconds"'),
        (["apply", "--server-side"], "heartbeatTimeoutMiliseconds: field not declared in schema"),
        # As Flux applies, whatever strictness it asks for.
        (["apply", "--server-side", "--validate=ignore"], "heartbeatTimeoutMiliseconds: field not declared in schema"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_typo_in_the_spec_is_refused(with_kinds: KubeApiserver, namespace: str, verb: list[str], words: str) -> None:
    done = with_kinds.kubectl(*verb, "-n", namespace, "-f", "-", stdin=json.dumps(broker_group(**TYPO)))
    assert done.returncode != 0
    assert words in done.stderr


def test_a_typo_in_a_patch_is_refused(with_kinds: KubeApiserver, namespace: str) -> None:
    create(with_kinds, namespace, broker_group())
    edited = with_kinds.get("bg", "orders", "-n", namespace)
    edited["spec"] |= {"replcas": 5}
    done = with_kinds.kubectl("replace", "-n", namespace, "-f", "-", stdin=json.dumps(edited))
    assert 'unknown field "spec.replcas"' in done.stderr


def test_a_client_that_asks_for_no_strictness_is_warned(with_kinds: KubeApiserver, namespace: str) -> None:
    """The only write that accepts a typo (docs/reference/brokergroup.md): the API server drops the field with a warning."""
    done = with_kinds.kubectl(
        "create", "--validate=warn", "-n", namespace, "-f", "-", stdin=json.dumps(broker_group(**TYPO))
    )
    assert done.returncode == 0
    assert 'Warning: unknown field "spec.failover.heartbeatTimeoutMiliseconds"' in done.stderr


def test_scale_is_a_subresource(with_kinds: KubeApiserver, namespace: str) -> None:
    create(with_kinds, namespace, broker_group())
    with_kinds.must("scale", "bg/orders", "--replicas=5", "-n", namespace)
    assert with_kinds.get("bg", "orders", "-n", namespace)["spec"]["replicas"] == 5
    refused = with_kinds.kubectl("scale", "bg/orders", "--replicas=17", "-n", namespace)
    assert "less than or equal to 16" in refused.stderr


def test_printer_columns_show_the_group(with_kinds: KubeApiserver, namespace: str) -> None:
    create(with_kinds, namespace, broker_group())
    condition = {"observedGeneration": 1, "message": "", "lastTransitionTime": "2026-11-21T00:00:00Z"}
    status = {
        "readyReplicas": 3,
        "inSyncReplicas": 3,
        "master": {"brokerId": 2, "pod": "orders-2", "address": "10.0.0.2:10911", "epoch": 7},
        "conditions": [
            condition | {"type": "Ready", "status": "True", "reason": "AllMembersInSync"},
            condition | {"type": "FailoverSafe", "status": "True", "reason": "EnoughCandidates"},
        ],
    }
    options = ["--subresource=status", "--type=merge", "-n", namespace]
    with_kinds.must("patch", "bg", "orders", *options, "-p", json.dumps({"status": status}))
    head, row = with_kinds.must("get", "bg", "orders", "-n", namespace).splitlines()

    assert head.split() == ["NAME", "REPLICAS", "READY", "MASTER", "EPOCH", "IN-SYNC", "SAFE", "STATUS", "AGE"]
    assert row.split()[:8] == ["orders", "3", "3", "orders-2", "7", "3", "True", "AllMembersInSync"]


def test_an_operation_is_made_by_its_type_and_waited_for(with_kinds: KubeApiserver, namespace: str) -> None:
    spec = {"brokerGroupRef": {"name": "orders"}, "type": "Switchover", "switchover": {}}
    metadata = {"generateName": "orders-switchover-"}
    operation = {"apiVersion": names.API_VERSION, "kind": "BrokerGroupOperation", "metadata": metadata, "spec": spec}
    name = with_kinds.must("create", "-o", "name", "-n", namespace, "-f", "-", stdin=json.dumps(operation)).strip()
    assert with_kinds.get(name, "-n", namespace)["spec"]["switchover"] == {"deadlineSeconds": 60}
    complete = {
        "type": "Complete", "status": "True", "reason": "Done", "message": "", "lastTransitionTime": "2026-11-21T00:00:00Z",
    }  # fmt: skip
    options = ["--subresource=status", "--type=merge", "-n", namespace]
    with_kinds.must("patch", name, *options, "-p", json.dumps({"status": {"conditions": [complete]}}))

    with_kinds.must("wait", "--for=condition=Complete", "--timeout=5s", "-n", namespace, name)

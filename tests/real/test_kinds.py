"""The generated kinds at the real kube-apiserver: accepted, defaulted, and bad fields refused with messages that name them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.real.parts.kubernetes_api import KubeApiserver

pytestmark = pytest.mark.real("kube-apiserver")

CRDS = Path(__file__).resolve().parents[2] / "crds"
EXAMPLES = sorted((CRDS.parent / "examples").glob("*.yaml"))
JsonObject = dict[str, Any]


def broker_group(**spec: Any) -> JsonObject:
    metadata = {"name": "orders"}
    return {"apiVersion": "brokergroup.dev/v1alpha1", "kind": "BrokerGroup", "metadata": metadata, "spec": spec}


def state(**record: Any) -> JsonObject:
    whole = {
        "clusterName": "DefaultCluster",
        "brokerName": "orders",
        "nextBrokerId": 4,
        "replicas": [{"brokerId": n, "registerCheckCode": f"check-{n}", "registered": True} for n in (1, 2, 3)],
        "masterBrokerId": 1,
        "masterEpoch": 5,
        "syncStateSet": [1, 2, 3],
        "syncStateSetEpoch": 7,
    }
    metadata = {"name": "orders"}
    kept = {key: value for key, value in {**whole, **record}.items() if value is not None}
    return {"apiVersion": "brokergroup.dev/v1alpha1", "kind": "BrokerGroupState", "metadata": metadata, "record": kept}


def test_kinds_are_established_without_schema_complaints(with_kinds: KubeApiserver) -> None:
    for crd in with_kinds.get("crd")["items"]:
        conditions = {condition["type"]: condition["status"] for condition in crd["status"]["conditions"]}
        assert conditions["NamesAccepted"] == "True", crd["metadata"]["name"]
        assert conditions["Established"] == "True", crd["metadata"]["name"]
        assert conditions.get("NonStructuralSchema", "False") == "False", crd["metadata"]["name"]


def test_defaults_are_filled_in(with_kinds: KubeApiserver, namespace: str) -> None:
    with_kinds.must("create", "-n", namespace, "-f", "-", stdin=json.dumps(broker_group()))
    spec = with_kinds.get("bg", "orders", "-n", namespace)["spec"]
    assert (spec["replicas"], spec["brokerClusterName"], spec["implementation"]) == (3, "DefaultCluster", "rocketmq")
    assert spec["failover"] == {
        "heartbeatTimeoutMilliseconds": 3000,
        "heartbeatIntervalMilliseconds": 500,
        "fenceTimeoutMilliseconds": 2000,
        "isolation": {"enabled": True, "timeoutMilliseconds": 2500},
        "delaySeconds": 0,
        "uncleanElection": "Never",
        "electionPolicy": "most-data",
        "priorities": [],
        "preferredZones": [],
    }
    assert spec["security"] == {"signature": "Accepted"}


EXPLAINED = {
    "brokergroup.spec.failover.minimumHeartbeatTimeoutMilliseconds": "Lower bound of the adaptive timeout",
    "brokergroup.spec.failover.electionPolicy": "most-data: the replica with the highest epoch",
    "brokergroup.spec.failover.priorities.priority": "0: never a master",
    "brokergroup.spec.failover.preferredZones": "topology.kubernetes.io/zone",
    "brokergroup.spec.security.signature": "YAML reads a bare Off as false",
    "brokergroup.spec.security.credentialsSecretName": "keys accessKey and secretKey",
    "brokergroup.status.members.seat": "came back with less than it had",
    "brokergroup.status.controller.epochJump": "waits for a human",
    "brokergroup.status.uncleanElections": "may have lost messages",
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


BAD_SPECS: list[tuple[JsonObject, tuple[str, ...]]] = [
    ({"replicas": 0}, ("spec.replicas", "greater than or equal to 1")),
    ({"replicas": "three"}, ("spec.replicas", "integer")),
    ({"implementation": "kafka"}, ("spec.implementation", "kafka", "replica", "rocketmq")),
    ({"durability": "Sometimes"}, ("spec.durability", "Sometimes", "Strict")),
    ({"durability": "Strict", "replicas": 1}, ("spec.replicas", "replicas >= 2")),
    ({"failover": {"uncleanElection": "Allowed"}}, ("spec.failover.uncleanElection", "Strict")),
    (
        {"failover": {"heartbeatTimeoutMilliseconds": 800, "heartbeatIntervalMilliseconds": 500}},
        ("spec.failover", "heartbeatTimeoutMilliseconds", "at least twice"),
    ),
    ({"brokerName": "with blank"}, ("spec.brokerName", "with blank")),
    ({"nameServers": ["no-port"]}, ("spec.nameServers[0]", "no-port")),
    ({"storage": {"size": "plenty"}}, ("spec.storage.size", "plenty")),
    ({"config": {"brokerId": "7"}}, ("spec.config", "brokerId", "controller assigns")),
    ({"version": "5.5.0", "image": "somewhere/rocketmq"}, ("spec.image", "exclude each other")),
    (
        {"failover": {"minimumHeartbeatTimeoutMilliseconds": 3001}},
        ("spec.failover.minimumHeartbeatTimeoutMilliseconds", "exceed"),
    ),
    ({"failover": {"electionPolicy": "coin-flip"}}, ("spec.failover.electionPolicy", "coin-flip", "most-data")),
    (
        {"durability": "Fast", "failover": {"electionPolicy": "preferred-zone"}},
        ("spec.failover.electionPolicy", "contradicts durability Fast"),
    ),
    ({"failover": {"preferredZones": ["a", "a"]}}, ("spec.failover.preferredZones", "names a zone twice")),
    ({"failover": {"priorities": [{"brokerId": 1}]}}, ("spec.failover.priorities[0].priority", "Required")),
    ({"security": {"signature": "Required"}}, ("spec.security.credentialsSecretName", "no broker could sign")),
    ({"security": {"signature": False}}, ("spec.security.signature", "boolean")),
    ({"replicsa": 5}, ('unknown field "spec.replicsa"',)),
]


@pytest.mark.parametrize(("spec", "words"), BAD_SPECS, ids=[words[0] for _, words in BAD_SPECS])
def test_a_bad_field_is_refused_and_named(
    with_kinds: KubeApiserver, namespace: str, spec: JsonObject, words: tuple[str, ...]
) -> None:
    options = ("create", "--validate=strict", "-n", namespace, "-f", "-")
    done = with_kinds.kubectl(*options, stdin=json.dumps(broker_group(**spec)))
    assert done.returncode != 0
    assert [word for word in words if word not in done.stderr] == [], done.stderr


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        ({}, {"brokerClusterName": "Other"}, "spec.brokerClusterName"),
        ({}, {"implementation": "replica"}, "spec.implementation"),
        ({"brokerName": "a"}, {"brokerName": "b"}, "spec.brokerName"),
        ({"storage": {"size": "8Gi"}}, {"storage": {"size": "7Gi"}}, "spec.storage.size"),
    ],
    ids=["cluster name", "implementation", "broker name", "smaller volume"],
)
def test_what_is_written_on_disks_cannot_be_changed(
    with_kinds: KubeApiserver, namespace: str, before: JsonObject, after: JsonObject, field: str
) -> None:
    with_kinds.must("create", "-n", namespace, "-f", "-", stdin=json.dumps(broker_group(**before)))
    done = with_kinds.kubectl(
        "patch", "bg", "orders", "-n", namespace, "--type=merge", "-p", json.dumps({"spec": after})
    )
    assert done.returncode != 0
    assert field in done.stderr


def changed(record: JsonObject, change: Callable[[JsonObject], Any]) -> JsonObject:
    copied = copy.deepcopy(record)
    change(copied)
    return copied


RECORD = state()["record"]
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
    with_kinds.must("create", "-n", namespace, "-f", "-", stdin=json.dumps(state()))
    code, stderr = replace_record(with_kinds, namespace, record)
    assert code != 0
    assert message in stderr
    assert with_kinds.get("bgs", "orders", "-n", namespace)["record"]["masterEpoch"] == 5


@pytest.mark.parametrize("move", ALLOWED_MOVES)
def test_the_record_goes_forward(with_kinds: KubeApiserver, namespace: str, move: str) -> None:
    with_kinds.must("create", "-n", namespace, "-f", "-", stdin=json.dumps(state()))
    code, stderr = replace_record(with_kinds, namespace, ALLOWED_MOVES[move])
    assert code == 0, stderr


def test_a_stale_write_of_the_record_conflicts(with_kinds: KubeApiserver, namespace: str) -> None:
    with_kinds.must("create", "-n", namespace, "-f", "-", stdin=json.dumps(state()))
    stale = with_kinds.get("bgs", "orders", "-n", namespace)
    assert replace_record(with_kinds, namespace, ALLOWED_MOVES["election"])[0] == 0
    stale["record"]["syncStateSetEpoch"] = 9
    done = with_kinds.kubectl("replace", "-n", namespace, "-f", "-", stdin=json.dumps(stale))
    assert done.returncode != 0
    assert "the object has been modified" in done.stderr


def test_printer_columns_show_the_decision(with_kinds: KubeApiserver, namespace: str) -> None:
    with_kinds.must("create", "-n", namespace, "-f", "-", stdin=json.dumps(state()))
    head, row = with_kinds.must("get", "bgs", "orders", "-n", namespace).splitlines()
    assert head.split() == ["NAME", "BROKER-NAME", "MASTER", "EPOCH", "SYNC-STATE-SET", "SET-EPOCH", "AGE"]
    assert row.split()[:4] == ["orders", "orders", "1", "5"]
    assert "[1,2,3]" in row.replace(" ", "")

"""What both say of our own kinds: accepted, defaulted, refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.parity.bodies import CLUSTERS, GROUPS, OPERATIONS, STATES, cluster, group, reason, state
from tests.parity.peer import APPLY, MERGE

if TYPE_CHECKING:
    from tests.parity.peer import Peer

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


async def broker_groups(peer: Peer) -> None:
    for path in sorted(EXAMPLES.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if document["kind"] == "BrokerGroup":
                await peer.call("POST", GROUPS, document, fieldValidation="Strict")
    await peer.call("POST", GROUPS, group())
    for spec in (
        {"replicas": 0},
        {"replicas": 1, "durability": "Strict"},
        {"durability": "Strict", "failover": {"uncleanElection": "Allowed"}},
        {"failover": {"uncleanElection": "Allowed"}},
        {"failover": {"heartbeatTimeoutMilliseconds": 600, "heartbeatIntervalMilliseconds": 500}},
        {"config": {"brokerId": "1", "namesrvAddr": "x", "a b": "c"}},
        {"version": "5.5.0", "image": "x"},
        {"storage": {"size": "much"}},
        {"implementation": "other"},
        {"brokerName": "not a name!"},
        {"brokerName": 5},
        {"nameServers": ["host:9876", "no port"]},
        {"nonsense": 1},
    ):
        await peer.call("POST", GROUPS, group("bad", **spec))
        await peer.call("DELETE", f"{GROUPS}/bad", only=reason)
    for name in ("a.b", "a" * 53, "A_b"):
        await peer.call("POST", GROUPS, group(name))
    await peer.call("POST", GROUPS, group("c.d", replicas=1, durability="Strict"))
    await peer.call("POST", GROUPS, group("h", brokerName="h", storage={"size": "2Gi"}))
    specs: tuple[dict[str, Any], ...] = (
        {"brokerName": "other"},
        {"brokerName": None},
        {"storage": {"size": "1Gi"}},
        {"storage": {"size": "3072Mi"}},
        {"storage": {"storageClassName": "fast"}},
        {"implementation": "rocketmq"},
        {"replicas": 5},
    )
    for spec in specs:
        await peer.call("PATCH", f"{GROUPS}/h", {"spec": spec}, content_type=MERGE)


async def broker_group_states(peer: Peer) -> None:
    replicas = [
        {
            "brokerId": number,
            "registerCheckCode": code,
            "address": f"10.0.0.{number}:10911",
            "reservedFor": f"g-{number}",
        }
        for number, code in ((1, "a"), (2, ""))
    ]
    record: dict[str, Any] = {
        "nextBrokerId": 3,
        "replicas": replicas,
        "masterBrokerId": 1,
        "masterEpoch": 4,
        "syncStateSet": [1],
        "syncStateSetEpoch": 7,
    }
    await peer.call("POST", STATES, state(**{**record, "masterBrokerId": 2}))
    await peer.call("POST", STATES, state(**{**record, "nextBrokerId": 2}))
    await peer.call("POST", STATES, state(**{**record, "syncStateSet": [1, 1]}))
    await peer.call("POST", STATES, state(**record))
    changes: tuple[dict[str, Any], ...] = (
        {"nextBrokerId": 2},
        {"masterEpoch": 3},
        {"syncStateSetEpoch": 6},
        {"masterBrokerId": 2, "syncStateSet": [1, 2]},
        {"masterBrokerId": 2, "syncStateSet": [2], "masterEpoch": 5},
        {"replicas": [{**replicas[0], "registerCheckCode": "z"}, replicas[1]]},
        {"replicas": [replicas[0], {**replicas[1], "registerCheckCode": "b"}]},
        {"clusterName": "other"},
        {"masterBrokerId": None},
        {"replicas": []},
        {"masterEpoch": "5"},
    )
    for change in changes:
        await peer.call("PATCH", f"{STATES}/g", {"record": change}, content_type=MERGE)
    current = await peer.call("GET", f"{STATES}/g")
    current["record"]["syncStateSet"] = [1]
    await peer.call("PUT", f"{STATES}/g", current)
    await peer.call("PUT", f"{STATES}/g", current)


async def broker_group_operations(peer: Peer) -> None:
    """Operations, and what is done to a group by its operator, kubectl and the plugin."""
    await peer.call("POST", GROUPS, group(), fieldValidation="Strict")
    status = {"apiVersion": group()["apiVersion"], "kind": "BrokerGroup", "metadata": {"name": "g"}}
    how: dict[str, Any] = {"content_type": APPLY, "fieldManager": "brokergroup-status", "force": "true"}
    await peer.call("PATCH", f"{GROUPS}/g/status", {**status, "status": {"masterEpoch": 1, "replicas": 3}}, **how)
    await peer.call("PATCH", f"{GROUPS}/g/status", {**status, "status": {"masterEpoch": 1, "nonsense": 3}}, **how)
    await peer.call(
        "PATCH", f"{GROUPS}/g", {**group(), "spec": {"replicas": 2}}, content_type=APPLY, fieldManager="kubectl"
    )
    paused = {"spec": {"maintenance": {"paused": True}}}
    await peer.call("PATCH", f"{GROUPS}/g", paused, content_type=MERGE, fieldValidation="Strict")
    typo = {"spec": {"maintenance": {"pause": True}}}
    await peer.call("PATCH", f"{GROUPS}/g", typo, content_type=MERGE, fieldValidation="Strict")
    await peer.call("GET", GROUPS)
    await peer.call("GET", f"{GROUPS}/g")
    await peer.call("GET", f"{GROUPS}/g/scale")
    await peer.call("PATCH", f"{GROUPS}/g/scale", {"spec": {"replicas": 4}}, content_type=MERGE)
    for spec in (
        {"type": "Switchover", "switchover": {}},
        {"type": "Switchover"},
        {"type": "Switchover", "restart": {}},
        {"type": "Elect", "elect": {"toBrokerId": 1, "acknowledgeDataLoss": "other"}},
        {"type": "Nonsense", "switchover": {}},
    ):
        await peer.call("POST", OPERATIONS, operation(**spec), fieldValidation="Strict")
        await peer.call("DELETE", f"{OPERATIONS}/o", only=reason)
    made = await peer.call("POST", OPERATIONS, operation(type="Switchover", switchover={"toBrokerId": 2}))
    await peer.call("PATCH", f"{OPERATIONS}/o", {"spec": {"switchover": {"toBrokerId": 3}}}, content_type=MERGE)
    await peer.call("PATCH", f"{OPERATIONS}/o", {"metadata": {"labels": {"a": "b"}}}, content_type=MERGE)
    running = {**made, "status": {"phase": "Running", "startedAt": "2026-01-01T00:00:00Z"}}
    await peer.call("PUT", f"{OPERATIONS}/o/status", running)  # an older version: a conflict
    fresh = await peer.call("GET", f"{OPERATIONS}/o")
    await peer.call("PUT", f"{OPERATIONS}/o/status", {**fresh, "status": running["status"]})
    await peer.call("GET", OPERATIONS)
    await peer.call("POST", STATES, state(nextBrokerId=2))
    await peer.call("GET", STATES)
    await peer.call("DELETE", f"{STATES}/g", {"preconditions": {"resourceVersion": "1"}})
    await peer.call("DELETE", f"{STATES}/g")
    await peer.call("DELETE", f"{GROUPS}/g")
    for policy in ("Orphan", "Foreground"):
        held = group(f"as-{policy.lower()}")
        held["metadata"]["finalizers"] = ["brokergroup.dev/brokergroup"]
        await peer.call("POST", GROUPS, held)
        path = f"{GROUPS}/as-{policy.lower()}"
        await peer.call("DELETE", path, {"propagationPolicy": policy, "dryRun": ["All"]})
        await peer.call("GET", path)
        await peer.call("DELETE", path, {"propagationPolicy": policy})


def operation(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": group()["apiVersion"],
        "kind": "BrokerGroupOperation",
        "metadata": {"name": "o"},
        "spec": {"brokerGroupRef": {"name": "g"}, **spec},
    }


async def rocketmq_clusters(peer: Peer) -> None:
    """Defaults, what each rule refuses, and the status apart."""
    await peer.call("POST", CLUSTERS, cluster())
    for name, spec in (
        ("version-and-image", {"version": "5.5.0", "image": "registry.example/rocketmq:1"}),
        ("named-servers", {"brokerGroups": {"template": {"nameServers": ["a:9876"]}}}),
        ("named-broker", {"brokerGroups": {"template": {"brokerName": "a"}}}),
        ("beyond-count", {"brokerGroups": {"count": 1, "overrides": [{"index": 1}]}}),
        ("index-twice", {"brokerGroups": {"overrides": [{"index": 0}, {"index": 0}]}}),
        ("proxys-own-key", {"proxy": {"config": {"proxyMode": "LOCAL"}}}),
        ("a" * 60, {}),
    ):
        await peer.call("POST", CLUSTERS, cluster(name, **spec))
    await peer.call("PATCH", f"{CLUSTERS}/c", {"spec": {"brokerGroups": {"count": 65}}}, content_type=MERGE)
    await peer.call("PATCH", f"{CLUSTERS}/c", {"spec": {"brokerGroups": {"count": 2}}}, content_type=MERGE)
    status = {"status": {"nameServers": {"desired": 2, "ready": 1, "summary": "1/2"}}}
    await peer.call("PATCH", f"{CLUSTERS}/c/status", status, content_type=MERGE)
    await peer.call("GET", f"{CLUSTERS}/c")
    await peer.call("DELETE", f"{CLUSTERS}/c")

"""Both servers' answers about our own kinds: accepted, defaulted, refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.parity.peer import CLUSTERS, GROUPS, OPERATIONS, STATES, cluster, group, reason, state

if TYPE_CHECKING:
    from tests.parity.peer import Peer

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


async def broker_groups(peer: Peer) -> None:
    for path in sorted(EXAMPLES.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if document["kind"] == "BrokerGroup":
                await peer.post(GROUPS, document, fieldValidation="Strict")
    await peer.post(GROUPS, group())
    for spec in (
        {"replicas": 0},
        {"replicas": 1, "durability": "Strict"},
        {"durability": "Strict", "failover": {"uncleanElection": "Allowed"}},
        {"failover": {"uncleanElection": "Allowed"}},
        {"failover": {"heartbeatTimeoutMilliseconds": 400}},
        {"config": {"brokerId": "1", "namesrvAddr": "x", "a b": "c"}},
        {"version": "5.5.0", "image": "x"},
        {"storage": {"size": "much"}},
        {"implementation": "other"},
        {"brokerName": "not a name!"},
        {"brokerName": 5},
        {"nameServers": ["host:9876", "no port"]},
        {"nonsense": 1},
    ):
        await peer.post(GROUPS, group("bad", **spec))
        await peer.delete(f"{GROUPS}/bad", only=reason)
    for name in ("a.b", "a" * 53, "A_b"):
        await peer.post(GROUPS, group(name))
    await peer.post(GROUPS, group("c.d", replicas=1, durability="Strict"))
    await peer.post(GROUPS, group("h", brokerName="h", storage={"size": "2Gi"}))
    specs: tuple[dict[str, Any], ...] = (
        {"brokerName": "other"},
        {"brokerName": None},
        {"storage": {"size": "1Gi"}},
        {"storage": {"size": "3072Mi"}},
        {"storage": {"storageClassName": "fast"}},
        {"implementation": "Java", "nameServers": ["ns:9876"]},
        {"replicas": 5},
    )
    for spec in specs:
        await peer.merge(f"{GROUPS}/h", {"spec": spec})


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
    await peer.post(STATES, state(**{**record, "masterBrokerId": 2}))
    await peer.post(STATES, state(**{**record, "nextBrokerId": 2}))
    await peer.post(STATES, state(**{**record, "syncStateSet": [1, 1]}))
    await peer.post(STATES, state(**record))
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
        await peer.merge(f"{STATES}/g", {"record": change})
    current = await peer.get(f"{STATES}/g")
    current["record"]["syncStateSet"] = [1]
    await peer.put(f"{STATES}/g", current)
    await peer.put(f"{STATES}/g", current)


async def broker_group_operations(peer: Peer) -> None:
    """Operations, and what is done to a group by its operator, kubectl and the plugin."""
    await peer.post(GROUPS, group(), fieldValidation="Strict")
    status = {"apiVersion": group()["apiVersion"], "kind": "BrokerGroup", "metadata": {"name": "g"}}
    how: dict[str, Any] = {"fieldManager": "brokergroup-status", "force": "true"}
    await peer.apply(f"{GROUPS}/g/status", {**status, "status": {"uncleanElections": 1, "replicas": 3}}, **how)
    await peer.apply(f"{GROUPS}/g/status", {**status, "status": {"uncleanElections": 1, "nonsense": 3}}, **how)
    await peer.apply(f"{GROUPS}/g", {**group(), "spec": {"replicas": 2}}, fieldManager="kubectl")
    paused = {"spec": {"maintenance": {"paused": True}}}
    await peer.merge(f"{GROUPS}/g", paused, fieldValidation="Strict")
    typo = {"spec": {"maintenance": {"pause": True}}}
    await peer.merge(f"{GROUPS}/g", typo, fieldValidation="Strict")
    await peer.get(GROUPS)
    await peer.get(f"{GROUPS}/g")
    await peer.get(f"{GROUPS}/g/scale")
    await peer.merge(f"{GROUPS}/g/scale", {"spec": {"replicas": 4}})
    for spec in (
        {"type": "Switchover", "switchover": {}},
        {"type": "Switchover"},
        {"type": "Switchover", "restart": {}},
        {"type": "Elect", "elect": {"toBrokerId": 1, "acknowledgeDataLoss": "other"}},
        {"type": "Nonsense", "switchover": {}},
    ):
        await peer.post(OPERATIONS, operation(**spec), fieldValidation="Strict")
        await peer.delete(f"{OPERATIONS}/o", only=reason)
    made = await peer.post(OPERATIONS, operation(type="Switchover", switchover={"toBrokerId": 2}))
    await peer.merge(f"{OPERATIONS}/o", {"spec": {"switchover": {"toBrokerId": 3}}})
    await peer.merge(f"{OPERATIONS}/o", {"metadata": {"labels": {"a": "b"}}})
    running = {**made, "status": {"phase": "Running", "startedAt": "2026-01-01T00:00:00Z"}}
    await peer.put(f"{OPERATIONS}/o/status", running)  # an older version: a conflict
    fresh = await peer.get(f"{OPERATIONS}/o")
    await peer.put(f"{OPERATIONS}/o/status", {**fresh, "status": running["status"]})
    await peer.get(OPERATIONS)
    await peer.post(STATES, state(nextBrokerId=2))
    await peer.get(STATES)
    await peer.delete(f"{STATES}/g", {"preconditions": {"resourceVersion": "1"}})
    await peer.delete(f"{STATES}/g")
    await peer.delete(f"{GROUPS}/g")
    for policy in ("Orphan", "Foreground"):
        held = group(f"as-{policy.lower()}")
        held["metadata"]["finalizers"] = ["brokergroup.dev/brokergroup"]
        await peer.post(GROUPS, held)
        path = f"{GROUPS}/as-{policy.lower()}"
        await peer.delete(path, {"propagationPolicy": policy, "dryRun": ["All"]})
        await peer.get(path)
        await peer.delete(path, {"propagationPolicy": policy})


def operation(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": group()["apiVersion"],
        "kind": "BrokerGroupOperation",
        "metadata": {"name": "o"},
        "spec": {"brokerGroupRef": {"name": "g"}, **spec},
    }


async def rocketmq_clusters(peer: Peer) -> None:
    """Defaults, what each rule refuses, and the status apart."""
    await peer.post(CLUSTERS, cluster())
    for name, spec in (
        ("version-and-image", {"version": "5.5.0", "image": "registry.example/rocketmq:1"}),
        ("named-servers", {"brokerGroups": {"template": {"nameServers": ["a:9876"]}}}),
        ("named-broker", {"brokerGroups": {"template": {"brokerName": "a"}}}),
        ("beyond-count", {"brokerGroups": {"count": 1, "overrides": [{"index": 1}]}}),
        ("index-twice", {"brokerGroups": {"overrides": [{"index": 0}, {"index": 0}]}}),
        ("proxys-own-key", {"proxy": {"config": {"proxyMode": "LOCAL"}}}),
        ("a" * 60, {}),
    ):
        await peer.post(CLUSTERS, cluster(name, **spec))
    await peer.merge(f"{CLUSTERS}/c", {"spec": {"brokerGroups": {"count": 65}}})
    await peer.merge(f"{CLUSTERS}/c", {"spec": {"brokerGroups": {"count": 2}}})
    status = {"status": {"nameServers": {"desired": 2, "ready": 1, "summary": "1/2"}}}
    await peer.merge(f"{CLUSTERS}/c/status", status)
    await peer.get(f"{CLUSTERS}/c")
    await peer.delete(f"{CLUSTERS}/c")

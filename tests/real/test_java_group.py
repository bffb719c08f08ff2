"""A BrokerGroup of unmodified Java brokers 5.5.0 in pods at a real kube-apiserver, end to end. At the sandbox: test_demo_real.py.

A NameServer pod and `examples/rocketmq.yaml` are applied with kubectl. Three Java brokers come up in network namespaces of their
own and register; a Java producer sends all the while; the master dies by SIGKILL, the next one is frozen, the operator dies;
no acknowledged message is lost; mqadmin shows the state; a pod is deleted by hand; in the end the group is deleted, and only
the claims are left, although there is no garbage collector.
"""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from brokergroup_operator.demo.client import read_keys
from brokergroup_operator.kube import NotFoundError
from brokergroup_operator.kube.resources import (
    BROKER_GROUP_STATES,
    BROKER_GROUPS,
    CONFIG_MAPS,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    SERVICES,
)
from tests.real.clusters import Cluster, as_yaml, eventually, real_cluster
from tests.real.parts import java, mqadmin_output
from tests.real.parts.java_producer import JavaProducer, start_producer
from tests.real.parts.process import accepts_connections

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from brokergroup_operator.json_object import JsonObject

# By day: Java masters are fenced and failed over by the lanes "nodes", "fence" and "switchover"; mqadmin: test_mqadmin.py.
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.real("java", "rocketmq", "netns", "kube-apiserver", "helm"),
    pytest.mark.timeout(900),
]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMESPACE = "default"
GROUP = "orders"
TOPIC = "numbered"
QUEUES = 4


@dataclass
class JavaGroup:
    """The group under test, seen from outside: through the API and mqadmin."""

    cluster: Cluster
    name_server: str

    async def record(self) -> JsonObject:
        record: JsonObject = (await self.cluster.api.get(BROKER_GROUP_STATES, GROUP, namespace=NAMESPACE))["record"]
        return record

    async def is_ready(self) -> bool:
        """Ready by its own word, with three in the SyncStateSet by the record's."""
        try:
            record = await self.record()
        except NotFoundError:
            return False
        status = (await self.cluster.api.get(BROKER_GROUPS, GROUP, namespace=NAMESPACE)).get("status", {})
        return is_true(status, "Ready") and len(record["syncStateSet"]) == 3

    async def pod(self, name: str) -> JsonObject | None:
        try:
            return await self.cluster.api.get(PODS, name, namespace=NAMESPACE)
        except NotFoundError:
            return None

    async def story(self) -> str:
        return await self.cluster.story(NAMESPACE)

    async def until_ready(self) -> None:
        await eventually(self.is_ready, self.story)

    async def until_acknowledged(self, producer: JavaProducer, count: int) -> None:
        """Wait until this many more sends are acknowledged."""
        target = len(producer.acknowledged()) + count

        async def reached() -> bool:
            return len(producer.acknowledged()) >= target

        await eventually(reached, self.story)

    async def mqadmin(self, *arguments: str) -> str:
        folder = self.cluster.folder / "mqadmin"
        return await asyncio.to_thread(java.mqadmin, folder, *arguments, name_server_address=self.name_server)


def is_true(status: JsonObject, condition_type: str) -> bool:
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions", [])}
    return conditions.get(condition_type) == "True"


def address_of(record: JsonObject, broker_id: int) -> str:
    return next(str(member["address"]) for member in record["replicas"] if member["brokerId"] == broker_id)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with real_cluster(tmp_path) as running:
        yield running


@pytest.fixture
async def group(cluster: Cluster) -> JavaGroup:
    """NameServer, operator and group, all applied and Ready."""
    cluster.start_operator()
    await cluster.kubectl("apply", "-n", NAMESPACE, "-f", str(EXAMPLES / "nameserver.yaml"))
    name_server = await cluster.name_server_address(NAMESPACE)
    manifest = yaml.safe_load((EXAMPLES / "rocketmq.yaml").read_text(encoding="utf-8"))
    manifest["spec"]["nameServers"] = [name_server]  # no DNS here
    await cluster.kubectl("apply", "-n", NAMESPACE, "-f", "-", stdin=as_yaml([manifest]))
    group = JavaGroup(cluster, name_server)
    await group.until_ready()
    return group


async def check_mqadmin(group: JavaGroup, *, written: bool) -> None:
    """getControllerMetaData, getSyncStateSet and getBrokerEpoch against the operator print what the record says.

    A Java broker does not note an epoch that begins where the last one began: only after messages were `written` is the last
    epoch on disk surely the record's.
    """
    address = group.cluster.controller_address
    metadata = mqadmin_output.controller_metadata(await group.mqadmin("getControllerMetaData", "-a", address))
    assert metadata["ControllerLeaderAddress"] == address
    [shown] = mqadmin_output.sync_state_sets(await group.mqadmin("getSyncStateSet", "-a", address, "-b", GROUP))
    record = await group.record()
    assert (shown.broker_name, shown.master_broker_id) == (GROUP, record["masterBrokerId"])
    assert (shown.master_epoch, shown.sync_state_set_epoch) == (record["masterEpoch"], record["syncStateSetEpoch"])
    assert sorted(replica.broker_id for replica in shown.in_sync) == sorted(record["syncStateSet"])
    assert {replica.broker_id: replica.address for replica in (*shown.in_sync, *shown.not_in_sync)} == {
        member["brokerId"]: member["address"] for member in record["replicas"]
    }
    epochs = mqadmin_output.broker_epochs(await group.mqadmin("getBrokerEpoch", "-b", GROUP, "-n", group.name_server))
    assert {shown.address for shown in epochs} == {member["address"] for member in record["replicas"]}
    [last_epoch] = {shown.entries[-1].epoch for shown in epochs}
    assert last_epoch == record["masterEpoch"] if written else last_epoch <= record["masterEpoch"]


async def strike_master(group: JavaGroup, producer: JavaProducer, blow: signal.Signals) -> JsonObject:
    """SIGKILL or SIGSTOP; another master at the next epoch, acknowledging; then all three in sync. Hands back the incident."""
    before = await group.record()
    victim = before["masterBrokerId"]
    struck_pod = await group.pod(f"{GROUP}-{victim}")
    assert struck_pod is not None
    os.kill(group.cluster.pid_of(NAMESPACE, f"{GROUP}-{victim}"), blow)

    async def epoch_rose() -> bool:
        return bool((await group.record())["masterEpoch"] > before["masterEpoch"])

    await eventually(epoch_rose, group.story)
    await group.until_acknowledged(producer, 100)
    after = await group.record()
    assert after["masterEpoch"] == before["masterEpoch"] + 1
    assert after["masterBrokerId"] in set(before["syncStateSet"]) - {victim}
    await group.until_ready()

    async def logged() -> list[JsonObject]:
        return [entry for entry in group.cluster.incidents() if entry.get("epoch") == after["masterEpoch"]]

    incident: JsonObject
    [incident] = await eventually(logged, group.story)
    assert (incident["from"], incident["to"], incident["outcome"]) == (victim, after["masterBrokerId"], "completed")
    healed_pod = await group.pod(f"{GROUP}-{victim}")
    assert healed_pod is not None
    fenced = healed_pod["metadata"]["uid"] != struck_pod["metadata"]["uid"]
    # A killed process is started again where it was; only a silent one loses its pod, and with it its life.
    assert fenced == (blow == signal.SIGSTOP)
    return incident


async def lose_the_operator(group: JavaGroup, producer: JavaProducer) -> None:
    """Kill the operator: the brokers continue without it, and the next one continues from the record, without an election."""
    before = await group.record()
    group.cluster.kill_operator()
    await group.until_acknowledged(producer, 100)
    group.cluster.start_operator()

    async def answers() -> bool:
        return await asyncio.to_thread(accepts_connections, group.cluster.node_ip, group.cluster.controller_port)

    await eventually(answers, group.story)
    await group.until_acknowledged(producer, 100)
    await group.until_ready()
    after = await group.record()
    for kept in ("masterBrokerId", "masterEpoch", "nextBrokerId"):
        assert after[kept] == before[kept]
    assert identities(after) == identities(before)


def identities(record: JsonObject) -> list[JsonObject]:
    """The replicas without their marks, which follow the log."""
    marks = ("heldEpoch", "heldOffset")
    return [{key: value for key, value in one.items() if key not in marks} for one in record["replicas"]]


async def check_nothing_lost(group: JavaGroup, producer: JavaProducer) -> None:
    """Every acknowledged key is in the log of the master there is now."""
    await asyncio.to_thread(producer.stop)
    record = await group.record()
    keys = await read_keys(address_of(record, record["masterBrokerId"]), TOPIC, QUEUES)
    promised = {outcome["key"] for outcome in producer.acknowledged()}
    assert len(promised) > 100
    assert promised - keys == set()


async def delete_a_slaves_pod(group: JavaGroup) -> None:
    """Delete a pod by hand: it returns on the same claim, with the same broker id and another address; no id is assigned."""
    before = await group.record()
    slave = next(broker_id for broker_id in before["syncStateSet"] if broker_id != before["masterBrokerId"])
    name = f"{GROUP}-{slave}"
    old = await group.pod(name)
    assert old is not None
    await group.cluster.kubectl("delete", "pod", name, "-n", NAMESPACE, "--wait=false", "--grace-period=5")

    async def came_back() -> JsonObject | None:
        pod = await group.pod(name)
        if (
            pod is None
            or pod["metadata"]["uid"] == old["metadata"]["uid"]
            or not is_true(pod.get("status", {}), "Ready")
        ):
            return None
        return pod if await group.is_ready() else None

    new = await eventually(came_back, group.story)
    after = await group.record()
    assert new["status"]["podIP"] != old["status"]["podIP"]
    assert address_of(after, slave) == f"{new['status']['podIP']}:10911"
    assert after["nextBrokerId"] == before["nextBrokerId"]
    assert check_codes(after) == check_codes(before)


def check_codes(record: JsonObject) -> dict[int, str]:
    return {replica["brokerId"]: replica["registerCheckCode"] for replica in record["replicas"]}


async def delete_the_group(group: JavaGroup) -> None:
    """All children go, the claims stay, without a garbage collector."""
    api = group.cluster.api
    await group.cluster.kubectl("delete", "bg", GROUP, "-n", NAMESPACE, "--wait=false")

    async def left() -> list[str]:
        groups = [item["metadata"]["name"] for item in (await api.list(BROKER_GROUPS, namespace=NAMESPACE)).items]
        for resource in (PODS, SERVICES, CONFIG_MAPS):
            selector = f"brokergroup.dev/broker-group={GROUP}"
            listed = await api.list(resource, namespace=NAMESPACE, label_selector=selector)
            groups += [f"{resource.kind} {item['metadata']['name']}" for item in listed.items]
        return groups

    async def gone() -> bool:
        return not await left()

    await eventually(gone, group.story)
    claims = await api.list(PERSISTENT_VOLUME_CLAIMS, namespace=NAMESPACE)
    assert sorted(claim["metadata"]["name"] for claim in claims.items) == [f"{GROUP}-{n}" for n in (1, 2, 3)]


async def test_a_group_of_java_brokers_lives_and_fails_over(group: JavaGroup, tmp_path: Path) -> None:
    record = await group.record()
    assert sorted(replica["brokerId"] for replica in record["replicas"]) == [1, 2, 3]
    await check_mqadmin(group, written=False)
    producer = start_producer(tmp_path / "producer", name_server_address=group.name_server, topic=TOPIC)
    try:
        await group.until_acknowledged(producer, 100)
        await strike_master(group, producer, signal.SIGKILL)
        frozen = await strike_master(group, producer, signal.SIGSTOP)
        assert (frozen["trigger"], frozen["unfenced"]) == ("silence", False)
        assert "fenced" in frozen["stepsMilliseconds"]
        await lose_the_operator(group, producer)
        await check_nothing_lost(group, producer)
    finally:
        await asyncio.to_thread(producer.stop)
    await check_mqadmin(group, written=True)
    await delete_a_slaves_pod(group)
    await delete_the_group(group)

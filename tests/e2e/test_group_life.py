"""The life of a group from the user's side: pods are recreated on their claims, bad specs refused, data outlives the group."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kube import InvalidError
from brokergroup_operator.kube.resources import (
    BROKER_GROUP_STATES,
    BROKER_GROUPS,
    CONFIG_MAPS,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    SERVICES,
)
from tests.e2e.house import NAMESPACE, House, WholeGroup, eventually, settled_group
from tests.real.parts.kubectl import Kubectl

if TYPE_CHECKING:
    from brokergroup_operator.kube.resources import Resource

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "too many": ({"replicas": 17}, ["spec.replicas", "17", "less than or equal to 16"]),
    "none": ({"replicas": 0}, ["spec.replicas", "0", "greater than or equal to 1"]),
    "not a number": ({"replicas": "three"}, ["spec.replicas", "integer", "string"]),
    "unknown durability": ({"durability": "Paranoid"}, ["spec.durability", "Paranoid", "Strict"]),
    "Strict on one disk": ({"replicas": 1, "durability": "Strict"}, ["spec.replicas", "Strict needs replicas >= 2"]),
    "unknown implementation": ({"implementation": "kafka"}, ["spec.implementation", "kafka", "Java"]),
    "impatience": ({"failover": {"heartbeatTimeoutMilliseconds": 1}}, ["heartbeatTimeoutMilliseconds", "1"]),
    "not a size": ({"storage": {"size": "much"}}, ["spec.storage.size", "much"]),
}


async def names_of(house: House, resource: Resource, group: str) -> list[str]:
    """Return the objects whose names belong to a group."""
    items = (await house.api.list(resource, namespace=NAMESPACE)).items
    names = [item["metadata"]["name"] for item in items]
    return sorted(name for name in names if name == group or name.startswith(f"{group}-"))


@pytest.mark.parametrize("wish", list(REFUSED))
async def test_a_bad_field_is_refused_by_name(house: House, wish: str) -> None:
    """The API's error names the field, the value and the expected one, and no object is created."""
    spec, expected = REFUSED[wish]
    with pytest.raises(InvalidError) as refusal:
        await house.create_group("bad", **spec)
    for text in expected:
        assert text in str(refusal.value)
    assert await names_of(house, BROKER_GROUPS, "bad") == []


@pytest.mark.parametrize("role", [pytest.param("slave", marks=pytest.mark.longer), "master"])
async def test_a_pod_deleted_by_hand_comes_back_as_itself(group: WholeGroup, role: str) -> None:
    """apache/rocketmq-operator #92: a deleted pod did not find its volume again."""
    broker_id = next(each for each in group.pids() if (each == group.seen.master_id) is (role == "master"))
    name, epoch = f"{group.name}-{broker_id}", group.seen.master_epoch
    api = group.house.api
    before = await api.get(PODS, name, namespace=NAMESPACE)
    claim = await api.get(PERSISTENT_VOLUME_CLAIMS, name, namespace=NAMESPACE)
    codes = {each["brokerId"]: each["registerCheckCode"] for each in group.seen.record["replicas"]}
    async with group.lossless():
        await api.delete(PODS, name, namespace=NAMESPACE)

        def has_moved() -> bool:
            addresses = {each["brokerId"]: each["address"] for each in group.seen.record["replicas"]}
            return addresses[broker_id].split(":")[0] not in {"", before["status"]["podIP"]}

        await group.until(has_moved, "the record's address follows the pod")
    after = await api.get(PODS, name, namespace=NAMESPACE)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["status"]["podIP"] != before["status"]["podIP"]
    assert {each["brokerId"]: each["address"] for each in group.seen.record["replicas"]}[
        broker_id
    ] == f"{after['status']['podIP']}:10911"
    assert after["spec"]["volumes"] == before["spec"]["volumes"]
    again = await api.get(PERSISTENT_VOLUME_CLAIMS, name, namespace=NAMESPACE)
    assert again["metadata"]["uid"] == claim["metadata"]["uid"]
    # No second id, no second identity.
    assert group.seen.record["nextBrokerId"] == 4
    assert {each["brokerId"]: each["registerCheckCode"] for each in group.seen.record["replicas"]} == codes
    assert group.seen.master_epoch == epoch + (1 if role == "master" else 0)


async def test_the_plugin_tells_what_the_status_says(group: WholeGroup) -> None:
    plugin = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / "kubectl-brokergroup"), "status", group.name,
        env={**os.environ, "KUBECONFIG": str(group.house.kubeconfig), "COLUMNS": "160"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, errors = await plugin.communicate()
    text = output.decode()
    assert plugin.returncode == 0, errors.decode()
    seen = group.seen
    assert text.startswith(f"{NAMESPACE}/{group.name}   ")
    assert f"master broker {seen.master_id} ({group.name}-{seen.master_id}), epoch {seen.master_epoch}" in text
    assert "SyncStateSet 1, 2, 3 (epoch " in text
    for member in seen.members():
        [line] = [line for line in text.splitlines() if member.pod in line and member.address in line]
        assert member.role in line
        assert "InSync" in line
    [ready] = [line.split() for line in text.splitlines() if line.split()[:1] == ["Ready"]]
    assert ready[1] == "True"


@pytest.mark.real("kube-apiserver")
async def test_kubectl_waits_gets_and_describes(group: WholeGroup) -> None:
    kubectl = Kubectl(group.house.kubeconfig)
    waited = await asyncio.to_thread(
        kubectl.must, "wait", "--for=condition=Ready", f"brokergroup/{group.name}", "--timeout=30s"
    )
    assert "condition met" in waited
    header, line = (await asyncio.to_thread(kubectl.must, "get", "bg", group.name)).splitlines()
    shown = dict(zip(header.split(), line.split(), strict=True))
    assert shown["NAME"] == group.name
    assert f"{group.name}-{group.seen.master_id}" in shown.values()
    assert str(group.seen.master_epoch) in shown.values()
    described = await asyncio.to_thread(kubectl.must, "describe", "brokergroup", group.name)
    assert "AllMembersInSync" in described
    address = group.seen.master_address()
    assert address is not None
    assert address in described
    states = await asyncio.to_thread(kubectl.get, "bgs", group.name)
    assert states["record"]["masterEpoch"] == group.seen.master_epoch


async def test_data_outlives_a_deleted_group(house: House, group: WholeGroup) -> None:
    """Retain: pods, Services and configuration go, claims and record stay; the next group of that name continues with both."""
    async with settled_group(house, "kept", replicas=2, storage={"retention": {"whenDeleted": "Retain"}}) as kept:
        async with kept.under_load():
            await kept.until_acknowledged()
        record = kept.seen.record
        claims = await names_of(house, PERSISTENT_VOLUME_CLAIMS, "kept")
        await house.delete_group("kept")
        await kept.until(lambda: ("default", "kept") not in kept.seen.groups, "the group is gone")
        for resource in (PODS, SERVICES, CONFIG_MAPS):
            assert await names_of(house, resource, "kept") == []
        assert await names_of(house, PERSISTENT_VOLUME_CLAIMS, "kept") == claims == ["kept-1", "kept-2"]
        # The record complements the disks: without it ids would be assigned again.
        assert await names_of(house, BROKER_GROUP_STATES, "kept") == ["kept"]
        assert kept.seen.record["nextBrokerId"] == record["nextBrokerId"]

        await house.create_group("kept", replicas=2)
        await kept.until_settled()
        async with kept.under_load():
            await kept.until_acknowledged()
        # No message of the first life is lost, no id is new, and the laws held across the deletion.
        await kept.verify()
        assert await names_of(house, PERSISTENT_VOLUME_CLAIMS, "kept") == claims
        assert kept.seen.record["nextBrokerId"] == record["nextBrokerId"]
        assert kept.seen.master_epoch > record["masterEpoch"]


async def test_delete_means_the_data_too(house: House, group: WholeGroup) -> None:
    """whenDeleted: Delete removes the claims and then the record."""
    async with settled_group(house, "gone", replicas=1, storage={"retention": {"whenDeleted": "Delete"}}) as gone:
        await house.delete_group("gone")
        await eventually(lambda: ("default", "gone") not in gone.seen.groups, gone.story)
        for resource in (PODS, SERVICES, CONFIG_MAPS, PERSISTENT_VOLUME_CLAIMS, BROKER_GROUP_STATES):
            assert await names_of(house, resource, "gone") == []


@pytest.mark.parametrize("operator", ["there", "away"])
async def test_an_orphaned_group_serves_on_and_is_taken_back_as_it_runs(
    house: House, group: WholeGroup, operator: str
) -> None:
    """`kubectl delete --cascade=orphan`: no process ends, every send is acknowledged; the recreated group adopts them all."""
    name = f"left-{operator}"
    async with settled_group(house, name, storage={"retention": {"whenDeleted": "Delete"}}) as left:
        pids, record = left.pids(), left.seen.record
        operators = [child for child in house.processes.children if child.name == "operator"]
        async with left.under_load():
            if operator == "away":
                for child in operators:
                    await house.kill_operator(child)
            await house.api.delete(BROKER_GROUPS, name, namespace=NAMESPACE, propagation_policy="Orphan")
            if operator == "away":
                await left.until_acknowledged()
                await house.start_operator()
            await left.until(lambda: (NAMESPACE, name) not in left.seen.groups, "the group is gone")
            failures = left.ledger.failures
            # Longer than any heartbeat timeout: 300 sends are 6 s at least.
            await left.until_acknowledged(300)
            assert left.ledger.failures == failures
            await house.create_group(name)
            await left.until_settled()
            await left.until_acknowledged(300)
            assert left.ledger.failures == failures
        await left.verify()
        assert left.pids() == pids
        assert left.seen.master_epoch == record["masterEpoch"]
        assert left.seen.record["nextBrokerId"] == record["nextBrokerId"]
        await house.delete_group(name)
        await left.until(lambda: (NAMESPACE, name) not in left.seen.groups, "the group is gone")
        assert await names_of(house, PODS, name) == []

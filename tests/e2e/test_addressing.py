"""Groups with advertised addresses other than their pods' own: clients' addresses survive restarts and failovers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kube import InvalidError
from brokergroup_operator.kube.resources import PODS, SECRETS, SERVICES
from tests.e2e.house import NAMESPACE, WholeGroup, eventually, settled_group, whole_group
from tests.e2e.test_signed_group import SECRET_NAME, secret
from tests.support.places import free_port

if TYPE_CHECKING:
    from tests.e2e.house import House

pytestmark = [pytest.mark.longer, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

FIRST_NODE_PORT = 31_000 + os.getpid() % 1000
WISHES: dict[str, dict[str, Any]] = {
    "ServiceIP": {"addressing": "ServiceIP"},
    "NodePort": {"addressing": "NodePort", "firstNodePort": FIRST_NODE_PORT},
    "LoadBalancer": {"addressing": "LoadBalancer"},
}


def addresses(group: WholeGroup) -> dict[int, str]:
    return {one["brokerId"]: one["address"] for one in group.seen.record["replicas"]}


async def service_addresses(house: House, group: WholeGroup, addressing: str) -> dict[int, str]:
    """Return the addresses in the members' Services."""
    found = {}
    for broker_id in addresses(group):
        service = await house.api.get(SERVICES, f"{group.name}-{broker_id}", namespace=NAMESPACE)
        if addressing == "NodePort":
            [port] = [port for port in service["spec"]["ports"] if port["name"] == "broker"]
            found[broker_id] = f"127.0.0.1:{port['nodePort']}"
        elif addressing == "LoadBalancer":
            found[broker_id] = f"{service['status']['loadBalancer']['ingress'][0]['ip']}:10911"
        else:
            found[broker_id] = f"{service['spec']['clusterIP']}:10911"
    return found


@pytest.mark.parametrize("addressing", WISHES)
async def test_failover_and_a_new_pod_keep_the_advertised_addresses(house: House, addressing: str) -> None:
    """apache/rocketmq-operator #202, #203, #218, itboon/rocketmq-helm #19:
    clients outside the cluster got the pods' own addresses.
    """
    name = addressing.lower()
    operator = await house.start_operator()
    async with settled_group(house, name, network=WISHES[addressing]) as group:
        known = await service_addresses(house, group, addressing)
        assert addresses(group) == known
        assert len(set(known.values())) == 3
        with pytest.raises(InvalidError, match="addressing is immutable"):
            await house.patch_group(name, network={"addressing": "PodIP", "firstNodePort": None})
        ips = {one["brokerId"]: one["podIP"] for one in group.seen.status["members"]}
        assert not {address.split(":")[0] for address in known.values()} & set(ips.values())

        async with group.lossless():
            await group.lose_master()

        second = group.master
        before = await house.api.get(PODS, f"{name}-{second}", namespace=NAMESPACE)
        async with group.lossless():
            await house.api.delete(PODS, before["metadata"]["name"], namespace=NAMESPACE)
            await group.until(lambda: group.seen.master_id not in (None, second), "its master's role is moved")
        after = await house.api.get(PODS, before["metadata"]["name"], namespace=NAMESPACE)
        assert after["metadata"]["uid"] != before["metadata"]["uid"]
        assert after["status"]["podIP"] != before["status"]["podIP"]
        assert addresses(group) == known, "addresses in clients and message ids are still valid"

        def known_by() -> tuple[str, str]:
            [member] = [one for one in group.seen.status["members"] if one["brokerId"] == second]
            return member["podIP"], member["address"]

        told = (after["status"]["podIP"], known[second])
        await eventually(lambda: known_by() == told, lambda: f"{known_by()} instead of {told}")
        await group.until_settled()
        await moved_off_a_pod_that_is_removed_by_force(group)
        assert addresses(group) == known
        await house.delete_group(name)
        await group.until(lambda: not group.seen.groups.get((NAMESPACE, name)), "the group is gone")
        left = [item["metadata"]["name"] for item in (await house.api.list(SERVICES, namespace=NAMESPACE)).items]
        assert not [item for item in left if item.startswith(name)]
        await house.kill_operator(operator)


async def moved_off_a_pod_that_is_removed_by_force(group: WholeGroup) -> None:
    """Earlier the operator waited for the master's next process, or for the fence's bound."""
    master, epoch = group.master, group.seen.master_epoch
    async with group.lossless():
        await group.house.api.delete(PODS, group.pod_of(master), namespace=NAMESPACE, grace_period_seconds=0)
        await group.until(lambda: group.seen.master_id not in (None, master), "another member is master")
    assert not any(one["unfenced"] for one in await group.incidents_since(epoch))


async def test_a_member_on_its_nodes_network_is_known_by_its_node(house: House) -> None:
    """Only one member fits on a node, and the sandbox has one node."""
    port = free_port()
    async with whole_group(house, "onnode", replicas=1) as group:
        await house.api.create(SECRETS, secret("planted-on-the-node"))
        operator = await house.start_operator()
        network = {"addressing": "HostNetwork", "listenPort": port, "haPort": free_port()}
        security = {"signature": "Required", "credentialsSecretRef": {"name": SECRET_NAME}}
        await house.create_group(
            "onnode", replicas=1, network=network, antiAffinity={"type": "Required"}, security=security
        )
        await group.until_settled()
        assert addresses(group) == {1: f"127.0.0.1:{port}"}
        async with group.lossless():
            await house.api.delete(PODS, "onnode-1", namespace=NAMESPACE)
            epoch = group.seen.master_epoch
            await group.until(lambda: group.seen.master_epoch > epoch, "it is master again, in a new epoch")
        assert addresses(group) == {1: f"127.0.0.1:{port}"}
        await house.kill_operator(operator)

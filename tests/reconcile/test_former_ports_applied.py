"""The three Services of a member that moves (before, while its pod waits, after) as API servers take them: ours and a real one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kube.client import PatchType
from brokergroup_operator.kube.resources import SERVICES
from brokergroup_operator.reconcile.render.former_ports import cluster_ip, with_former_ports
from tests.reconcile.test_former_ports import CHANGES, member_service, of, pod_of, shown
from tests.reconcile.test_plane import world  # noqa: F401 (fixtures)

if TYPE_CHECKING:
    from brokergroup_operator.api.brokergroup import BrokerGroup
    from tests.reconcile.world import World

INGRESS = {"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.2"}]}}}


async def applied(world: World, service: dict[str, Any]) -> dict[str, Any]:  # noqa: F811
    """As the operator applies it; handed back as the API has it, with the address of a load balancer if it is one."""
    namespace, name = world.key.namespace, service["metadata"]["name"]
    metadata = {"name": name, "namespace": namespace, "labels": service["metadata"]["labels"]}
    await world.applier.apply(SERVICES, service | {"metadata": metadata})
    if service["spec"]["type"] == "LoadBalancer":
        await world.api.patch(
            SERVICES, name, INGRESS, namespace=namespace, subresource="status", content_type=PatchType.MERGE
        )
    return await world.api.get(SERVICES, name, namespace=namespace)


def with_address(service: dict[str, Any], there: dict[str, Any]) -> dict[str, Any]:
    return service | {"spec": service["spec"] | {"clusterIP": cluster_ip(there)}}


def is_given(service: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Names, numbers and type; a node port that nobody asked for may be the API server's own choice."""
    found = shown(service)
    return found.keys() == expected.keys() and all(
        found[name] == text or (" at " not in text and found[name].startswith(f"{text} at "))
        for name, text in expected.items()
    )


def in_namespace(group: BrokerGroup, world: World) -> BrokerGroup:  # noqa: F811
    group.metadata["namespace"] = world.key.namespace
    return group


@pytest.mark.parametrize("change", CHANGES)
async def test_an_api_server_takes_them_one_after_the_other(world: World, change: str) -> None:  # noqa: F811
    before, after = (in_namespace(of(network), world) for network in CHANGES[change][:2])
    first = await applied(world, member_service(before))
    pod = pod_of(before, first)
    waiting = with_former_ports(member_service(after), first, pod)
    second = await applied(world, with_address(waiting, first))
    assert is_given(second, CHANGES[change][2])
    assert cluster_ip(second) == cluster_ip(first)
    assert with_former_ports(member_service(after), second, pod) == waiting, "the next pass finds nothing to do"
    third = await applied(world, with_address(member_service(after), first))
    assert is_given(third, shown(member_service(after))), "what was kept is gone"
    if third["spec"]["type"] == "ClusterIP":
        assert " at " not in " ".join(shown(third).values())
    await world.api.delete(SERVICES, "orders-2", namespace=world.key.namespace)

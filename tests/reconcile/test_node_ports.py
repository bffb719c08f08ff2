"""A node port that another Service has: the group says which and whose, and goes on by itself when that ends."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kube.errors import ApiError, InvalidError
from brokergroup_operator.kube.resources import BROKER_GROUPS, EVENTS, NAMESPACES, PODS, SERVICES
from brokergroup_operator.reconcile.act.refusals import NodePortOwners, NodePortTakenError
from brokergroup_operator.reconcile.plan import ApplyObject, DeleteObject
from tests.reconcile.world import named, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.kube.client import KubernetesApi
    from tests.reconcile.world import World

QUICK = {"backoff_maximum_seconds": 0.5, "backoff_after_event_seconds": 0.2}


async def take(api: KubernetesApi, namespace: str, number: int, **spec: Any) -> None:
    """Somebody's own Service has it."""
    ports = [{"port": 80, "protocol": "TCP", "nodePort": number}]
    spec = {"type": "NodePort", "selector": {"app": "shop"}, "ports": ports} | spec
    await api.create(SERVICES, {"metadata": {"name": "shop", "namespace": namespace}, "spec": spec})


async def stalled(world: World) -> tuple[str, str]:
    """Reason and message while it is so."""
    group = await world.api.get(BROKER_GROUPS, world.key.name, namespace=world.key.namespace)
    conditions = group.get("status", {}).get("conditions", [])
    found = (one for one in conditions if one["type"] == "Stalled" and one["status"] == "True")
    return next(((one["reason"], one["message"]) for one in found), ("", ""))


async def with_number_taken(world: World, first: int, holder: str) -> None:
    """The one by which the second member would be known; the others come up."""
    await take(world.api, holder, first + 7)
    await world.create_group(network={"addressing": "NodePort", "firstNodePort": first})

    async def says_so() -> bool:
        told = [one for one in (await named(world, EVENTS)).values() if one["reason"] == "NodePortTaken"]
        return bool(told) and (await stalled(world))[0] == "NodePortTaken"

    await until("the condition and its Event", says_so)

    async def two_of_three() -> bool:
        return set(await named(world, PODS)) == {"orders-1", "orders-3"}

    await until("the others", two_of_three)


async def whole(world: World) -> bool:
    pods = await named(world, PODS)
    return set(pods) == {"orders-1", "orders-2", "orders-3"} and await stalled(world) == ("", "")


async def test_the_group_says_who_has_it_and_goes_on_when_it_is_free(
    world: World,
    start_plane: Callable[..., Any],
) -> None:
    await start_plane(**QUICK)
    await with_number_taken(world, 30400, world.key.namespace)
    _, message = await stalled(world)
    assert f"Service orders-2 needs node port 30407, which Service {world.key.namespace}/shop has" in message
    assert "spec.network.firstNodePort" in message
    told = [one for one in (await named(world, EVENTS)).values() if one["reason"] == "NodePortTaken"]
    assert [(one["type"], one["message"]) for one in told] == [("Warning", message)], "told once, however often refused"

    await world.api.delete(SERVICES, "shop", namespace=world.key.namespace)
    await until("a whole group", lambda: whole(world))
    ports = (await named(world, SERVICES))["orders-2"]["spec"]["ports"]
    assert {port["name"]: port["nodePort"] for port in ports} == {"broker": 30407, "fast": 30405}


async def test_a_service_of_another_namespace_is_told_of_without_its_name(
    world: World,
    start_plane: Callable[..., Any],
) -> None:
    """An operator of one namespace reads no Services of another."""
    await start_plane(**QUICK)
    elsewhere = f"t-{uuid.uuid4().hex[:8]}"
    await world.api.create(NAMESPACES, {"metadata": {"name": elsewhere}})
    await with_number_taken(world, 30500, elsewhere)
    _, message = await stalled(world)
    assert f"needs node port 30507, which a Service outside namespace {world.key.namespace} has" in message


WANTED = {"metadata": {"name": "orders-2", "namespace": "default"}, "spec": {}}
WISH = ApplyObject(reason="", resource=SERVICES, object=WANTED)
SAID = "spec.ports[0].nodePort: Invalid value: 30107: provided port is already allocated"


@pytest.mark.parametrize(
    ("spec", "whose"),
    [
        ({}, "Service default/shop has"),
        (
            {
                "type": "LoadBalancer",
                "externalTrafficPolicy": "Local",
                "healthCheckNodePort": 30107,
                "ports": [{"port": 80}],
            },
            "Service default/shop has",
        ),
        ({"ports": [{"port": 80, "nodePort": 30108}]}, "another Service has"),
    ],
    ids=["a port of its own", "a health check", "nobody whom the list shows"],
)
async def test_any_service_of_the_cluster_may_have_it(api: KubernetesApi, spec: dict[str, Any], whose: str) -> None:
    await take(api, "default", 30107, **spec)
    owners = NodePortOwners(api, namespace=None)
    error = await owners.explained(WISH, InvalidError("422", field_messages=("spec.ports[0].name: x", SAID)))
    assert isinstance(error, NodePortTakenError)
    assert error.status == 422
    assert f"Service orders-2 needs node port 30107, which {whose}" in str(error)


class NoRights:
    async def list(self, *_: Any, **__: Any) -> Any:
        raise ApiError("no rights", status=403)


async def test_services_that_cannot_be_listed_hide_who_has_it() -> None:
    owners = NodePortOwners(NoRights(), namespace=None)  # type: ignore[arg-type]
    error = await owners.explained(WISH, InvalidError("422", field_messages=(SAID,)))
    assert "which another Service (they can't be listed: no rights) has" in str(error)


OUT_OF_RANGE = "spec.ports[0].nodePort: Invalid value: 20000: provided port is not in the valid range"


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (WISH, ApiError("forbidden", status=403)),
        (WISH, InvalidError("422", field_messages=(OUT_OF_RANGE,))),
        (ApplyObject(reason="", resource=PODS, object=WANTED), InvalidError("422", field_messages=(SAID,))),
        (DeleteObject(reason="", resource=SERVICES, name="orders-2", uid="u"), InvalidError("422", field_messages=(SAID,))),
    ],
    ids=["not about it", "a number that nobody may have", "no Service", "nothing was asked for"],
)  # fmt: skip
async def test_other_refusals_stay_what_they_are(api: KubernetesApi, action: Any, error: ApiError) -> None:
    assert await NodePortOwners(api, namespace=None).explained(action, error) is error

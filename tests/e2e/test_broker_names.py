"""Two groups with one broker name: the first keeps it and fails over, the second waits until it is free."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

from brokergroup_operator.demo.routes import RouteServer
from brokergroup_operator.demo.watched_group import WatchedGroup, watch_group
from brokergroup_operator.kube import NotFoundError
from brokergroup_operator.kube.resources import (
    BROKER_GROUPS,
    CONFIG_MAPS,
    EVENTS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    SERVICES,
)
from tests.e2e.house import NAMESPACE, TOPIC, House, eventually, whole_group

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

CHILDREN = (PODS, PERSISTENT_VOLUME_CLAIMS, SERVICES, CONFIG_MAPS)


def condition(seen: WatchedGroup, kind: str) -> tuple[str, str, str]:
    """Return a condition's status, reason and message; empty before it exists."""
    found: dict[str, Any] = next((one for one in seen.status.get("conditions", []) if one["type"] == kind), {})
    return found.get("status", ""), found.get("reason", ""), found.get("message", "")


def waits_for(seen: WatchedGroup, holder: str) -> bool:
    """Whether all three conditions name this group as the name's holder."""
    told = {kind: condition(seen, kind) for kind in ("Stalled", "Ready", "Available")}
    wanted = {"Stalled": "True", "Ready": "False", "Available": "False"}
    return all(
        told[kind][:2] == (status, "BrokerNameTaken") and holder in told[kind][2] for kind, status in wanted.items()
    )


async def children_of(house: House, namespace: str, group: str) -> list[str]:
    found: list[str] = []
    for resource in CHILDREN:
        listed = await house.api.list(
            resource, namespace=namespace, label_selector=f"brokergroup.dev/broker-group={group}"
        )
        found += [f"{resource.kind} {item['metadata']['name']}" for item in listed.items]
    return found


async def kill_pod(house: House, namespace: str, name: str) -> None:
    with suppress(NotFoundError):
        await house.api.delete(PODS, name, namespace=namespace, grace_period_seconds=0)


@pytest.mark.java_brokers
async def test_a_twin_waits_while_the_first_fails_over_and_starts_once_the_name_is_free(any_house: House) -> None:
    """Two groups of one namespace have one broker name. Reports: apache/rocketmq #3991, #1450."""
    house = any_house
    servers = house.group_spec.get("nameServers", ["127.0.0.1:9876"])
    async with whole_group(house, "first", replicas=3) as first, watch_group(house.api, NAMESPACE, "twin") as twin:
        operator = await house.start_operator()
        await house.create_group("first", nameServers=servers)
        await first.until_settled()
        await house.create_group("twin", brokerName="first", replicas=1, durability="Available", nameServers=servers)
        await eventually(lambda: waits_for(twin, f"{NAMESPACE}/first"), lambda: f"{twin.status}\n{house.tails()}")
        assert await children_of(house, NAMESPACE, "twin") == []
        epoch, master = first.seen.master_epoch, first.master
        async with first.lossless():
            await kill_pod(house, NAMESPACE, first.pod_of(master))
            await first.until(lambda: first.seen.master_epoch > epoch, "another master is elected")
        assert first.seen.master_id != master
        events = (await house.api.list(EVENTS, namespace=NAMESPACE)).items
        told = {(item["involvedObject"]["name"], item["reason"]) for item in events}
        assert ("twin", "BrokerNameTaken") in told
        assert waits_for(twin, f"{NAMESPACE}/first")
        # The twin needs no change: the end of the first group is enough.
        await house.delete_group("first")
        await eventually(twin.is_ready, lambda: f"{twin.status}\n{house.tails()}")
        assert condition(twin, "Stalled")[0] == "False"
        await house.delete_group("twin")
        await eventually(lambda: not twin.status, lambda: f"{twin.status}")
    await house.kill_operator(operator)


async def create_in(house: House, namespace: str, name: str, **spec: Any) -> None:
    kind = {"apiVersion": BROKER_GROUPS.api_version, "kind": BROKER_GROUPS.kind}
    spec = {**house.group_spec, **spec}
    await house.api.create(BROKER_GROUPS, {**kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec})


@pytest.mark.longer
async def test_one_name_server_keeps_the_route_of_the_first_of_two_namespaces(house: House) -> None:
    """Two groups of one name would register at one NameServer. Reports: apache/rocketmq #3991."""
    house.operator_arguments = ()
    routes = RouteServer()
    await routes.start("127.0.0.1", 0)
    await house.api.create(NAMESPACES, {"metadata": {"name": "staging"}})
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(whole_group(house, "shared", replicas=2))
        staging = await stack.enter_async_context(watch_group(house.api, "staging", "shared"))
        operator = await house.start_operator()
        await house.create_group("shared", replicas=2, nameServers=[routes.address])
        await first.until_settled()
        async with first.under_load():
            await first.until_acknowledged()
        await create_in(house, "staging", "shared", replicas=1, nameServers=[routes.address])
        await eventually(
            lambda: waits_for(staging, f"{NAMESPACE}/shared"), lambda: f"{staging.status}\n{house.tails()}"
        )
        assert await children_of(house, "staging", "shared") == []
        route = routes.table.route(TOPIC)
        assert route is not None, "clients of the first have lost their topic"
        [addresses] = [one.broker_addrs for one in route.broker_datas]
        assert (len(addresses), addresses[0]) == (2, first.seen.master_address())
        # With another NameServer there is no conflict: it starts without any other change.
        merge = {"spec": {"nameServers": ["127.0.0.2:9876"]}}
        await house.api.patch(BROKER_GROUPS, "shared", merge, namespace="staging")
        await eventually(staging.is_ready, lambda: f"{staging.status}\n{house.tails()}")
        await first.verify()
    await house.kill_operator(operator)
    await routes.stop()

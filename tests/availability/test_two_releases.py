"""Two releases of the operator over one namespace: despite two Leases only one reconciles; the other reports the reason.

The second one is a controller too, at an address that no broker knows: it gets no heartbeats, and still kills no master.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from brokergroup_operator.api import names
from brokergroup_operator.kube.resources import BROKER_GROUPS, EVENTS, NAMESPACES, SERVICES
from tests.availability.operator_pods import OperatorPods, operator_pods
from tests.e2e.house import NAMESPACE, House, WholeGroup, eventually, open_house, whole_group

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.longer, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

SECOND = "second-system"


@dataclass
class Releases:
    """Two releases: the first serves a settled group; `start_second` installs the other."""

    first: OperatorPods
    group: WholeGroup
    stack: AsyncExitStack

    async def start_second(self) -> OperatorPods:
        house = self.group.house
        await house.api.create(NAMESPACES, {"metadata": {"name": SECOND}})
        return await self.stack.enter_async_context(
            operator_pods(house, count=1, lease_namespace=SECOND, release="operator-of-second")
        )


@pytest_asyncio.fixture(loop_scope="module")
async def releases(tmp_path: Any) -> AsyncIterator[Releases]:
    async with AsyncExitStack() as stack:
        house = await stack.enter_async_context(open_house(tmp_path))
        first = await stack.enter_async_context(operator_pods(house, count=1))
        group = await stack.enter_async_context(whole_group(house, "orders", replicas=2))
        await house.create_group("orders", replicas=2)
        await group.until_settled()
        yield Releases(first, group, stack)


async def holder(house: House) -> str | None:
    group = await house.api.get(BROKER_GROUPS, "orders", namespace=NAMESPACE)
    annotation: str | None = group["metadata"].get("annotations", {}).get(names.ANNOTATION_OPERATOR)
    return annotation


async def test_the_second_release_leaves_the_group_alone_until_it_is_handed_over(releases: Releases) -> None:
    group, house = releases.group, releases.group.house
    epoch, master = group.seen.master_epoch, group.seen.master_id
    assert await holder(house) == f"{NAMESPACE}/brokergroup-operator"

    second = await releases.start_second()
    [pod] = second.pods
    async with group.under_load():
        await eventually(lambda: "reconcile.group_of_another" in pod.log, lambda: pod.log[-2000:])
        # Longer than the second one's heartbeat timeout: it has probed the silent master and left it alone.
        await eventually(lambda: "master never heard, but it answers" in pod.log, lambda: pod.log[-2000:])
        await house.api.delete(SERVICES, "orders-master", namespace=NAMESPACE)
        await eventually(
            lambda: any(item.write.kind == "services" for item in releases.first.pods[0].reconcile_writes()),
            lambda: "the first release repairs its Service",
        )
        await group.until_acknowledged()
    await group.verify()
    assert pod.reconcile_writes() == []
    assert (group.seen.master_epoch, group.seen.master_id) == (epoch, master)
    told = (await house.api.list(EVENTS, namespace=NAMESPACE)).items
    [refusal] = [item for item in told if item["reason"] == "ServedByAnotherOperator"]
    assert refusal["type"] == "Warning"
    assert f"operator {NAMESPACE}/brokergroup-operator reconciles it" in refusal["message"]

    # The first release is uninstalled; a person hands over the group.
    await releases.first.pods[0].kill()
    merge = {"metadata": {"annotations": {names.ANNOTATION_OPERATOR: None}}}
    await house.api.patch(BROKER_GROUPS, "orders", merge, namespace=NAMESPACE)
    await eventually(pod.reconcile_writes, lambda: pod.log[-2000:])
    assert await holder(house) == f"{SECOND}/brokergroup-operator"

    # And if the first returns, it leaves the group alone.
    await releases.first.start(releases.first.pods[0])
    before = len(releases.first.pods[0].reconcile_writes())
    await eventually(
        lambda: "reconcile.group_of_another" in releases.first.pods[0].log, lambda: releases.first.pods[0].log[-2000:]
    )
    assert len(releases.first.pods[0].reconcile_writes()) == before

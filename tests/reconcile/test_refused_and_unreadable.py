"""What a person is told of a group that the operator can't read, and of one whose pods the API server admits not: each thing once.

The pauses between the passes grow (`test_queue.py`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kube.errors import ApiError
from brokergroup_operator.kube.resources import BROKER_GROUPS, EVENTS, PODS
from brokergroup_operator.reconcile.access import ClusterAccess
from brokergroup_operator.reconcile.see import fetch
from brokergroup_operator.reconcile.see.fetch import UnreadableGroupError
from brokergroup_operator.records.store import GroupKey
from kube_sandbox.api_server.errors import StatusError
from tests.reconcile.world import World, applier_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from brokergroup_operator.kube.client import KubernetesApi
    from kube_sandbox.api_server.server import SandboxApiServer

COMPLAINT = "Invalid enum value 'Cobol' - at `$.spec.implementation`"
PASSES = 4


@pytest.fixture
async def world(sandbox: SandboxApiServer, api: KubernetesApi) -> AsyncIterator[World]:
    applier = applier_for(ClusterAccess(url=sandbox.url))
    made = World(api, applier, GroupKey("default", "orders"))
    await made.bring_up(sandbox)
    yield made
    await applier.close()


async def conditions(world: World) -> dict[str, tuple[str, str]]:
    group = await world.api.get(BROKER_GROUPS, world.key.name, namespace=world.key.namespace)
    return {one["type"]: (one["status"], one["reason"]) for one in group["status"]["conditions"]}


async def events(world: World) -> Counter[str]:
    listed = await world.api.list(EVENTS, namespace=world.key.namespace)
    return Counter(one["reason"] for one in listed.items)


async def failing_passes(world: World, error: type[Exception]) -> None:
    reconciler = world.new_reconciler()
    for _ in range(PASSES):
        with pytest.raises(error):
            await reconciler.run_pass(world.key)


@pytest.fixture
def unreadable(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a downgrade: what is stored was admitted by the rules of a later version."""
    del world  # it was brought up before

    def refuse(group_object: dict[str, Any]) -> Any:
        raise UnreadableGroupError(f"BrokerGroup default/orders: {COMPLAINT}", group_object)

    monkeypatch.setattr(fetch, "read_group", refuse)


@pytest.mark.usefixtures("unreadable")
async def test_a_group_that_cannot_be_read_says_so_by_one_event_and_in_its_status(world: World) -> None:
    before = await conditions(world)
    assert before["Ready"][0] == "True"
    await failing_passes(world, UnreadableGroupError)

    assert (await events(world))["GroupUnreadable"] == 1
    told = {
        "Ready": ("False", "InvalidSpec"),
        "Reconciling": ("False", "InvalidSpec"),
        "Stalled": ("True", "InvalidSpec"),
    }
    assert await conditions(world) == before | told
    group = await world.api.get(BROKER_GROUPS, world.key.name, namespace=world.key.namespace)
    [stalled] = [one for one in group["status"]["conditions"] if one["type"] == "Stalled"]
    assert COMPLAINT in stalled["message"]
    assert group["status"]["master"], "the rest of the status stays as it was"


async def test_once_it_can_be_read_again_the_status_is_as_before(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before = await conditions(world)
    with monkeypatch.context() as patched:

        def refuse(group_object: dict[str, Any]) -> Any:
            raise UnreadableGroupError(COMPLAINT, group_object)

        patched.setattr(fetch, "read_group", refuse)
        await failing_passes(world, UnreadableGroupError)
    await world.settle()
    assert await conditions(world) == before


@pytest.mark.usefixtures("unreadable")
async def test_where_the_server_takes_no_status_the_event_says_it_alone(
    world: World, sandbox: SandboxApiServer
) -> None:
    """It judges the whole object, and the spec breaks its present rules too."""
    before = await conditions(world)

    def refuse(request: Any) -> None:
        if request.path.endswith("/brokergroups/orders/status"):
            raise StatusError(422, "Invalid", "spec.implementation: Unsupported value")

    sandbox.before_request = refuse
    await failing_passes(world, UnreadableGroupError)
    assert (await events(world))["GroupUnreadable"] == 1
    assert await conditions(world) == before


@pytest.mark.usefixtures("unreadable")
async def test_of_another_operators_group_nothing_is_said(world: World) -> None:
    """It may be one of a later version, which reads the group well."""
    owner = {"metadata": {"annotations": {names.ANNOTATION_OPERATOR: "elsewhere/other"}}}
    await world.api.patch(BROKER_GROUPS, world.key.name, owner, namespace=world.key.namespace)
    before = await conditions(world)
    await failing_passes(world, UnreadableGroupError)
    assert (await events(world))["GroupUnreadable"] == 0
    assert await conditions(world) == before


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        (403, "Forbidden", 'pods "orders-3" is forbidden: exceeded quota: small, used: pods={number}, limited: pods=2'),
        (422, "Invalid", 'admission webhook "policy.example" denied the request ({number})'),
        (400, "BadRequest", 'admission webhook "policy.example" denied the request ({number})'),
    ],
    ids=["a quota", "a webhook", "a webhook without a reason"],
)
async def test_a_pod_that_is_not_admitted_is_told_of_once(
    world: World, sandbox: SandboxApiServer, status: int, reason: str, message: str
) -> None:
    """Also where each refusal has other words."""
    tries = 0

    def refuse(request: Any) -> None:
        nonlocal tries
        if request.method in {"POST", "PATCH"} and "/pods" in request.path:
            tries += 1
            raise StatusError(status, reason, message.format(number=tries))

    await world.api.delete(PODS, "orders-3", namespace=world.key.namespace)
    await world.stop_pod("orders-3")
    before = await events(world)
    sandbox.before_request = refuse
    await failing_passes(world, ApiError)

    assert tries == PASSES
    more = await events(world) - before
    assert more["InvalidSpec"] == 1
    assert max(more.values()) == 1, more
    assert (await conditions(world))["Stalled"] == ("True", "InvalidSpec")

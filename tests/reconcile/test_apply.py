"""Carrying out a plan: the very object that was seen and no other, and what an error does to the rest of the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kube.errors import (
    ApiError,
    ApiUnavailableError,
    ConflictError,
    InvalidError,
    OutcomeUnknownError,
)
from brokergroup_operator.kube.resources import CONFIG_MAPS, EVENTS, PODS
from brokergroup_operator.observe.group_view import GroupViewError
from brokergroup_operator.reconcile import plan as plans
from brokergroup_operator.reconcile.access import ClusterAccess
from brokergroup_operator.reconcile.apply import PlanApplier
from brokergroup_operator.reconcile.events import EventPoster
from brokergroup_operator.reconcile.kinds import BROKER_GROUPS
from brokergroup_operator.records.kubernetes import KubernetesRecordStore
from brokergroup_operator.records.store import GroupKey
from brokergroup_operator.sandbox.api_server.errors import StatusError
from tests.reconcile import builders as b
from tests.reconcile.fake_view import FakeGroupView
from tests.reconcile.world import applier_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.sandbox.api_server.server import SandboxApiServer

KEY = GroupKey("default", "orders")
POD = {
    "metadata": {"name": "orders-1", "namespace": "default", "labels": {names.LABEL_BROKER_GROUP: "orders"}},
    "spec": {"containers": [{"name": "broker", "image": "none"}]},
}


@pytest.fixture
async def applier(sandbox: SandboxApiServer, api: KubernetesApi) -> AsyncIterator[PlanApplier]:
    server_side = applier_for(ClusterAccess(url=sandbox.url))
    yield PlanApplier(
        api=api,
        applier=server_side,
        view=FakeGroupView(KubernetesRecordStore(api)),
        events=EventPoster(api, instance="test", timeout_seconds=5),
        timeout_seconds=5,
    )
    server_side.close()


async def carry_out(applier: PlanApplier, *actions: plans.Action) -> None:
    await applier.carry_out(KEY, plans.Plan(actions=actions), b.settled())


def config_map(name: str, **more: Any) -> plans.ApplyObject:
    obj = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default"},
        "data": {},
    } | more
    return plans.ApplyObject(reason="test", resource=CONFIG_MAPS, object=obj)


async def test_another_pod_of_the_same_name_is_not_deleted(applier: PlanApplier, api: KubernetesApi) -> None:
    await api.create(PODS, POD)
    with pytest.raises(ConflictError):
        await carry_out(
            applier, plans.DeleteObject(reason="test", resource=PODS, name="orders-1", uid="an-earlier-one")
        )

    assert "deletionTimestamp" not in (await api.get(PODS, "orders-1", namespace="default"))["metadata"]


async def test_another_pod_of_the_same_name_gets_no_role(applier: PlanApplier, api: KubernetesApi) -> None:
    await api.create(PODS, POD)
    with pytest.raises(ApiError):
        await carry_out(
            applier, plans.SetRole(reason="test", pod="orders-1", uid="an-earlier-one", role="master", broker_id=1)
        )

    assert names.LABEL_ROLE not in (await api.get(PODS, "orders-1", namespace="default"))["metadata"]["labels"]


async def test_what_is_gone_already_is_no_error(applier: PlanApplier) -> None:
    await carry_out(
        applier,
        plans.DeleteObject(reason="test", resource=PODS, name="nobody", uid="u"),
        plans.SetRole(reason="test", pod="nobody", uid="u", role="slave", broker_id=1),
        plans.SetFinalizers(reason="test", resource=PODS, name="nobody", resource_version="1", finalizers=()),
        plans.WriteStatus(reason="test", status={"replicas": 1}),
    )


async def test_a_refused_object_does_not_keep_the_others_from_being_repaired(
    applier: PlanApplier, api: KubernetesApi
) -> None:
    with pytest.raises(InvalidError, match="first"):
        await carry_out(applier, config_map("first", data={"bad key": "x"}), config_map("second"))

    assert await api.get(CONFIG_MAPS, "second", namespace="default")


async def test_a_server_that_does_not_answer_ends_the_pass(
    applier: PlanApplier, api: KubernetesApi, sandbox: SandboxApiServer
) -> None:
    refused: list[str] = []

    def away(request: Any) -> None:
        refused.append(request.path)
        raise StatusError(503, "ServiceUnavailable", "away")

    sandbox.before_request = away
    with pytest.raises((ApiUnavailableError, OutcomeUnknownError)):
        await carry_out(applier, config_map("first"), config_map("second"))

    assert {path.rpartition("/")[2] for path in refused} == {"first"}


async def test_a_group_that_cannot_be_held_gets_no_children(applier: PlanApplier, api: KubernetesApi) -> None:
    group = b.group_object()
    group["metadata"] = {"name": "orders", "namespace": "default"}
    await api.create(BROKER_GROUPS, group)
    hold = plans.SetFinalizers(
        reason="test", resource=BROKER_GROUPS, name="orders", resource_version="1", finalizers=("brokergroup.dev/x",)
    )
    with pytest.raises(ConflictError):
        await carry_out(applier, hold, config_map("child"))

    assert (await api.list(CONFIG_MAPS, namespace="default")).items == []


async def test_a_refused_reservation_ends_the_pass_before_pods_are_made(
    applier: PlanApplier, api: KubernetesApi
) -> None:
    """Somebody else took that id: the next pass asks for another."""
    with pytest.raises(GroupViewError):
        await carry_out(
            applier, plans.ReserveBrokerId(reason="test", pod_name="orders-7", broker_id=7), config_map("child")
        )

    assert (await api.list(CONFIG_MAPS, namespace="default")).items == []


async def test_an_event_that_cannot_be_posted_stops_nothing(
    applier: PlanApplier, api: KubernetesApi, sandbox: SandboxApiServer
) -> None:
    def no_events(request: Any) -> None:
        if request.path.endswith("/events"):
            raise StatusError(403, "Forbidden", "no events for you")

    sandbox.before_request = no_events
    note = plans.Note(reason="PodCreating", message="test", related="orders-1")
    noted = config_map("noted")
    await carry_out(
        applier,
        plans.ApplyObject(reason="test", resource=CONFIG_MAPS, object=noted.object, note=note),
        config_map("next"),
    )

    sandbox.before_request = None
    assert len((await api.list(CONFIG_MAPS, namespace="default")).items) == 2
    assert (await api.list(EVENTS, namespace="default")).items == []

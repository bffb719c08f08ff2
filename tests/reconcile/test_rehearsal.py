"""A pod is stopped for its successor only if the API would take that: a bad podTemplate costs nobody its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kube.errors import ApiError, InvalidError, NotFoundError
from brokergroup_operator.kube.resources import PODS
from brokergroup_operator.reconcile import plan as plans
from brokergroup_operator.reconcile.act.apply import rehearse
from kube_sandbox.api_server.errors import StatusError
from tests.reconcile import cases as c
from tests.reconcile.passes import run
from tests.reconcile.test_apply import POD, applier, carry_out

if TYPE_CHECKING:
    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.reconcile.act.apply import PlanApplier
    from brokergroup_operator.reconcile.see.observed import Observed
    from kube_sandbox.api_server.server import SandboxApiServer

__all__ = ["applier"]
BAD_MOUNT = {"name": "broker", "image": "none", "volumeMounts": [{"name": "nowhere", "mountPath": "/x"}]}
UNKNOWN_FIELD = {"name": "broker", "image": "none", "imaginary": True}


def pod(*containers: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", **POD, "spec": {"containers": list(containers)}}


def stopped(seen: Observed) -> plans.DeleteObject:
    (found,) = [action for action in run(seen).actions if isinstance(action, plans.DeleteObject)]
    return found


async def replacement(api: KubernetesApi, successor: dict[str, Any]) -> plans.DeleteObject:
    made = await api.create(PODS, POD)
    return plans.DeleteObject(
        reason="test", resource=PODS, name="orders-1", uid=made["metadata"]["uid"], successor=successor
    )


@pytest.mark.parametrize(("container", "named"), [(BAD_MOUNT, "volumeMounts"), (UNKNOWN_FIELD, "imaginary")])
async def test_what_runs_is_not_stopped_for_a_pod_that_the_api_refuses(
    applier: PlanApplier, api: KubernetesApi, container: dict[str, Any], named: str
) -> None:
    action = await replacement(api, pod(container))
    with pytest.raises(InvalidError, match=named):
        await carry_out(applier, action)

    assert "deletionTimestamp" not in (await api.get(PODS, "orders-1", namespace="default"))["metadata"]


async def test_a_rehearsal_leaves_nothing_behind(applier: PlanApplier, api: KubernetesApi) -> None:
    action = await replacement(api, pod({"name": "broker", "image": "other"}))
    await carry_out(applier, action)

    with pytest.raises(NotFoundError):
        await api.get(PODS, "orders-1", namespace="default")
    assert (await api.list(PODS, namespace="default")).items == []


@pytest.mark.parametrize(
    "said",
    [
        'pods "orders-1-rehearsal" is forbidden: exceeded quota: few, requested: pods=1, used: pods=3, limited: pods=3',
        'admission webhook "old.example.com" does not support dry run',
    ],
)
async def test_what_is_true_of_a_dry_run_only_is_no_answer(
    api: KubernetesApi, sandbox: SandboxApiServer, said: str
) -> None:
    """A full quota has room again when the present pod is gone."""

    def refuse(_: Any) -> None:
        raise StatusError(403, "Forbidden", said)

    sandbox.before_request = refuse
    await rehearse(api, PODS, pod({"name": "broker", "image": "other"}))


async def test_what_the_present_pod_would_be_refused_too_is_no_answer(
    api: KubernetesApi, sandbox: SandboxApiServer
) -> None:
    """A policy for the names of pods, or a quota in words of its own, blocked the rolling update for ever."""
    await api.create(PODS, pod({"name": "broker", "image": "present"}))
    asked: list[str] = []

    def refuse(request: Any) -> None:
        if request.method == "PATCH":
            asked.append(request.path)
            raise StatusError(403, "Forbidden", 'admission webhook "names" denied the request: no name of ours')

    sandbox.before_request = refuse
    await rehearse(api, PODS, pod({"name": "broker", "image": "other"}))
    assert [path.rpartition("/")[2] for path in asked] == ["orders-1-rehearsal"] * 2


async def test_what_the_present_pod_is_refused_for_other_reasons_stays_an_answer(
    api: KubernetesApi, sandbox: SandboxApiServer
) -> None:
    await api.create(PODS, pod({"name": "broker", "image": "present"}))
    words = iter(["image other is not allowed", "no name of ours"])

    def refuse(request: Any) -> None:
        if request.method == "PATCH":
            raise StatusError(403, "Forbidden", next(words))

    sandbox.before_request = refuse
    with pytest.raises(ApiError, match="image other"):
        await rehearse(api, PODS, pod({"name": "broker", "image": "other"}))


async def test_a_policy_that_forbids_the_pod_is_an_answer(api: KubernetesApi, sandbox: SandboxApiServer) -> None:
    await api.create(PODS, pod({"name": "broker", "image": "present"}))
    words = iter(['violates PodSecurity "restricted:latest": runAsNonRoot != true'])

    def refuse(request: Any) -> None:
        if request.method == "PATCH" and (said := next(words, None)):
            raise StatusError(403, "Forbidden", said)

    sandbox.before_request = refuse
    with pytest.raises(ApiError, match="PodSecurity"):
        await rehearse(api, PODS, pod({"name": "broker", "image": "other"}))


def test_a_pod_that_is_replaced_has_its_successor_tried_and_one_that_leaves_has_none() -> None:
    replaced = stopped(c.outdated(c.settled(), "orders-2"))
    leaving = stopped(c.marked(c.wishing(c.settled(replicas=4), replicas=3), "orders-4"))

    assert replaced.successor is not None
    assert (replaced.successor["kind"], replaced.successor["metadata"]["name"]) == ("Pod", "orders-2")
    assert leaving.successor is None

"""Carrying out a plan: only what was seen is changed, and what is refused holds up nothing else."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kube.errors import (
    ApiError,
    ApiUnavailableError,
    ConflictError,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
    WebhookAwayError,
)
from brokergroup_operator.kube.resources import (
    BROKER_GROUPS,
    CONFIG_MAPS,
    EVENTS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    SERVICES,
)
from brokergroup_operator.observe.group_view import (
    BrokerUnreachableError,
    GroupUnknownError,
    GroupViewError,
    SwitchoverRefusedError,
)
from brokergroup_operator.reconcile import plan as plans
from brokergroup_operator.reconcile.access import ClusterAccess
from brokergroup_operator.reconcile.act.apply import PlanApplier, rehearse
from brokergroup_operator.reconcile.render import broker_config
from brokergroup_operator.reconcile.render.addressing import build_member_service
from brokergroup_operator.reconcile.tell.events import EventPoster
from kube_sandbox.api_server.errors import StatusError
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.fake_view import FakeGroupView, PatientRecordStore
from tests.reconcile.world import KEY, applier_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.records.store import GroupKey
    from kube_sandbox.api_server.server import SandboxApiServer


POD: dict[str, Any] = {
    "metadata": {"name": "orders-1", "namespace": "default", "labels": {names.LABEL_BROKER_GROUP: "orders"}},
    "spec": {"containers": [{"name": "broker", "image": "none"}]},
}


class Carrier:
    """Carries out plans of the group `default/orders` at the embedded API."""

    def __init__(
        self, sandbox: SandboxApiServer, api: KubernetesApi, applier: PlanApplier, view: FakeGroupView
    ) -> None:
        self.sandbox, self.api, self.view = sandbox, api, view
        self._applier = applier

    async def out(self, *actions: plans.Action, key: GroupKey = KEY) -> None:
        await self._applier.carry_out(key, plans.Plan(actions=actions), b.settled())

    def refusing(self, error: Exception) -> None:
        """From here on the controller plane and every broker answer with this error."""

        async def refuse(*_: Any, **__: Any) -> None:
            raise error

        for name in ("switch_master", "remove_member", "set_broker_config"):
            setattr(self.view, name, refuse)

    async def make_pod(self, **metadata: Any) -> str:
        """Make pod orders-1; return its uid."""
        made = await self.api.create(PODS, {**POD, "metadata": POD["metadata"] | metadata})
        return str(made["metadata"]["uid"])

    async def pod(self) -> dict[str, Any]:
        """Return the metadata of pod orders-1."""
        found: dict[str, Any] = (await self.api.get(PODS, "orders-1", namespace="default"))["metadata"]
        return found

    async def config_maps(self) -> list[str]:
        return [one["metadata"]["name"] for one in (await self.api.list(CONFIG_MAPS, namespace="default")).items]

    async def events(self) -> list[tuple[str, str, str]]:
        """Return reason, type and message of each Event about the group."""
        listed = (await self.api.list(EVENTS, namespace=b.KEY.namespace)).items
        return sorted((one["reason"], one["type"], one["message"]) for one in listed)


@pytest.fixture
async def carry(sandbox: SandboxApiServer, api: KubernetesApi) -> AsyncIterator[Carrier]:
    await api.create(NAMESPACES, {"metadata": {"name": b.KEY.namespace}})
    server_side, view = applier_for(ClusterAccess(url=sandbox.url)), FakeGroupView(PatientRecordStore(api))
    applier = PlanApplier(api=api, applier=server_side, view=view, events=EventPoster(api, instance="test"))
    yield Carrier(sandbox, api, applier, view)
    await server_side.close()


def given(uid: str, values: dict[str, str], noted: dict[str, str]) -> plans.SetBrokerConfig:
    return plans.SetBrokerConfig(reason="test", broker_id=1, pod="orders-1", uid=uid, values=values, noted=noted)


def config_map(name: str, **more: Any) -> plans.ApplyObject:
    labels = {names.LABEL_APP_MANAGED_BY: names.MANAGED_BY, names.LABEL_BROKER_GROUP: b.KEY.name}
    metadata = {"name": name, "namespace": "default", "labels": labels}
    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {}} | more
    return plans.ApplyObject(reason="test", resource=CONFIG_MAPS, object=obj)


EARLIER: dict[str, Any] = {"reason": "test", "uid": "an-earlier-one"}


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (plans.DeleteObject(resource=PODS, name="orders-1", **EARLIER), ConflictError),
        (plans.SetRole(pod="orders-1", role="master", broker_id=1, **EARLIER), ApiError),
    ],
)
async def test_another_pod_of_the_same_name_is_left_as_it_is(
    carry: Carrier, action: plans.Action, error: type[Exception]
) -> None:
    await carry.make_pod()
    before = await carry.pod()
    with pytest.raises(error):
        await carry.out(action)
    assert await carry.pod() == before


@pytest.mark.parametrize("resource", [BROKER_GROUPS, PERSISTENT_VOLUME_CLAIMS], ids=lambda one: one.kind)
async def test_metadata_of_every_kind_is_patched_and_a_key_taken_off(carry: Carrier, resource: Resource) -> None:
    """An API server merges its own kinds strategically, and refuses that for ours."""
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    spec = b.group_object()["spec"] if resource == BROKER_GROUPS else claim
    metadata = {"name": "orders", "namespace": "default", "annotations": {"old": "1", "kept": "2"}}
    uid = (await carry.api.create(resource, {"metadata": metadata, "spec": spec}))["metadata"]["uid"]
    change = {"annotations": {"old": None, "new": "3"}}
    action = plans.PatchMetadata(reason="test", resource=resource, name="orders", uid=uid, change=change)
    await carry.out(action)
    found = await carry.api.get(resource, "orders", namespace="default")
    assert found["metadata"]["annotations"] == {"kept": "2", "new": "3"}
    with pytest.raises(ApiError):
        await carry.out(replace(action, uid="an-earlier-one"))


async def test_what_is_gone_already_is_no_error(carry: Carrier) -> None:
    await carry.out(
        plans.DeleteObject(reason="test", resource=PODS, name="missing", uid="u"),
        plans.SetRole(reason="test", pod="missing", uid="u", role="slave", broker_id=1),
        plans.SetFinalizers(reason="test", resource=PODS, name="missing", resource_version="1", finalizers=()),
        plans.WriteStatus(reason="test", status={"replicas": 1}),
    )


async def test_a_refused_object_does_not_keep_the_others_from_being_repaired(carry: Carrier) -> None:
    with pytest.raises(InvalidError, match="first"):
        await carry.out(config_map("first", data={"bad key": "x"}), config_map("second"))
    assert await carry.config_maps() == ["second"]


async def test_a_server_that_does_not_answer_ends_the_pass(carry: Carrier) -> None:
    refused: list[str] = []

    def away(request: Any) -> None:
        refused.append(request.path)
        raise StatusError(503, "ServiceUnavailable", "away")

    carry.sandbox.before_request = away
    with pytest.raises((ApiUnavailableError, OutcomeUnknownError)):
        await carry.out(config_map("first"), config_map("second"))
    assert {path.rpartition("/")[2] for path in refused} == {"first"}


async def test_a_group_that_cannot_be_held_gets_no_children(carry: Carrier) -> None:
    metadata = {"name": "orders", "namespace": "default"}
    await carry.api.create(BROKER_GROUPS, b.group_object() | {"metadata": metadata})
    hold = plans.SetFinalizers(
        reason="test", resource=BROKER_GROUPS, name="orders", resource_version="1", finalizers=("brokergroup.dev/x",)
    )
    with pytest.raises(ConflictError):
        await carry.out(hold, config_map("child"))
    assert await carry.config_maps() == []


async def test_a_refused_reservation_ends_the_pass_before_pods_are_made(carry: Carrier) -> None:
    """Another pod took that id: the next pass reserves another one."""
    with pytest.raises(GroupViewError):
        await carry.out(plans.ReserveBrokerId(reason="test", pod_name="orders-7", broker_id=7), config_map("child"))
    assert await carry.config_maps() == []


async def test_an_event_that_cannot_be_posted_stops_nothing(carry: Carrier) -> None:
    def no_events(request: Any) -> None:
        if request.path.endswith("/events"):
            raise StatusError(403, "Forbidden", "no events for you")

    carry.sandbox.before_request = no_events
    note = plans.Note(reason="PodCreating", message="test", related="orders-1")
    await carry.out(replace(config_map("noted"), note=note), config_map("next"))
    carry.sandbox.before_request = None
    assert await carry.config_maps() == ["next", "noted"]
    assert await carry.events() == []


SWITCH = plans.SwitchMaster(reason="test", from_broker_id=1)


async def test_a_refused_wish_is_one_event_and_the_rest_of_the_plan_goes_on(carry: Carrier) -> None:
    carry.refusing(SwitchoverRefusedError("broker 2 lacks topic payments"))
    for _ in range(3):
        await carry.out(SWITCH, plans.RemoveMember(reason="test", broker_id=4), config_map("next"))
    assert await carry.config_maps() == ["next"]
    assert [reason for reason, _, _ in await carry.events()] == ["NotNow", "SwitchoverRejected"]


async def test_a_group_that_the_controller_plane_does_not_know_yet_ends_the_pass(carry: Carrier) -> None:
    carry.refusing(GroupUnknownError("unknown"))
    with pytest.raises(GroupUnknownError):
        await carry.out(SWITCH)


async def test_what_a_broker_was_given_is_noted_on_its_pod_and_on_no_other(carry: Carrier) -> None:
    noted = {"minInSyncReplicas": "2", "inSyncReplicas": "2"}
    action = given(await carry.make_pod(), {"minInSyncReplicas": "2"}, noted)
    await carry.out(action)
    told = (await carry.pod())["annotations"][names.ANNOTATION_HOT_CONFIG]
    assert told == '{"inSyncReplicas": "2", "minInSyncReplicas": "2"}'
    with pytest.raises(ApiError):
        await carry.out(replace(action, uid="an-earlier-one"))


async def test_a_broker_that_took_nothing_gets_no_note(carry: Carrier) -> None:
    carry.refusing(BrokerUnreachableError("no answer"))
    await carry.out(given(await carry.make_pod(), {"a": "1"}, {"a": "1"}))
    assert (await carry.pod())["annotations"] == {names.ANNOTATION_HOT_CONFIG: "{}"}


async def test_a_broker_that_may_have_been_given_a_value_is_not_noted_to_have_the_one_before(carry: Carrier) -> None:
    """A, then B, whose note is lost with the operator, then A again: the note still said A, and the broker stayed at B."""
    uid = await carry.make_pod(annotations={names.ANNOTATION_HOT_CONFIG: '{"a": "A", "b": "1"}'})
    carry.refusing(BrokerUnreachableError("no answer: it may have been done"))
    await carry.out(given(uid, {"a": "B"}, {"a": "B", "b": "1"}))
    assert broker_config.hot_changes({"metadata": await carry.pod()}, {"a": "A", "b": "1"}) == {"a": "A"}


@pytest.mark.parametrize(
    ("said", "left", "told"),
    [
        (
            {"minInSyncReplicas": "1", "allAckInSyncStateSet": "false"},
            {"minInSyncReplicas": "2", "allAckInSyncStateSet": "true"},
            (
                "Broker 1 (pod orders-1) ran with allAckInSyncStateSet=false, put back to true,"
                " minInSyncReplicas=1, put back to 2: acknowledgements rest on it"
            ),
        ),
        ({"minInSyncReplicas": "2", "allAckInSyncStateSet": "TRUE"}, {}, None),
        # A switchover holds it up by now.
        (
            {"minInSyncReplicas": "99", "allAckInSyncStateSet": "false"},
            {"minInSyncReplicas": "99", "allAckInSyncStateSet": "true"},
            "Broker 1 (pod orders-1) ran with allAckInSyncStateSet=false, put back to true: acknowledgements rest on it",
        ),
    ],
)
async def test_what_is_put_back_is_read_first_and_the_event_has_what_was_found(
    carry: Carrier, said: dict[str, str], left: dict[str, str], told: str | None
) -> None:
    carry.view.configs[KEY, 1] = dict(said)
    values = {"minInSyncReplicas": "2", "allAckInSyncStateSet": "true"}
    await carry.out(plans.PutBackBrokerConfig(reason="test", broker_id=1, pod="orders-1", values=values))
    assert carry.view.configs[KEY, 1] == said | left
    assert await carry.events() == ([("ConfigurationPutBack", "Warning", told)] if told else [])


async def test_transitions_are_events_with_the_status_that_shows_them(carry: Carrier) -> None:
    notes = (plans.Note(reason="Paused", message="x"), plans.Note(reason="Fenced", message="y", warning=True))
    await carry.out(plans.WriteStatus(reason="test", status={"replicas": 1}, notes=notes))
    assert await carry.events() == [("Fenced", "Warning", "y"), ("Paused", "Normal", "x")]


async def test_an_address_that_another_one_has_taken_is_not_insisted_on(carry: Carrier) -> None:
    async def taken(request: Any) -> None:
        if b"10.96.0.1" in await request.read():
            raise StatusError(422, "Invalid", "spec.clusterIPs: failed to allocate IP 10.96.0.1: already allocated")

    carry.sandbox.before_request = taken
    wanted = build_member_service(b.group(network={"addressing": "ServiceIP"}), b.member(1), slot=0)
    del wanted["metadata"]["ownerReferences"]  # nothing of that uid is here, and it would be collected
    there = wanted | {"spec": wanted["spec"] | {"clusterIP": "10.96.0.1"}}
    await carry.out(plans.ApplyObject(reason="missing", resource=SERVICES, object=there, otherwise=wanted), key=b.KEY)
    made = await carry.api.get(SERVICES, "orders-1", namespace=b.KEY.namespace)
    assert made["spec"]["clusterIP"] != "10.96.0.1"


BAD_MOUNT = {"name": "broker", "image": "none", "volumeMounts": [{"name": "nowhere", "mountPath": "/x"}]}
UNKNOWN_FIELD = {"name": "broker", "image": "none", "imaginary": True}
OTHER = {"name": "broker", "image": "other"}


def pod(*containers: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", **POD, "spec": {"containers": list(containers)}}


async def replacement(carry: Carrier, successor: dict[str, Any]) -> plans.DeleteObject:
    uid = await carry.make_pod()
    return plans.DeleteObject(reason="test", resource=PODS, name="orders-1", uid=uid, successor=successor)


@pytest.mark.parametrize(("container", "named"), [(BAD_MOUNT, "volumeMounts"), (UNKNOWN_FIELD, "imaginary")])
async def test_what_runs_is_not_stopped_for_a_pod_that_the_api_refuses(
    carry: Carrier, container: dict[str, Any], named: str
) -> None:
    action = await replacement(carry, pod(container))
    with pytest.raises(InvalidError, match=named):
        await carry.out(action)
    assert "deletionTimestamp" not in await carry.pod()


async def test_a_rehearsal_leaves_nothing_behind(carry: Carrier) -> None:
    await carry.out(await replacement(carry, pod(OTHER)))
    with pytest.raises(NotFoundError):
        await carry.pod()
    assert (await carry.api.list(PODS, namespace="default")).items == []


# What each rehearsal is refused for, in order (None: taken), and the answer of the rehearsals. The second is of the present pod.
NO_NAME = 'admission webhook "names" denied the request: no name of ours'
QUOTA = 'pods "orders-1-rehearsal" is forbidden: exceeded quota: few, requested: pods=1, used: pods=3, limited: pods=3'
REHEARSALS: list[tuple[str, list[str | None], str | None]] = [
    # What is true of a dry run only. A full quota has room again when the present pod is gone.
    ("a full quota", [QUOTA], None),
    ("a webhook without dry runs", ['admission webhook "old.example.com" does not support dry run'], None),
    # A policy for the names of pods, or a quota in words of its own, blocked the rolling update for ever.
    ("the present pod would be refused too", [NO_NAME, NO_NAME], None),
    ("the present pod is refused for other reasons", ["image other is not allowed", NO_NAME], "image other"),
    ("a policy forbids the pod", ['violates PodSecurity "restricted:latest": runAsNonRoot != true', None], "PodSecurity"),
]  # fmt: skip


@pytest.mark.parametrize(("refusals", "answer"), c.table(REHEARSALS))
async def test_a_refusal_is_an_answer_if_the_present_pod_would_not_be_refused_so(
    api: KubernetesApi, sandbox: SandboxApiServer, refusals: list[str | None], answer: str | None
) -> None:
    await api.create(PODS, pod({"name": "broker", "image": "present"}))
    asked: list[str] = []

    def refuse(request: Any) -> None:
        if request.method == "PATCH":
            asked.append(request.path)
            if said := refusals[len(asked) - 1]:
                raise StatusError(403, "Forbidden", said)

    sandbox.before_request = refuse
    with pytest.raises(ApiError, match=answer) if answer else contextlib.nullcontext():
        await rehearse(api, PODS, pod(OTHER))
    assert [path.rpartition("/")[2] for path in asked] == ["orders-1-rehearsal"] * len(refusals)


async def test_a_webhook_that_is_away_is_no_answer_to_a_rehearsal(
    api: KubernetesApi, sandbox: SandboxApiServer
) -> None:
    """The present pod's copy would be refused in the same words, and the pod deleted while none can be made in its place."""
    await api.create(PODS, pod({"name": "broker", "image": "present"}))

    def refuse(request: Any) -> None:
        if request.method == "PATCH":
            raise StatusError(500, "InternalError", 'failed calling webhook "pods.example": connection refused')

    sandbox.before_request = refuse
    with pytest.raises(WebhookAwayError):
        await rehearse(api, PODS, pod(OTHER))


def test_a_pod_that_is_replaced_has_its_successor_tried_and_one_that_leaves_has_none() -> None:
    [replaced] = c.actions(c.outdated(c.settled(), "orders-2"), plans.DeleteObject)
    [leaving] = c.actions(c.marked(c.wishing(c.settled(replicas=4), replicas=3), "orders-4"), plans.DeleteObject)
    assert replaced.successor is not None
    assert (replaced.successor["kind"], replaced.successor["metadata"]["name"]) == ("Pod", "orders-2")
    assert leaving.successor is None

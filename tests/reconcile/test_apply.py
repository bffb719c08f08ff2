"""Carrying out a plan: only what was seen is changed, and a kill of the operator before any write changes no end."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from brokergroup_operator.api import backup_fields, names
from brokergroup_operator.api.backup_fields import ClaimSnapshot, SnapshotManifest
from brokergroup_operator.kube.errors import (
    ApiError,
    ApiUnavailableError,
    ConflictError,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
)
from brokergroup_operator.kube.resources import (
    BROKER_GROUPS,
    CONFIG_MAPS,
    EVENTS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    SERVICES,
    VOLUME_SNAPSHOTS,
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
from brokergroup_operator.records.store import GroupKey
from kube_sandbox.api_server.errors import StatusError
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.cases import run
from tests.reconcile.fake_view import FakeGroupView, PatientRecordStore
from tests.reconcile.world import KEY, MANIFEST, World, applier_for
from tests.support.draws import sample
from tests.support.snapshot_controller import define

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.reconcile.see.observed import Observed
    from kube_sandbox.api_server.server import SandboxApiServer


POD: dict[str, Any] = {
    "metadata": {"name": "orders-1", "namespace": "default", "labels": {names.LABEL_BROKER_GROUP: "orders"}},
    "spec": {"containers": [{"name": "broker", "image": "none"}]},
}


@pytest.fixture
async def applier(sandbox: SandboxApiServer, api: KubernetesApi) -> AsyncIterator[PlanApplier]:
    server_side = applier_for(ClusterAccess(url=sandbox.url))
    view, events = FakeGroupView(PatientRecordStore(api)), EventPoster(api, instance="test")
    yield PlanApplier(api=api, applier=server_side, view=view, events=events)
    await server_side.close()


async def carry_out(applier: PlanApplier, *actions: plans.Action) -> None:
    await applier.carry_out(KEY, plans.Plan(actions=actions), b.settled())


async def pod_metadata(api: KubernetesApi) -> dict[str, Any]:
    found: dict[str, Any] = (await api.get(PODS, "orders-1", namespace="default"))["metadata"]
    return found


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
    applier: PlanApplier, api: KubernetesApi, action: plans.Action, error: type[Exception]
) -> None:
    made = await api.create(PODS, POD)
    with pytest.raises(error):
        await carry_out(applier, action)
    assert await pod_metadata(api) == made["metadata"]


async def test_metadata_of_every_kind_is_patched_and_a_key_taken_off(applier: PlanApplier, api: KubernetesApi) -> None:
    """An API server merges its own kinds strategically, and refuses that for ours."""
    group = b.group_object()
    group["metadata"] = {"name": "orders", "namespace": "default", "annotations": {"old": "1", "kept": "2"}}
    claim = {"name": "orders-1", "namespace": "default", "annotations": {"old": "1", "kept": "2"}}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    for resource, obj in (
        (BROKER_GROUPS, group),
        (
            PERSISTENT_VOLUME_CLAIMS,
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": claim, "spec": spec},
        ),
    ):
        made = await api.create(resource, obj)
        name, change = made["metadata"]["name"], {"annotations": {"old": None, "new": "3"}}
        action = plans.PatchMetadata(
            reason="test", resource=resource, name=name, uid=made["metadata"]["uid"], change=change
        )
        await carry_out(applier, action)
        found = await api.get(resource, name, namespace="default")
        assert found["metadata"]["annotations"] == {"kept": "2", "new": "3"}
        with pytest.raises(ApiError):
            await carry_out(applier, replace(action, uid="an-earlier-one"))


async def test_what_is_gone_already_is_no_error(applier: PlanApplier) -> None:
    await carry_out(
        applier,
        plans.DeleteObject(reason="test", resource=PODS, name="missing", uid="u"),
        plans.SetRole(reason="test", pod="missing", uid="u", role="slave", broker_id=1),
        plans.SetFinalizers(reason="test", resource=PODS, name="missing", resource_version="1", finalizers=()),
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
    """Another pod took that id: the next pass reserves another one."""
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


def refusing(applier: PlanApplier, error: Exception) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise error

    for name in ("switch_master", "remove_member", "set_broker_config"):
        setattr(applier._view, name, refuse)


SWITCH = plans.SwitchMaster(reason="test", from_broker_id=1)


async def test_a_refused_wish_is_one_event_and_the_rest_of_the_plan_goes_on(
    applier: PlanApplier, api: KubernetesApi
) -> None:
    await api.create(NAMESPACES, {"metadata": {"name": b.KEY.namespace}})
    refusing(applier, SwitchoverRefusedError("broker 2 lacks topic payments"))
    for _ in range(3):
        await carry_out(applier, SWITCH, plans.RemoveMember(reason="test", broker_id=4), config_map("next"))
    assert await api.get(CONFIG_MAPS, "next", namespace="default")
    told = sorted(item["reason"] for item in (await api.list(EVENTS, namespace="shop")).items)
    assert told == ["NotNow", "SwitchoverRejected"]


async def test_a_group_that_the_controller_plane_does_not_know_yet_ends_the_pass(applier: PlanApplier) -> None:
    refusing(applier, GroupUnknownError("unknown"))
    with pytest.raises(GroupUnknownError):
        await carry_out(applier, SWITCH)


async def test_what_a_broker_was_given_is_noted_on_its_pod_and_on_no_other(
    applier: PlanApplier, api: KubernetesApi
) -> None:
    made = await api.create(PODS, POD)
    noted = {"minInSyncReplicas": "2", "inSyncReplicas": "2"}
    action = given(made["metadata"]["uid"], {"minInSyncReplicas": "2"}, noted)
    await carry_out(applier, action)
    told = (await pod_metadata(api))["annotations"][names.ANNOTATION_HOT_CONFIG]
    assert told == '{"inSyncReplicas": "2", "minInSyncReplicas": "2"}'
    with pytest.raises(ApiError):
        await carry_out(applier, replace(action, uid="an-earlier-one"))


async def test_a_broker_that_took_nothing_gets_no_note(applier: PlanApplier, api: KubernetesApi) -> None:
    made = await api.create(PODS, POD)
    refusing(applier, BrokerUnreachableError("no answer"))
    await carry_out(applier, given(made["metadata"]["uid"], {"a": "1"}, {"a": "1"}))
    assert (await pod_metadata(api))["annotations"] == {names.ANNOTATION_HOT_CONFIG: "{}"}


async def test_a_broker_that_may_have_been_given_a_value_is_not_noted_to_have_the_one_before(
    applier: PlanApplier, api: KubernetesApi
) -> None:
    """A, then B, whose note is lost with the operator, then A again: the note still said A, and the broker stayed at B."""
    noted_before = {"annotations": {names.ANNOTATION_HOT_CONFIG: '{"a": "A", "b": "1"}'}}
    made = await api.create(PODS, {**POD, "metadata": {**POD["metadata"], **noted_before}})
    refusing(applier, BrokerUnreachableError("no answer: it may have been done"))
    await carry_out(applier, given(made["metadata"]["uid"], {"a": "B"}, {"a": "B", "b": "1"}))
    left = {"metadata": await pod_metadata(api)}
    assert broker_config.hot_changes(left, {"a": "A", "b": "1"}) == {"a": "A"}


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
    applier: PlanApplier, api: KubernetesApi, said: dict[str, str], left: dict[str, str], told: str | None
) -> None:
    view = applier._view
    assert isinstance(view, FakeGroupView)
    view.configs[KEY, 1] = dict(said)
    await api.create(NAMESPACES, {"metadata": {"name": b.KEY.namespace}})
    values = {"minInSyncReplicas": "2", "allAckInSyncStateSet": "true"}
    await carry_out(applier, plans.PutBackBrokerConfig(reason="test", broker_id=1, pod="orders-1", values=values))
    assert view.configs[KEY, 1] == said | left
    listed = (await api.list(EVENTS, namespace="shop")).items
    assert [item["message"] for item in listed] == ([] if told is None else [told])
    assert all((item["reason"], item["type"]) == ("ConfigurationPutBack", "Warning") for item in listed)


async def test_transitions_are_events_with_the_status_that_shows_them(applier: PlanApplier, api: KubernetesApi) -> None:
    await api.create(NAMESPACES, {"metadata": {"name": b.KEY.namespace}})
    notes = (plans.Note(reason="Paused", message="x"), plans.Note(reason="Fenced", message="y", warning=True))
    await carry_out(applier, plans.WriteStatus(reason="test", status={"replicas": 1}, notes=notes))
    told = {item["reason"]: item["type"] for item in (await api.list(EVENTS, namespace="shop")).items}
    assert told == {"Paused": "Normal", "Fenced": "Warning"}


async def test_an_address_that_another_one_has_taken_is_not_insisted_on(
    applier: PlanApplier, api: KubernetesApi, sandbox: SandboxApiServer
) -> None:
    async def taken(request: Any) -> None:
        if b"10.96.0.1" in await request.read():
            raise StatusError(422, "Invalid", "spec.clusterIPs: failed to allocate IP 10.96.0.1: already allocated")

    await api.create(NAMESPACES, {"metadata": {"name": b.KEY.namespace}})
    sandbox.before_request = taken
    wanted = build_member_service(b.group(network={"addressing": "ServiceIP"}), b.member(1), slot=0)
    del wanted["metadata"]["ownerReferences"]  # nothing of that uid is here, and it would be collected
    there = wanted | {"spec": wanted["spec"] | {"clusterIP": "10.96.0.1"}}
    action = plans.ApplyObject(reason="missing", resource=SERVICES, object=there, otherwise=wanted)
    await applier.carry_out(b.KEY, plans.Plan(actions=(action,)), b.settled())
    made = await api.get(SERVICES, "orders-1", namespace=b.KEY.namespace)
    assert made["spec"]["clusterIP"] != "10.96.0.1"


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
    assert "deletionTimestamp" not in await pod_metadata(api)


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


# What each rehearsal is refused for, in order (None: taken), and the answer of the rehearsals. The second is of the present pod.
NO_NAME = 'admission webhook "names" denied the request: no name of ours'
REHEARSALS: list[tuple[str, list[str | None], str | None]] = [
    # A policy for the names of pods, or a quota in words of its own, blocked the rolling update for ever.
    ("the present pod would be refused too", [NO_NAME, NO_NAME], None),
    ("the present pod is refused for other reasons", ["image other is not allowed", NO_NAME], "image other"),
    (
        "a policy forbids the pod",
        ['violates PodSecurity "restricted:latest": runAsNonRoot != true', None],
        "PodSecurity",
    ),
]


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
        await rehearse(api, PODS, pod({"name": "broker", "image": "other"}))
    assert [path.rpartition("/")[2] for path in asked] == ["orders-1-rehearsal"] * 2


def test_a_pod_that_is_replaced_has_its_successor_tried_and_one_that_leaves_has_none() -> None:
    replaced = stopped(c.outdated(c.settled(), "orders-2"))
    leaving = stopped(c.marked(c.wishing(c.settled(replicas=4), replicas=3), "orders-4"))
    assert replaced.successor is not None
    assert (replaced.successor["kind"], replaced.successor["metadata"]["name"]) == ("Pod", "orders-2")
    assert leaving.successor is None


async def settled(world: World, *, master: int | None = None, **spec: Any) -> None:
    """Create a group and let it settle: with brokers that run, or with the master that the test chooses."""
    world.brokers_run = master is None
    await world.create_group(**spec)
    await world.settle()
    if master is not None:
        await world.view.make_master(world.key, master)
        await world.settle()


async def end(world: World) -> None:
    """From here on the operator may be killed."""
    world.begin()
    await world.settle()


async def a_group_is_made(world: World) -> None:
    world.begin()
    await world.create_group()
    await world.settle()


async def a_master_is_elected(world: World) -> None:
    await world.create_group()
    await world.settle()
    await world.view.make_master(world.key, 2)
    await end(world)


async def things_break_and_the_spec_changes(world: World) -> None:
    await settled(world, master=1)
    await world.delete(PODS, "orders-2")
    await world.run_kubelet()
    await world.delete(CONFIG_MAPS, "orders-broker")
    wish = {"replicas": 4, "storage": {"size": "9Gi"}, "config": {"fileReservedTime": "24"}}
    await world.patch_group({"spec": wish})
    await end(world)


async def the_group_is_deleted_with_its_data(world: World) -> None:
    await settled(world, master=1, storage={"retention": {"whenDeleted": "Delete"}})
    await world.delete(BROKER_GROUPS, world.key.name)
    await end(world)


async def a_new_image_is_rolled_out(world: World) -> None:
    await settled(world)
    await world.patch_group({"spec": {"image": "example.com/replica:2"}})
    await end(world)


async def a_hot_key_and_a_cold_one_change(world: World) -> None:
    await settled(world)
    await world.patch_group({"spec": {"config": {"fileReservedTime": "24", "maxMessageSize": "100000"}}})
    await end(world)


async def the_group_shrinks_and_its_volumes_go(world: World) -> None:
    await settled(world, replicas=4, storage={"retention": {"whenScaled": "Delete"}})
    await world.patch_group({"spec": {"replicas": 2}})
    await end(world)


async def the_group_sleeps_and_wakes(world: World) -> None:
    await settled(world)
    await world.patch_group({"spec": {"maintenance": {"hibernated": True}}})
    await end(world)
    assert not [name for name in await world.everything() if name.startswith("Pod ")]
    await world.patch_group({"spec": {"maintenance": {"hibernated": False}}})
    await world.settle()


async def the_master_is_rebuilt(world: World) -> None:
    await settled(world)
    await world.run_operation("Rebuild", rebuild={"brokerId": 1})
    await end(world)


async def a_slave_is_decommissioned(world: World) -> None:
    await settled(world)
    await world.run_operation("Decommission", decommission={"brokerId": 2})
    await end(world)


async def a_group_begins_with_a_backup(world: World) -> None:
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": "copies", "namespace": world.key.namespace}
    await world.api.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": metadata, "spec": claim})
    world.begin()
    source = {"name": "copies", "folder": "lost/nightly"}
    with pytest.MonkeyPatch.context() as patch:
        # The blocks follow from the group's uid, which is another in each run.
        patch.setattr(backup_fields, "EPOCH_BLOCKS", 1)
        patch.setattr(backup_fields, "BROKER_ID_BLOCKS", 1)
        await world.create_group(bootstrap={"fromBackup": {"claim": source}})
        await world.settle()
    stored = await world.view.store.read(world.key)
    assert stored is not None
    assert stored.record.restored_from == "lost/nightly"
    assert (stored.record.master_epoch, sorted(stored.record.replicas)) == (1041, [107, 108, 109])
    assert stored.record.replicas[107].reserved_for == "orders-1"


async def a_group_begins_with_snapshots(world: World) -> None:
    await define(world.api)
    part = ClaimSnapshot(claim="lost-3", snapshot="nightly", size="1Gi")
    manifest = SnapshotManifest(backup=msgspec.structs.replace(MANIFEST, confirm_offset=4000), snapshots=[part])
    said = {names.ANNOTATION_MANIFEST: msgspec.json.encode(manifest).decode()}
    metadata = {"name": "nightly", "namespace": world.key.namespace, "annotations": said}
    await world.api.create(VOLUME_SNAPSHOTS, {"metadata": metadata, "spec": {}})
    await world.patch(VOLUME_SNAPSHOTS, "nightly", {"status": {"readyToUse": True}}, subresource="status")
    world.begin()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backup_fields, "EPOCH_BLOCKS", 1)
        patch.setattr(backup_fields, "BROKER_ID_BLOCKS", 1)
        await world.create_group(bootstrap={"fromBackup": {"snapshot": {"name": "nightly"}}})
        await world.settle()
    stored = await world.view.store.read(world.key)
    assert stored is not None
    assert stored.record.restored_from == "nightly"
    assert (stored.record.master_epoch, sorted(stored.record.replicas)) == (1041, [107, 108, 109])
    claims = {
        one["metadata"]["name"]: one["spec"].get("dataSource") for one in await world.items(PERSISTENT_VOLUME_CLAIMS)
    }
    source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "nightly"}
    assert claims == {"orders-1": source, "orders-108": None, "orders-109": None}
    # It grows as any other, and keeps its source.
    await world.patch(BROKER_GROUPS, world.key.name, {"spec": {"storage": {"size": "9Ti"}}})
    await world.settle()
    grown = await world.get(PERSISTENT_VOLUME_CLAIMS, "orders-1")
    assert (grown["spec"]["resources"]["requests"]["storage"], grown["spec"]["dataSource"]) == ("9Ti", source)


# How many of a story's writes `make test` kills the operator before.
KILLS = 2


class Theatre:
    """One API server for all runs of a story, each in a namespace of its own."""

    def __init__(self, server: SandboxApiServer, api: KubernetesApi) -> None:
        self._server, self._api = server, api
        self._applier = applier_for(ClusterAccess(url=server.url))
        self._runs = 0

    async def told(
        self, story: Callable[[World], Awaitable[None]], *, kill_at: int | None
    ) -> tuple[dict[str, Any], list[str]]:
        self._runs += 1
        namespace = f"run-{self._runs}"
        await self._api.create(NAMESPACES, {"metadata": {"name": namespace}})
        world = World(self._api, self._applier, GroupKey(namespace, "orders"))
        self._server.before_request = world.observe
        world.planned_kill = kill_at
        await story(world)
        assert kill_at is None or world.was_killed, f"the story made fewer than {kill_at} writes"
        return await world.everything(), world.writes

    async def close(self) -> None:
        await self._applier.close()


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("story", "at_least", "objects"),
    [
        (a_group_is_made, 15, 14),
        (a_master_is_elected, 2, 14),
        (things_break_and_the_spec_changes, 8, 16),
        (the_group_is_deleted_with_its_data, 12, 0),
        (a_new_image_is_rolled_out, 8, 14),
        (a_hot_key_and_a_cold_one_change, 12, 14),
        (the_group_shrinks_and_its_volumes_go, 8, 12),
        (the_group_sleeps_and_wakes, 10, 14),
        (the_master_is_rebuilt, 8, 14),
        (a_slave_is_decommissioned, 5, 15),
        (a_group_begins_with_a_backup, 15, 15),
        (a_group_begins_with_snapshots, 15, 14),
    ],
)
async def test_a_kill_before_any_write_changes_nothing_in_the_end(
    sandbox: SandboxApiServer,
    api: KubernetesApi,
    story: Callable[[World], Awaitable[None]],
    at_least: int,
    objects: int,
) -> None:
    theatre = Theatre(sandbox, api)
    expected, writes = await theatre.told(story, kill_at=None)
    assert len(writes) >= at_least, "the story does too little to prove anything"
    assert len(expected) == objects
    for number in sample(range(len(writes)), KILLS):
        end, _ = await theatre.told(story, kill_at=number)
        assert end == expected, f"killed before write {number}, {writes[number]}"
    await theatre.close()

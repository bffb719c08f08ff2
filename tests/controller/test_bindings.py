"""What a group's spec, its pods and its nodes mean for its controller; what its owner wants at this moment."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from brokergroup_operator.api import names, pod_fence
from brokergroup_operator.api.backup_fields import (
    BROKER_IDS_LEFT_OUT,
    BROKER_IDS_SINCE,
    EPOCHS_LEFT_OUT,
    EPOCHS_SINCE,
    blocks_of,
)
from brokergroup_operator.controller.directory.group_directory import binding_of
from brokergroup_operator.controller.directory.kubernetes_directory import KubernetesDirectory, member_facts
from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.errors import ApiError
from brokergroup_operator.kube.resources import BROKER_GROUPS, NODES, SECRETS, Resource
from brokergroup_operator.records.store import GroupKey
from tests.controller.cluster import (
    HOST,
    OF_KEYS,
    ORDERS,
    SECOND,
    SERVICE,
    Cluster,
    create_group,
    create_pod,
    create_secret,
    delete_pod,
    group_object,
    known,
    pod_object,
)
from tests.support.fake_broker import eventually

# ---- From the spec


def test_a_java_groups_election_may_be_trusted_by_the_bound_of_the_fences_in_its_pods() -> None:
    failover: dict[str, Any] = {"heartbeatTimeoutMilliseconds": 1500}
    binding = binding_of(group_object(implementation="Java", failover=failover))
    # Heartbeat timeout minus interval, and two thirds of the fence timeout.
    assert "no controller for 2.5 s, at the latest after 3.25 s" in binding.unconfirmed_trust
    failover["isolation"] = {"enabled": False}
    assert binding_of(group_object(implementation="Java", failover=failover)).unconfirmed_trust == ""


def test_a_policy_that_this_operator_does_not_know_makes_no_binding() -> None:
    """An operator that was rolled back reads the CRD of the newer one: the error was of another kind, and ended the watch."""
    with pytest.raises(msgspec.ValidationError) as refused:
        binding_of(group_object(failover={"electionPolicy": "nearest"}))
    expected = "spec.failover.electionPolicy is 'nearest', expected one of most-data, preferred-zone"
    assert str(refused.value) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        # A Java master may have applied the smaller set before it asked (apache/rocketmq #9897); a replica asks first.
        ({"implementation": "Java", "version": "5.5.0"}, (True, 2, True)),
        # Three replicas are Strict by default: the shrink floor is on (safety rule 1).
        ({}, (True, 2, False)),
        ({"replicas": 2}, (False, 1, False)),
    ],
)
def test_the_floor_of_the_set_follows_from_implementation_and_size(
    spec: dict[str, Any], expected: tuple[bool, int, bool]
) -> None:
    settings = binding_of(group_object(**spec)).settings
    assert (settings.shrink_floor, settings.min_in_sync_replicas, settings.masters_shrink_first) == expected


def test_what_a_group_wants_of_its_elections_reaches_the_controller() -> None:
    priorities = [{"brokerId": 2, "priority": 0}, {"brokerId": 3, "priority": 5}]
    failover = {"heartbeatTimeoutMilliseconds": 1200, "priorities": priorities}
    binding = binding_of(group_object(replicas=5, failover=failover))
    assert (binding.heartbeat_timeout_seconds, binding.fence_timeout_seconds) == (1.2, 3.0)
    settings = binding.settings
    assert settings.election_priorities == {2: 0, 3: 5}
    assert not settings.may_be_master(2)
    assert (settings.election_policy, settings.expected_replicas) == ("most-data", 5)
    assert settings.accepted_epoch == 0


@pytest.mark.parametrize(("text", "expected"), [("25000", 25_000), ("soon", 0), ("-1", 0), ("٣", 0), ("9" * 11, 0)])
def test_a_human_accepts_an_epoch_by_an_annotation(text: str, expected: int) -> None:
    group = group_object()
    group["metadata"]["annotations"] = {names.ANNOTATION_ACCEPT_EPOCH: text, "seen": "yes"}
    assert binding_of(group).settings.accepted_epoch == expected


RESTORED = {"fromBackup": {"claim": {"name": "copies", "folder": "lost/nightly"}}}


def test_brokers_of_a_restored_group_are_followed_after_its_record_was_lost() -> None:
    """Their ids and epochs begin in a block far above those of the backup; the record begins again at 0."""
    group = group_object(bootstrap=RESTORED)
    group["metadata"]["annotations"] = {names.ANNOTATION_BEGUN_ABOVE: "91002000/700003"}
    settings = binding_of(group).settings
    # Not far into other groups' blocks.
    assert 91_002_000 + 1_000 < settings.accepted_epoch < 91_002_000 + EPOCHS_LEFT_OUT * 20
    assert 700_003 < settings.max_ids_of_restored < 700_003 + BROKER_IDS_LEFT_OUT * 20
    assert binding_of(group_object()).settings.max_ids_of_restored == 0
    group["metadata"]["annotations"][names.ANNOTATION_ACCEPT_EPOCH] = "2000000000"
    assert binding_of(group).settings.accepted_epoch == 2_000_000_000


@pytest.mark.parametrize("text", [None, "", "soon", "5", "1/2/3", "-1/4", "9/" + "9" * 30])
def test_without_a_note_of_its_beginning_the_block_of_its_uid_counts(text: str | None) -> None:
    """One forged heartbeat could take a hundred million epochs."""
    group = group_object(bootstrap=RESTORED)
    group["metadata"]["uid"] = "group-uid"
    group["metadata"]["annotations"] = {names.ANNOTATION_BEGUN_ABOVE: text} if text is not None else {}
    epoch_block, id_block = blocks_of("group-uid")
    settings = binding_of(group).settings
    assert settings.accepted_epoch == epoch_block * EPOCHS_LEFT_OUT + EPOCHS_SINCE
    assert settings.max_ids_of_restored == id_block * BROKER_IDS_LEFT_OUT + BROKER_IDS_SINCE


@pytest.mark.parametrize(
    ("told", "dialled"),
    [
        ("nameserver:9876", "nameserver.default:9876"),
        ("nameserver.mq:9876", "nameserver.mq:9876"),
        ("shop-nameserver-0.shop-nameservers.mq.svc:9876", "shop-nameserver-0.shop-nameservers.mq.svc:9876"),
        ("10.0.0.7:9876", "10.0.0.7:9876"),
        ("localhost:9876", "localhost:9876"),
        ("[FD00:0::10]:9876", "[fd00::10]:9876"),
        ("[::1]:9876", "[::1]:9876"),
        ("[::ffff:10.0.0.1]:9876", "10.0.0.1:9876"),
        ("ns.mq.svc.cluster.local.:9876", "ns.mq.svc.cluster.local.:9876"),
    ],
)
def test_a_name_server_is_dialled_by_the_name_that_the_brokers_mean(told: str, dialled: str) -> None:
    """In the operator's own namespace `nameserver` resolved to nothing, so no dead master was ever unregistered (104)."""
    assert binding_of(group_object(nameServers=[told])).name_servers == (dialled,)


@pytest.mark.parametrize(
    ("addressing", "expected"),
    [
        ({}, (False, False)),
        ({"addressing": "HostNetwork"}, (False, False)),
        ({"addressing": "ServiceIP"}, (True, False)),
        ({"addressing": "NodePort", "firstNodePort": 30100}, (True, True)),
        ({"addressing": "LoadBalancer"}, (True, True)),
    ],
)
def test_where_its_members_are_and_whether_their_disks_stay(
    addressing: dict[str, Any], expected: tuple[bool, bool]
) -> None:
    found = binding_of(group_object(network={"haPort": 12000, **addressing}))
    assert (found.translated, found.log_at_pods, found.ha_port) == (*expected, 12000)
    assert not found.ephemeral
    assert binding_of(group_object(storage={"ephemeral": {"sizeLimit": "2Gi"}})).ephemeral


def test_a_group_that_is_retired_has_no_canary() -> None:
    """It takes no sends: each message would be refused, and reported."""
    obj = group_object(monitoring={"canary": {"enabled": True}})
    assert binding_of(obj).canary
    condition = {"type": "Available", "status": "False", "reason": "Retiring", "message": "Takes no sends"}
    obj["status"] = {"conditions": [condition | {"lastTransitionTime": "2026-11-29T20:00:00Z"}]}
    assert not binding_of(obj).canary


# ---- From the API and the pods


async def test_a_group_is_found_by_its_broker_name_with_what_its_owner_wants(cluster: Cluster) -> None:
    directory = cluster.directory
    await create_group(cluster.api, nameServers=["ns:9876"], failover={"heartbeatTimeoutMilliseconds": 4500})
    await create_group(cluster.api, "pair", replicas=2, brokerName="bn-pair")
    binding = await eventually(lambda: directory.find("orders", cluster_name="DefaultCluster"), within_seconds=30)
    assert binding.key == ORDERS
    assert binding.name_servers == ("ns.default:9876",)
    assert binding.fence_timeout_seconds == binding.heartbeat_timeout_seconds == 4.5
    assert binding.unconfirmed_trust == "", "Python replicas have no fence of their own"
    assert directory.find("orders", cluster_name="other") is None
    assert directory.find("payments") is None
    pair = await eventually(lambda: directory.find("bn-pair"))
    assert pair.key == GroupKey("default", "pair")
    await cluster.api.delete(BROKER_GROUPS, "orders", namespace="default")
    await eventually(lambda: directory.find("orders") is None)


async def test_a_group_that_is_being_deleted_is_marked_and_then_forgotten(cluster: Cluster) -> None:
    await create_group(cluster.api, begun=True)
    await eventually(lambda: cluster.directory.find("orders"))
    await cluster.api.delete(BROKER_GROUPS, "orders", namespace="default")
    await eventually(lambda: (found := cluster.directory.find("orders")) and found.deleting)
    await cluster.api.patch(BROKER_GROUPS, "orders", {"metadata": {"finalizers": []}}, namespace="default")
    await eventually(lambda: cluster.directory.binding(ORDERS) is None)


# Of a Java group whose fences, by its spec, kill within 4.5 s.
FENCED: dict[str, Any] = {
    "implementation": "Java",
    "nameServers": ["ns:9876"],
    "version": "5.5.0",
    "failover": {"heartbeatTimeoutMilliseconds": 1500},
}


def fence_told(**milliseconds: int) -> dict[str, Any]:
    """Return the fields of a fence container with these times in its environment."""
    return {"env": [{"name": f"{name}_MILLISECONDS", "value": str(value)} for name, value in milliseconds.items()]}


@pytest.mark.parametrize(
    ("milliseconds", "seconds"),
    [
        ("4000", 4.5),
        ("999999999", 1_000_000.499),
        ("9" * 10, 0.0),
        ("9" * 400, 0.0),
        ("9" * 5000, 0.0),
        ("\u0664", 0.0),
    ],
    ids=[
        "as we write it",
        "the most",
        "one digit more",
        "no float holds it",
        "no int is read of it",
        "digits of another script",
    ],
)
def test_what_a_pods_fence_was_told_is_a_number_or_nothing(milliseconds: str, seconds: float) -> None:
    """A client that may create pods with a group's label ended the watch of all pods, by thousands of digits."""
    times = {"FENCE_TIMEOUT_MILLISECONDS": milliseconds, "FENCE_HEARTBEAT_TIMEOUT_MILLISECONDS": "500"}
    env = [{"name": name, "value": value} for name, value in times.items()]
    pod = {"spec": {"containers": [{"name": names.CONTAINER_FENCE, "env": env}]}}
    assert pod_fence.kills_after_seconds(pod) == seconds


async def test_a_group_waits_for_the_fence_that_was_told_the_longest_time(cluster: Cluster) -> None:
    """The spec's times became shorter; until a pod is recreated, the fence in it kills by the previous ones."""
    await create_group(cluster.api, **FENCED)
    for told, waits_seconds in (
        ({"FENCE_TIMEOUT": 4000, "FENCE_HEARTBEAT_TIMEOUT": 3000}, 7.0),
        ({"FENCE_TIMEOUT": 1500, "FENCE_HEARTBEAT_TIMEOUT": 9000}, 10.5),
        ({"FENCE_TIMEOUT": 1000, "FENCE_HEARTBEAT_TIMEOUT": 500}, 4.5),
        ({"FENCE_TIMEOUT": 9000}, 4.5),  # only half of the settings: not our fence
        ({}, 4.5),
    ):
        await create_pod(cluster.api, fence=fence_told(**told))
        await cluster.meets()
        assert cluster.binding.pod_fence_seconds == waits_seconds, told
        await delete_pod(cluster.api)
        await create_pod(cluster.api)
        await eventually(lambda: cluster.binding.pod_fence_seconds == 4.5, what="the pod to have been made anew")
        await delete_pod(cluster.api)
        await cluster.misses()


async def test_an_election_counts_on_the_fences_only_while_each_pod_has_one(cluster: Cluster) -> None:
    """The spec has just got the fence, or its pods are not made anew yet: an isolated master in an old pod is killed by nothing."""
    fence = fence_told(FENCE_TIMEOUT=3000, FENCE_HEARTBEAT_TIMEOUT=1500)
    await create_group(cluster.api, **FENCED)
    await create_pod(cluster.api, fence=fence)
    await eventually(lambda: known(cluster.directory).unconfirmed_trust, what="the one pod's fence to be trusted")
    await create_pod(cluster.api, "orders-2", address=SECOND)
    await cluster.meets(SECOND)
    assert cluster.binding.unconfirmed_trust == ""
    await delete_pod(cluster.api, "orders-2")
    await cluster.misses(SECOND)
    assert cluster.binding.unconfirmed_trust == "", "it was removed by force, and may run on"
    await create_pod(cluster.api, "orders-2", address=SECOND, fence=fence)
    await eventually(lambda: cluster.binding.unconfirmed_trust, what="the new pod's fence to be trusted")
    await create_pod(cluster.api, "orders-3", address="127.64.1.3", fence=fence_told(FENCE_TIMEOUT=3000))
    await cluster.meets("127.64.1.3")
    assert cluster.binding.unconfirmed_trust == "", "as of a fence that kills only by order"


async def test_the_fence_of_a_pod_that_was_removed_by_force_counts_until_the_pod_is_recreated(cluster: Cluster) -> None:
    """The process may run on, on a node that is cut off, and only its own fence ends it."""
    await create_group(cluster.api, network={"addressing": "ServiceIP"}, **FENCED)
    fence = fence_told(FENCE_TIMEOUT=4000, FENCE_HEARTBEAT_TIMEOUT=3000)
    await create_pod(cluster.api, known_by=SERVICE, fence=fence, annotations={names.ANNOTATION_LEARNER: "true"})
    await cluster.meets()
    await delete_pod(cluster.api)
    await eventually(lambda: cluster.binding.removed_places, what="the pod to be removed")
    assert cluster.binding.pod_fence_seconds == 7.0
    assert cluster.binding.settings.never_elect == {1}
    await create_pod(cluster.api, address=SECOND, known_by=SERVICE)
    await eventually(lambda: cluster.binding.pod_fence_seconds == 4.5, what="the pod to have been made anew")
    assert cluster.binding.settings.never_elect == frozenset()


# ---- What a group's owner wants at this moment, read from the API before a plane opens a broker.

MARK = {"metadata": {"annotations": {names.ANNOTATION_CLOSED_BY: "uid"}}}


async def test_what_a_group_is_now_is_read_from_the_api(cluster: Cluster) -> None:
    """The watch's copy may be old; a group that is gone, or an API that does not answer, says nothing."""
    await create_group(cluster.api)
    now = await cluster.directory.binding_now(ORDERS)
    assert now is not None
    assert (now.closed, now.deleting) == (False, False)
    await cluster.api.patch(BROKER_GROUPS, ORDERS.name, MARK, namespace=ORDERS.namespace)
    now = await cluster.directory.binding_now(ORDERS)
    assert now is not None
    assert now.closed
    await cluster.api.delete(BROKER_GROUPS, ORDERS.name, namespace=ORDERS.namespace)
    assert await cluster.directory.binding_now(ORDERS) is None


@pytest.mark.parametrize(
    ("metadata", "closed", "deleting"),
    [
        ({}, False, False),
        (MARK["metadata"], True, False),
        ({"deletionTimestamp": "2026-11-30T00:00:00Z"}, False, True),
    ],
    ids=["open", "closed", "being deleted"],
)
async def test_a_group_of_a_newer_crd_is_what_was_known_of_it_and_its_marks(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, metadata: dict[str, Any], closed: bool, deleting: bool
) -> None:
    """Without an answer a master that a dead switchover left at 99 acknowledged nothing for as long as its spec has the field."""
    await create_group(cluster.api)
    await eventually(lambda: cluster.directory.binding(ORDERS) is not None, what="the directory to know the group")
    expected = known(cluster.directory)

    async def newer(_api: KubernetesApi, *_arguments: Any, **_options: Any) -> dict[str, Any]:
        spec = {"replicas": 3, "implementation": "of a later version"}
        return {"metadata": {"name": ORDERS.name, "namespace": ORDERS.namespace, **metadata}, "spec": spec}

    monkeypatch.setattr(KubernetesApi, "get", newer)
    now = await cluster.directory.binding_now(ORDERS)
    assert now is not None
    assert (now.settings, now.closed, now.deleting) == (expected.settings, closed, deleting)


# ---- Zones, learners and other facts about members; for a member whose pod is gone, the last known facts


async def create_node(api: KubernetesApi, name: str, zone: str | None, rack: str | None = None) -> None:
    labels = {label: at for label, at in ((names.LABEL_ZONE, zone), (names.LABEL_RACK, rack)) if at is not None}
    await api.create(NODES, {"metadata": {"name": name, "labels": labels}}, timeout_seconds=60.0)


async def test_the_zone_of_a_broker_id_is_its_nodes(quick: Cluster) -> None:
    await create_group(quick.api, failover={"preferredZones": ["b", "a"]})
    await create_node(quick.api, "node-a", "a")
    await create_node(quick.api, "node-without", None)
    await create_pod(quick.api, "orders-1", node="node-a")
    await create_pod(quick.api, "orders-2", node="node-b", broker_id=4, address=SECOND)
    await create_pod(quick.api, "orders-3", node="node-without", address="127.64.1.3")
    await eventually(lambda: quick.binding.settings.zones == {1: "a"})
    await create_node(quick.api, "node-b", "b", "r7")
    await eventually(lambda: quick.binding.settings.zones == {1: "a", 4: "b"})
    assert quick.binding.member_facts[4] == {"node": "node-b", "zone": "b", "rack": "r7"}
    assert quick.binding.settings.preferred_zones == ("b", "a")


async def test_who_was_started_as_a_learner_is_never_elected(quick: Cluster) -> None:
    """The pod's label decides for as long as the pod exists, even if the broker's id is not the pod's ordinal."""
    await create_group(quick.api, replicas=4, replication={"learners": 1})
    mark = {names.ANNOTATION_LEARNER: "true"}
    await create_pod(quick.api, "orders-1")
    await create_pod(quick.api, "orders-4", address="127.64.1.4", annotations=mark)
    await eventually(lambda: quick.binding.settings.never_elect == {4})
    await create_pod(quick.api, "orders-3", broker_id=6, address="127.64.1.3", annotations=mark)
    await eventually(lambda: quick.binding.settings.never_elect == {4, 6})
    await delete_pod(quick.api, "orders-4")
    await quick.misses("127.64.1.4")
    await create_pod(quick.api, "orders-4", address="127.64.1.5")
    await eventually(lambda: quick.binding.settings.never_elect == {6})


class NodesForbidden(KubernetesApi):
    """An API that grants the directory no rights outside the namespace."""

    asked_for_nodes = 0

    async def get(self, resource: Resource, name: str, **options: Any) -> Any:
        if resource in (NODES, SECRETS):
            self.asked_for_nodes += resource == NODES
            raise ApiError(f"{resource.plural} {name!r} is forbidden", status=403, reason="Forbidden")
        return await super().get(resource, name, **options)


async def test_without_the_right_to_read_nodes_there_are_no_zones_and_nothing_else_changes(api: KubernetesApi) -> None:
    async with NodesForbidden.from_url(api.url) as refused:
        directory = KubernetesDirectory(refused, missing_seconds=0.02)
        await directory.start()
        cluster = Cluster(refused, directory)
        await create_node(api, "node-1", "a")
        await create_secret(api, accessKey="orders", secretKey="one")
        await create_group(api, security=OF_KEYS)
        await create_pod(api)
        await eventually(lambda: directory.pods.peer_at(HOST) and refused.asked_for_nodes)
        assert cluster.binding.settings.zones == {}
        assert cluster.binding.credentials is None
        await create_pod(api, "orders-2", address=SECOND)
        await cluster.meets(SECOND)
        assert refused.asked_for_nodes == 1, "a missing right costs one request, not one for every pod"
        await directory.stop()


def test_a_member_has_the_facts_that_labels_tell() -> None:
    group = group_object()
    assert binding_of(group).tenant == ""
    group["metadata"]["labels"] = {names.LABEL_TENANT: "shop"}
    assert binding_of(group).tenant == "shop"
    place = {"zone": "a", "rack": "r7"}
    pods = [pod_object(1, "n1", **{names.LABEL_APP_VERSION: "5.5.0"}), pod_object(2, "n2"), pod_object(3)]
    assert member_facts({}, pods, {"n1": place, "n2": None}, "shop") == {
        1: {"node": "n1", "zone": "a", "rack": "r7", "version": "5.5.0", "tenant": "shop"},
        2: {"node": "n2", "tenant": "shop"},
    }


def test_what_was_known_of_a_member_outlives_its_pod_and_not_its_move() -> None:
    before = member_facts({}, [pod_object(1, "n1"), pod_object(2, "n2")], {"n1": {"zone": "a"}}, "")
    after = member_facts(before, [pod_object(2, "n3")], {}, "")
    assert after == {1: {"node": "n1", "zone": "a"}, 2: {"node": "n3"}}

"""The directory and the fence against the embedded API: who is who, who is dead, and a silent master's pod that is killed."""

import asyncio
import base64
import datetime as dt
from collections.abc import AsyncIterator
from typing import Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.controller.change.fencing import KubernetesFencer
from brokergroup_operator.controller.directory.group_directory import (
    Credentials,
    GroupBinding,
    MemberGone,
    Peer,
    PodPlace,
    SignaturePolicy,
)
from brokergroup_operator.controller.directory.kubernetes_binding import binding_of, termination
from brokergroup_operator.controller.directory.kubernetes_directory import KubernetesDirectory
from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.errors import ApiError, ApiUnavailableError, NotFoundError
from brokergroup_operator.kube.resources import BROKER_GROUPS, NODES, PODS, SECRETS, Resource
from brokergroup_operator.records.store import GroupKey
from controller_core.settings import Adoption
from tests.our_kinds import api_with_our_kinds
from tests.support.fake_broker import eventually

KEY = GroupKey("default", "orders")
BINDING = GroupBinding(key=KEY, cluster_name="DefaultCluster", broker_name="orders")
ADDRESS = "127.64.1.1:10911"


@pytest.fixture
async def api() -> AsyncIterator[KubernetesApi]:
    async with api_with_our_kinds(KubernetesApi) as opened:
        yield opened


@pytest.fixture
async def directory(api: KubernetesApi) -> AsyncIterator[KubernetesDirectory]:
    started = KubernetesDirectory(api)
    await started.start()
    yield started
    await started.stop()


def known(directory: KubernetesDirectory) -> GroupBinding:
    """What the directory knows of the group, where it has been met."""
    binding = directory.binding(KEY)
    assert binding is not None, f"the directory does not know {KEY}"
    return binding


async def create_group(api: KubernetesApi, name: str = "orders", **spec: Any) -> None:
    obj = {
        "apiVersion": names.API_VERSION,
        "kind": names.BROKER_GROUP_KIND,
        "metadata": {"namespace": "default", "name": name},
        "spec": {"implementation": "Python", **spec},
    }
    await api.create(BROKER_GROUPS, obj, timeout_seconds=60.0)


async def create_pod(
    api: KubernetesApi,
    name: str = "orders-1",
    *,
    address: str = "127.64.1.1",
    broker_id: int | None = None,
    node: str = "node-1",
    known_by: str | None = None,
    host_network: bool = False,
    group: str = "orders",
    annotations: dict[str, str] | None = None,
    fence_env: list[dict[str, str]] | None = None,
) -> dict[str, Any]:
    labels = {names.LABEL_BROKER_GROUP: group} | ({names.LABEL_BROKER_ID: str(broker_id)} if broker_id else {})
    containers: list[dict[str, Any]] = [{"name": "broker", "image": "replica"}]
    if fence_env:
        containers.append({"name": names.CONTAINER_FENCE, "image": "replica", "env": fence_env})
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": "default",
            "name": name,
            "labels": labels,
            "annotations": ({names.ANNOTATION_ADDRESS: known_by} if known_by else {}) | (annotations or {}),
        },
        "spec": {"containers": containers, "nodeName": node, "hostNetwork": host_network},
    }
    # The first pod of a process costs the embedded API seconds: it builds the pod's schema then.
    await api.create(PODS, pod, timeout_seconds=60.0)
    return await set_status(api, name, address=address, state={"running": {}})


async def set_status(
    api: KubernetesApi, name: str, *, address: str, state: dict[str, Any], restarts: int = 0
) -> dict[str, Any]:
    status = {
        "phase": "Running",
        "podIP": address,
        "containerStatuses": [
            {
                "name": "broker",
                "image": "replica",
                "imageID": "",
                "ready": False,
                "restartCount": restarts,
                "state": state,
            }
        ],
    }
    return await api.patch(
        PODS, name, {"status": status}, namespace="default", subresource="status", timeout_seconds=60.0
    )


TERMINATED = {"terminated": {"exitCode": 137}}


def test_a_java_groups_election_may_be_trusted_by_the_bound_of_the_fences_in_its_pods() -> None:
    spec: dict[str, Any] = {"failover": {"heartbeatTimeoutMilliseconds": 1500}}
    group = {"apiVersion": names.API_VERSION, "kind": names.BROKER_GROUP_KIND, "spec": spec}
    binding = binding_of(group | {"metadata": {"namespace": "default", "name": "orders"}})
    # Heartbeat timeout less interval, and two thirds of the fence time.
    assert "no controller for 2.5 s, at the latest after 3.25 s" in binding.unconfirmed_trust
    spec["failover"] |= {"isolation": {"enabled": False}}
    assert binding_of(group | {"metadata": {"namespace": "default", "name": "orders"}}).unconfirmed_trust == ""


@pytest.mark.parametrize(
    ("told", "waits_seconds"),
    [
        pytest.param({"FENCE_TIMEOUT": 4000, "FENCE_HEARTBEAT_TIMEOUT": 3000}, 7.0, id="a longer fence timeout"),
        pytest.param({"FENCE_TIMEOUT": 1500, "FENCE_HEARTBEAT_TIMEOUT": 9000}, 10.5, id="a longer heartbeat timeout"),
        pytest.param({"FENCE_TIMEOUT": 1000, "FENCE_HEARTBEAT_TIMEOUT": 500}, 4.5, id="shorter ones"),
        pytest.param({"FENCE_TIMEOUT": 9000}, 4.5, id="one that was told only half: no fence of ours"),
        pytest.param({}, 4.5, id="none"),
    ],
)
async def test_a_group_waits_for_the_fence_that_was_told_the_longest_time(
    api: KubernetesApi, directory: KubernetesDirectory, told: dict[str, int], waits_seconds: float
) -> None:
    """The owner has shortened the times; until a pod is made anew, the fence in it kills by those of before."""
    await create_group(
        api,
        implementation="Java",
        nameServers=["ns:9876"],
        version="5.5.0",
        failover={"heartbeatTimeoutMilliseconds": 1500},
    )
    env = [{"name": f"{name}_MILLISECONDS", "value": str(milliseconds)} for name, milliseconds in told.items()]
    await create_pod(api, fence_env=env)
    await eventually(lambda: directory.known_peer("127.64.1.1"))
    assert known(directory).pod_fence_seconds == waits_seconds
    await api.delete(PODS, "orders-1", namespace="default", grace_period_seconds=0)
    await create_pod(api)
    await eventually(lambda: known(directory).pod_fence_seconds == 4.5, what="the pod to have been made anew")


async def test_a_group_is_found_by_its_broker_name_with_what_its_owner_wants(
    api: KubernetesApi, directory: KubernetesDirectory
) -> None:
    await create_group(api, nameServers=["ns:9876"], failover={"heartbeatTimeoutMilliseconds": 4500})
    binding = await eventually(lambda: directory.find("orders", cluster_name="DefaultCluster"), within_seconds=30)
    assert binding.key == KEY
    assert binding.name_servers == ("ns.default:9876",)
    assert binding.fence_timeout_seconds == 4.5
    assert binding.unconfirmed_trust == "", "Python replicas have no fence of their own"
    assert binding.heartbeat_timeout_seconds == 4.5
    # Three replicas are Strict by default: the shrink floor is on (safety rule 1).
    assert binding.settings.shrink_floor
    # A replica asks before it acts on a smaller set.
    assert not binding.settings.masters_shrink_first
    assert binding.settings.min_in_sync_replicas == 2
    assert directory.find("orders", cluster_name="other") is None
    assert directory.find("payments") is None
    await api.delete(BROKER_GROUPS, "orders", namespace="default")
    await eventually(lambda: directory.find("orders") is None)


async def test_the_word_of_java_masters_is_taken_below_the_floor(
    api: KubernetesApi, directory: KubernetesDirectory
) -> None:
    """They may have acted on it before they asked (apache/rocketmq #9897)."""
    await create_group(api, implementation="Java", nameServers=["ns:9876"], version="5.5.0")
    binding = await eventually(lambda: directory.find("orders"))
    assert binding.settings.shrink_floor
    assert binding.settings.masters_shrink_first


async def test_a_pod_that_is_being_deleted_is_leaving_until_its_broker_has_ended(
    api: KubernetesApi, directory: KubernetesDirectory
) -> None:
    told: list[GroupKey] = []
    directory.subscribe_leaving(told.append)
    await create_group(api)
    await create_pod(api, address="127.64.1.1")
    await create_pod(api, "orders-2", address="127.64.1.2")
    await eventually(lambda: directory.known_peer("127.64.1.2"))
    assert directory.leaving_hosts(KEY) == frozenset()
    await api.delete(PODS, "orders-1", namespace="default", grace_period_seconds=30)
    await eventually(lambda: directory.leaving_hosts(KEY) == {"127.64.1.1"}, what="the pod to be leaving")
    assert told == [KEY]
    await set_status(api, "orders-1", address="127.64.1.1", state=TERMINATED)
    await eventually(lambda: directory.leaving_hosts(KEY) == frozenset(), what="nobody to be leaving")


async def test_a_pod_that_was_removed_by_force_is_leaving_until_its_address_or_its_name_is_anothers(
    api: KubernetesApi, directory: KubernetesDirectory
) -> None:
    await create_group(api)
    for number in (1, 2):
        await create_pod(api, f"orders-{number}", address=f"127.64.1.{number}")
    await eventually(lambda: directory.known_peer("127.64.1.2"))
    for number in (1, 2):
        await api.delete(PODS, f"orders-{number}", namespace="default", grace_period_seconds=0)
    both = {"127.64.1.1", "127.64.1.2"}
    await eventually(lambda: directory.leaving_hosts(KEY) == both, what="both to be leaving")
    assert directory.removed_hosts(KEY) == both
    await create_pod(api, "other-1", address="127.64.1.1", group="other")
    await eventually(lambda: directory.leaving_hosts(KEY) == {"127.64.1.2"}, what="the address to be another's")
    await create_pod(api, "orders-2", address="127.64.1.9")
    await eventually(lambda: directory.leaving_hosts(KEY) == frozenset(), what="its successor to run")


async def test_a_pod_behind_a_service_that_was_removed_by_force_is_where_it_was_until_its_own_address_is_anothers(
    api: KubernetesApi, directory: KubernetesDirectory
) -> None:
    """The next pod of its name is known by the same Service: that one's start ends the leaving, and not the old process."""
    known_by = "127.150.1.1:10911"
    await create_group(api, network={"addressing": "ServiceIP"})
    await create_pod(api, address="127.64.1.1", known_by=known_by)
    await eventually(lambda: (found := directory.binding(KEY)) and found.places)
    await api.delete(PODS, "orders-1", namespace="default", grace_period_seconds=0)
    await eventually(lambda: directory.removed_hosts(KEY) == {"127.64.1.1"}, what="the pod to be removed")
    assert directory.leaving_hosts(KEY) == {"127.64.1.1"}
    old = {"orders-1": PodPlace(ip="127.64.1.1", address=known_by)}
    assert (known(directory).places, known(directory).removed_places) == ({}, old)
    await create_pod(api, address="127.64.1.2", known_by=known_by)
    await eventually(lambda: directory.leaving_hosts(KEY) == frozenset(), what="its successor to run")
    assert known(directory).places["orders-1"].ip == "127.64.1.2"
    assert known(directory).removed_places == old
    await create_pod(api, "other-1", address="127.64.1.1", group="other")
    await eventually(lambda: known(directory).removed_places == {}, what="the address to be another's")


async def test_a_pod_that_ended_before_it_was_removed_is_not_leaving(
    api: KubernetesApi, directory: KubernetesDirectory
) -> None:
    await create_group(api)
    await create_pod(api)
    await set_status(api, "orders-1", address="127.64.1.1", state=TERMINATED)
    await eventually(lambda: directory.is_terminated(KEY, 1, address=ADDRESS))
    await api.delete(PODS, "orders-1", namespace="default", grace_period_seconds=0)
    await eventually(lambda: directory.known_peer("127.64.1.1") is None)
    assert directory.leaving_hosts(KEY) == frozenset()


async def test_a_group_below_three_replicas_has_no_shrink_floor(
    api: KubernetesApi, directory: KubernetesDirectory
) -> None:
    await create_group(api, name="pair", replicas=2, brokerName="bn-pair")
    binding = await eventually(lambda: directory.find("bn-pair"))
    assert binding.key == GroupKey("default", "pair")
    assert not binding.settings.shrink_floor
    assert binding.settings.min_in_sync_replicas == 1


async def test_an_address_is_a_pod_also_before_the_watch_has_told(
    api: KubernetesApi, directory: KubernetesDirectory
) -> None:
    await create_pod(api)
    peer = Peer(namespace="default", pod_name="orders-1", group=KEY)
    assert await directory.peer("127.64.1.1") == peer  # looked up at the API where the watch has not told yet
    await eventually(lambda: directory.known_peer("127.64.1.1") == peer)
    assert await directory.peer("127.64.1.2") is None
    await set_status(api, "orders-1", address="127.64.1.9", state={"running": {}})
    await eventually(lambda: directory.known_peer("127.64.1.9") == peer)
    assert directory.known_peer("127.64.1.1") is None


@pytest.mark.parametrize(("reason", "word"), [("OOMKilled", "OOMKilled, "), ("Error", ""), (None, "")])
def test_a_kill_for_memory_is_told_by_its_name(reason: str | None, word: str) -> None:
    terminated = {"exitCode": 137, "reason": reason}
    pod = {"status": {"containerStatuses": [{"name": "broker", "state": {"terminated": terminated}}]}}
    assert termination(pod) == f"container terminated ({word}exit code 137)"


async def test_a_terminated_container_is_told_once_and_belongs_to_its_address(
    api: KubernetesApi, directory: KubernetesDirectory
) -> None:
    gone: list[MemberGone] = []
    directory.subscribe_gone(gone.append)
    await create_pod(api)
    await eventually(lambda: directory.known_peer("127.64.1.1"))
    assert directory.is_terminated(KEY, 1, address=ADDRESS) is None
    await set_status(api, "orders-1", address="127.64.1.1", state=TERMINATED)
    await eventually(lambda: gone)
    assert gone == [MemberGone(key=KEY, broker_id=1, how="container terminated (exit code 137)")]
    assert directory.is_terminated(KEY, 1, address=ADDRESS) is not None
    assert directory.is_terminated(KEY, 1, address="127.64.1.2:10911") is None
    await api.delete(PODS, "orders-1", namespace="default", grace_period_seconds=0)
    await eventually(lambda: directory.known_peer("127.64.1.1") is None)
    assert directory.is_terminated(KEY, 1, address=ADDRESS) is not None  # still true of that process
    assert len(gone) == 1


async def test_a_member_that_is_known_by_a_service_ends_leaves_and_comes_back_under_its_address(
    api: KubernetesApi, directory: KubernetesDirectory
) -> None:
    """One address, two pods after one another: the first one's end is told until the second runs, and not of the second."""
    known = "127.150.1.1:10911"
    await create_group(api, network={"addressing": "ServiceIP"})
    await create_pod(api, address="127.64.1.1", known_by=known)
    places = await eventually(lambda: (found := directory.binding(KEY)) and found.places)
    assert {name: (place.ip, place.address) for name, place in places.items()} == {"orders-1": ("127.64.1.1", known)}
    assert directory.known_peer("127.64.1.1") is not None, "its connections come from the pod"
    assert directory.is_terminated(KEY, 1, address=known) is None
    await api.delete(PODS, "orders-1", namespace="default", grace_period_seconds=30)
    await eventually(lambda: directory.leaving_hosts(KEY) == {known}, what="the member to be leaving")
    await set_status(api, "orders-1", address="127.64.1.1", state=TERMINATED)
    await eventually(lambda: directory.is_terminated(KEY, 1, address=known))
    await api.delete(PODS, "orders-1", namespace="default", grace_period_seconds=0)
    await eventually(lambda: directory.known_peer("127.64.1.1") is None)
    assert directory.is_terminated(KEY, 1, address=known) is not None
    await create_pod(api, address="127.64.1.2", known_by=known)
    await eventually(lambda: directory.known_peer("127.64.1.2"))
    assert directory.is_terminated(KEY, 1, address=known) is None
    await eventually(lambda: (found := directory.binding(KEY)) and found.places["orders-1"].ip == "127.64.1.2")


async def test_pods_that_share_their_nodes_address_are_told_apart_by_nothing(
    api: KubernetesApi, directory: KubernetesDirectory
) -> None:
    await create_pod(api, address="192.168.0.3", host_network=True)
    await eventually(lambda: directory.known_peer("192.168.0.3"))
    await create_pod(api, "other-1", address="192.168.0.3", host_network=True, group="other")
    await eventually(lambda: directory.known_peer("192.168.0.3") is None, what="nobody to be meant")
    assert await directory.peer("192.168.0.3") is None
    await api.delete(PODS, "other-1", namespace="default", grace_period_seconds=0)
    peer = await eventually(lambda: directory.known_peer("192.168.0.3"))
    assert peer.pod_name == "orders-1"


async def test_a_pod_removed_by_force_says_nothing_about_its_process(
    api: KubernetesApi, directory: KubernetesDirectory
) -> None:
    await create_pod(api)
    await eventually(lambda: directory.known_peer("127.64.1.1"))
    await api.delete(PODS, "orders-1", namespace="default", grace_period_seconds=0)
    await eventually(lambda: directory.known_peer("127.64.1.1") is None)
    assert directory.is_terminated(KEY, 1, address=ADDRESS) is None


async def test_a_restarted_container_is_a_dead_process(api: KubernetesApi, directory: KubernetesDirectory) -> None:
    gone: list[MemberGone] = []
    directory.subscribe_gone(gone.append)
    await create_pod(api)
    await eventually(lambda: directory.known_peer("127.64.1.1"))
    await set_status(api, "orders-1", address="127.64.1.1", state={"running": {}}, restarts=1)
    await eventually(lambda: gone)
    assert gone[0].how == "container restarted"


async def test_a_pod_whose_disk_was_wiped_is_known_by_the_id_on_its_label(
    api: KubernetesApi, directory: KubernetesDirectory
) -> None:
    """It keeps its name and comes back under a new id (safety rule 4): what is told of it is told of that id."""
    gone: list[MemberGone] = []
    directory.subscribe_gone(gone.append)
    await create_pod(api, "orders-2", broker_id=4)
    await eventually(lambda: directory.known_peer("127.64.1.1"))
    await set_status(api, "orders-2", address="127.64.1.1", state=TERMINATED)
    await eventually(lambda: gone)
    assert [item.broker_id for item in gone] == [4]
    assert directory.is_terminated(KEY, 4, address=ADDRESS) is not None


async def test_an_address_with_a_new_pod_says_nothing_of_the_old_one(
    api: KubernetesApi, directory: KubernetesDirectory
) -> None:
    await create_pod(api, "orders-1")
    await set_status(api, "orders-1", address="127.64.1.1", state=TERMINATED)
    await api.delete(PODS, "orders-1", namespace="default", grace_period_seconds=0)
    await eventually(lambda: directory.is_terminated(KEY, 1, address=ADDRESS) is not None)
    await create_pod(api, "orders-2")
    await eventually(lambda: directory.known_peer("127.64.1.1"))
    assert directory.is_terminated(KEY, 1, address=ADDRESS) is None
    await api.delete(PODS, "orders-2", namespace="default", grace_period_seconds=0)
    await eventually(lambda: directory.known_peer("127.64.1.1") is None)
    assert directory.is_terminated(KEY, 1, address=ADDRESS) is None  # the second one was removed by force


async def create_node(api: KubernetesApi, name: str, zone: str | None) -> None:
    labels = {} if zone is None else {names.LABEL_ZONE: zone}
    await api.create(NODES, {"metadata": {"name": name, "labels": labels}}, timeout_seconds=60.0)


async def test_the_zone_of_a_broker_id_is_its_nodes(api: KubernetesApi) -> None:
    directory = KubernetesDirectory(api, missing_seconds=0.05)
    await directory.start()
    await create_group(api, failover={"preferredZones": ["b", "a"]})
    await create_node(api, "node-a", "a")
    await create_node(api, "node-without", None)
    await create_pod(api, "orders-1", node="node-a")
    await create_pod(api, "orders-2", node="node-b", broker_id=4, address="127.64.1.2")
    await create_pod(api, "orders-3", node="node-without", address="127.64.1.3")
    await eventually(lambda: known(directory).settings.zones == {1: "a"})
    await create_node(api, "node-b", "b")
    await eventually(lambda: known(directory).settings.zones == {1: "a", 4: "b"})
    assert known(directory).member_facts[4] == {"node": "node-b", "zone": "b"}
    assert known(directory).settings.preferred_zones == ("b", "a")
    await directory.stop()


async def test_who_was_started_as_a_learner_is_never_elected(api: KubernetesApi) -> None:
    """By its pod's mark and for as long as that pod is there, also under an id that is not the pod's number."""
    directory = KubernetesDirectory(api, missing_seconds=0.05)
    await directory.start()
    await create_group(api, replicas=4, replication={"learners": 1})
    mark = {names.ANNOTATION_LEARNER: "true"}
    await create_pod(api, "orders-1")
    await create_pod(api, "orders-4", address="127.64.1.4", annotations=mark)
    await eventually(lambda: known(directory).settings.never_elect == {4})
    await create_pod(api, "orders-3", broker_id=6, address="127.64.1.3", annotations=mark)
    await eventually(lambda: known(directory).settings.never_elect == {4, 6})
    await api.delete(PODS, "orders-4", namespace="default", grace_period_seconds=0)
    await eventually(lambda: directory.known_peer("127.64.1.4") is None)
    await create_pod(api, "orders-4", address="127.64.1.5")
    await eventually(lambda: known(directory).settings.never_elect == {6})
    await directory.stop()


class NodesForbidden(KubernetesApi):
    """An API whose role for us has no rights beyond the namespace."""

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
        await create_node(api, "node-1", "a")
        await create_secret(api, accessKey="orders", secretKey="one")
        await create_group(api, security={"credentialsSecretRef": {"name": "keys"}})
        await create_pod(api)
        await eventually(lambda: directory.known_peer("127.64.1.1") and refused.asked_for_nodes)
        assert known(directory).settings.zones == {}
        assert known(directory).credentials is None
        await create_pod(api, "orders-2", address="127.64.1.2")
        await eventually(lambda: directory.known_peer("127.64.1.2"))
        assert refused.asked_for_nodes == 1, "a role that lacks a right is not asked again for every pod"
        await directory.stop()


async def test_what_a_group_wants_of_its_elections_reaches_the_controller(
    api: KubernetesApi, directory: KubernetesDirectory
) -> None:
    failover = {
        "heartbeatTimeoutMilliseconds": 1200,
        "priorities": [{"brokerId": 2, "priority": 0}, {"brokerId": 3, "priority": 5}],
    }
    await create_group(api, replicas=5, failover=failover)
    binding = await eventually(lambda: directory.binding(KEY))
    assert binding.heartbeat_timeout_seconds == 1.2
    assert binding.fence_timeout_seconds == 3.0
    assert binding.settings.election_priorities == {2: 0, 3: 5}
    assert not binding.settings.may_be_master(2)
    assert binding.settings.election_policy == "most-data"
    assert binding.settings.expected_replicas == 5
    assert binding.settings.adoption is Adoption.KNOWN_REQUESTERS
    assert binding.settings.accepted_epoch == 0


@pytest.mark.parametrize(("text", "expected"), [("25000", 25_000), ("soon", 0), ("-1", 0), ("٣", 0), ("9" * 11, 0)])
async def test_a_human_accepts_an_epoch_by_an_annotation(
    api: KubernetesApi, directory: KubernetesDirectory, text: str, expected: int
) -> None:
    await create_group(api)
    await eventually(lambda: directory.binding(KEY))
    annotations = {names.ANNOTATION_ACCEPT_EPOCH: text, "seen": "yes"}
    await api.patch(
        BROKER_GROUPS,
        "orders",
        {"metadata": {"annotations": annotations}, "spec": {"replicas": 4}},
        namespace="default",
    )
    await eventually(lambda: known(directory).settings.expected_replicas == 4)
    assert known(directory).settings.accepted_epoch == expected


async def create_secret(api: KubernetesApi, **entries: str) -> None:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in entries.items()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "default", "name": "keys"}, "data": data}
    await api.create(SECRETS, secret, timeout_seconds=60.0)


async def test_the_secret_of_a_group_is_its_credentials(api: KubernetesApi, directory: KubernetesDirectory) -> None:
    await create_secret(api, accessKey="orders", secretKey="correct horse")
    await create_group(
        api,
        implementation="Java",
        nameServers=["ns:9876"],
        security={"signature": "Required", "credentialsSecretRef": {"name": "keys"}},
    )
    binding = await eventually(lambda: (found := directory.binding(KEY)) and found.credentials and found)
    assert binding.signature is SignaturePolicy.REQUIRED
    assert binding.credentials == Credentials(access_key="orders", secret_key="correct horse")
    assert "correct horse" not in repr(binding)
    assert directory.find("orders") == binding
    await api.patch(BROKER_GROUPS, "orders", {"spec": {"security": None}}, namespace="default")
    await eventually(lambda: known(directory).credentials is None)
    assert known(directory).signature is SignaturePolicy.ACCEPTED


async def test_a_secret_that_comes_later_is_found_and_a_changed_one_is_read_when_the_group_changes(
    api: KubernetesApi,
) -> None:
    directory = KubernetesDirectory(api, missing_seconds=0.05)
    await directory.start()
    await create_group(api, security={"credentialsSecretRef": {"name": "keys"}})
    await eventually(lambda: directory.binding(KEY))
    assert known(directory).credentials is None
    await create_secret(api, accessKey="orders", secretKey="one")
    await eventually(lambda: known(directory).credentials)
    await api.patch(SECRETS, "keys", {"stringData": {"secretKey": "two"}}, namespace="default")
    await api.patch(BROKER_GROUPS, "orders", {"metadata": {"annotations": {"rotated": "yes"}}}, namespace="default")
    await eventually(lambda: (held := known(directory).credentials) and held.secret_key == "two")
    await directory.stop()


async def test_a_directory_that_starts_has_the_credentials_at_once(api: KubernetesApi) -> None:
    """Otherwise a new operator would refuse the brokers of every group that demands signatures, for a moment."""
    await create_secret(api, accessKey="orders", secretKey="one")
    await create_group(api, security={"credentialsSecretRef": {"name": "keys"}})
    directory = KubernetesDirectory(api)
    await directory.start()
    assert known(directory).credentials is not None
    await directory.stop()


async def test_a_secret_that_the_api_cannot_give_keeps_no_others_from_a_directory_that_starts(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that it cannot decrypt. The other group's brokers would be refused, and not heard, until after the pause."""
    await create_secret(api, accessKey="orders", secretKey="one")
    await create_group(api, security={"credentialsSecretRef": {"name": "keys"}})
    for name in ("first", "second"):
        await create_group(api, name, security={"credentialsSecretRef": {"name": f"a-{name}"}})
    get = api.get

    async def refuse(resource: Resource, name: str, **options: Any) -> dict[str, Any]:
        if resource == SECRETS and name != "keys":
            raise ApiUnavailableError(f"GET secrets/{name}: 500 unable to transform key from storage", status=500)
        return await get(resource, name, **options)

    monkeypatch.setattr(api, "get", refuse)
    directory = KubernetesDirectory(api)
    await directory.start()
    assert known(directory).credentials is not None
    await directory.stop()


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        ({"accessKey": "orders"}, "no key secretKey"),
        ({"accessKey": "orders", "secretKey": 'with "quotes"'}, "secretKey is not usable"),
        ({"accessKey": "line\nbreak", "secretKey": "fine"}, "accessKey is not usable"),
        ({"accessKey": "orders", "secretKey": "back\\slash"}, "secretKey is not usable"),
        ({"accessKey": "orders", "secretKey": "${HOME}"}, "secretKey is not usable"),
        ({"accessKey": "orders", "secretKey": "ümlaut"}, "secretKey is not usable"),
    ],
)
async def test_a_secret_that_cannot_be_used_is_named_without_its_value(
    api: KubernetesApi, directory: KubernetesDirectory, capsys: pytest.CaptureFixture[str], entries: Any, complaint: str
) -> None:
    await create_secret(api, **entries)
    await create_group(api, security={"credentialsSecretRef": {"name": "keys"}})
    said = ""

    def complained() -> bool:
        nonlocal said
        said += "".join(capsys.readouterr())
        return complaint in said

    await eventually(complained)
    assert known(directory).credentials is None
    for value in entries.values():
        assert value == "orders" or value not in said


async def test_the_fence_kills_the_pod_and_waits_for_its_end(api: KubernetesApi) -> None:
    await create_pod(api)
    fencer = KubernetesFencer(api)
    fencing = asyncio.create_task(fencer.fence(BINDING, 1, ADDRESS, deadline_seconds=10.0))

    async def dying_pod() -> dict[str, Any] | None:
        pod = await api.get(PODS, "orders-1", namespace="default")
        return pod if "deletionTimestamp" in pod["metadata"] else None

    pod = await eventually(dying_pod, what="the pod to be deleted")
    assert names.FINALIZER_FENCE in pod["metadata"]["finalizers"]
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 0
    assert not fencing.done()
    await set_status(api, "orders-1", address="127.64.1.1", state=TERMINATED)
    outcome = await fencing
    assert outcome.confirmed
    await fencer.close()
    with pytest.raises(NotFoundError):
        await api.get(PODS, "orders-1", namespace="default")


@pytest.mark.parametrize(
    ("after_seconds", "told"),
    [(0, "pod orders-1 ran until it was deleted"), (-5, "containers of pod orders-1 terminated")],
)
async def test_a_fence_tells_whether_the_silent_one_still_ran(
    api: KubernetesApi, after_seconds: int, told: str
) -> None:
    """Its end may be reported late: only what ended by the deletion ran until then."""
    await create_pod(api)
    fencing = asyncio.create_task(KubernetesFencer(api).fence(BINDING, 1, ADDRESS, deadline_seconds=10.0))

    async def deleted_at() -> str | None:
        pod = await api.get(PODS, "orders-1", namespace="default")
        at: str | None = pod["metadata"].get("deletionTimestamp")
        return at

    at = dt.datetime.fromisoformat(await eventually(deleted_at, what="the pod to be deleted"))
    ended_at = (at + dt.timedelta(seconds=after_seconds)).isoformat().replace("+00:00", "Z")
    state = {"terminated": {"exitCode": 137, "finishedAt": ended_at}}
    await set_status(api, "orders-1", address="127.64.1.1", state=state)
    outcome = await fencing
    assert (outcome.confirmed, outcome.how) == (True, told)


async def test_a_fence_that_nobody_confirms_ends_at_its_deadline(api: KubernetesApi) -> None:
    await create_pod(api)
    outcome = await KubernetesFencer(api).fence(BINDING, 1, ADDRESS, deadline_seconds=0.3)
    assert not outcome.confirmed
    assert "not reported dead" in outcome.how


async def test_a_pod_at_another_address_is_not_killed(api: KubernetesApi) -> None:
    """Safety rule 8: the pod of that name may be the innocent successor of the silent one."""
    await create_pod(api, address="127.64.1.2")
    outcome = await KubernetesFencer(api).fence(BINDING, 1, ADDRESS, deadline_seconds=5.0)
    assert not outcome.confirmed
    pod = await api.get(PODS, "orders-1", namespace="default")
    assert "deletionTimestamp" not in pod["metadata"]


async def test_a_pod_that_is_gone_confirms_nothing(api: KubernetesApi) -> None:
    outcome = await KubernetesFencer(api).fence(BINDING, 1, ADDRESS, deadline_seconds=5.0)
    assert not outcome.confirmed


async def test_a_group_that_is_being_deleted_is_marked_and_then_forgotten(
    api: KubernetesApi, directory: KubernetesDirectory
) -> None:
    await create_group(api)
    await eventually(lambda: directory.find("orders"))
    patch = {"metadata": {"finalizers": [names.FINALIZER_BROKER_GROUP]}}
    await api.patch(BROKER_GROUPS, "orders", patch, namespace="default")
    await api.delete(BROKER_GROUPS, "orders", namespace="default")
    await eventually(lambda: (found := directory.find("orders")) and found.deleting)
    await api.patch(BROKER_GROUPS, "orders", {"metadata": {"finalizers": []}}, namespace="default")
    await eventually(lambda: directory.binding(KEY) is None)


@pytest.mark.parametrize(
    ("told", "dialled"),
    [
        ("nameserver:9876", "nameserver.default:9876"),
        ("nameserver.mq:9876", "nameserver.mq:9876"),
        ("shop-nameserver-0.shop-nameservers.mq.svc:9876", "shop-nameserver-0.shop-nameservers.mq.svc:9876"),
        ("10.0.0.7:9876", "10.0.0.7:9876"),
        ("localhost:9876", "localhost:9876"),
    ],
)
def test_a_name_server_is_dialled_by_the_name_that_the_brokers_mean(told: str, dialled: str) -> None:
    """The operator's pod has another namespace: there `nameserver` was nobody, and no dead master was ever unregistered (104)."""
    obj = {"metadata": {"namespace": "default", "name": "orders"}, "spec": {"nameServers": [told]}}
    assert binding_of(obj).name_servers == (dialled,)

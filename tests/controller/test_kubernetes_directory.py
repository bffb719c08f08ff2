"""The directory against the embedded API: identities of pods, dead processes, leaving pods, modes of TLS, a group's Secret."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup import Signature
from brokergroup_operator.api.tls_fields import TlsMode
from brokergroup_operator.controller.directory.kubernetes_directory import KubernetesDirectory
from brokergroup_operator.controller.directory.pods import Peer, PodIndex, PodPlace, termination
from brokergroup_operator.kube.client import KubernetesApi, WatchEvent
from brokergroup_operator.kube.errors import ApiUnavailableError
from brokergroup_operator.kube.resources import BROKER_GROUPS, SECRETS, Resource
from brokergroup_operator.records.store import GroupKey
from rocketmq_remoting.signature import Credentials
from tests.controller.cluster import (
    ADDRESS,
    HOST,
    OF_KEYS,
    ORDERS,
    RUNNING,
    SECOND,
    SERVICE,
    TERMINATED,
    Cluster,
    create_group,
    create_pod,
    create_secret,
    delete_pod,
    known,
    pod_object,
    set_status,
)
from tests.support.fake_broker import eventually

# ---- The mode of TLS at each address


def spec_with(mode: str) -> dict[str, Any]:
    """Of a pod that was made with this mode: as its command and volumes say, which no update of a pod changes."""
    command = ["sh", "-c", f"exec java -Dtls.server.mode={mode} Main"]
    volumes = [{"name": names.VOLUME_TLS, "secret": {"secretName": "tls"}}]
    return {"volumes": volumes, "containers": [{"name": names.CONTAINER_BROKER, "image": "java", "command": command}]}


async def test_each_address_has_the_mode_of_tls_of_what_listens_there(cluster: Cluster) -> None:
    """A pod keeps the mode with which it was made while the spec asks for another one already."""
    tls = {"certificateSecretRef": {"name": "tls"}, "mode": "Enforcing"}
    await create_group(cluster.api, implementation="Java", nameServers=["ns:9876"], tls=tls)
    await create_pod(cluster.api)
    made = spec_with("permissive")
    await create_pod(cluster.api, "orders-2", address=SECOND, spec=made)
    await create_pod(cluster.api, "orders-3", address="127.64.1.3", known_by=SERVICE, spec=made)
    directory = cluster.directory
    await eventually(lambda: directory.tls_at(SERVICE) is TlsMode.PERMISSIVE)
    assert directory.tls_at("ns.default:9876") is TlsMode.ENFORCING
    assert directory.tls_at(f"{SECOND}:10911") is TlsMode.PERMISSIVE
    assert directory.tls_at(f"{HOST}:10911") is None
    assert directory.tls_at("10.9.9.9:10911") is None


async def test_a_group_that_names_anothers_broker_as_its_name_server_does_not_change_how_that_one_is_reached(
    cluster: Cluster,
) -> None:
    """Else a tenant could cut brokers of other tenants off from the operator: a broker that enforces TLS, or one without."""
    tls = {"certificateSecretRef": {"name": "tls"}, "mode": "Enforcing"}
    await create_pod(cluster.api)
    await create_pod(cluster.api, "orders-2", address=SECOND, spec=spec_with("enforcing"))
    await create_group(cluster.api, "stranger", implementation="Java", nameServers=[f"{HOST}:10911"], tls=tls)
    await create_group(cluster.api, "other", implementation="Java", nameServers=[f"{SECOND}:10911"])
    directory = cluster.directory
    await eventually(lambda: directory.is_name_server(f"{HOST}:10911") and directory.is_name_server(f"{SECOND}:10911"))
    await eventually(lambda: directory.pods.peer_at(HOST) and directory.pods.peer_at(SECOND))
    assert directory.tls_at(f"{HOST}:10911") is None
    assert directory.tls_at(f"{SECOND}:10911") is TlsMode.ENFORCING


async def test_pods_that_share_their_nodes_address_are_reached_each_by_its_own_mode_of_tls(cluster: Cluster) -> None:
    """Addressing HostNetwork: brokers of two groups on one node differ by their ports alone."""
    node, tls = "192.168.0.4", {"certificateSecretRef": {"name": "tls"}, "mode": "Permissive"}
    await create_group(cluster.api, implementation="Java", nameServers=[f"{node}:9876"], tls=tls)
    for name, group, port in (("orders-1", "orders", 10911), ("other-1", "other", 20911)):
        made = spec_with("enforcing") if group == "orders" else {"containers": [{}]}
        ports = [{"containerPort": port, "protocol": "TCP"}]
        container = {"name": names.CONTAINER_BROKER, "image": "java", "ports": ports, **made["containers"][0]}
        spec = made | {"containers": [container]}
        await create_pod(cluster.api, name, address=node, host_network=True, group=group, spec=spec)
    directory = cluster.directory
    await eventually(lambda: len(directory.pods.peers_at(node)) == 2 and directory.is_name_server(f"{node}:9876"))
    assert directory.tls_at(f"{node}:20911") is None
    assert directory.tls_at(f"{node}:10911") is TlsMode.ENFORCING
    assert directory.tls_at(f"{node}:9876") is TlsMode.PERMISSIVE, "a NameServer beside them"


# ---- Pods that are leaving


async def test_a_pod_that_is_being_deleted_is_leaving_until_its_broker_has_ended(cluster: Cluster) -> None:
    told: list[GroupKey] = []
    cluster.directory.on_leaving.append(told.append)
    await create_group(cluster.api)
    await create_pod(cluster.api)
    await create_pod(cluster.api, "orders-2", address=SECOND)
    await cluster.meets(SECOND)
    assert cluster.binding.leaving_hosts == frozenset()
    await delete_pod(cluster.api, grace_period_seconds=30)
    await cluster.sees_leaving(HOST)
    assert told == [ORDERS]
    await set_status(cluster.api, "orders-1", state=TERMINATED)
    await cluster.sees_leaving()


async def test_a_leaving_pod_that_is_then_removed_by_force_is_reported_again(cluster: Cluster) -> None:
    """It is at the same place, but a drain has seconds now, not the grace period, and waits for no metadata any more."""
    told: list[GroupKey] = []
    cluster.directory.on_leaving.append(told.append)
    await create_group(cluster.api)
    await create_pod(cluster.api)
    await cluster.meets()
    await delete_pod(cluster.api, grace_period_seconds=30)
    await cluster.sees_leaving(HOST)
    assert cluster.binding.removed_hosts == frozenset()
    await delete_pod(cluster.api)
    await eventually(lambda: told == [ORDERS, ORDERS], what="the removal to be reported")
    assert cluster.binding.leaving_hosts == cluster.binding.removed_hosts == {HOST}


async def test_a_pod_that_was_removed_by_force_is_leaving_until_its_address_or_its_name_is_anothers(
    cluster: Cluster,
) -> None:
    await create_group(cluster.api)
    for number in (1, 2):
        await create_pod(cluster.api, f"orders-{number}", address=f"127.64.1.{number}")
    await cluster.meets(SECOND)
    for number in (1, 2):
        await delete_pod(cluster.api, f"orders-{number}")
    await cluster.sees_leaving(HOST, SECOND)
    assert cluster.binding.removed_hosts == {HOST, SECOND}
    await create_pod(cluster.api, "other-1", group="other")
    await cluster.sees_leaving(SECOND)
    await create_pod(cluster.api, "orders-2", address="127.64.1.9")
    await cluster.sees_leaving()


async def test_a_pod_behind_a_service_that_was_removed_by_force_is_where_it_was_until_its_own_address_is_anothers(
    cluster: Cluster,
) -> None:
    """The next pod has the same Service: its start ends the leaving, and proves nothing about the old process."""
    await create_group(cluster.api, network={"addressing": "ServiceIP"})
    await create_pod(cluster.api, known_by=SERVICE)
    await eventually(lambda: (found := cluster.directory.binding(ORDERS)) and found.places)
    await delete_pod(cluster.api)
    await eventually(lambda: cluster.binding.removed_hosts == {HOST}, what="the pod to be removed")
    assert cluster.binding.leaving_hosts == {HOST}
    old = {"orders-1": PodPlace(ip=HOST, address=SERVICE)}
    assert (cluster.binding.places, cluster.binding.removed_places) == ({}, old)
    await create_pod(cluster.api, address=SECOND, known_by=SERVICE)
    await cluster.sees_leaving()
    assert cluster.binding.places["orders-1"].ip == SECOND
    assert cluster.binding.removed_places == old
    await create_pod(cluster.api, "other-1", group="other")
    await eventually(lambda: cluster.binding.removed_places == {}, what="the address to be another's")


# ---- Which pod has an address, and which process is dead


async def test_an_address_is_a_pod_also_before_the_watch_has_told(cluster: Cluster) -> None:
    directory, peer = cluster.directory, Peer(namespace="default", pod_name="orders-1", group=ORDERS)
    await create_pod(cluster.api)
    assert await directory.peer(HOST) == peer  # looked up at the API if the watch has not delivered it yet
    await eventually(lambda: directory.pods.peer_at(HOST) == peer)
    assert await directory.peer(SECOND) is None
    await set_status(cluster.api, "orders-1", address="127.64.1.9", state=RUNNING)
    await eventually(lambda: directory.pods.peer_at("127.64.1.9") == peer)
    assert directory.pods.peer_at(HOST) is None


async def test_a_dead_process_is_told_once_and_belongs_to_its_address_and_id(cluster: Cluster) -> None:
    """A pod with a wiped disk returns under a new id (safety rule 4) on its label; a restart proves the old process dead."""
    gone: list[tuple[GroupKey, int]] = []
    directory, third = cluster.directory, "127.64.1.3"
    directory.on_gone.append(lambda key, broker_id: gone.append((key, broker_id)))
    await create_group(cluster.api)
    for name, host, broker_id in (("orders-1", HOST, None), ("orders-2", SECOND, 4), ("orders-3", third, None)):
        await create_pod(cluster.api, name, address=host, broker_id=broker_id)
    await cluster.meets(third)
    assert directory.pods.termination_at(ORDERS, ADDRESS) is None
    await set_status(cluster.api, "orders-1", state=TERMINATED)
    await eventually(lambda: gone == [(ORDERS, 1)])
    assert directory.pods.termination_at(ORDERS, ADDRESS) == "container terminated (exit code 137)"
    assert directory.pods.termination_at(ORDERS, f"{SECOND}:10911") is None
    await set_status(cluster.api, "orders-2", address=SECOND, state=TERMINATED)
    await eventually(lambda: directory.pods.termination_at(ORDERS, f"{SECOND}:10911"))
    await set_status(cluster.api, "orders-3", address=third, state=RUNNING, restarts=1)
    await eventually(lambda: len(gone) == 3, what="all three ends")
    assert gone[1:] == [(ORDERS, 4), (ORDERS, 3)]
    await delete_pod(cluster.api)
    await cluster.misses()
    assert directory.pods.termination_at(ORDERS, ADDRESS) is not None, "still true of that process"
    assert known(directory).leaving_hosts == frozenset(), "it had ended before it was removed"
    assert len(gone) == 3


async def test_an_address_with_a_new_pod_says_nothing_of_the_old_one(cluster: Cluster) -> None:
    await create_pod(cluster.api)
    await set_status(cluster.api, "orders-1", state=TERMINATED)
    await delete_pod(cluster.api)
    await eventually(lambda: cluster.directory.pods.termination_at(ORDERS, ADDRESS) is not None)
    await create_pod(cluster.api, "orders-2")
    await cluster.meets()
    assert cluster.directory.pods.termination_at(ORDERS, ADDRESS) is None
    await delete_pod(cluster.api, "orders-2")
    await cluster.misses()
    # The second pod was deleted by force: its process may still run.
    assert cluster.directory.pods.termination_at(ORDERS, ADDRESS) is None


@pytest.mark.parametrize("state", [TERMINATED, RUNNING], ids=["ended", "removed by force"])
def test_of_a_pod_that_comes_again_under_other_addresses_only_the_last_one_that_went_is_remembered(
    state: dict[str, Any],
) -> None:
    """A rolling update gives each pod a new address, and the old ones may never be a broker's again."""
    index, went = PodIndex(), list[weakref.ref[_Object]]()
    for last_byte in range(1, 6):
        object_ = _Object(pod_object(1))
        statuses = [{"name": names.CONTAINER_BROKER, "state": state}]
        object_["metadata"]["namespace"] = "default"
        object_["status"] = {"phase": "Running", "podIP": f"10.0.0.{last_byte}", "containerStatuses": statuses}
        index.take(WatchEvent("ADDED", object_))
        index.take(WatchEvent("DELETED", object_))
        went.append(weakref.ref(object_))
    del object_
    gc.collect()
    assert [one() is not None for one in went] == [False, False, False, False, True]


class _Object(dict[str, Any]):
    """An object of the API that a weak reference can follow."""


async def test_a_member_that_is_known_by_a_service_ends_leaves_and_comes_back_under_its_address(
    cluster: Cluster,
) -> None:
    """Two pods in turn at one address: the first one's death is reported until the second runs, never for the second."""
    directory = cluster.directory
    await create_group(cluster.api, network={"addressing": "ServiceIP"})
    await create_pod(cluster.api, known_by=SERVICE)
    places = await eventually(lambda: (found := directory.binding(ORDERS)) and found.places)
    assert {name: (place.ip, place.address) for name, place in places.items()} == {"orders-1": (HOST, SERVICE)}
    assert directory.pods.peer_at(HOST) is not None, "its connections come from the pod"
    assert directory.pods.termination_at(ORDERS, SERVICE) is None
    await delete_pod(cluster.api, grace_period_seconds=30)
    await cluster.sees_leaving(SERVICE)
    await set_status(cluster.api, "orders-1", state=TERMINATED)
    await eventually(lambda: directory.pods.termination_at(ORDERS, SERVICE))
    await delete_pod(cluster.api)
    await cluster.misses()
    assert directory.pods.termination_at(ORDERS, SERVICE) is not None
    await create_pod(cluster.api, address=SECOND, known_by=SERVICE)
    await cluster.meets(SECOND)
    assert directory.pods.termination_at(ORDERS, SERVICE) is None
    await eventually(lambda: cluster.binding.places["orders-1"].ip == SECOND)


async def test_pods_that_share_their_nodes_address_are_told_apart_by_nothing(cluster: Cluster) -> None:
    node = "192.168.0.3"
    await create_pod(cluster.api, address=node, host_network=True)
    await cluster.meets(node)
    await create_pod(cluster.api, "other-1", address=node, host_network=True, group="other")
    await cluster.misses(node)
    assert await cluster.directory.peer(node) is None
    await delete_pod(cluster.api, "other-1")
    peer = await eventually(lambda: cluster.directory.pods.peer_at(node))
    assert peer.pod_name == "orders-1"


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ({"state": {"running": {}}}, None),
        ({"state": TERMINATED}, "container terminated (exit code 137)"),
        (
            {"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}},
            "container terminated (OOMKilled, exit code 137)",
        ),
        ({"state": {"terminated": {"exitCode": 137, "reason": "Error"}}}, "container terminated (exit code 137)"),
        (
            {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": TERMINATED},
            "container terminated (exit code 137)",
        ),
        ({"state": {"waiting": {"reason": "ContainerCreating"}}, "lastState": {}}, None),
        ({"state": {"running": {}}, "lastState": TERMINATED}, None),
        ({}, None),
    ],
)
def test_a_container_between_two_processes_is_dead(status: dict[str, Any], told: str | None) -> None:
    """An operator that starts while a killed master awaits its restart must not wait for missed heartbeats."""
    pod = {"status": {"phase": "Running", "containerStatuses": [{"name": "broker", **status}]}}
    assert termination(pod) == told


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (RUNNING, None),
        (TERMINATED, "container terminated (exit code 137)"),
        ({"waiting": {"reason": "ContainerCreating"}}, "pod Failed"),
        (None, "pod Failed"),
    ],
    ids=["by the control plane", "by its kubelet", "before it ran", "refused by its kubelet"],
)
def test_a_pod_that_the_control_plane_calls_failed_may_run(state: dict[str, Any] | None, told: str | None) -> None:
    """PodGC marks the pods of a node that is gone from the API, and removes them: a master that is cut off runs on."""
    index, pod = PodIndex(), pod_object(1)
    pod["metadata"]["namespace"] = "default"
    statuses = [{"name": names.CONTAINER_BROKER, "state": state}] if state is not None else []
    for kind, phase in (("ADDED", "Running"), ("MODIFIED", "Failed"), ("DELETED", "Failed")):
        status = {"phase": phase, "podIP": HOST, "containerStatuses": statuses}
        index.take(WatchEvent(kind, pod | {"status": status}))
    assert index.termination_at(ORDERS, ADDRESS) == told
    assert index.removed_hosts(ORDERS) == (frozenset() if told else {HOST})


# ---- A group's Secret


async def test_the_secret_of_a_group_is_its_credentials(cluster: Cluster) -> None:
    await create_secret(cluster.api, accessKey="orders", secretKey="correct horse")
    await create_group(
        cluster.api, implementation="Java", nameServers=["ns:9876"], security={"signature": "Required", **OF_KEYS}
    )
    binding = await eventually(lambda: (found := cluster.directory.binding(ORDERS)) and found.credentials and found)
    assert binding.signature is Signature.REQUIRED
    assert binding.credentials == Credentials(access_key="orders", secret_key="correct horse")
    assert "correct horse" not in repr(binding)
    assert cluster.directory.find("orders") == binding
    await cluster.api.patch(BROKER_GROUPS, "orders", {"spec": {"security": None}}, namespace="default")
    await eventually(lambda: cluster.binding.credentials is None)
    assert cluster.binding.signature is Signature.ACCEPTED


async def test_a_secret_that_comes_later_is_found_and_a_changed_one_is_read_when_the_group_changes(
    quick: Cluster,
) -> None:
    await create_group(quick.api, security=OF_KEYS)
    await eventually(lambda: quick.directory.binding(ORDERS))
    assert quick.binding.credentials is None
    await create_secret(quick.api, accessKey="orders", secretKey="one")
    await eventually(lambda: quick.binding.credentials)
    await quick.api.patch(SECRETS, "keys", {"stringData": {"secretKey": "two"}}, namespace="default")
    rotated = {"metadata": {"annotations": {"rotated": "yes"}}}
    await quick.api.patch(BROKER_GROUPS, "orders", rotated, namespace="default")
    await eventually(lambda: (held := quick.binding.credentials) and held.secret_key == "two")


async def test_a_directory_that_starts_has_the_credentials_at_once_whatever_other_secret_the_api_cannot_give(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a new operator briefly refuses brokers of groups that require signatures. The other Secret cannot be decrypted."""
    await create_secret(api, accessKey="orders", secretKey="one")
    await create_group(api, security=OF_KEYS)
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


UNUSABLE = {
    "half": ({"accessKey": "orders"}, "no key secretKey"),
    "quoted": ({"accessKey": "orders", "secretKey": 'with "quotes"'}, "secretKey is not usable"),
    "broken": ({"accessKey": "line\nbreak", "secretKey": "fine-secret"}, "accessKey is not usable"),
    "slashed": ({"accessKey": "orders", "secretKey": "back\\slash"}, "secretKey is not usable"),
    "expanded": ({"accessKey": "orders", "secretKey": "${HOME}"}, "secretKey is not usable"),
    "accented": ({"accessKey": "orders", "secretKey": "ümlaut"}, "secretKey is not usable"),
}


async def test_a_secret_that_cannot_be_used_is_named_without_its_value(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, (entries, _) in UNUSABLE.items():
        await create_secret(cluster.api, f"keys-{name}", **entries)
        await create_group(cluster.api, name, security={"credentialsSecretRef": {"name": f"keys-{name}"}})
    said = ""

    def complained() -> bool:
        nonlocal said
        said += "".join(capsys.readouterr())
        lines = said.splitlines()
        return all(
            any(complaint in line and f"keys-{name}" in line for line in lines)
            for name, (_, complaint) in UNUSABLE.items()
        )

    await eventually(complained)
    for name, (entries, _) in UNUSABLE.items():
        assert known(cluster.directory, GroupKey("default", name)).credentials is None
        for value in entries.values():
            assert value == "orders" or value not in said

"""Two BrokerGroups with one broker name: a request is about the one that keeps it, and the other's pods touch nothing of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.controller.directory.group_directory import GroupBinding, Peer
from brokergroup_operator.kube.resources import BROKER_GROUPS, NAMESPACES
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import GroupKey
from controller_core.model import BrokerGroupRecord, Replica
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import request
from rocketmq_remoting.controller_protocol import BrokerReplicasInfoBody, encode_broker_names
from tests.controller.conftest import group_of
from tests.controller.test_kubernetes_parts import api, create_pod, directory  # noqa: F401 (fixtures)
from tests.support.fake_broker import eventually

if TYPE_CHECKING:
    from brokergroup_operator.controller.directory.kubernetes_directory import KubernetesDirectory
    from brokergroup_operator.kube.client import KubernetesApi
    from tests.controller.conftest import StartPlane

FIRST, TWIN, STAGING = GroupKey("default", "first"), GroupKey("default", "twin"), GroupKey("staging", "first")
NO_PERMISSION = 16


def pod_of(key: GroupKey) -> Peer:
    return Peer(namespace=key.namespace, pod_name=f"{key.name}-1", group=key)


async def create(api: KubernetesApi, key: GroupKey, *, begun: bool = True, **spec: Any) -> None:  # noqa: F811
    """With the finalizer that the reconcile plane puts on it before its first child."""
    metadata = {"namespace": key.namespace, "name": key.name}
    held = {"finalizers": [names.FINALIZER_BROKER_GROUP]} if begun else {}
    kind = {"apiVersion": names.API_VERSION, "kind": names.BROKER_GROUP_KIND}
    await api.create(
        BROKER_GROUPS,
        kind | {"metadata": metadata | held, "spec": {"implementation": "Python", **spec}},
        timeout_seconds=60.0,
    )


async def met(directory: KubernetesDirectory, *keys: GroupKey) -> list[GroupBinding]:  # noqa: F811
    """The groups, once the watch has told of them."""
    found = [await eventually(lambda key=key: directory.binding(key), within_seconds=30) for key in keys]  # type: ignore[misc]
    return [one for one in found if one is not None]


async def test_of_one_namespace_the_first_is_meant_and_shown_to_the_twins_pods(
    api: KubernetesApi,  # noqa: F811
    directory: KubernetesDirectory,  # noqa: F811
) -> None:
    await create(api, FIRST)
    await create(api, TWIN, begun=False, brokerName="first")
    first, _ = await met(directory, FIRST, TWIN)
    for cluster in ("", "DefaultCluster"):
        for peer in (None, pod_of(FIRST), pod_of(TWIN), Peer(namespace="elsewhere", pod_name="shell")):
            assert directory.find("first", cluster_name=cluster, peer=peer) is first, (cluster, peer)
    assert directory.find("first", cluster_name="Other") is None
    await api.delete(BROKER_GROUPS, "first", namespace="default")
    merge = {"metadata": {"finalizers": None}}
    await api.patch(BROKER_GROUPS, "first", merge, namespace="default")
    [twin] = await met(directory, TWIN)
    await eventually(lambda: directory.find("first", peer=pod_of(TWIN)) is twin, what="the name to be the twin's")


async def test_two_that_both_live_are_told_apart_by_the_pod_that_asks(
    api: KubernetesApi,  # noqa: F811
    directory: KubernetesDirectory,  # noqa: F811
) -> None:
    """An operator of before let both begin: neither of them may lose its controller."""
    for key in (FIRST, TWIN):
        await create(api, key, brokerName="first")
    stored = {key: (await api.get(BROKER_GROUPS, key.name, namespace="default"))["metadata"] for key in (FIRST, TWIN)}
    # Of one second the uid decides.
    older, younger = await met(
        directory, *sorted(stored, key=lambda key: (stored[key]["creationTimestamp"], stored[key]["uid"]))
    )
    assert directory.find("first", peer=pod_of(younger.key)) is older, "its brokers never registered: it has to wait"
    directory.registered(younger)
    assert directory.find("first", peer=pod_of(younger.key)) is younger
    assert directory.find("first") is younger, "only it has messages"
    directory.registered(older)
    assert directory.find("first", peer=pod_of(older.key)) is older
    assert directory.find("first", peer=pod_of(younger.key)) is younger
    assert directory.find("first") is older, "without a pod the older one is meant"


@pytest.mark.parametrize(
    ("servers", "of_staging"),
    [
        pytest.param(("ns.infra:9876", "ns.infra.svc:9876"), FIRST, id="one NameServer"),
        pytest.param(("ns:9876", "ns:9876"), STAGING, id="a NameServer in each namespace"),
        pytest.param(None, STAGING, id="no NameServer"),
    ],
)
async def test_of_two_namespaces_each_has_its_own_unless_they_share_a_name_server(
    api: KubernetesApi,  # noqa: F811
    directory: KubernetesDirectory,  # noqa: F811
    servers: tuple[str, str] | None,
    of_staging: GroupKey,
) -> None:
    await api.create(NAMESPACES, {"metadata": {"name": "staging"}})
    one, other = servers or (None, None)
    await create(api, FIRST, nameServers=[one] if one else [])
    await create(api, STAGING, begun=False, nameServers=[other] if other else [])
    first, _ = await met(directory, FIRST, STAGING)
    found = directory.find("first", cluster_name="DefaultCluster", peer=pod_of(STAGING))
    assert found is not None
    assert found.key == of_staging
    assert directory.find("first", peer=pod_of(FIRST)) is first
    nobody = directory.find("first")
    assert nobody is (first if of_staging == FIRST else None), "without a pod two worlds can't be told apart"


async def test_nothing_that_a_twins_pod_sends_touches_the_holder(
    api: KubernetesApi,  # noqa: F811
    directory: KubernetesDirectory,  # noqa: F811
    start_plane: StartPlane,
) -> None:
    store = MemoryRecordStore()
    replicas = {
        one: Replica(broker_id=one, register_check_code=f"code-{one}", address=f"127.64.2.{one}:10911", registered=True)
        for one in (1, 2)
    }
    await store.commit(
        FIRST,
        BrokerGroupRecord(
            cluster_name="DefaultCluster",
            broker_name="first",
            next_broker_id=3,
            replicas=replicas,
            master_broker_id=1,
            master_epoch=4,
            sync_state_set=frozenset({1, 2}),
            sync_state_set_epoch=5,
        ),
        None,
    )
    await create(api, FIRST)
    await create(api, TWIN, begun=False, brokerName="first")
    await create_pod(api, "twin-1", address="127.0.0.1", group="twin")
    plane = await start_plane(store, directory=directory, tick_seconds=3600.0)
    await eventually(lambda: directory.known_peer("127.0.0.1"))
    await met(directory, FIRST, TWIN)
    before = await store.read(FIRST)
    client = RemotingClient()
    named = {"clusterName": "DefaultCluster", "brokerName": "first"}
    own = named | {"brokerId": "1", "brokerAddress": "127.0.0.1:10911", "brokerAddr": "127.0.0.1:10911"}
    asked = {
        RequestCode.BROKER_HEARTBEAT: own | {"epoch": "9", "maxOffset": "0", "confirmOffset": "0"},
        RequestCode.CONTROLLER_REGISTER_BROKER: own,
        RequestCode.CONTROLLER_ELECT_MASTER: own | {"designateElect": "false"},
        RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: named,
        RequestCode.CONTROLLER_APPLY_BROKER_ID: named | {"appliedBrokerId": "3", "registerCheckCode": "x"},
    }
    try:
        for code, fields in asked.items():
            answer = await client.invoke(plane.address, request(code, ext_fields=fields), timeout_seconds=5)
            assert answer.code == NO_PERMISSION, (code, answer)
            told = "pod default/twin-1 does not speak for group default/first, which has brokerName 'first'"
            assert answer.remark == told, code
        body = encode_broker_names(["first"])
        answer = await client.invoke(
            plane.address, request(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=body), timeout_seconds=5
        )
        table = BrokerReplicasInfoBody.decode(answer.body).replicas_info_table
        assert table["first"].master_broker_id == 1
    finally:
        await client.close()
    after = await store.read(FIRST)
    assert before is not None
    assert after is not None
    assert after.record == before.record
    assert await store.read(TWIN) is None
    assert group_of(plane, FIRST).live() == {}, "its heartbeat was not heard"

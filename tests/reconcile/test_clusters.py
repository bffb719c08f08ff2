"""RocketMQCluster: its parts, status, topics and users, and a pass against the embedded API and against a kube-apiserver."""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from brokergroup_operator.api import names
from brokergroup_operator.api.acl_fields import MARK
from brokergroup_operator.api.rocketmq_cluster import MessageType, TopicSpec
from brokergroup_operator.kube.errors import AlreadyExistsError, ApiError, InvalidError, NotFoundError
from brokergroup_operator.kube.resources import (
    BROKER_GROUPS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    NAMESPACES,
    POD_DISRUPTION_BUDGETS,
    ROCKETMQ_CLUSTERS,
    SECRETS,
    SERVICES,
    STATEFUL_SETS,
)
from brokergroup_operator.observe.group_view import BrokerUnreachableError
from brokergroup_operator.reconcile.clusters import acl_secrets
from brokergroup_operator.reconcile.clusters.cluster_pass import KINDS, SETTLED_SECONDS, UNSETTLED_SECONDS, ClusterPass
from brokergroup_operator.reconcile.clusters.master_looks import AGAIN_SECONDS, Standing
from brokergroup_operator.reconcile.clusters.parts import ACL_CONFIG
from brokergroup_operator.reconcile.clusters.topics import TopicDiffersError, TopicKeeper, change_of
from brokergroup_operator.reconcile.clusters.users import MARK_ENTRY
from brokergroup_operator.reconcile.render.broker_config import OVERRIDABLE_OF_JAVA
from brokergroup_operator.reconcile.settings import LeaderElectionSettings, ReconcileSettings, VersionCatalogue
from brokergroup_operator.reconcile.tell.events import EventPoster
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import GroupKey
from kube_sandbox.api_server.requests import Deletion
from rocketmq_remoting.acl_protocol import UserInfo
from rocketmq_remoting.broker_protocol import TopicConfig
from tests.reconcile.fake_view import FakeGroupView, led_by, with_members
from tests.reconcile.world import SANDBOX, Namespaced, refuse_network_policies, until_is
from tests.support.scripted_acl import ScriptedAcl

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.observe.group_view import GroupView
    from brokergroup_operator.reconcile.access import ClusterAccess
    from brokergroup_operator.reconcile.see.bundles import Servers
    from kube_sandbox.api_server.server import SandboxApiServer


REPOSITORY = Path(__file__).parents[2]
SETTINGS = ReconcileSettings(controller_addresses=("127.0.0.1:9878",))


PARTS = (SERVICES, STATEFUL_SETS, DEPLOYMENTS, CONFIG_MAPS, POD_DISRUPTION_BUDGETS, BROKER_GROUPS)


class Place(Namespaced):
    """A namespace with the cluster "shop" in it, and one pass after the other."""

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        settings: ReconcileSettings = SETTINGS,
        *,
        servers: Servers | None = None,
    ) -> None:
        super().__init__(api, GroupKey(namespace, "shop"))
        events = EventPoster(api, instance="operator-0")
        self.view = FakeGroupView(MemoryRecordStore())
        self.now_seconds = 0.0
        self.passes = ClusterPass(api, events, settings, self.view, clock=lambda: self.now_seconds, servers=servers)

    async def make(self, **spec: Any) -> None:
        metadata = {"name": self.key.name, "namespace": self.key.namespace}
        await self.api.create(ROCKETMQ_CLUSTERS, {"metadata": metadata, "spec": spec})

    async def made(self, **spec: Any) -> None:
        """Make the cluster, and run a pass."""
        await self.make(**spec)
        await self.run()

    async def secrets(self, name: str, **data: str) -> None:
        """Make this Secret; and that of the brokers' key, if it is not there."""
        with contextlib.suppress(AlreadyExistsError):
            key = secret(self, "key", accessKey="brokers", secretKey="planted-key")
            await self.api.create(SECRETS, key)
        if name != "key":
            await self.api.create(SECRETS, secret(self, name, **data))

    async def changed(self, spec: dict[str, Any]) -> None:
        """Change the cluster's spec, and run a pass."""
        await self.patch(ROCKETMQ_CLUSTERS, "shop", {"spec": spec})
        await self.run()

    async def run(self) -> float | None:
        return await self.passes.run(self.key)

    async def names(self, resource: Resource) -> list[str]:
        return sorted(
            one["metadata"]["name"] for one in await self.items(resource) if one["metadata"]["name"].startswith("shop")
        )

    async def metadata(self, *kinds: Resource) -> dict[str, dict[str, Any]]:
        """Return the metadata of these objects, or of all parts."""
        return {
            f"{kind.kind} {name}": (await self.get(kind, name))["metadata"]
            for kind in kinds or PARTS
            for name in await self.names(kind)
        }

    async def names_of_parts(self) -> list[str]:
        return list(await self.metadata())

    async def versions(self) -> dict[str, str]:
        """Each object's resourceVersion: without a write it stays."""
        found = await self.metadata(*PARTS, ROCKETMQ_CLUSTERS)
        return {name: metadata["resourceVersion"] for name, metadata in found.items()}

    async def status(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.get(ROCKETMQ_CLUSTERS, "shop"))["status"]
        return found

    async def condition(self, kind: str) -> tuple[str, str, str]:
        found = next(one for one in (await self.status())["conditions"] if one["type"] == kind)
        return found["status"], found["reason"], found["message"]

    async def events(self) -> list[str]:
        return [one["reason"] for one in await self.items(EVENTS) if one["involvedObject"]["kind"] == "RocketMQCluster"]

    async def pods_are_ready(self, resource: Resource, name: str, ready: int) -> None:
        """As the StatefulSet's or Deployment's controller says it."""
        await self.write_status(resource, name, replicas=ready, readyReplicas=ready, updatedReplicas=ready)

    async def group_is(self, name: str, answer: str) -> None:
        told = {"status": answer, "reason": "Told", "message": "", "lastTransitionTime": "2026-11-26T00:00:00Z"}
        conditions = [{"type": kind} | told for kind in ("Ready", "Available", "FailoverSafe")]
        master = {"brokerId": 1, "pod": f"{name}-1", "address": "10.0.0.1:10911", "epoch": 1}
        await self.write_status(BROKER_GROUPS, name, conditions=conditions, master=master)

    async def write_status(self, resource: Resource, name: str, **status: Any) -> None:
        generation = (await self.get(resource, name))["metadata"]["generation"]
        await self.patch(resource, name, {"status": {"observedGeneration": generation} | status}, subresource="status")

    def lead(self, name: str) -> GroupKey:
        """Let broker 1 lead this group."""
        key = GroupKey(self.key.namespace, name)
        self.view.snapshots[key] = led_by(key, 1, epoch=1)
        return key

    async def until_gone(self) -> None:
        await until_is("the cluster is gone", [], lambda: self.names(ROCKETMQ_CLUSTERS))


@pytest.fixture
async def place(access: ClusterAccess) -> AsyncIterator[Place]:
    async with access.own_client() as api:
        namespace = f"t-{uuid.uuid4().hex[:8]}"
        await api.create(NAMESPACES, {"metadata": {"name": namespace}})
        yield Place(api, namespace)


async def test_an_update_leaves_brokers_the_time_to_find_a_new_name_server_before_the_next_one_ends(
    place: Place,
) -> None:
    """Its pod has another address. A JVM keeps the former one for 30 s, and a broker registers every 10 s (`broker_config.py`)."""
    await place.made()
    spec = (await place.get(STATEFUL_SETS, "shop-nameserver"))["spec"]
    registers_seconds = int(OVERRIDABLE_OF_JAVA["registerNameServerPeriod"]) / 1000
    assert spec["minReadySeconds"] >= 30 + registers_seconds


async def test_one_manifest_is_name_servers_groups_and_proxies(place: Place) -> None:
    """#133: the operator had no Proxy."""
    await place.make(
        version="5.5.0", brokerGroups={"count": 2}, proxy={"replicas": 2, "config": {"maxMessageSize": "1024"}}
    )
    assert await place.run() == UNSETTLED_SECONDS
    assert await place.names(STATEFUL_SETS) == ["shop-nameserver"]
    assert await place.names(DEPLOYMENTS) == ["shop-proxy"]
    assert await place.names(SERVICES) == ["shop-nameserver", "shop-nameservers", "shop-proxy"]
    assert await place.names(POD_DISRUPTION_BUDGETS) == ["shop-nameserver", "shop-proxy"]
    assert await place.names(BROKER_GROUPS) == ["shop-0", "shop-1"]
    pods = f"shop-nameservers.{place.key.namespace}.svc:9876"
    addresses = [f"shop-nameserver-0.{pods}", f"shop-nameserver-1.{pods}"]
    group = await place.get(BROKER_GROUPS, "shop-1")
    expected = (addresses, "5.5.0", 3)
    assert (group["spec"]["nameServers"], group["spec"]["version"], group["spec"]["replicas"]) == expected
    told = json.loads((await place.get(CONFIG_MAPS, "shop-proxy"))["data"]["rmq-proxy.json"])
    assert (told["namesrvAddr"], told["rocketMQClusterName"]) == (";".join(addresses), "DefaultCluster")
    assert told["maxMessageSize"] == 1024, "a number, where a Proxy expects one"
    assert [await place.condition(kind) for kind in ("Ready", "Available", "Stalled")] == [
        ("False", "NameServersPending", "0/2 NameServers are ready"),
        ("False", "NameServersPending", "No NameServer is ready: clients find no broker"),
        ("False", "NothingToDo", "Nothing needs a person"),
    ]


async def test_it_is_ready_when_all_its_parts_are_and_says_where_clients_connect(place: Place) -> None:
    await place.made(brokerGroups={"count": 1}, proxy={"replicas": 1})
    await place.pods_are_ready(STATEFUL_SETS, "shop-nameserver", 2)
    await place.run()
    assert await place.condition("Ready") == ("False", "GroupsPending", "0/1 groups are ready: shop-0")
    await place.group_is("shop-0", "True")
    await place.run()
    assert await place.condition("Ready") == ("False", "ProxiesPending", "0/1 proxies are ready")
    await place.pods_are_ready(DEPLOYMENTS, "shop-proxy", 1)
    assert await place.run() == SETTLED_SECONDS
    assert await place.condition("Ready") == ("True", "AllReady", "2 NameServers, 1 groups, 1 proxies are ready")
    status = await place.status()
    assert status["clients"] == {
        "nameServer": f"shop-nameserver.{place.key.namespace}.svc:9876",
        "proxy": f"shop-proxy.{place.key.namespace}.svc:8081",
    }
    assert [status[part]["summary"] for part in ("nameServers", "brokerGroups", "proxies")] == ["2/2", "1/1", "1/1"]
    assert status["groups"][0]["master"] == "shop-0-1"
    assert await place.events() == ["ClusterReady"]
    await place.group_is("shop-0", "False")
    await place.run()
    assert await place.condition("Available") == ("False", "GroupsPending", "Groups that take no writes: shop-0")
    assert sorted(await place.events()) == ["ClusterReady", "ClusterUnavailable"]


@pytest.mark.parametrize(
    ("proxy", "service"), [(None, "shop-0-master"), ({"replicas": 1}, "shop-proxy")], ids=["alone", "beside proxies"]
)
async def test_proxies_in_the_brokers_processes_are_where_clients_connect(
    place: Place, proxy: dict[str, Any] | None, service: str
) -> None:
    template = {"localProxy": {"config": {"maxMessageSize": "1024"}}}
    await place.make(brokerGroups={"count": 2, "template": template}, **({"proxy": proxy} if proxy else {}))
    await place.passes.run(place.key)
    for name in ("shop-0", "shop-1"):
        assert (await place.get(BROKER_GROUPS, name))["spec"]["localProxy"] == template["localProxy"]
    status = (await place.get(ROCKETMQ_CLUSTERS, "shop"))["status"]
    assert status["clients"]["proxy"] == f"{service}.{place.key.namespace}.svc:8081"


def windows(*found: dict[str, Any]) -> dict[str, Any]:
    return {"updateStrategy": {"windows": list(found)}}


async def test_each_group_has_the_templates_windows(place: Place) -> None:
    night = {"days": ["Sat"], "start": "02:00", "durationMinutes": 60, "timeZone": "Europe/Berlin"}
    await place.make(brokerGroups={"count": 2, "template": windows(night)})
    await place.passes.run(place.key)
    for name in ("shop-0", "shop-1"):
        assert (await place.get(BROKER_GROUPS, name))["spec"]["updateStrategy"]["windows"] == [night]


async def test_a_pass_over_a_settled_cluster_writes_nothing(place: Place) -> None:
    await place.made(proxy={"replicas": 1})
    await place.run()
    before = await place.versions()
    for _ in range(3):
        await place.run()
    assert await place.versions() == before
    # A new operator remembers nothing of what it applied: it applies all once, and nothing is another by that.
    await Place(place.api, place.key.namespace).passes.run(place.key)
    assert await place.versions() == before


async def test_a_changed_field_is_put_back_and_an_undeclared_one_is_left(place: Place) -> None:
    await place.made()
    change = {"spec": {"replicas": 5, "maintenance": {"paused": True}}}
    await place.patch(BROKER_GROUPS, "shop-0", change)
    await place.run()
    spec = (await place.get(BROKER_GROUPS, "shop-0"))["spec"]
    assert (spec["replicas"], spec["maintenance"]["paused"]) == (3, True)
    await place.delete(SERVICES, "shop-nameserver")
    await place.run()
    assert "shop-nameserver" in await place.names(SERVICES)


async def test_single_groups_may_differ(place: Place) -> None:
    overrides = [{"index": 1, "replicas": 1, "config": {"a": "2"}, "labels": {"brokergroup.dev/tenant": "books"}}]
    await place.made(brokerGroups={"count": 2, "template": {"config": {"a": "1", "b": "1"}}, "overrides": overrides})
    first, second = [await place.get(BROKER_GROUPS, name) for name in ("shop-0", "shop-1")]
    assert (first["spec"]["replicas"], first["spec"]["config"]) == (3, {"a": "1", "b": "1"})
    assert (second["spec"]["replicas"], second["spec"]["config"]) == (1, {"a": "2", "b": "1"})
    assert second["metadata"]["labels"]["brokergroup.dev/tenant"] == "books"


async def test_declared_topics_are_carried_to_every_group(place: Place) -> None:
    await place.made(topics=[{"name": "orders", "queues": 4, "messageType": "Fifo"}])
    await place.pods_are_ready(STATEFUL_SETS, "shop-nameserver", 2)
    await place.group_is("shop-0", "True")
    assert await place.run() == UNSETTLED_SECONDS
    pending = "0/1 topics are in every group: group shop-0 has no master"
    assert await place.condition("Ready") == ("False", "TopicsPending", pending)
    first = place.lead("shop-0")
    assert await place.run() == SETTLED_SECONDS
    status = await place.status()
    assert status["topics"] == {"desired": 1, "ready": 1, "summary": "1/1"}
    await place.changed({"brokerGroups": {"count": 2}})
    await place.group_is("shop-1", "True")
    second = place.lead("shop-1")
    assert await place.run() == SETTLED_SECONDS
    assert place.view.topics_put == [(first, "orders"), (second, "orders")]


async def test_a_topic_of_another_kind_stalls_the_cluster_until_a_person_decides(place: Place) -> None:
    key = place.lead("shop-0")
    place.view.topics[key, "orders"] = TopicConfig(topic_name="orders")
    await place.made(topics=[{"name": "orders", "messageType": "Fifo"}])
    status, reason, message = await place.condition("Stalled")
    assert (status, reason) == ("True", "TopicDiffers")
    assert "group shop-0: topic orders has NORMAL messages, spec.topics wants FIFO" in message
    assert await place.events() == ["ClusterTopicDiffers"]
    await place.changed({"topics": [{"name": "orders", "queues": 16}]})
    assert (await place.condition("Stalled"))[0] == "False"


@pytest.mark.parametrize("name", ["TBW102", "rmq_sys_x", "RMQ_SYS_TRACE_TOPIC", "a b", "%RETRY%a", ""])
async def test_names_that_rocketmq_refuses_are_refused_at_once(place: Place, name: str) -> None:
    with pytest.raises(InvalidError, match=r"topics\[0\].name"):
        await place.make(topics=[{"name": name}])


async def test_declared_consumer_groups_are_carried_to_every_group_with_the_beginning_of_its_topics(
    place: Place,
) -> None:
    declared = {"name": "billing", "retryMaxTimes": 3}
    await place.made(topics=[{"name": "orders", "queues": 2}], consumerGroups=[declared])
    await place.pods_are_ready(STATEFUL_SETS, "shop-nameserver", 2)
    await place.group_is("shop-0", "True")
    await place.run()
    pending = "0/1 consumer groups are in every group: group shop-0 has no master"
    assert await place.condition("Ready") == ("False", "ConsumerGroupsPending", pending)
    first = place.lead("shop-0")
    assert await place.run() == SETTLED_SECONDS
    assert (await place.status())["consumerGroups"] == {"desired": 1, "ready": 1, "summary": "1/1"}
    assert place.view.first_offsets == {}, "no consumer reads the topic"
    place.view.readers[first, "orders"] = frozenset({"billing", "a persons"})
    await place.changed({"brokerGroups": {"count": 2}})
    await place.group_is("shop-1", "True")
    second = place.lead("shop-1")
    assert await place.run() == SETTLED_SECONDS
    settings = {"groupName": "billing", "retryMaxTimes": 3}
    assert place.view.consumer_groups_put == [(first, settings), (second, settings)]
    assert place.view.first_offsets == {(second, "orders", queue, "billing"): 0 for queue in (0, 1)}
    assert (await place.condition("Ready"))[0] == "True"


@pytest.mark.parametrize(
    "name",
    [
        "CID_RMQ_SYS_TRANS",
        "CID_ONSAPI_PULL",
        "TOOLS_CONSUMER",
        "BROKERGROUP_OPERATOR",
        "%RETRY%a",
        "a b",
        "",
        "x" * 121,
    ],
)
async def test_names_of_consumer_groups_that_rocketmq_uses_or_refuses_are_refused_at_once(
    place: Place, name: str
) -> None:
    with pytest.raises(InvalidError, match=r"consumerGroups\[0\].name"):
        await place.make(consumerGroups=[{"name": name}])


async def test_a_lower_count_deletes_no_group(place: Place) -> None:
    await place.made(brokerGroups={"count": 2})
    await place.changed({"brokerGroups": {"count": 1}})
    assert await place.names(BROKER_GROUPS) == ["shop-0", "shop-1"]
    status, reason, message = await place.condition("Stalled")
    assert (status, reason) == ("True", "GroupsBeyondCount")
    assert "shop-1" in message
    assert "kubectl brokergroup retire" in message
    assert "ClusterGroupsBeyondCount" in await place.events()
    await place.delete(BROKER_GROUPS, "shop-1")
    await place.run()
    assert await place.names(BROKER_GROUPS) == ["shop-0"]
    assert (await place.condition("Stalled"))[0] == "False"


async def test_proxies_that_are_not_asked_for_any_more_go(place: Place) -> None:
    await place.made(proxy={"replicas": 1})
    await place.changed({"proxy": None})
    assert await place.names(DEPLOYMENTS) == []
    assert await place.names(CONFIG_MAPS) == []
    assert await place.names(SERVICES) == ["shop-nameserver", "shop-nameservers"]
    assert "proxies" not in (await place.status())


async def image_at(place: Place, resource: Resource, name: str) -> str:
    found = await place.get(resource, name)
    return str(found["spec"]["template"]["spec"]["containers"][0]["image"])


async def up_to_date(place: Place, name: str, **otherwise: dict[str, str]) -> None:
    told = {"reason": "Told", "message": "", "lastTransitionTime": "2026-11-26T00:00:00Z", "status": "True"}
    kinds = ("Ready", "Available", "FailoverSafe", "UpToDate")
    conditions = [{"type": kind} | told | otherwise.get(kind, {}) for kind in kinds]
    await place.write_status(BROKER_GROUPS, name, conditions=conditions)


async def test_proxies_take_another_version_after_the_groups(place: Place) -> None:
    groups = ("shop-0", "shop-1")
    await place.made(version="5.3.3", brokerGroups={"count": 2}, proxy={"replicas": 1})
    for name in groups:
        await up_to_date(place, name)
    await place.changed({"version": "5.5.0"})
    assert await image_at(place, STATEFUL_SETS, "shop-nameserver") == "apache/rocketmq:5.5.0"
    assert {(await place.get(BROKER_GROUPS, name))["spec"]["version"] for name in groups} == {"5.5.0"}
    assert await image_at(place, DEPLOYMENTS, "shop-proxy") == "apache/rocketmq:5.3.3"
    await up_to_date(place, "shop-0")
    await up_to_date(place, "shop-1")
    await place.pods_are_ready(STATEFUL_SETS, "shop-nameserver", 2)
    await place.pods_are_ready(DEPLOYMENTS, "shop-proxy", 1)
    await place.group_is("shop-1", "True")
    await place.run()
    assert await image_at(place, DEPLOYMENTS, "shop-proxy") == "apache/rocketmq:5.3.3"
    told = "Proxies keep their image until every group is UpToDate: shop-1"
    assert await place.condition("Ready") == ("False", "ProxiesPending", told)
    await up_to_date(place, "shop-1")
    await place.run()
    assert await image_at(place, DEPLOYMENTS, "shop-proxy") == "apache/rocketmq:5.5.0"


@pytest.mark.parametrize("reason", ["OutsideWindow", "WaitingForPerson"])
async def test_a_group_that_waits_by_its_own_spec_leaves_the_cluster_ready(place: Place, reason: str) -> None:
    """It may wait for days; all parts serve, the proxies with their former image. Outdated for another reason, it is an update."""
    await place.made(version="5.3.3", brokerGroups={"count": 1}, proxy={"replicas": 1})
    await up_to_date(place, "shop-0")
    await place.changed({"version": "5.5.0"})
    await place.pods_are_ready(STATEFUL_SETS, "shop-nameserver", 2)
    await place.pods_are_ready(DEPLOYMENTS, "shop-proxy", 1)
    seen = {}
    for why in (reason, "RollingUpdate"):
        await up_to_date(place, "shop-0", UpToDate={"status": "False", "reason": why})
        await place.run()
        seen[why] = [await place.condition(kind) for kind in ("Ready", "Reconciling")]
        assert await image_at(place, DEPLOYMENTS, "shop-proxy") == "apache/rocketmq:5.3.3"
    told = f"2 NameServers, 1 groups, 1 proxies are ready; proxies keep their image until shop-0 is UpToDate ({reason})"
    assert seen[reason] == [("True", "AllReady", told), ("False", "AllReady", told)]
    assert [one[:2] for one in seen["RollingUpdate"]] == [("False", "ProxiesPending"), ("True", "ProxiesPending")]


async def test_proxies_take_another_default_after_the_groups(place: Place) -> None:
    """No group has been looked at since the operator's start, so each still says that it is up to date: with another version."""
    await place.made(brokerGroups={"count": 1}, proxy={"replicas": 1})
    await up_to_date(place, "shop-0")
    await place.write_status(BROKER_GROUPS, "shop-0", version="5.5.0")
    later = Place(place.api, place.key.namespace, replace(SETTINGS, rocketmq_version="5.5.1"))
    await later.run()
    assert await image_at(place, DEPLOYMENTS, "shop-proxy") == "apache/rocketmq:5.5.0"
    await place.write_status(BROKER_GROUPS, "shop-0", version="5.5.1")
    await later.run()
    assert await image_at(place, DEPLOYMENTS, "shop-proxy") == "apache/rocketmq:5.5.1"


async def test_a_version_that_the_catalogue_lacks_changes_nothing_that_runs(place: Place) -> None:
    await place.made(version="5.3.3", brokerGroups={"count": 1})
    catalogue = VersionCatalogue(images=(("5.5.0", "a/b:5.5.0"),), only_listed=True)
    limited = Place(place.api, place.key.namespace, replace(SETTINGS, catalogue=catalogue))
    await limited.changed({"version": "5.4.0", "proxy": {"replicas": 1}})
    assert await image_at(place, STATEFUL_SETS, "shop-nameserver") == "apache/rocketmq:5.3.3"
    assert await place.names(DEPLOYMENTS) == []
    status, reason, message = await place.condition("Stalled")
    assert (status, reason) == ("True", "VersionRefused")
    assert message.startswith("spec.version is '5.4.0', expected another: this operator is limited to 5.5.0")
    await limited.changed({"version": "5.5.0"})
    assert await image_at(place, STATEFUL_SETS, "shop-nameserver") == "a/b:5.5.0"
    assert await image_at(place, DEPLOYMENTS, "shop-proxy") == "a/b:5.5.0"
    assert (await place.condition("Stalled"))[0] == "False"


async def test_an_image_that_the_cluster_names_waits_for_no_group(place: Place) -> None:
    await place.made(image="a/b:1", brokerGroups={"count": 1}, proxy={"replicas": 1})
    await place.changed({"image": "a/b:2"})
    assert await image_at(place, DEPLOYMENTS, "shop-proxy") == "a/b:2"


async def test_replicas_that_the_spec_leaves_out_are_an_autoscalers(place: Place) -> None:
    await place.made(proxy={})
    scaled = {"spec": {"replicas": 4}}
    await place.patch(DEPLOYMENTS, "shop-proxy", scaled)
    await place.run()
    assert (await place.get(DEPLOYMENTS, "shop-proxy"))["spec"]["replicas"] == 4
    assert (await place.status())["proxies"]["summary"] == "0/4"


@pytest.mark.parametrize("resource", [BROKER_GROUPS, SERVICES], ids=lambda one: one.kind)
async def test_what_was_there_before_has_another_owner(place: Place, resource: Resource) -> None:
    name = "shop-0" if resource is BROKER_GROUPS else "shop-nameserver"
    group = {"replicas": 1, "nameServers": ["ns:9876"]}
    spec: dict[str, Any] = group if resource is BROKER_GROUPS else {"ports": [{"port": 80}]}
    metadata = {"name": name, "namespace": place.key.namespace}
    await place.api.create(resource, {"metadata": metadata, "spec": spec})
    before = (await place.get(resource, name))["metadata"]["resourceVersion"]
    await place.made()
    assert (await place.get(resource, name))["metadata"]["resourceVersion"] == before
    status, reason, message = await place.condition("Stalled")
    assert (status, reason) == ("True", "NotOurs")
    assert f"{resource.kind} {name}" in message


async def test_a_cluster_of_another_operator_is_left_alone(place: Place) -> None:
    await place.make()
    first, second = (
        Place(
            place.api,
            place.key.namespace,
            ReconcileSettings(
                controller_addresses=("127.0.0.1:9878",),
                leader_election=LeaderElectionSettings(namespace=namespace, identity="pod-0"),
            ),
        )
        for namespace in ("one", "two")
    )
    await first.passes.run(place.key)
    before = await place.versions()
    await second.passes.run(place.key)
    assert await place.versions() == before
    assert await place.events() == ["ServedByAnotherOperator"]


async def test_a_cluster_that_is_gone_or_going_is_left_to_the_garbage_collector(place: Place) -> None:
    assert await place.run() is None
    await place.make()
    metadata = {"finalizers": ["example.com/held"]}
    await place.patch(ROCKETMQ_CLUSTERS, "shop", {"metadata": metadata})
    await place.delete(ROCKETMQ_CLUSTERS, "shop")
    assert await place.run() is None
    with pytest.raises(NotFoundError):
        await place.get(STATEFUL_SETS, "shop-nameserver")


WHOLE: dict[str, Any] = {"proxy": {"replicas": 1}, "brokerGroups": {"count": 2}}


async def orphan(place: Place) -> None:
    await place.delete(ROCKETMQ_CLUSTERS, "shop", propagation_policy="Orphan")

    await place.until_gone()


@SANDBOX
async def test_an_orphaned_clusters_parts_stay_and_are_taken_back_as_they_are(place: Place) -> None:
    """`kubectl delete --cascade=orphan`: BrokerGroups, NameServers and Proxies stay, and nothing of them is written anew."""
    await place.made(**WHOLE)
    before = await place.metadata()
    await orphan(place)
    assert await place.run() is None
    left = await place.metadata()
    assert left.keys() == before.keys()
    assert not any(one.get("ownerReferences") for one in left.values())
    assert not any("deletionTimestamp" in one for one in left.values())

    await place.make(**WHOLE)
    uid = (await place.get(ROCKETMQ_CLUSTERS, "shop"))["metadata"]["uid"]
    await place.run()
    again = await place.metadata()
    assert {name: one["uid"] for name, one in again.items()} == {name: one["uid"] for name, one in before.items()}
    assert {name: one.get("generation") for name, one in again.items()} == {
        name: one.get("generation") for name, one in before.items()
    }
    assert {owner["uid"] for one in again.values() for owner in one["ownerReferences"]} == {uid}
    assert (await place.condition("Stalled"))[0] == "False"


@SANDBOX
async def test_in_the_foreground_the_cluster_goes_last(place: Place) -> None:
    await place.made(**WHOLE)
    held = {"metadata": {"finalizers": ["example.com/held"]}}
    await place.patch(BROKER_GROUPS, "shop-1", held)
    await place.delete(ROCKETMQ_CLUSTERS, "shop", propagation_policy="Foreground")

    await until_is("the rest is gone", ["BrokerGroup shop-1"], place.names_of_parts)
    assert await place.run() is None
    assert await place.names(ROCKETMQ_CLUSTERS) == ["shop"]
    free = {"metadata": {"finalizers": None}}
    await place.patch(BROKER_GROUPS, "shop-1", free)

    await place.until_gone()
    assert await place.metadata() == {}


@SANDBOX
async def test_what_the_next_cluster_asks_for_no_more_is_its_own_to_delete(place: Place) -> None:
    await place.made(**WHOLE)
    await orphan(place)
    await place.made(brokerGroups={"count": 1})
    assert await place.names(DEPLOYMENTS) == []
    assert await place.names(BROKER_GROUPS) == ["shop-0", "shop-1"]
    assert (await place.condition("Stalled"))[1] == "GroupsBeyondCount"


@SANDBOX
@pytest.mark.parametrize("moment", ["listed", "applied"])
async def test_a_pass_under_way_gives_no_part_an_owner_that_is_going(
    place: Place, sandbox: SandboxApiServer, moment: str
) -> None:
    """An operator that has just started applies every part once; the cluster goes between its look and its write."""
    await place.made(**WHOLE)
    before = await place.metadata()
    orphaned: list[str] = []

    async def orphan_meanwhile(request: Any) -> None:
        is_due = request.method == "PATCH" if moment == "applied" else "labelSelector" in request.query
        if is_due and not orphaned:
            orphaned.append(request.path)
            things = sandbox.store.resource(names.GROUP, names.VERSION, "rocketmqclusters")
            sandbox.store.delete(things, place.key.namespace, "shop", Deletion(propagation="Orphan"))
            sandbox.store.run_background()

    started_anew = Place(place.api, place.key.namespace)
    sandbox.before_request = orphan_meanwhile
    with contextlib.suppress(ApiError):  # its status has no cluster any more
        await started_anew.passes.run(place.key)
    sandbox.before_request = None
    sandbox.store.run_background()
    assert orphaned
    after = await place.metadata()
    assert {name: one["uid"] for name, one in after.items()} == {name: one["uid"] for name, one in before.items()}
    assert not any(one.get("ownerReferences") for one in after.values())


@SANDBOX
async def test_a_part_whose_status_moves_on_is_applied_all_the_same(place: Place, sandbox: SandboxApiServer) -> None:
    await place.made()
    await place.patch(ROCKETMQ_CLUSTERS, "shop", {"spec": {"nameServer": {"replicas": 3}}})
    written: list[str] = []

    async def write_its_status(request: Any) -> None:
        if request.method == "PATCH" and request.path.endswith("/statefulsets/shop-nameserver") and not written:
            written.append(request.path)
            await place.pods_are_ready(STATEFUL_SETS, "shop-nameserver", 2)

    sandbox.before_request = write_its_status
    await place.run()
    sandbox.before_request = None
    assert written
    assert (await place.get(STATEFUL_SETS, "shop-nameserver"))["spec"]["replicas"] == 3
    assert (await place.condition("Stalled"))[0] == "False"


async def test_a_persons_objects_with_our_label_are_not_taken(place: Place) -> None:
    """A copy of a part under another name, and one of a part's name that this operator has not made."""
    labels = {names.LABEL_ROCKETMQ_CLUSTER: "shop"}
    copy = {
        "name": "shop-copy",
        "namespace": place.key.namespace,
        "labels": labels | {names.LABEL_APP_MANAGED_BY: names.MANAGED_BY},
    }
    foreign = {"name": "shop-nameserver", "namespace": place.key.namespace, "labels": labels}
    for metadata in (copy, foreign):
        await place.api.create(SERVICES, {"metadata": metadata, "spec": {"ports": [{"port": 80}]}})
    await place.made()
    for name in ("shop-copy", "shop-nameserver"):
        assert "ownerReferences" not in (await place.get(SERVICES, name))["metadata"]
    assert (await place.condition("Stalled"))[1] == "NotOurs"


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"brokerGroups": {"template": {"nameServers": ["ns:9876"]}}}, "template.nameServers must be empty"),
        ({"brokerGroups": {"template": {"brokerName": "a"}}}, "template.brokerName must be absent"),
        ({"brokerGroups": {"count": 1, "overrides": [{"index": 1}]}}, "an index must be below count"),
        ({"version": "5.5.0", "image": "r:1"}, "version and image exclude each other"),
        ({"proxy": {"config": {"namesrvAddr": "a:1"}}}, "proxy.config.namesrvAddr is set by the operator"),
        (
            {"brokerGroups": {"template": {"implementation": "Python", "localProxy": {}}}},
            "template.localProxy: .*localProxy needs implementation Java",
        ),
        ({"brokerGroups": {"count": 0}}, "count"),
        (
            {"brokerGroups": {"template": {"implementation": "Python"}}, "consumerGroups": [{"name": "a", "retryQueueNums": 2}]},
            "retryQueueNums need brokerGroups.template.implementation Java",
        ),
        ({"consumerGroups": [{"name": "a", "retryMaxTimes": 1001}]}, r"consumerGroups\[0\].retryMaxTimes"),
        ({"consumerGroups": [{"name": "a"}, {"name": "a"}]}, "Duplicate value"),
        (
            {"brokerGroups": {"template": {"replicas": 2, "durability": "Strict", "failover": {"uncleanElection": "Allowed"}}}},
            "Strict",
        ),
        (
            {"brokerGroups": {"template": windows({"start": "02:00", "durationMinutes": 60, "timeZone": "Mars/Olympus"})}},
            r"template.updateStrategy.windows\[0\].timeZone: .*as Asia/Shanghai or UTC",
        ),
    ],
)  # fmt: skip
async def test_a_bad_spec_is_refused_with_its_field(place: Place, spec: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidError, match=told):
        await place.make(**spec)


async def test_the_example_is_taken_and_its_pods_are_restricted(place: Place) -> None:
    """As Pod Security "restricted" wants them: the real check is of the nodes' namespaces (tests/node)."""
    example = yaml.safe_load((REPOSITORY / "examples" / "cluster.yaml").read_text(encoding="utf-8"))
    await place.made(**example["spec"])
    for resource, name in ((STATEFUL_SETS, "shop-nameserver"), (DEPLOYMENTS, "shop-proxy")):
        pod = (await place.get(resource, name))["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["allowPrivilegeEscalation"] is False


ACL: dict[str, Any] = {
    "users": [
        {"name": "shop", "passwordSecretRef": {"name": "shop-password"}},
        {"name": "admin", "passwordSecretRef": {"name": "admin", "key": "secret"}, "type": "Super"},
    ],
    "policies": [{"subject": "User:shop", "resource": "Topic:orders", "actions": ["Pub"]}],
}
SIGNED = {"security": {"credentialsSecretRef": {"name": "key"}}}
SOURCE = {"ipBlock": {"cidr": "192.0.2.0/24"}}


async def test_users_get_the_passwords_of_the_secrets_that_they_name(place: Place) -> None:
    """A Secret that is missing or has no such key is reported by name, and holds up no other user."""
    await place.secrets("shop-password", password="planted-1")
    await place.secrets("admin", password="planted-2")
    await place.made(acl=ACL, brokerGroups={"template": SIGNED})
    group = GroupKey(place.key.namespace, "shop-0")
    place.view.snapshots[group] = with_members(group, (1,), live=(1,))
    await place.run()
    broker = place.view.brokers[group, 1]
    assert broker.users["shop"].password == "planted-1"
    assert "admin" not in broker.users
    status = await place.status()
    assert (status["users"]["summary"], status["policies"]["summary"]) == ("1/2", "1/1")
    stalled = await place.condition("Stalled")
    assert stalled[:2] == ("True", "UserDiffers")
    assert "user admin: Secret" in stalled[2]
    assert "/admin has no key secret, expected a text under it" in stalled[2]

    for password in ("planted-3", "planted-4"):
        change = {"stringData": {"secret": password}}
        await place.patch(SECRETS, "admin", change)
        place.now_seconds += acl_secrets.AGAIN_SECONDS
        await place.run()
        assert broker.users["admin"].password == password
    after = json.dumps(await place.get(ROCKETMQ_CLUSTERS, "shop")) + json.dumps(
        await place.get(BROKER_GROUPS, "shop-0")
    )
    assert "planted" not in after


async def test_brokers_that_serve_go_on_without_checks_until_every_password_can_be_had(place: Place) -> None:
    """A wrong name of a Secret would shut out every client."""
    await place.secrets("shop-password", password="planted-1")
    await place.made(brokerGroups={"template": SIGNED})
    await place.changed({"acl": ACL})
    assert not (await place.get(BROKER_GROUPS, "shop-0"))["spec"].get("config")
    status, reason, message = await place.condition("Stalled")
    assert (status, reason) == ("True", "UserDiffers")
    assert "acl is not put into the brokers' configuration" in message
    await place.secrets("admin", secret="planted-2")
    place.now_seconds += acl_secrets.AGAIN_SECONDS
    await place.run()
    assert (await place.get(BROKER_GROUPS, "shop-0"))["spec"]["config"] == ACL_CONFIG
    assert (await place.condition("Stalled"))[0] == "False"
    await place.delete(SECRETS, "admin")
    await place.changed({"brokerGroups": {"count": 2}})
    configs = [(await place.get(BROKER_GROUPS, name))["spec"]["config"] for name in ("shop-0", "shop-1")]
    assert configs == [ACL_CONFIG] * 2, "brokers that check go on to do so"


async def test_a_new_cluster_checks_from_its_beginning(place: Place) -> None:
    """No client is served yet that a wrong Secret could shut out."""
    await place.made(acl=ACL, brokerGroups={"template": SIGNED})
    await place.run()
    assert (await place.get(BROKER_GROUPS, "shop-0"))["spec"]["config"] == ACL_CONFIG


async def test_the_user_of_the_brokers_key_is_left_alone_whatever_its_mark(place: Place) -> None:
    await place.secrets("key")
    await place.make(acl={}, brokerGroups={"template": SIGNED})
    group = GroupKey(place.key.namespace, "shop-0")
    place.view.snapshots[group] = with_members(group, (1,), live=(1,))
    broker = place.view.brokers.setdefault(
        (group, 1), ScriptedAcl(UserInfo("brokers", "planted-key", "Super", "enable"))
    )
    broker.rules["brokers"] = {("Custom", MARK): MARK_ENTRY}
    await place.run()
    assert broker.taken == []
    assert "user brokers has the operator's mark" in (await place.condition("Stalled"))[2]


async def test_without_the_brokers_key_no_user_is_changed(place: Place) -> None:
    """Which user is the brokers' own is not known then."""
    await place.api.create(SECRETS, secret(place, "shop-password", password="planted-1"))
    await place.make(acl={"users": ACL["users"][:1]}, brokerGroups={"template": SIGNED})
    group = GroupKey(place.key.namespace, "shop-0")
    place.view.snapshots[group] = with_members(group, (1,), live=(1,))
    await place.run()
    assert (group, 1) not in place.view.brokers
    assert "credentialsSecretRef: Secret" in (await place.condition("Stalled"))[2]


@SANDBOX
async def test_without_the_right_to_network_policies_only_what_asks_for_them_stalls(
    place: Place, sandbox: SandboxApiServer
) -> None:
    """A role of before, where the chart makes none (rbac.create=false)."""
    sandbox.before_request = refuse_network_policies
    await place.made(brokerGroups={"count": 1})
    assert await place.names(BROKER_GROUPS) == ["shop-0"]
    assert (await place.condition("Stalled"))[0] == "False"
    await place.changed({"network": {"policy": {}}, "brokerGroups": {"count": 2}})
    assert await place.names(BROKER_GROUPS) == ["shop-0", "shop-1"]
    status, reason, message = await place.condition("Stalled")
    assert (status, reason) == ("True", "Refused")
    assert "NetworkPolicy shop-nameserver: " in message
    assert "networkpolicies" in message
    sandbox.before_request = None
    await place.run()
    assert (await place.condition("Stalled"))[0] == "False"


@SANDBOX
async def test_what_a_settled_cluster_costs_in_a_minute(place: Place, sandbox: SandboxApiServer) -> None:
    """Also one that waits for a person: with a Secret that is missing, and a topic of another type."""
    await place.secrets("shop-password", password="planted-1")
    topics = [{"name": "orders", "messageType": "Fifo"}]
    await place.make(acl=ACL, topics=topics, brokerGroups={"template": SIGNED})
    group = GroupKey(place.key.namespace, "shop-0")
    place.view.topics[group, "orders"] = TopicConfig(topic_name="orders")
    place.view.snapshots[group] = with_members(group, (1,), live=(1,))
    await place.run()
    await place.pods_are_ready(STATEFUL_SETS, "shop-nameserver", 2)
    await place.group_is("shop-0", "True")
    requests = Counter[str]()
    sandbox.before_request = lambda request: requests.update([f"{request.method} {kind_of(request.path)}"])
    for differing in ({"acl": ACL, "topics": None}, {"acl": ACL, "topics": topics}, {"acl": None, "topics": topics}):
        await place.changed(differing)
        await place.group_is("shop-0", "True")
        await place.run()
        requests.clear()
        begin, pauses = place.now_seconds + acl_secrets.AGAIN_SECONDS, set[float | None]()
        place.now_seconds = begin
        while place.now_seconds < begin + 60:
            pause = await place.run()
            pauses.add(pause)
            place.now_seconds += pause or 60
        assert pauses == {SETTLED_SECONDS}, differing
        secrets = {} if differing["acl"] is None else {"GET secrets": 3}
        read = (*KINDS.values(), ROCKETMQ_CLUSTERS)
        assert requests == Counter({f"GET {kind.plural}": 6 for kind in read}) + Counter(secrets)
    sandbox.before_request = None


def kind_of(path: str) -> str:
    found = re.search(r"/namespaces/[^/]+/([a-z]+)", path)
    assert found is not None, path
    return found[1]


async def test_a_group_beyond_count_loses_a_user_that_is_declared_no_more(place: Place) -> None:
    """It is kept for its messages and serves on: the user could read them."""
    await place.secrets("shop-password", password="planted-1")
    await place.made(acl={"users": ACL["users"][:1]}, brokerGroups={"count": 2, "template": SIGNED})
    groups = [GroupKey(place.key.namespace, f"shop-{index}") for index in (0, 1)]
    for group in groups:
        place.view.snapshots[group] = with_members(group, (1,), live=(1,))
    await place.run()
    assert [set(place.view.brokers[group, 1].users) for group in groups] == [{"shop"}] * 2
    await place.changed({"acl": {"users": []}, "brokerGroups": {"count": 1}})
    assert [set(place.view.brokers[group, 1].users) for group in groups] == [set()] * 2


async def test_acl_turns_the_brokers_checks_on_unless_the_template_says_otherwise(place: Place) -> None:
    template = SIGNED | {"config": {"authorizationEnabled": "false", "fileReservedTime": "24"}}
    await place.made(acl={}, brokerGroups={"template": template})
    config = (await place.get(BROKER_GROUPS, "shop-0"))["spec"]["config"]
    assert config == {**ACL_CONFIG, "authorizationEnabled": "false", "fileReservedTime": "24"}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"acl": {}}, "acl needs brokerGroups.template.security.credentialsSecretRef"),
        (
            {"acl": {}, "brokerGroups": {"template": SIGNED | {"implementation": "Python"}}},
            "acl needs brokerGroups.template.implementation Java",
        ),
        (
            {
                "acl": {},
                "proxy": {"config": {"innerClientAuthenticationCredentials": "{}"}},
                "brokerGroups": {"template": SIGNED},
            },
            "acl and proxy exclude each other",
        ),
        (
            {"acl": {}, "brokerGroups": {"template": SIGNED | {"localProxy": {}}}},
            "acl and brokerGroups.template.localProxy exclude each other",
        ),
        ({"acl": {}, "version": "5.2.9", "brokerGroups": {"template": SIGNED}}, "acl needs version 5.3.0 or later"),
        (
            {"acl": {}, "version": "5.5.0", "brokerGroups": {"template": SIGNED | {"version": "5.1.4"}}},
            "acl needs brokerGroups.template.version 5.3.0 or later",
        ),
        (
            {
                "proxy": {},
                "brokerGroups": {"template": {"network": {"policy": {"clientsFrom": [SOURCE] * 17}}}},
            },
            "at most 16 sources with proxy",
        ),
        *(
            (
                {"network": {"policy": {}}, "brokerGroups": {"template": {"network": network}}},
                "network.policy does not work on groups with addressing NodePort and LoadBalancer",
            )
            for network in ({"addressing": "LoadBalancer"}, {"addressing": "NodePort", "firstNodePort": 31000})
        ),
        (
            {"acl": {"policies": ACL["policies"]}, "brokerGroups": {"template": SIGNED}},
            "a subject must be User: and the name of one of users",
        ),
        (
            {
                "acl": {
                    "users": ACL["users"],
                    "policies": [{"subject": "User:shop", "resource": MARK, "actions": ["Get"]}],
                },
                "brokerGroups": {"template": SIGNED},
            },
            "is the operator's own mark",
        ),
        (
            {
                "network": {"policy": {}},
                "brokerGroups": {
                    "template": {
                        "network": {"addressing": "HostNetwork"},
                        "antiAffinity": {"type": "Required"},
                        "security": {"signature": "Required", "credentialsSecretRef": {"name": "key"}},
                    }
                },
            },
            "network.policy has no effect on groups with addressing HostNetwork",
        ),
    ],
)
async def test_what_cannot_work_is_refused(place: Place, spec: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidError, match=re.escape(said)):
        await place.make(**spec)


@pytest.mark.parametrize("version", ["5.3.0", "5.10.0", "6.0.0", "05.03.1"])
async def test_acl_is_taken_with_a_version_that_has_it(place: Place, version: str) -> None:
    await place.made(acl={}, version=version, brokerGroups={"template": SIGNED})
    assert (await place.get(BROKER_GROUPS, "shop-0"))["spec"]["version"] == version


@pytest.mark.parametrize("at", ["cluster", "template"])
async def test_as_many_sources_as_may_be_named_fit_with_a_proxy(place: Place, at: str) -> None:
    policy = {"policy": {"clientsFrom": [SOURCE] * 16}}
    spec = {"network": policy} if at == "cluster" else {"brokerGroups": {"template": {"network": policy}}}
    await place.made(proxy={}, **spec)
    group = await place.get(BROKER_GROUPS, "shop-0")
    assert len(group["spec"]["network"]["policy"]["clientsFrom"]) == 17
    assert (await place.condition("Stalled"))[0] == "False"


def secret(place: Place, name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": place.key.namespace}, "stringData": data}


ORDERS = TopicSpec(name="orders", queues=8)
PAYMENTS = TopicSpec(name="payments", queues=4, message_type=MessageType.FIFO)
FIRST, SECOND = GroupKey("n", "shop-0"), GroupKey("n", "shop-1")


def topic(name: str, read: int, write: int | None = None, message_type: str = "", **more: Any) -> TopicConfig:
    attributes = {"message.type": message_type} if message_type else {}
    values = {"attributes": attributes} | more
    return TopicConfig(topic_name=name, read_queue_nums=read, write_queue_nums=write or read, **values)


@pytest.mark.parametrize(
    ("declared", "found", "change"),
    [
        (ORDERS, None, topic("orders", 8)),
        (PAYMENTS, None, topic("payments", 4, message_type="FIFO")),
        (ORDERS, topic("orders", 8), None),
        (
            ORDERS,
            topic("orders", 4, perm=4, order=True, attributes={"queue.type": "SimpleCQ"}),
            topic("orders", 8, perm=4, order=True),
        ),
    ],
    ids=["not there", "not there, FIFO", "as declared", "more queues keep what else it is"],
)
def test_the_change_that_a_declared_topic_asks_for(
    declared: TopicSpec, found: TopicConfig | None, change: TopicConfig | None
) -> None:
    assert change_of(declared, found) == change


def test_fewer_queues_are_still_read() -> None:
    change = change_of(ORDERS, topic("orders", 16))
    assert change is not None
    assert (change.read_queue_nums, change.write_queue_nums) == (16, 8)
    assert change_of(ORDERS, change) is None


@pytest.mark.parametrize("present", ["NORMAL", "MIXED", "DELAY", "UNSPECIFIED"])
def test_another_message_type_is_left_and_told(present: str) -> None:
    found = topic("payments", 4, message_type=present)
    with pytest.raises(TopicDiffersError, match=f"payments has {present} messages, spec.topics wants FIFO"):
        change_of(PAYMENTS, found)


class UnreachableView(FakeGroupView):
    """Groups whose master does not answer, while they are named."""

    def __init__(self) -> None:
        super().__init__(MemoryRecordStore())
        self.unreachable: set[GroupKey] = set()
        self.asked: list[tuple[GroupKey, str]] = []

    async def topic(self, key: GroupKey, name: str) -> TopicConfig | None:
        self.asked.append((key, name))
        if key in self.unreachable:
            raise BrokerUnreachableError(f"group {key}: topic {name}: no answer")
        return await super().topic(key, name)


class Kept:
    """Two groups of a cluster, and a clock that a test moves."""

    def __init__(self, *led: GroupKey) -> None:
        self.view = UnreachableView()
        self.now_seconds = 0.0
        view: GroupView = self.view
        self.keeper = TopicKeeper(view, lambda: self.now_seconds)
        self.uids = {"shop-0": "u0", "shop-1": "u1"}
        self.lead(*led)

    async def keep(self, *declared: TopicSpec) -> Standing:
        return await self.keeper.keep("n", declared, self.uids, count=2)

    def lead(self, *keys: GroupKey, epoch: int = 1) -> None:
        for key in keys:
            self.view.snapshots[key] = led_by(key, 1, epoch=epoch)


async def test_every_group_gets_every_topic_and_then_nothing_is_asked() -> None:
    kept = Kept(FIRST, SECOND)
    assert await kept.keep(ORDERS, PAYMENTS) == Standing(desired=2, ready=2)
    assert set(kept.view.topics) == {(key, name) for key in (FIRST, SECOND) for name in ("orders", "payments")}
    kept.view.asked.clear()
    assert await kept.keep(ORDERS, PAYMENTS) == Standing(desired=2, ready=2)
    assert kept.view.asked == []


async def test_a_new_master_is_asked_again_since_it_may_lack_the_newest() -> None:
    kept = Kept(FIRST, SECOND)
    await kept.keep(ORDERS)
    del kept.view.topics[FIRST, "orders"]
    kept.lead(FIRST, epoch=2)
    await kept.keep(ORDERS)
    assert (FIRST, "orders") in kept.view.topics


async def test_a_deleted_topic_comes_back_after_a_while() -> None:
    kept = Kept(FIRST, SECOND)
    await kept.keep(ORDERS)
    del kept.view.topics[FIRST, "orders"]
    kept.now_seconds = AGAIN_SECONDS - 1
    await kept.keep(ORDERS)
    assert (FIRST, "orders") not in kept.view.topics
    kept.now_seconds = AGAIN_SECONDS
    await kept.keep(ORDERS)
    assert (FIRST, "orders") in kept.view.topics


async def test_a_group_without_a_master_is_waited_for_and_one_that_had_them_is_not() -> None:
    kept = Kept(FIRST)
    standing = await kept.keep(ORDERS)
    assert standing == Standing(desired=1, ready=0, pending=("group shop-1 has no master",))
    kept.lead(SECOND)
    assert (await kept.keep(ORDERS)).ready == 1
    kept.view.snapshots.clear()
    assert await kept.keep(ORDERS) == Standing(desired=1, ready=1), "a failover takes no topic away"


async def test_a_master_that_does_not_answer_is_asked_in_the_next_pass() -> None:
    kept = Kept(FIRST, SECOND)
    kept.view.unreachable = {SECOND}
    standing = await kept.keep(ORDERS, PAYMENTS)
    assert standing == Standing(desired=2, pending=(f"group {SECOND}: topic orders: no answer",))
    kept.view.unreachable = set()
    assert await kept.keep(ORDERS, PAYMENTS) == Standing(desired=2, ready=2)


async def test_a_group_made_anew_under_the_same_name_has_nothing() -> None:
    kept = Kept(FIRST, SECOND)
    await kept.keep(ORDERS)
    kept.view.topics.clear()
    kept.uids = {**kept.uids, "shop-1": "another"}
    await kept.keep(ORDERS)
    assert kept.view.topics_put[-1] == (SECOND, "orders")


async def test_groups_that_are_not_made_yet_count() -> None:
    kept = Kept(FIRST)
    kept.uids = {"shop-0": "u0"}
    assert (await kept.keep(ORDERS)).ready == 0


async def test_without_declared_topics_no_master_is_asked() -> None:
    kept = Kept(FIRST, SECOND)
    assert await kept.keep() == Standing()
    assert kept.view.asked == []

"""RocketMQCluster: its parts, status and versions, and a pass against the embedded API and against a kube-apiserver."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from brokergroup_operator.api.acl_fields import MARK
from brokergroup_operator.kube.errors import ApiError, InvalidError, NotFoundError
from brokergroup_operator.kube.resources import (
    BROKER_GROUPS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    POD_DISRUPTION_BUDGETS,
    ROCKETMQ_CLUSTERS,
    SERVICES,
    STATEFUL_SETS,
)
from brokergroup_operator.reconcile.clusters.cluster_pass import SETTLED_SECONDS, UNSETTLED_SECONDS
from brokergroup_operator.reconcile.clusters.parts import NAME_SERVER_GRACE_SECONDS, PROXY_GRACE_SECONDS
from brokergroup_operator.reconcile.render.broker_config import OVERRIDABLE_OF_JAVA
from brokergroup_operator.reconcile.settings import LeaderElectionSettings, VersionCatalogue
from kube_sandbox.api_server.errors import StatusError
from rocketmq_remoting.broker_protocol import TopicConfig
from tests.reconcile.cluster_place import ACL, SETTINGS, SIGNED, Place, of_groups
from tests.reconcile.world import SANDBOX

if TYPE_CHECKING:
    from aiohttp import web

    from brokergroup_operator.kube.resources import Resource
    from kube_sandbox.api_server.server import SandboxApiServer

REPOSITORY = Path(__file__).parents[2]
IMAGE = "apache/rocketmq"


async def test_an_update_leaves_brokers_the_time_to_find_a_new_name_server_before_the_next_one_ends(
    place: Place,
) -> None:
    """Its pod has another address. A JVM keeps the former one for 30 s, and a broker registers every 10 s (`broker_config.py`)."""
    await place.made()
    spec = (await place.get(STATEFUL_SETS, "shop-nameserver"))["spec"]
    registers_seconds = int(OVERRIDABLE_OF_JAVA["registerNameServerPeriod"]) / 1000
    assert spec["minReadySeconds"] >= 30 + registers_seconds


@pytest.mark.parametrize(
    ("resource", "name", "ends_within_seconds"),
    [(STATEFUL_SETS, "shop-nameserver", NAME_SERVER_GRACE_SECONDS), (DEPLOYMENTS, "shop-proxy", PROXY_GRACE_SECONDS)],
)
async def test_a_pod_that_ends_listens_until_its_service_leads_no_client_to_it(
    place: Place, resource: Resource, name: str, ends_within_seconds: int
) -> None:
    """A Service refused connections for about a second after each replaced Proxy. The pause is a part of the grace period."""
    await place.made(proxy={"replicas": 1})
    pod = (await place.get(resource, name))["spec"]["template"]["spec"]
    [container] = pod["containers"]
    program, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    assert (program, int(seconds) >= 5) == ("sleep", True)
    assert pod["terminationGracePeriodSeconds"] - int(seconds) == ends_within_seconds


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
    ("proxy", "service"),
    [({}, "shop-0-master"), ({"proxy": {"replicas": 1}}, "shop-proxy")],
    ids=["alone", "beside proxies"],
)
async def test_proxies_in_the_brokers_processes_are_where_clients_connect(
    place: Place, proxy: dict[str, Any], service: str
) -> None:
    """They are in the template, as update windows are: each group has what the template has."""
    night = {"days": ["Sat"], "start": "02:00", "durationMinutes": 60, "timeZone": "Europe/Berlin"}
    local = {"config": {"maxMessageSize": "1024"}}
    template = {"localProxy": local, "updateStrategy": {"windows": [night]}}
    await place.made(brokerGroups={"count": 2, "template": template}, **proxy)
    for name in ("shop-0", "shop-1"):
        spec = await place.group_spec(name)
        assert (spec["localProxy"], spec["updateStrategy"]["windows"]) == (local, [night])
    assert (await place.status())["clients"]["proxy"] == f"{service}.{place.key.namespace}.svc:8081"


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
    await place.patch(BROKER_GROUPS, "shop-0", {"spec": {"replicas": 5, "maintenance": {"paused": True}}})
    await place.run()
    spec = await place.group_spec()
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
    await place.stalls("TopicDiffers", "group shop-0: topic orders has NORMAL messages, spec.topics wants FIFO")
    assert await place.events() == ["ClusterTopicDiffers"]
    await place.changed({"topics": [{"name": "orders", "queues": 16}]})
    assert not await place.is_stalled()


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


async def test_a_lower_count_deletes_no_group(place: Place) -> None:
    await place.made(brokerGroups={"count": 2})
    await place.changed({"brokerGroups": {"count": 1}})
    assert await place.names(BROKER_GROUPS) == ["shop-0", "shop-1"]
    await place.stalls("GroupsBeyondCount", "shop-1", "kubectl brokergroup retire")
    assert "ClusterGroupsBeyondCount" in await place.events()
    await place.delete(BROKER_GROUPS, "shop-1")
    await place.run()
    assert await place.names(BROKER_GROUPS) == ["shop-0"]
    assert not await place.is_stalled()


async def test_a_group_that_is_deleted_alone_is_made_again_until_its_cluster_goes(place: Place) -> None:
    """So an administrator who uninstalls deletes the clusters first: else brokers were left without an operator."""
    await place.made(brokerGroups={"count": 1})
    await place.delete(BROKER_GROUPS, "shop-0")
    await place.run()
    assert await place.names(BROKER_GROUPS) == ["shop-0"]
    await place.delete(ROCKETMQ_CLUSTERS, "shop")
    with contextlib.suppress(NotFoundError):  # the garbage collector, where there is one, has deleted it
        await place.delete(BROKER_GROUPS, "shop-0")
    assert await place.run() is None
    assert await place.names(BROKER_GROUPS) == []


async def test_proxies_that_are_not_asked_for_any_more_go(place: Place) -> None:
    await place.made(proxy={"replicas": 1})
    await place.changed({"proxy": None})
    assert await place.names(DEPLOYMENTS) == await place.names(CONFIG_MAPS) == []
    assert await place.names(SERVICES) == ["shop-nameserver", "shop-nameservers"]
    assert "proxies" not in (await place.status())


@SANDBOX
async def test_a_part_whose_deletion_is_refused_is_told_and_holds_nothing_else_up(
    place: Place, sandbox: SandboxApiServer
) -> None:
    """Each pass ended there: no status, no topic and no user was written any more, and nothing said why."""
    await place.made(proxy={"replicas": 1})

    def protect_deployments(request: web.BaseRequest) -> None:
        if request.method == "DELETE" and "/deployments/" in request.path:
            raise StatusError(403, "Forbidden", "deployments are protected")

    sandbox.before_request = protect_deployments
    await place.changed({"proxy": None})
    assert await place.names(DEPLOYMENTS) == ["shop-proxy"]
    assert await place.names(CONFIG_MAPS) == [], "the other parts of it go"
    await place.stalls("Refused", "Deployment shop-proxy", "deployments are protected")
    sandbox.before_request = None
    await place.run()
    assert await place.names(DEPLOYMENTS) == []
    assert not await place.is_stalled()


@SANDBOX
async def test_a_cluster_on_which_the_operators_name_is_refused_says_so(
    place: Place, sandbox: SandboxApiServer
) -> None:
    """Each pass ended there, and nothing but the operator's log said why."""

    def protect(request: web.BaseRequest) -> None:
        if request.method == "PATCH" and request.path.endswith("/rocketmqclusters/shop"):
            raise StatusError(403, "Forbidden", "clusters are protected")

    lease = LeaderElectionSettings(namespace="rocketmq-system", identity="operator-0")
    of_a_lease = Place(place.api, place.key.namespace, replace(SETTINGS, leader_election=lease))
    sandbox.before_request = protect
    await of_a_lease.make()
    for _ in range(2):
        with pytest.raises(ApiError, match="clusters are protected"):
            await of_a_lease.run()
    assert await place.events() == ["ClusterRefused"]
    assert await place.names(SERVICES) == []
    sandbox.before_request = None
    await of_a_lease.run()
    assert await place.names(SERVICES) == ["shop-nameserver", "shop-nameservers"]


async def test_proxies_take_another_version_after_the_groups(place: Place) -> None:
    await place.made(version="5.3.3", brokerGroups={"count": 2}, proxy={"replicas": 1})
    await place.groups_are_up_to_date("shop-0", "shop-1")
    await place.changed({"version": "5.5.0"})
    assert await place.images() == [f"{IMAGE}:5.5.0", f"{IMAGE}:5.3.3"]
    assert {(await place.group_spec(name))["version"] for name in ("shop-0", "shop-1")} == {"5.5.0"}
    await place.groups_are_up_to_date("shop-0", "shop-1")
    await place.all_servers_are_ready()
    await place.group_is("shop-1", "True")
    await place.run()
    assert await place.images() == [f"{IMAGE}:5.5.0", f"{IMAGE}:5.3.3"]
    told = "Proxies keep their image until every group is UpToDate: shop-1"
    assert await place.condition("Ready") == ("False", "ProxiesPending", told)
    await place.groups_are_up_to_date("shop-1")
    await place.run()
    assert await place.images() == [f"{IMAGE}:5.5.0"] * 2


@pytest.mark.parametrize("reason", ["OutsideWindow", "WaitingForPerson"])
async def test_a_group_that_waits_by_its_own_spec_leaves_the_cluster_ready(place: Place, reason: str) -> None:
    """It may wait for days; all parts serve, the proxies with their former image. Outdated for another reason, it is an update."""
    await place.made(version="5.3.3", brokerGroups={"count": 1}, proxy={"replicas": 1})
    await place.groups_are_up_to_date("shop-0")
    await place.changed({"version": "5.5.0"})
    await place.all_servers_are_ready()
    seen = {}
    for why in (reason, "RollingUpdate"):
        await place.groups_are_up_to_date("shop-0", UpToDate={"status": "False", "reason": why})
        await place.run()
        seen[why] = [await place.condition(kind) for kind in ("Ready", "Reconciling")]
        assert (await place.images())[1] == f"{IMAGE}:5.3.3"
    told = f"2 NameServers, 1 groups, 1 proxies are ready; proxies keep their image until shop-0 is UpToDate ({reason})"
    assert seen[reason] == [("True", "AllReady", told), ("False", "AllReady", told)]
    assert [one[:2] for one in seen["RollingUpdate"]] == [("False", "ProxiesPending"), ("True", "ProxiesPending")]


async def test_proxies_take_another_default_after_the_groups(place: Place) -> None:
    """No group has been looked at since the operator's start, so each still says that it is up to date: with another version."""
    await place.made(brokerGroups={"count": 1}, proxy={"replicas": 1})
    await place.groups_are_up_to_date("shop-0")
    await place.write_status(BROKER_GROUPS, "shop-0", version="5.5.0")
    later = Place(place.api, place.key.namespace, replace(SETTINGS, rocketmq_version="5.5.1"))
    await later.run()
    assert (await place.images())[1] == f"{IMAGE}:5.5.0"
    await place.write_status(BROKER_GROUPS, "shop-0", version="5.5.1")
    await later.run()
    assert (await place.images())[1] == f"{IMAGE}:5.5.1"


async def test_a_version_that_the_catalogue_lacks_changes_nothing_that_runs(place: Place) -> None:
    await place.made(version="5.3.3", brokerGroups={"count": 1})
    catalogue = VersionCatalogue(images=(("5.5.0", "a/b:5.5.0"),), only_listed=True)
    limited = Place(place.api, place.key.namespace, replace(SETTINGS, catalogue=catalogue))
    await limited.changed({"version": "5.4.0", "proxy": {"replicas": 1}})
    assert await place.images() == [f"{IMAGE}:5.3.3"], "and no Proxy is made"
    status, reason, message = await place.condition("Stalled")
    assert (status, reason) == ("True", "VersionRefused")
    assert message.startswith("spec.version is '5.4.0', expected another: this operator is limited to 5.5.0")
    await limited.changed({"version": "5.5.0"})
    assert await place.images() == ["a/b:5.5.0"] * 2
    assert not await place.is_stalled()


async def test_an_image_that_the_cluster_names_waits_for_no_group(place: Place) -> None:
    await place.made(image="a/b:1", brokerGroups={"count": 1}, proxy={"replicas": 1})
    await place.changed({"image": "a/b:2"})
    assert await place.images() == ["a/b:2"] * 2


async def test_replicas_that_the_spec_leaves_out_are_an_autoscalers(place: Place) -> None:
    await place.made(proxy={})
    await place.patch(DEPLOYMENTS, "shop-proxy", {"spec": {"replicas": 4}})
    await place.run()
    assert (await place.get(DEPLOYMENTS, "shop-proxy"))["spec"]["replicas"] == 4
    assert (await place.status())["proxies"]["summary"] == "0/4"


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


OF_MARK = {"subject": "User:shop", "resource": MARK, "actions": ["Get"]}
SOURCES = [{"ipBlock": {"cidr": "192.0.2.0/24"}}] * 17
MARS = {"start": "02:00", "durationMinutes": 60, "timeZone": "Mars/Olympus"}
NO_TOPICS = ("TBW102", "rmq_sys_x", "RMQ_SYS_TRACE_TOPIC", "a b", "%RETRY%a", "")
NO_CONSUMER_GROUPS = (
    "CID_RMQ_SYS_TRANS", "CID_ONSAPI_PULL", "TOOLS_CONSUMER", "BROKERGROUP_OPERATOR", "%RETRY%a", "a b", "", "x" * 121,
)  # fmt: skip
PROXY_WITH_KEY = {"config": {"innerClientAuthenticationCredentials": "{}"}}
ON_NODES = {
    "network": {"addressing": "HostNetwork"}, "antiAffinity": {"type": "Required"},
    "security": {"signature": "Required", "credentialsSecretRef": {"name": "key"}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        *(({"topics": [{"name": name}]}, r"topics\[0\].name") for name in NO_TOPICS),
        *(({"consumerGroups": [{"name": name}]}, r"consumerGroups\[0\].name") for name in NO_CONSUMER_GROUPS),
        ({"consumerGroups": [{"name": "a", "retryMaxTimes": 1001}]}, r"consumerGroups\[0\].retryMaxTimes"),
        ({"consumerGroups": [{"name": "a"}, {"name": "a"}]}, "Duplicate value"),
        (
            of_groups(implementation="Python") | {"consumerGroups": [{"name": "a", "retryQueueNums": 2}]},
            "retryQueueNums need brokerGroups.template.implementation Java",
        ),
        (of_groups(nameServers=["ns:9876"]), "template.nameServers must be empty"),
        (of_groups(brokerName="a"), "template.brokerName must be absent"),
        (of_groups(implementation="Python", localProxy={}), "template.localProxy: .*localProxy needs implementation Java"),
        (of_groups(replicas=2, durability="Strict", failover={"uncleanElection": "Allowed"}), "Strict"),
        (
            of_groups(updateStrategy={"windows": [MARS]}),
            r"template.updateStrategy.windows\[0\].timeZone: .*as Asia/Shanghai or UTC",
        ),
        ({"brokerGroups": {"count": 1, "overrides": [{"index": 1}]}}, "an index must be below count"),
        ({"brokerGroups": {"count": 0}}, "count"),
        ({"version": "5.5.0", "image": "r:1"}, "version and image exclude each other"),
        ({"proxy": {"config": {"namesrvAddr": "a:1"}}}, "proxy.config.namesrvAddr is set by the operator"),
        ({"acl": {}}, "acl needs brokerGroups.template.security.credentialsSecretRef"),
        (of_groups(**SIGNED, implementation="Python") | {"acl": {}}, "acl needs brokerGroups.template.implementation Java"),
        (of_groups(**SIGNED) | {"acl": {}, "proxy": PROXY_WITH_KEY}, "acl and proxy exclude each other"),
        (of_groups(**SIGNED, localProxy={}) | {"acl": {}}, "acl and brokerGroups.template.localProxy exclude each other"),
        (of_groups(**SIGNED) | {"acl": {}, "version": "5.2.9"}, "acl needs version 5.3.0 or later"),
        (
            of_groups(**SIGNED, version="5.1.4") | {"acl": {}, "version": "5.5.0"},
            "acl needs brokerGroups.template.version 5.3.0 or later",
        ),
        (of_groups(**SIGNED) | {"acl": {"policies": ACL["policies"]}}, "a subject must be User: and the name of one of users"),
        (of_groups(**SIGNED) | {"acl": ACL | {"policies": [OF_MARK]}}, "is the operator's own mark"),
        (of_groups(network={"policy": {"clientsFrom": SOURCES}}) | {"proxy": {}}, "at most 16 sources with proxy"),
        *(
            (
                of_groups(network=network) | {"network": {"policy": {}}},
                "network.policy does not work on groups with addressing NodePort and LoadBalancer",
            )
            for network in ({"addressing": "LoadBalancer"}, {"addressing": "NodePort", "firstNodePort": 31000})
        ),
        (of_groups(**ON_NODES) | {"network": {"policy": {}}}, "network.policy has no effect on groups with addressing HostNetwork"),
    ],
)  # fmt: skip
async def test_a_bad_spec_is_refused_with_its_field(place: Place, spec: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidError, match=told):
        await place.make(**spec)


@pytest.mark.parametrize("at", ["cluster", "template"])
async def test_as_many_sources_as_may_be_named_fit_with_a_proxy(place: Place, at: str) -> None:
    policy = {"policy": {"clientsFrom": SOURCES[:16]}}
    spec = {"network": policy} if at == "cluster" else of_groups(network=policy)
    await place.made(proxy={}, **spec)
    assert len((await place.group_spec())["network"]["policy"]["clientsFrom"]) == 17
    assert not await place.is_stalled()

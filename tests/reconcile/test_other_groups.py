"""Groups that need one thing: a broker name, the ports of a node, a node port. One has it; the other names the holder and waits."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kube.errors import ApiError, InvalidError
from brokergroup_operator.kube.resources import (
    BROKER_GROUPS,
    EVENTS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    SERVICES,
)
from brokergroup_operator.reconcile import plan as plans
from brokergroup_operator.reconcile.act.refusals import NodePortOwners, NodePortTakenError
from brokergroup_operator.reconcile.other_groups import BrokerNames, HostPorts
from brokergroup_operator.reconcile.plan import ApplyObject, DeleteObject
from brokergroup_operator.reconcile.see.observed import Observed
from brokergroup_operator.records.store import GroupKey
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.cases import conditions, run
from tests.reconcile.world import named, until, until_pods

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from brokergroup_operator.kube.client import KubernetesApi
    from tests.reconcile.world import World


TAKEN = "spec.brokerName is 'orders', and group team-a/orders has that name at NameServer ns.infra:9876"
FIRST, SECOND = GroupKey("team-a", "orders"), GroupKey("team-b", "orders")


def group(key: GroupKey, created: int, *, uid: str = "", **spec: Any) -> dict[str, Any]:
    metadata = {
        "namespace": key.namespace,
        "name": key.name,
        "uid": uid or f"uid-of-{key}",
        "creationTimestamp": f"2026-11-25T10:00:{created:02}Z",
    }
    return {"metadata": metadata, "spec": {"nameServers": ["ns.infra:9876"]} | spec}


class Names(BrokerNames):
    """Two groups of one name, of which the first is the older; and the groups that the table woke."""

    def __init__(self, *groups: dict[str, Any], recorded: Collection[GroupKey] = ()) -> None:
        self.woken: list[GroupKey] = []
        super().__init__(self.woken.append)
        self.keep_only(groups or (group(SECOND, 2), group(FIRST, 1)), recorded)

    def holders(self) -> list[GroupKey]:
        return [key for key in (FIRST, SECOND) if self.taken(key) == ""]


@pytest.fixture
def broker_names() -> BrokerNames:
    return BrokerNames(lambda _: None)


ELSEWHERE = group(FIRST, 1, nameServers=["ns.elsewhere:9876"])


@pytest.mark.parametrize(
    "sets_it_free",
    [
        lambda names: names.forget(FIRST),
        lambda names: names.keep_only([group(SECOND, 2)], ()),
        lambda names: names.note(ELSEWHERE, None),
    ],
    ids=["the holder is gone", "a resync finds it gone", "it has another NameServer"],
)
def test_the_older_keeps_the_name_until_it_is_gone(sets_it_free: Callable[[Names], None]) -> None:
    names = Names()
    assert names.holders() == [FIRST]
    assert names.taken(SECOND).startswith(TAKEN)
    names.note(group(FIRST, 1, replicas=5), None)
    assert names.woken == [], "it says the same again"
    sets_it_free(names)
    assert names.woken == [SECOND]
    assert names.taken(SECOND) == ""


def test_what_comes_before_age() -> None:
    """A group that runs; and a kept record, where the whole of a cluster was restored: nothing runs, all objects are new."""
    running = group(SECOND, 5)
    running["metadata"]["finalizers"] = [names.FINALIZER_BROKER_GROUP]
    for table in (
        Names(running, group(FIRST, 9), recorded={FIRST, SECOND}),
        Names(group(FIRST, 1), group(SECOND, 2), recorded={SECOND}),
    ):
        assert table.holders() == [SECOND]
        assert "team-b/orders" in table.taken(FIRST)


def test_of_one_second_the_one_that_was_let_begin_keeps_it(broker_names: BrokerNames) -> None:
    """Its finalizer may not have been read back when the other comes, whose uid is the lower one."""
    broker_names.note(group(FIRST, 1, uid="z"), None)
    assert broker_names.taken(FIRST) == ""
    broker_names.note(group(SECOND, 1, uid="a"), None)
    broker_names.note(group(FIRST, 1, uid="z"), None)
    assert broker_names.taken(SECOND).startswith(TAKEN)
    assert broker_names.taken(FIRST) == ""


def test_a_group_made_anew_under_the_name_of_the_holder_is_another_one(broker_names: BrokerNames) -> None:
    broker_names.note(group(FIRST, 1, uid="first"), None)
    broker_names.note(group(SECOND, 2), None)
    assert broker_names.taken(FIRST) == ""
    assert broker_names.taken(SECOND)
    broker_names.note(group(FIRST, 9, uid="second"), None)
    assert broker_names.taken(SECOND) == ""
    assert broker_names.taken(FIRST)


def judged(seen: Observed) -> tuple[list[plans.Action], dict[str, tuple[str, str, str]]]:
    """What is done beside the status, and each condition's status, reason and message."""
    plan = run(dataclasses.replace(seen, broker_name_taken=TAKEN))
    [written] = [action for action in plan.actions if isinstance(action, plans.WriteStatus)]
    conditions = {one["type"]: (one["status"], one["reason"], one["message"]) for one in written.status["conditions"]}
    return [one for one in plan.actions if one is not written], conditions


WAITING = {
    "a new group": Observed(group=b.group(), group_object=b.group_object()),
    "ids are reserved": Observed(group=b.group(), group_object=b.group_object(), record=b.reserved(1)),
    # What an older operator made of it: nothing of its brokers was ever registered, for it was not found by name.
    "its pods run unheard": b.changed(c.settled(), record=b.reserved(1, 2, 3), snapshot=None),
    "made anew, its record kept": Observed(
        group=b.group(),
        group_object={"metadata": b.group_object()["metadata"] | {"finalizers": []}, "spec": b.group_object()["spec"]},
        record=b.record(),
    ),
}


@pytest.mark.parametrize("case", list(WAITING))
def test_a_group_that_waits_gets_nothing_and_loses_nothing(case: str) -> None:
    done, conditions = judged(WAITING[case])
    assert done == []
    for kind, status in (("Stalled", "True"), ("Ready", "False"), ("Available", "False"), ("Reconciling", "False")):
        assert conditions[kind] == (status, "BrokerNameTaken", TAKEN), kind


def test_a_group_that_lives_goes_on_and_says_so() -> None:
    seen = c.settled()
    lost = dict(seen.pods)
    lost.pop(sorted(lost)[-1])
    done, conditions = judged(dataclasses.replace(seen, pods=lost))
    assert any(isinstance(one, plans.ApplyObject) and one.resource.kind == "Pod" for one in done)
    assert conditions["Stalled"] == ("True", "BrokerNameTaken", TAKEN)
    assert conditions["Available"][:2] == ("True", "MasterServesWrites"), "what was measured"


def test_a_whole_group_that_lives_is_not_ready_beside_being_stalled() -> None:
    done, conditions = judged(c.settled())
    assert done == []
    assert conditions["Ready"] == ("False", "BrokerNameTaken", TAKEN)


GROUPS = ("a", "b", "c", "d")


async def create_named(world: World, name: str) -> None:
    kind = {"apiVersion": names.API_VERSION, "kind": names.BROKER_GROUP_KIND}
    metadata = {"name": name, "namespace": world.key.namespace}
    spec = {"implementation": "Python", "replicas": 1, "brokerName": "x"}
    await world.api.create(BROKER_GROUPS, {**kind, "metadata": metadata, "spec": spec})


async def with_children(world: World) -> set[str]:
    """The groups of which there is anything."""
    found: set[str] = set()
    for resource in (PODS, PERSISTENT_VOLUME_CLAIMS, SERVICES):
        objects = await named(world, resource)
        found |= {one["metadata"]["labels"][names.LABEL_BROKER_GROUP] for one in objects.values()}
    return found


async def waiting(world: World) -> dict[str, str]:
    """The groups that say that they wait, each with what it says."""
    told: dict[str, str] = {}
    for name, group in (await named(world, BROKER_GROUPS)).items():
        conditions: list[dict[str, Any]] = group.get("status", {}).get("conditions", [])
        reasons = {one["type"]: (one["status"], one["reason"]) for one in conditions}
        if reasons.get("Stalled") == ("True", "BrokerNameTaken") and reasons["Ready"] == ("False", "BrokerNameTaken"):
            told[name] = next(one["message"] for one in conditions if one["type"] == "Stalled")
    return told


async def test_one_begins_and_the_next_when_it_is_gone(world: World) -> None:
    await world.start_plane(resync_seconds=600.0)
    await asyncio.gather(*(create_named(world, name) for name in GROUPS))
    left = set(GROUPS)
    while left:

        async def one_has_begun(left: set[str] = left) -> str | None:
            told, begun = await waiting(world), await with_children(world)
            # Claims outlive their group.
            now = begun & left
            if len(now) != 1 or set(told) != left - now:
                return None
            [holder] = now
            return (
                holder if all(f"group {world.key.namespace}/{holder} has" in text for text in told.values()) else None
            )

        holder = await until(f"one of {left} to begin, the others to wait for it", one_has_begun)
        await world.delete(BROKER_GROUPS, holder)
        left.remove(holder)


NEIGHBOUR = GroupKey("team-b", "payments")
NO_PORTS = "0/3 nodes are available: 3 node(s) didn't have free ports for the requested pod ports"


def on_the_nodes_network(key: GroupKey, *, addressing: str = "HostNetwork", **network: Any) -> dict[str, Any]:
    metadata = {"namespace": key.namespace, "name": key.name}
    return {"metadata": metadata, "spec": {"network": {"addressing": addressing, **network}}}


def test_proxies_of_one_node_share_their_ports() -> None:
    own, other = (
        on_the_nodes_network(key, listenPort=number, haPort=number + 1)
        for key, number in ((b.KEY, 20911), (NEIGHBOUR, 20921))
    )
    ports = HostPorts()
    ports.keep_only([own, other])
    assert ports.shared(b.KEY) == ""
    for one in (own, other):
        one["spec"]["localProxy"] = {}
    ports.keep_only([own, other])
    told = "spec.localProxy, port 8080 is a port of team-b/payments too; spec.localProxy, port 8081 is a port of"
    assert ports.shared(b.KEY).startswith(told)


FAST = "the fast port below spec.network.listenPort 10909 is a port of team-b/payments too"
HA = "spec.network.haPort 10912 is a port of team-b/payments too"
SHARED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("the same", {}, {}, FAST),
    ("one of them", {}, {"listenPort": 20911, "haPort": 10912}, HA),
    ("another one's fast port", {}, {"listenPort": 10914}, HA),
    ("others", {}, {"listenPort": 20911, "haPort": 20912}, ""),
    ("the other on its pods' network", {}, {"addressing": "PodIP"}, ""),
    ("ours on Services", {"addressing": "ServiceIP"}, {}, ""),
]


@pytest.mark.parametrize(("own", "other", "told"), c.table(SHARED))
def test_whose_ports_they_are(own: dict[str, Any], other: dict[str, Any], told: str) -> None:
    ports = HostPorts()
    ports.keep_only([on_the_nodes_network(b.KEY, **own), on_the_nodes_network(NEIGHBOUR, **other)])
    assert ports.shared(b.KEY).startswith(told)
    assert bool(ports.shared(b.KEY)) is bool(told)
    ports.forget(NEIGHBOUR)
    assert ports.shared(b.KEY) == ""


@pytest.mark.parametrize(
    ("words", "is_told"), [(NO_PORTS, True), ("0/3 nodes are available: 3 Insufficient cpu", False)]
)
def test_a_pod_without_a_node_says_whose_they_are(words: str, *, is_told: bool) -> None:
    seen = c.settled()
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
    pending = {"phase": "Pending", "conditions": [unscheduled]}
    seen = c.with_pods(seen, lambda pod: pod.update(status=pending), "orders-2")
    ports = HostPorts()
    ports.note(on_the_nodes_network(b.KEY))
    ports.note(on_the_nodes_network(NEIGHBOUR))
    stalled = conditions(dataclasses.replace(seen, host_ports_shared=ports.shared(b.KEY)))["Stalled"]
    assert stalled["reason"] == "MemberNotScheduled"
    assert words in stalled["message"]
    assert ("spec.network.listenPort 10911 is a port of team-b/payments too" in stalled["message"]) is is_told


QUICK: dict[str, Any] = {"backoff_maximum_seconds": 0.5, "backoff_after_event_seconds": 0.2}


async def take(api: KubernetesApi, namespace: str, number: int, **spec: Any) -> None:
    """Create a user's Service that has this node port."""
    ports = [{"port": 80, "protocol": "TCP", "nodePort": number}]
    spec = {"type": "NodePort", "selector": {"app": "shop"}, "ports": ports} | spec
    await api.create(SERVICES, {"metadata": {"name": "shop", "namespace": namespace}, "spec": spec})


async def stalled(world: World) -> tuple[str, str]:
    """Reason and message while it is so."""
    found = (await world.conditions()).get("Stalled")
    return (found["reason"], found["message"]) if found and found["status"] == "True" else ("", "")


async def with_number_taken(world: World, first: int, holder: str) -> None:
    """The one by which the second member would be known; the others come up."""
    await take(world.api, holder, first + 7)
    await world.create_group(network={"addressing": "NodePort", "firstNodePort": first})

    async def says_so() -> bool:
        told = [one for one in (await named(world, EVENTS)).values() if one["reason"] == "NodePortTaken"]
        return bool(told) and (await stalled(world))[0] == "NodePortTaken"

    await until("the condition and its Event", says_so)

    await until_pods(world, "orders-1", "orders-3")


async def whole(world: World) -> bool:
    pods = await named(world, PODS)
    return set(pods) == {"orders-1", "orders-2", "orders-3"} and await stalled(world) == ("", "")


async def test_the_group_names_the_holder_and_goes_on_when_it_is_free(world: World) -> None:
    await world.start_plane(**QUICK)
    await with_number_taken(world, 30400, world.key.namespace)
    _, message = await stalled(world)
    assert f"Service orders-2 needs node port 30407, which Service {world.key.namespace}/shop has" in message
    assert "spec.network.firstNodePort" in message
    told = [one for one in (await named(world, EVENTS)).values() if one["reason"] == "NodePortTaken"]
    assert [(one["type"], one["message"]) for one in told] == [("Warning", message)], "told once, however often refused"
    await world.delete(SERVICES, "shop")
    await until("a whole group", lambda: whole(world))
    ports = (await named(world, SERVICES))["orders-2"]["spec"]["ports"]
    assert {port["name"]: port["nodePort"] for port in ports} == {"broker": 30407, "fast": 30405}


async def test_a_service_of_another_namespace_is_reported_without_its_name(world: World) -> None:
    """An operator of one namespace reads no Services of another."""
    await world.start_plane(**QUICK)
    elsewhere = f"t-{uuid.uuid4().hex[:8]}"
    await world.api.create(NAMESPACES, {"metadata": {"name": elsewhere}})
    await with_number_taken(world, 30500, elsewhere)
    _, message = await stalled(world)
    assert f"needs node port 30507, which a Service outside namespace {world.key.namespace} has" in message


WANTED = {"metadata": {"name": "orders-2", "namespace": "default"}, "spec": {}}
WISH = ApplyObject(reason="", resource=SERVICES, object=WANTED)
SAID = "spec.ports[0].nodePort: Invalid value: 30107: provided port is already allocated"


@pytest.mark.parametrize(
    ("spec", "holder"),
    [
        ({}, "Service default/shop has"),
        (
            {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30107, "ports": [{"port": 80}]},
            "Service default/shop has",
        ),
        ({"ports": [{"port": 80, "nodePort": 30108}]}, "another Service has"),
    ],
    ids=["a port of its own", "a health check", "no Service that the list shows"],
)  # fmt: skip
async def test_any_service_of_the_cluster_may_have_it(api: KubernetesApi, spec: dict[str, Any], holder: str) -> None:
    await take(api, "default", 30107, **spec)
    owners = NodePortOwners(api, namespace=None)
    error = await owners.explained(WISH, InvalidError("422", field_messages=("spec.ports[0].name: x", SAID)))
    assert isinstance(error, NodePortTakenError)
    assert error.status == 422
    assert f"Service orders-2 needs node port 30107, which {holder}" in str(error)


class NoRights:
    async def list(self, *_: Any, **__: Any) -> Any:
        raise ApiError("no rights", status=403)


async def test_services_that_cannot_be_listed_hide_the_holder() -> None:
    owners = NodePortOwners(NoRights(), namespace=None)  # type: ignore[arg-type]
    error = await owners.explained(WISH, InvalidError("422", field_messages=(SAID,)))
    assert "which another Service (they can't be listed: no rights) has" in str(error)


OUT_OF_RANGE = "spec.ports[0].nodePort: Invalid value: 20000: provided port is not in the valid range"


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (WISH, ApiError("forbidden", status=403)),
        (WISH, InvalidError("422", field_messages=(OUT_OF_RANGE,))),
        (ApplyObject(reason="", resource=PODS, object=WANTED), InvalidError("422", field_messages=(SAID,))),
        (DeleteObject(reason="", resource=SERVICES, name="orders-2", uid="u"), InvalidError("422", field_messages=(SAID,))),
    ],
    ids=["not about it", "a number outside the range", "no Service", "nothing was asked for"],
)  # fmt: skip
async def test_other_refusals_stay_what_they_are(api: KubernetesApi, action: Any, error: ApiError) -> None:
    assert await NodePortOwners(api, namespace=None).explained(action, error) is error

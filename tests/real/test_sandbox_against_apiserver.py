"""The sandbox held honest: the same requests to the embedded API and to a real kube-apiserver, the answers compared.

A conversation is a function that sends requests; each answer is recorded with what must differ taken out (uids, times, the
counter of versions) and so is what this sandbox leaves to a real cluster by decision, each with its reason in `_tidied`.
"""

from __future__ import annotations

import copy
import json
import re
import ssl
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import yaml

from brokergroup_operator.sandbox.api_server.server import SandboxApiServer
from tests.sandbox.things import THING_DEFINITION

if TYPE_CHECKING:
    from tests.real.parts.kubernetes_api import KubeApiserver

pytestmark = pytest.mark.real("kube-apiserver")

ROOT = Path(__file__).resolve().parents[2]
CRDS = ROOT / "crds"
EXAMPLES = ROOT / "examples"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
THINGS = "/apis/example.dev/v1/namespaces/{ns}/things"
CORE = "/api/v1/namespaces/{ns}"

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_AGE = re.compile(r"\b\d+[smhdy](\d+[smhd])?\b")
_ALWAYS_OTHER = ("uid", "resourceVersion", "selfLink")


def _tidied(value: Any, key: str = "") -> Any:
    """An answer without what differs between any two servers."""
    if isinstance(value, dict):
        kept = {name: _tidied(item, name) for name, item in value.items() if name not in _ALWAYS_OTHER}
        return _tidied_object({name: item for name, item in kept.items() if item is not None}, key)
    if isinstance(value, list):
        return [_tidied(item) for item in value]
    if isinstance(value, str):
        text = _TIME.sub("TIME", _UUID.sub("UID", value))
        if key == "message":  # without the printed difference of Go structs
            text = re.sub(r"(Forbidden: pod updates may not change.*?negative\)).*", r"\1", text, flags=re.DOTALL)
            text = re.sub(r"(spec is immutable after creation.*?claims).*", r"\1", text, flags=re.DOTALL)
        return text
    return value


def _tidied_object(kept: dict[str, Any], key: str) -> dict[str, Any]:
    """Go writes some zero values as null: they are gone already. Each step here has its reason beside it."""
    if key == "details" and "causes" in kept:  # the real one finds some things twice
        kept["causes"] = list({json.dumps(cause, sort_keys=True): cause for cause in kept["causes"]}.values())
    for entry in kept.get("managedFields", ()):
        entry.pop("time", None)  # the real one leaves it out for the scale subresource
    if "managedFields" in kept:  # sorted by time, which is the same second or not
        kept["managedFields"].sort(key=lambda entry: json.dumps(entry, sort_keys=True))
    for address in ("clusterIP", "clusterIPs"):  # the sandbox hands out addresses that nothing routes
        if kept.get(address) not in (None, "None", ["None"]):
            kept[address] = "an address"
    if kept.get("kind") == "PersistentVolumeClaim" and "metadata" in kept:
        kept["metadata"].pop("finalizers", None)  # pvc-protection: the sandbox's kubelet has no use for it
    return kept


@dataclass
class Peer:
    """One of the two servers, and everything it said."""

    url: str
    namespace: str
    session: aiohttp.ClientSession
    said: list[tuple[str, int, Any]] = field(default_factory=list)

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        only: Callable[[dict[str, Any]], Any] | None = None,
        **query: str,
    ) -> dict[str, Any]:
        """Sends a request, records the tidied answer (or the part of it that `only` gives), hands back the whole one."""
        target = path.format(ns=self.namespace)
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type, "Accept": accept, "User-Agent": "compare/1"}
        async with self.session.request(
            method, self.url + target, data=data, headers=headers, params=query
        ) as response:
            text = await response.text()
            answer = (
                json.loads(text) if response.content_type == "application/json" else {"kind": "Status", "text": text}
            )
            warnings = sorted(response.headers.getall("Warning", []))
        tidy = _tidied(answer)
        said = {"answer": tidy, "warnings": warnings} if only is None else only(tidy)
        self.said.append((f"{method} {path} {query}", response.status, said))
        return dict(answer)

    async def watch(self, path: str, **query: str) -> None:
        """Records all that a watch of one second tells, without the ordinary bookmarks, whose time nobody promises."""
        target = self.url + path.format(ns=self.namespace)
        params = {**query, "watch": "true", "timeoutSeconds": "1"}
        async with self.session.get(target, params=params) as response:
            events = [json.loads(line) for line in (await response.text()).splitlines()]
            status = response.status
        told = []
        for event in events:
            name = event["object"]["metadata"].get("name", "")
            annotations = event["object"]["metadata"].get("annotations")
            if event["type"] != "BOOKMARK" or annotations:
                finalizers = event["object"]["metadata"].get("finalizers")
                told.append((event["type"], name, annotations, finalizers, event["object"].get("reason")))
        query.pop("resourceVersion", None)
        self.said.append((f"watch {path} {query}", status, told))


def thing(name: str = "one", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "example.dev/v1",
        "kind": "Thing",
        "metadata": {"name": name},
        "spec": {"mode": "Small", **spec},
    }


def reason(answer: dict[str, Any]) -> Any:
    return answer.get("reason")


async def life_of_a_custom_object(peer: Peer) -> None:
    made = await peer.call("POST", THINGS, thing())
    stale = copy.deepcopy(made)
    made["spec"]["replicas"] = 4
    await peer.call("PUT", f"{THINGS}/one", made)
    await peer.call("PUT", f"{THINGS}/one", stale)
    await peer.call("PUT", f"{THINGS}/one", thing())
    await peer.call("POST", THINGS, thing())
    await peer.call("GET", f"{THINGS}/one")
    await peer.call("GET", f"{THINGS}/two")
    await peer.call("GET", THINGS, labelSelector="a=b")
    await peer.call("GET", f"{THINGS}/one/nothing")
    await peer.call("DELETE", f"{THINGS}/one", {"preconditions": {"uid": "other"}})
    await peer.call("DELETE", f"{THINGS}/one")
    await peer.call("DELETE", f"{THINGS}/one")


async def status_is_apart(peer: Peer) -> None:
    made = await peer.call("POST", THINGS, {**thing(), "status": {"replicas": 9}})
    made["status"] = {"replicas": 2, "conditions": [{"type": "Ready", "status": "True"}]}
    made["spec"]["replicas"] = 8
    after = await peer.call("PUT", f"{THINGS}/one/status", made)
    after["status"]["replicas"] = 5
    after["spec"]["replicas"] = 8
    await peer.call("PUT", f"{THINGS}/one", after)
    patch = {"status": {"replicas": 7}}
    await peer.call("PATCH", f"{THINGS}/one/status", patch, content_type=MERGE)
    wrong = {"status": {"conditions": [{"type": "Ready"}]}}
    await peer.call("PATCH", f"{THINGS}/one/status", wrong, content_type=MERGE)
    await peer.call("GET", f"{THINGS}/one/scale")
    labels = {"metadata": {"labels": {"a": "b"}}}  # not taken over, though the real one notes them as owned
    await peer.call(
        "PATCH", f"{THINGS}/one/status", labels, content_type=MERGE, only=lambda a: a["metadata"].get("labels")
    )


async def complaints_about_custom_objects(peer: Peer) -> None:
    for spec in (
        {"replicas": 0},
        {"replicas": 10},
        {"replicas": "three"},
        {"mode": "Odd"},
        {"names": ["ok", "NO"]},
        {"names": ["toolong"]},
        {"names": ["a", "b", "c", "d"]},
        {"size": 1.5},
        {"config": {"a": 1}},
        {"parts": [{"id": 1}, {"id": 1}]},
        {"parts": [{"code": "x"}]},
        {"mode": "Big", "replicas": 2},
        {"odd": 1},
        {"replicas": None},
    ):
        await peer.call("POST", THINGS, thing(**spec))
    await peer.call("POST", THINGS, thing(odd=1), fieldValidation="Strict")
    await peer.call("POST", THINGS, {**thing(), "spec": {}})
    await peer.call("POST", THINGS, {"apiVersion": "example.dev/v1", "kind": "Thing", "metadata": {"name": "x"}})
    await peer.call("POST", THINGS, thing("Not_A_Name"))
    await peer.call("POST", THINGS, {**thing(), "apiVersion": "example.dev/v2"}, only=reason)
    await peer.call("POST", THINGS.replace("{ns}", "no-such-namespace"), thing())
    labelled = thing("labelled")
    labelled["metadata"]["labels"] = {"a": "not a label!"}
    await peer.call("POST", THINGS, labelled)


async def transition_rules(peer: Peer) -> None:
    await peer.call("POST", THINGS, thing(epoch=5, parts=[{"id": 1, "code": ""}, {"id": 2, "code": "b"}]))
    for spec in (
        {"epoch": 6},
        {"epoch": 4},
        {"mode": "Big"},
        {"parts": [{"id": 2, "code": "b"}, {"id": 1, "code": "a"}]},
        {"parts": [{"id": 1, "code": "a"}, {"id": 2, "code": "changed"}]},
    ):
        await peer.call("PATCH", f"{THINGS}/one", {"spec": spec}, content_type=MERGE)


async def patches(peer: Peer) -> None:
    made = await peer.call("POST", THINGS, thing(config={"a": "1", "b": "2"}))
    version = made["metadata"]["resourceVersion"]
    test = [{"op": "test", "path": "/metadata/resourceVersion", "value": version}]
    await peer.call(
        "PATCH",
        f"{THINGS}/one",
        [*test, {"op": "add", "path": "/spec/config/c", "value": "3"}],
        content_type=JSON_PATCH,
    )

    # The wording of a patch library is its own.
    for body, content_type in (
        ([*test, {"op": "add", "path": "/spec/config/d", "value": "4"}], JSON_PATCH),
        ([{"op": "remove", "path": "/spec/nothing"}], JSON_PATCH),
        ({"spec": {"config": {"a": None}}}, STRATEGIC),
    ):
        await peer.call("PATCH", f"{THINGS}/one", body, content_type=content_type, only=reason)
    await peer.call("PATCH", f"{THINGS}/one", {"spec": {"config": {"a": None}}}, content_type=MERGE)
    stale = {"metadata": {"resourceVersion": version}, "spec": {"replicas": 4}}
    await peer.call("PATCH", f"{THINGS}/one", stale, content_type=MERGE)
    await peer.call("PATCH", f"{THINGS}/one", {"spec": {"replicas": 4}}, content_type=MERGE, dryRun="All")
    await peer.call("GET", f"{THINGS}/one")


async def finalizers(peer: Peer) -> None:
    body = thing()
    body["metadata"]["finalizers"] = ["example.dev/a"]
    await peer.call("POST", THINGS, body)
    await peer.call("DELETE", f"{THINGS}/one")
    more = {"metadata": {"finalizers": ["example.dev/a", "example.dev/b"]}}
    await peer.call("PATCH", f"{THINGS}/one", more, content_type=MERGE)
    await peer.call("PATCH", f"{THINGS}/one", {"metadata": {"finalizers": None}}, content_type=MERGE)
    await peer.call("GET", f"{THINGS}/one")


async def server_side_apply(peer: Peer) -> None:
    async def apply(manager: str, body: dict[str, Any], path: str = f"{THINGS}/one", **query: str) -> None:
        await peer.call("PATCH", path, body, content_type=APPLY, fieldManager=manager, **query)

    for validation in ("Ignore", "Strict"):  # an undeclared field has no place among the fields that somebody owns
        await apply("alice", thing(odd=1), fieldValidation=validation)
        await apply("alice", thing(parts=[{"id": 1, "code": "x", "odd": 1}]), fieldValidation=validation)
    await apply("alice", thing(replicas=3, config={"a": "1"}, parts=[{"id": 1, "code": "x"}]))
    without_mode = thing(config={"b": "2"}, parts=[{"id": 2, "code": "y"}])
    del without_mode["spec"]["mode"]
    await apply("bob", without_mode)
    await apply("bob", thing(replicas=4))
    await apply("bob", thing(replicas=4, config={"a": "9"}))
    await apply("bob", thing(replicas=4), force="true")
    await apply("alice", thing(parts=[{"id": 1, "code": "x"}]))
    await apply("alice", thing(parts=[{"id": 1, "code": "x"}]))
    status = {"apiVersion": "example.dev/v1", "kind": "Thing", "metadata": {"name": "one"}}
    status["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}  # type: ignore[assignment]
    await apply("carol", status, f"{THINGS}/one/status")
    await peer.call("PATCH", f"{THINGS}/one", {"spec": {"replicas": 5}}, content_type=MERGE, fieldManager="dave")
    await apply("bob", thing(replicas=4))


def pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    containers = [
        {
            "name": "c",
            "image": "registry.example/x:1",
            "ports": [{"containerPort": 80}],
            "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
            "readinessProbe": {"tcpSocket": {"port": 80}},
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            "resources": {"limits": {"memory": "1Gi"}},
        }
    ]
    volumes = [{"name": "v", "configMap": {"name": "m"}}, {"name": "w", "emptyDir": {}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"a": "b"}},
        "spec": {"containers": containers, "volumes": volumes, **spec},
    }


async def life_of_a_pod(peer: Peer) -> None:
    await peer.call("POST", f"{CORE}/pods", pod(terminationGracePeriodSeconds=5))
    await peer.call("POST", f"{CORE}/pods", pod("q", containers=[]))
    await peer.call("POST", f"{CORE}/pods", pod("q", volumes=[]))
    await peer.call("POST", f"{CORE}/pods", pod("q", restartPolicy="Perhaps"))
    await peer.call("POST", f"{CORE}/pods", pod("q", containers=[{"name": "A b", "image": ""}]))
    await peer.call("POST", f"{CORE}/pods", pod("q", terminationGracePeriodSeconds="5"))
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p"},
        "target": {"kind": "Node", "name": "n"},
    }
    await peer.call("POST", f"{CORE}/pods/p/binding", binding)
    await peer.call("POST", f"{CORE}/pods/p/binding", binding)
    status = {"status": {"phase": "Running", "podIP": "10.1.1.1", "podIPs": [{"ip": "10.1.1.1"}]}}
    await peer.call("PATCH", f"{CORE}/pods/p/status", status, content_type=STRATEGIC)
    await peer.call("PATCH", f"{CORE}/pods/p", {"spec": {"nodeName": "m"}}, content_type=MERGE)
    image = {"spec": {"containers": [{"name": "c", "image": "registry.example/x:2"}]}}
    await peer.call("PATCH", f"{CORE}/pods/p", image, content_type=STRATEGIC)
    await peer.call("GET", f"{CORE}/pods", fieldSelector="spec.nodeName=n,status.phase=Running")
    await peer.call("GET", f"{CORE}/pods", fieldSelector="spec.nothing=1")
    await peer.call("PATCH", f"{CORE}/pods/p", {"metadata": {"finalizers": ["example.dev/fence"]}}, content_type=MERGE)
    await peer.call("DELETE", f"{CORE}/pods/p")
    await peer.call("DELETE", f"{CORE}/pods/p", {"gracePeriodSeconds": 2})
    await peer.call("DELETE", f"{CORE}/pods/p", {"gracePeriodSeconds": 0})
    await peer.call("PATCH", f"{CORE}/pods/p", {"metadata": {"finalizers": None}}, content_type=MERGE)
    await peer.call("GET", f"{CORE}/pods/p")
    await peer.call("POST", f"{CORE}/pods", pod("unbound"))
    await peer.call("DELETE", f"{CORE}/pods/unbound")
    await peer.call("GET", f"{CORE}/pods")


async def other_core_kinds(peer: Peer) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}
    await peer.call("POST", f"{CORE}/services", service)
    headless = {**service, "metadata": {"name": "h"}, "spec": {"clusterIP": "None", "selector": {"a": "b"}}}
    await peer.call("POST", f"{CORE}/services", headless)
    await peer.call("POST", f"{CORE}/services", {**service, "metadata": {"name": "t"}, "spec": {}})
    two = {"ports": [{"port": 80}, {"port": 99999}]}
    await peer.call("POST", f"{CORE}/services", {**service, "metadata": {"name": "t"}, "spec": two})
    await peer.call("PATCH", f"{CORE}/services/s", {"spec": {"clusterIP": "10.96.9.9"}}, content_type=MERGE)
    await peer.call("DELETE", f"{CORE}/services/s")
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "v"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    await peer.call("POST", f"{CORE}/persistentvolumeclaims", claim)
    await peer.call("POST", f"{CORE}/persistentvolumeclaims", {**claim, "metadata": {"name": "w"}, "spec": {}})
    bigger = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
    await peer.call("PATCH", f"{CORE}/persistentvolumeclaims/v", bigger, content_type=MERGE)
    bound = {"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}}
    await peer.call("PATCH", f"{CORE}/persistentvolumeclaims/v/status", bound, content_type=MERGE)
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}}
    await peer.call("POST", f"{CORE}/configmaps", config)
    await peer.call("POST", f"{CORE}/configmaps", {**config, "metadata": {"name": "d"}, "data": {"a b": "1"}})
    await peer.call("POST", f"{CORE}/configmaps", {**config, "metadata": {"name": "d"}, "data": {"a": 1}})
    await peer.call("PUT", f"{CORE}/configmaps/c", {**config, "data": {"a": "2"}})
    await peer.call("DELETE", f"{CORE}/configmaps/c")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}, "stringData": {"a": "text"}}
    await peer.call("POST", f"{CORE}/secrets", secret)


async def leases_budgets_policies_and_events(peer: Peer) -> None:
    leases = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "l"},
        "spec": {"holderIdentity": "me", "leaseDurationSeconds": 4, "renewTime": "2026-11-20T00:00:00.000000Z"},
    }
    made = await peer.call("POST", leases, lease)
    await peer.call("PUT", f"{leases}/l", lease)
    made["spec"]["holderIdentity"] = "other"
    await peer.call("PUT", f"{leases}/l", made)
    await peer.call("PUT", f"{leases}/l", made)
    await peer.call("POST", leases, {**lease, "metadata": {"name": "m"}, "spec": {"leaseDurationSeconds": 0}})
    budgets = "/apis/policy/v1/namespaces/{ns}/poddisruptionbudgets"
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}},
    }
    await peer.call("POST", budgets, budget)
    await peer.call("PATCH", f"{budgets}/b", {"spec": {"minAvailable": 2}}, content_type=MERGE)
    policies = "/apis/networking.k8s.io/v1/namespaces/{ns}/networkpolicies"
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "n"},
        "spec": {"podSelector": {"matchLabels": {"a": "b"}}, "ingress": [{"ports": [{"port": 80}]}]},
    }
    await peer.call("POST", policies, policy)
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "e"},
        "regarding": {"kind": "Pod", "name": "p", "namespace": peer.namespace},
        "reason": "Killing",
        "note": "text",
        "reportingController": "example.dev/here",
        "reportingInstance": "here-1",
        "action": "Kill",
        "type": "Normal",
        "eventTime": "2026-11-20T00:00:00.000000Z",
    }
    await peer.call("POST", "/apis/events.k8s.io/v1/namespaces/{ns}/events", event)
    await peer.call("GET", f"{CORE}/events/e")
    await peer.call("GET", f"{CORE}/events", fieldSelector="involvedObject.name=p")


async def applying_built_in_kinds(peer: Peer) -> None:
    async def apply(manager: str, body: dict[str, Any], plural: str, **query: str) -> None:
        path = f"{CORE}/{plural}/{body['metadata']['name']}"
        await peer.call("PATCH", path, body, content_type=APPLY, fieldManager=manager, **query)

    service: dict[str, Any] = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    await apply(
        "alice", {**service, "spec": {"ports": [{"name": "a", "port": 80}], "selector": {"a": "b"}}}, "services"
    )
    await apply("bob", {**service, "spec": {"ports": [{"name": "b", "port": 81}]}}, "services")
    await apply("bob", {**service, "spec": {"ports": [{"name": "b", "port": 81}], "selector": {"c": "d"}}}, "services")
    config: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    await apply("alice", {**config, "data": {"a": "1", "b": "2"}}, "configmaps")
    await apply("alice", {**config, "data": {"b": "3"}}, "configmaps")
    await apply("alice", pod(), "pods")
    await apply("alice", pod(), "pods")
    await apply("alice", pod(odd=1), "pods", fieldValidation="Ignore")
    await apply("bob", {**pod(), "spec": {"containers": [{"name": "c", "image": "x", "comand": ["sh"]}]}}, "pods")
    await apply("bob", {**pod(), "spec": {"containers": [{"name": "c", "image": "other"}]}}, "pods")


async def the_definition(peer: Peer) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    broken = copy.deepcopy(THING_DEFINITION)
    broken["metadata"]["name"] = "others.example.dev"
    broken["spec"]["names"] = {"plural": "others", "kind": "Other"}
    schema = broken["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]

    def fields(answer: dict[str, Any]) -> list[str]:
        return sorted({cause["field"] for cause in answer["details"]["causes"]})

    schema["spec"]["x-kubernetes-validations"] = [{"rule": "self.mode =="}]
    await peer.call("POST", path, broken, only=fields)
    schema["spec"]["x-kubernetes-validations"] = []
    del schema["spec"]["type"]
    await peer.call("POST", path, broken, only=fields)
    schema["spec"]["type"] = "object"
    broken["metadata"]["name"] = "wrong.example.dev"
    await peer.call("POST", path, broken, only=fields)


GROUPS = "/apis/brokergroup.dev/v1alpha1/namespaces/{ns}/brokergroups"
STATES = "/apis/brokergroup.dev/v1alpha1/namespaces/{ns}/brokergroupstates"


def group(name: str = "g", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "brokergroup.dev/v1alpha1",
        "kind": "BrokerGroup",
        "metadata": {"name": name},
        "spec": {"implementation": "replica", **spec},
    }


async def broker_groups(peer: Peer) -> None:
    for path in sorted(EXAMPLES.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if document["kind"] == "BrokerGroup":
                await peer.call("POST", GROUPS, document, fieldValidation="Strict")
    await peer.call("POST", GROUPS, group())
    for spec in (
        {"replicas": 0},
        {"replicas": 1, "durability": "Strict"},
        {"durability": "Strict", "failover": {"uncleanElection": "Allowed"}},
        {"failover": {"uncleanElection": "Allowed"}},
        {"failover": {"heartbeatTimeoutMilliseconds": 600, "heartbeatIntervalMilliseconds": 500}},
        {"config": {"brokerId": "1", "namesrvAddr": "x", "a b": "c"}},
        {"version": "5.5.0", "image": "x"},
        {"storage": {"size": "much"}},
        {"implementation": "other"},
        {"brokerName": "not a name!"},
        {"brokerName": 5},
        {"nameServers": ["host:9876", "no port"]},
        {"nonsense": 1},
    ):
        await peer.call("POST", GROUPS, group("bad", **spec))
        await peer.call("DELETE", f"{GROUPS}/bad", only=reason)
    await peer.call("POST", GROUPS, group("h", brokerName="h", storage={"size": "2Gi"}))
    for spec in (
        {"brokerName": "other"},
        {"brokerName": None},
        {"storage": {"size": "1Gi"}},
        {"storage": {"size": "3072Mi"}},
        {"storage": {"storageClassName": "fast"}},
        {"implementation": "rocketmq"},
        {"replicas": 5},
    ):
        await peer.call("PATCH", f"{GROUPS}/h", {"spec": spec}, content_type=MERGE)


def state(**record: Any) -> dict[str, Any]:
    return {
        "apiVersion": "brokergroup.dev/v1alpha1",
        "kind": "BrokerGroupState",
        "metadata": {"name": "g"},
        "record": {"clusterName": "c", "brokerName": "b", **record},
    }


async def broker_group_states(peer: Peer) -> None:
    replicas = [
        {
            "brokerId": number,
            "registerCheckCode": code,
            "address": f"10.0.0.{number}:10911",
            "reservedFor": f"g-{number}",
        }
        for number, code in ((1, "a"), (2, ""))
    ]
    record: dict[str, Any] = {
        "nextBrokerId": 3,
        "replicas": replicas,
        "masterBrokerId": 1,
        "masterEpoch": 4,
        "syncStateSet": [1],
        "syncStateSetEpoch": 7,
    }
    await peer.call("POST", STATES, state(**{**record, "masterBrokerId": 2}))
    await peer.call("POST", STATES, state(**{**record, "nextBrokerId": 2}))
    await peer.call("POST", STATES, state(**{**record, "syncStateSet": [1, 1]}))
    await peer.call("POST", STATES, state(**record))
    for change in (
        {"nextBrokerId": 2},
        {"masterEpoch": 3},
        {"syncStateSetEpoch": 6},
        {"masterBrokerId": 2, "syncStateSet": [1, 2]},
        {"masterBrokerId": 2, "syncStateSet": [2], "masterEpoch": 5},
        {"replicas": [{**replicas[0], "registerCheckCode": "z"}, replicas[1]]},
        {"replicas": [replicas[0], {**replicas[1], "registerCheckCode": "b"}]},
        {"clusterName": "other"},
        {"masterBrokerId": None},
        {"replicas": []},
        {"masterEpoch": "5"},
    ):
        await peer.call("PATCH", f"{STATES}/g", {"record": change}, content_type=MERGE)
    current = await peer.call("GET", f"{STATES}/g")
    current["record"]["syncStateSet"] = [1]
    await peer.call("PUT", f"{STATES}/g", current)
    await peer.call("PUT", f"{STATES}/g", current)


async def lists_and_collections(peer: Peer) -> None:
    for name in ("a", "b", "c", "d"):
        body = thing(name)
        body["metadata"]["labels"] = {"odd": "yes" if name in "ac" else "no"}
        await peer.call("POST", THINGS, body)
    page = await peer.call("GET", THINGS, limit="3", only=names_and_remaining)
    more = page["metadata"]["continue"]
    await peer.call("GET", THINGS, only=names_and_remaining, limit="3", **{"continue": more})
    peer.said[-1] = ("the second page", *peer.said[-1][1:])
    await peer.call("GET", THINGS, only=reason, **{"continue": "nonsense"})
    await peer.call("GET", THINGS, only=reason, labelSelector="a b")
    await peer.call("GET", THINGS, only=reason, fieldSelector="spec.mode=Small")
    await peer.call("GET", THINGS, only=names_and_remaining, labelSelector="odd in (yes),nothing notin (x)")
    await peer.call("GET", THINGS, only=names_and_remaining, fieldSelector="metadata.name!=a")
    await peer.call(
        "GET",
        "/apis/example.dev/v1/things",
        only=names_and_remaining,
        fieldSelector=f"metadata.namespace={peer.namespace}",
    )
    await peer.call("DELETE", THINGS, only=names_and_remaining, labelSelector="odd=yes")
    await peer.call("GET", THINGS, only=names_and_remaining)
    await peer.call("DELETE", THINGS, only=names_and_remaining)
    await peer.call("GET", THINGS, only=names_and_remaining)


def names_and_remaining(answer: dict[str, Any]) -> Any:
    names = [item["metadata"]["name"] for item in answer["items"]]
    return names, answer["metadata"].get("remainingItemCount"), answer["kind"]


async def scale(peer: Peer) -> None:
    await peer.call("POST", THINGS, thing())
    shown = await peer.call("GET", f"{THINGS}/one/scale")
    stale = copy.deepcopy(shown)
    shown["spec"]["replicas"] = 6
    await peer.call("PUT", f"{THINGS}/one/scale", shown)
    await peer.call("PUT", f"{THINGS}/one/scale", stale)
    await peer.call("PATCH", f"{THINGS}/one/scale", {"spec": {"replicas": 7}}, content_type=MERGE)
    await peer.call("PATCH", f"{THINGS}/one/scale", {"spec": {"replicas": 99}}, content_type=MERGE)
    await peer.call("GET", f"{THINGS}/one")


async def tables(peer: Peer) -> None:
    """What `kubectl get` prints."""
    await peer.call("POST", THINGS, thing())
    status = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await peer.call("PATCH", f"{THINGS}/one/status", status, content_type=MERGE)
    await peer.call("POST", GROUPS, group())
    await peer.call("POST", f"{CORE}/pods", pod())
    running = {
        "status": {
            "phase": "Running",
            "podIP": "10.1.1.1",
            "containerStatuses": [
                {
                    "name": "c",
                    "ready": True,
                    "restartCount": 2,
                    "image": "x",
                    "imageID": "x",
                    "state": {"running": {"startedAt": "2026-11-20T00:00:00Z"}},
                    "lastState": {
                        "terminated": {"exitCode": 137, "reason": "Error", "finishedAt": "2026-11-20T00:00:00Z"}
                    },
                }
            ],
        }
    }
    await peer.call("PATCH", f"{CORE}/pods/p/status", running, content_type=STRATEGIC)
    await peer.call("POST", f"{CORE}/pods", pod("waiting"))
    waiting = {"name": "c", "ready": False, "restartCount": 0, "image": "x", "imageID": ""}
    waiting["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}  # type: ignore[assignment]
    crashing = {"status": {"containerStatuses": [waiting]}}
    await peer.call("PATCH", f"{CORE}/pods/waiting/status", crashing, content_type=STRATEGIC)
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    await peer.call("POST", f"{CORE}/services", {**service, "spec": {"clusterIP": "None", "ports": [{"port": 80}]}})
    await peer.call("POST", f"{CORE}/configmaps", {"metadata": {"name": "c"}, "data": {"a": "b"}})
    claim_spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await peer.call("POST", f"{CORE}/persistentvolumeclaims", {"metadata": {"name": "v"}, "spec": claim_spec})
    event = {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": peer.namespace},
        "reason": "Killing",
        "message": "text",
        "type": "Normal",
        "source": {"component": "here"},
        "count": 3,
        "firstTimestamp": "2026-11-20T00:00:00Z",
        "lastTimestamp": "2026-11-20T00:00:00Z",
    }
    await peer.call("POST", f"{CORE}/events", event)
    node = {"metadata": {"name": peer.namespace, "labels": {"node-role.kubernetes.io/worker": ""}}}
    await peer.call("POST", "/api/v1/nodes", node)
    conditions = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await peer.call("PATCH", "/api/v1/nodes/{ns}/status", conditions, content_type=STRATEGIC)
    others: list[tuple[str, str, dict[str, Any]]] = [
        ("api/v1", "secrets", {"stringData": {"a": "b"}}),
        ("api/v1", "serviceaccounts", {}),
        ("api/v1", "endpoints", {"subsets": [{"addresses": [{"ip": "10.1.1.1"}], "ports": [{"port": 80}]}]}),
        ("apis/coordination.k8s.io/v1", "leases", {"spec": {"holderIdentity": "me"}}),
        ("apis/policy/v1", "poddisruptionbudgets", {"spec": {"maxUnavailable": 1}}),
        ("apis/networking.k8s.io/v1", "networkpolicies", {"spec": {"podSelector": {"matchLabels": {"a": "b"}}}}),
        ("apis/rbac.authorization.k8s.io/v1", "roles", {}),
        (
            "apis/rbac.authorization.k8s.io/v1",
            "rolebindings",
            {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}},
        ),
    ]
    for prefix, plural, content in others:
        await peer.call("POST", f"/{prefix}/namespaces/{{ns}}/{plural}", {"metadata": {"name": "x"}, **content})
    peer.said.clear()
    core = ("pods", "services", "configmaps", "persistentvolumeclaims", "events")
    definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.example.dev"
    paths = [THINGS, GROUPS, *(f"{CORE}/{plural}" for plural in core), "/api/v1/nodes/{ns}", "/api/v1/namespaces/{ns}"]
    paths += [f"/{prefix}/namespaces/{{ns}}/{plural}" for prefix, plural, _ in others]
    paths += ["/apis/events.k8s.io/v1/namespaces/{ns}/events", definition]
    for path in paths:
        await peer.call("GET", path, accept=TABLE, only=shown_table)


def shown_table(table: dict[str, Any]) -> Any:
    """Names, types and priorities of the columns, and the cells without ages."""
    columns = [(column["name"], column["type"], column["priority"]) for column in table["columnDefinitions"]]
    rows = [
        [_AGE.sub("AGE", cell) if isinstance(cell, str) else cell for cell in row["cells"]] for row in table["rows"]
    ]
    return columns, sorted(rows, key=str)


async def watches(peer: Peer) -> None:
    """What a watch tells, from a list on and from the beginning."""
    listed = await peer.call("GET", THINGS)
    since = listed["metadata"]["resourceVersion"]
    await peer.call("POST", THINGS, thing())
    await peer.call("PATCH", f"{THINGS}/one", {"metadata": {"labels": {"in": "yes"}}}, content_type=MERGE)
    await peer.call("PATCH", f"{THINGS}/one", {"spec": {"replicas": 4}}, content_type=MERGE)
    await peer.call("PATCH", f"{THINGS}/one", {"metadata": {"labels": {"in": "no"}}}, content_type=MERGE)
    await peer.call("DELETE", f"{THINGS}/one")
    await peer.call("POST", THINGS, thing("two"))
    held = {"metadata": {"finalizers": ["example.dev/a"]}}
    await peer.call("PATCH", f"{THINGS}/two", held, content_type=MERGE)
    await peer.call("DELETE", f"{THINGS}/two")
    await peer.call("PATCH", f"{THINGS}/two", {"metadata": {"finalizers": None}}, content_type=MERGE)
    await peer.call("POST", THINGS, thing("two"))
    for query in (
        {"resourceVersion": since},
        {"resourceVersion": since, "labelSelector": "in=yes"},
        {"resourceVersion": since, "fieldSelector": "metadata.name=two"},
        {},
        {"sendInitialEvents": "true", "allowWatchBookmarks": "true", "resourceVersionMatch": "NotOlderThan"},
    ):
        await peer.watch(THINGS, **query)


Conversation = Callable[[Peer], Awaitable[None]]
CONVERSATIONS: list[Conversation] = [
    life_of_a_custom_object,
    status_is_apart,
    complaints_about_custom_objects,
    transition_rules,
    patches,
    finalizers,
    server_side_apply,
    life_of_a_pod,
    other_core_kinds,
    leases_budgets_policies_and_events,
    applying_built_in_kinds,
    the_definition,
    broker_groups,
    broker_group_states,
    lists_and_collections,
    scale,
    tables,
    watches,
]


async def _prepare(peer: Peer) -> None:
    """The kinds and a namespace of the test's own."""
    definitions = [THING_DEFINITION, *(yaml.safe_load(path.read_text()) for path in sorted(CRDS.glob("*.yaml")))]
    for definition in definitions:
        name = definition["metadata"]["name"]
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
        answer = await peer.call("PATCH", path, definition, content_type=APPLY, fieldManager="test", force="true")
        assert answer.get("kind") == "CustomResourceDefinition", answer
        spec = definition["spec"]
        served = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        while (await peer.call("GET", served)).get("kind") == "Status":  # the real one registers it a moment later
            pass
    await peer.call("POST", "/api/v1/namespaces", {"metadata": {"name": peer.namespace}})
    peer.said.clear()


@pytest.fixture
async def peers(kube_apiserver: KubeApiserver) -> AsyncIterator[tuple[Peer, Peer]]:
    """The sandbox and the real one, with the same kinds and a namespace of the same name."""
    namespace = f"compare-{uuid.uuid4().hex[:8]}"
    sandbox = SandboxApiServer()
    await sandbox.start()
    context = ssl.create_default_context(cafile=str(kube_apiserver.ca_file))
    headers = {"Authorization": f"Bearer {kube_apiserver.token}"}
    async with (
        aiohttp.ClientSession() as plain,
        aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=context)) as secured,
    ):
        ours, real = Peer(sandbox.url, namespace, plain), Peer(kube_apiserver.url, namespace, secured)
        for peer in (ours, real):
            await _prepare(peer)
        yield ours, real
    await sandbox.stop()


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda conversation: conversation.__name__)
async def test_both_say_the_same(peers: tuple[Peer, Peer], conversation: Conversation) -> None:
    ours, real = peers
    await conversation(ours)
    await conversation(real)
    assert len(ours.said) == len(real.said) > 0
    for ours_said, real_said in zip(ours.said, real.said, strict=True):
        assert ours_said == real_said

"""One of two API servers and everything it said, and what the conversations send it.

An answer is recorded with what must differ between any two servers taken out (uids, times, the counter of versions), and so is
what the sandbox leaves to a real cluster by decision, each with its reason beside it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import partialmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import aiohttp


TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
AGE = re.compile(r"\b\d+[smhdy](\d+[smhd])?\b")
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
            text = re.sub(r"(ResourceVersion in record )\(\d+\)", r"\1(N)", text)
            text = re.sub(r"(Invalid value: ).*(strict decoding error)", r"\1\2", text, flags=re.DOTALL)
            text = re.sub(r"(Forbidden: pod updates may not change.*?negative\)).*", r"\1", text, flags=re.DOTALL)
            text = re.sub(r"(spec is immutable after creation.*?claims).*", r"\1", text, flags=re.DOTALL)
        return text
    return value


def _tidied_object(kept: dict[str, Any], key: str) -> dict[str, Any]:
    """Go writes some zero values as null: they are gone already. Each step here has its reason beside it."""
    if key == "details" and "causes" in kept:  # the real one finds some things twice
        kept["causes"] = list({json.dumps(cause, sort_keys=True): cause for cause in kept["causes"]}.values())
    kept.pop("qosClass", None)  # no kubelet evicts pods by it here
    for entry in kept.get("managedFields", ()):
        entry.pop("time", None)  # the real one leaves it out for the scale subresource
    if "managedFields" in kept:  # sorted by time, which is the same second or not
        kept["managedFields"].sort(key=lambda entry: json.dumps(entry, sort_keys=True))
    for address in ("clusterIP", "clusterIPs"):  # the sandbox hands out addresses that nothing routes
        if kept.get(address) not in (None, "None", ["None"]):
            kept[address] = "an address"
    return kept


def shape_of(method: str, path: str, content_type: str = "") -> str:
    """Return a request's kind regardless of its object: verb, plural, subresource, and the kind of patch."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    what = rest[0] if len(rest) < 3 else f"{rest[0]}/{rest[2]}"
    if method in ("GET", "DELETE"):
        what += " one" if len(rest) > 1 else " all"
    return f"{method} {what}" + (f" {content_type.partition('/')[2]}" if method == "PATCH" else "")


@dataclass
class Peer:
    """One of the two servers, and everything it said."""

    url: str
    namespace: str
    session: aiohttp.ClientSession
    said: list[tuple[str, int, Any]] = field(default_factory=list)
    shapes: set[str] = field(default_factory=set)

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
        self.shapes.add(shape_of(method, target, content_type))
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

    get = partialmethod(call, "GET")
    post = partialmethod(call, "POST")
    put = partialmethod(call, "PUT")
    delete = partialmethod(call, "DELETE")
    merge = partialmethod(call, "PATCH", content_type=MERGE)
    json_patch = partialmethod(call, "PATCH", content_type=JSON_PATCH)
    strategic = partialmethod(call, "PATCH", content_type=STRATEGIC)
    apply = partialmethod(call, "PATCH", content_type=APPLY)

    async def watch(self, path: str, **query: str) -> None:
        """Record a watch's events over one second, without ordinary bookmarks, whose time is not guaranteed."""
        self.shapes.add(shape_of("WATCH", path))
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


THINGS = "/apis/example.dev/v1/namespaces/{ns}/things"
CORE = "/api/v1/namespaces/{ns}"
GROUPS = "/apis/brokergroup.dev/v1beta1/namespaces/{ns}/brokergroups"
STATES = "/apis/brokergroup.dev/v1beta1/namespaces/{ns}/brokergroupstates"
CLUSTERS = "/apis/brokergroup.dev/v1beta1/namespaces/{ns}/rocketmqclusters"
OPERATIONS = "/apis/brokergroup.dev/v1beta1/namespaces/{ns}/brokergroupoperations"


def thing(name: str = "one", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "example.dev/v1",
        "kind": "Thing",
        "metadata": {"name": name},
        "spec": {"mode": "Small", **spec},
    }


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


def group(name: str = "g", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "brokergroup.dev/v1beta1",
        "kind": "BrokerGroup",
        "metadata": {"name": name},
        "spec": {"implementation": "Python", **spec},
    }


def state(**record: Any) -> dict[str, Any]:
    return {
        "apiVersion": "brokergroup.dev/v1beta1",
        "kind": "BrokerGroupState",
        "metadata": {"name": "g"},
        "record": {"clusterName": "c", "brokerName": "b", **record},
    }


def reason(answer: dict[str, Any]) -> Any:
    return answer.get("reason")


def cluster(name: str = "c", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "brokergroup.dev/v1beta1",
        "kind": "RocketMQCluster",
        "metadata": {"name": name},
        "spec": spec,
    }

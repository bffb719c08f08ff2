"""kubectl, unmodified, against the embedded API: apply with validation, get, -w, wait, describe, scale, patch, logs, delete."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from kube_sandbox.api_server.requests import Write
from tests.parity.peer import thing
from tests.real.parts.kubectl import Kubectl
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kube_sandbox.api_server.server import SandboxApiServer

pytestmark = pytest.mark.real("kube-apiserver")  # the part that brings kubectl

MANIFESTS = """
apiVersion: example.dev/v1
kind: Thing
metadata: {name: one}
spec: {mode: Small, config: {a: "1"}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {a: "1"}
---
apiVersion: v1
kind: Service
metadata: {name: front}
spec: {selector: {app: x}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: worker, labels: {app: x}}
spec:
  containers:
  - {name: main, image: "registry.example/main:1", ports: [{containerPort: 80}]}
"""


class Run:
    """kubectl beside the server's loop."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubectl = Kubectl(kubeconfig)

    async def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        return await asyncio.to_thread(self.kubectl.must, *arguments, stdin=stdin)

    async def refused(self, *arguments: str, stdin: str | None = None) -> str:
        done = await asyncio.to_thread(self.kubectl.run, *arguments, stdin=stdin)
        assert done.returncode != 0, done.stdout
        return done.stderr


@pytest.fixture
def kubectl(kubeconfig: Path) -> Run:
    return Run(kubeconfig)


async def test_apply_creates_patches_and_finds_nothing_to_do(kubectl: Run, server: SandboxApiServer) -> None:
    made = await kubectl("apply", "-f", "-", stdin=MANIFESTS)
    assert [line.rsplit(" ", 1)[1] for line in made.splitlines()] == ["created"] * 4
    changed = (
        MANIFESTS.replace('a: "1"', 'b: "2"')
        .replace("main:1", "main:2")
        .replace("mode: Small", "mode: Small, replicas: 5")
    )
    lines = (await kubectl("apply", "-f", "-", stdin=changed)).splitlines()
    assert lines == [
        "thing.example.dev/one configured",
        "configmap/settings configured",
        "service/front unchanged",
        "pod/worker configured",
    ]
    again = await kubectl("apply", "-f", "-", stdin=changed)
    assert [line.rsplit(" ", 1)[1] for line in again.splitlines()] == ["unchanged"] * 4
    one = server.store.get(server.store.resource("example.dev", "v1", "things"), "default", "one").obj
    assert one["spec"] == {"mode": "Small", "replicas": 5, "config": {"b": "2"}}
    await kubectl("delete", "-f", "-", stdin=changed)


async def test_validation_happens_on_the_server(kubectl: Run) -> None:
    odd = "{apiVersion: example.dev/v1, kind: Thing, metadata: {name: x}, spec: {mode: Small, odd: 1}}"
    assert 'strict decoding error: unknown field "spec.odd"' in await kubectl.refused("apply", "-f", "-", stdin=odd)
    wrong = odd.replace("odd: 1", "replicas: 99")
    assert "spec.replicas in body should be less than or equal to 9" in await kubectl.refused(
        "apply", "-f", "-", stdin=wrong
    )


async def test_server_side_apply_meets_conflicts(kubectl: Run) -> None:
    mine = "{apiVersion: example.dev/v1, kind: Thing, metadata: {name: x}, spec: {mode: Small, replicas: 3}}"
    theirs = mine.replace("replicas: 3", "replicas: 4")
    apply = ("apply", "--server-side", "-f", "-")
    assert "serverside-applied" in await kubectl(*apply, stdin=mine)
    told = await kubectl.refused(*apply, "--field-manager=other", stdin=theirs)
    assert 'Apply failed with 1 conflict: conflict with "kubectl": .spec.replicas' in told
    await kubectl(*apply, "--field-manager=other", "--force-conflicts", stdin=theirs)
    assert await kubectl("get", "thing", "x", "-o", "jsonpath={.spec.replicas}") == "4"


async def test_get_prints_columns_and_follows(kubectl: Run, server: SandboxApiServer) -> None:
    store, things = server.store, server.store.resource("example.dev", "v1", "things")
    store.create(things, "default", thing())
    header, row = (await kubectl("get", "th")).splitlines()
    assert header.split() == ["NAME", "REPLICAS", "READY", "AGE"]
    assert row.split()[:2] == ["one", "3"]
    assert "things.example.dev" in await kubectl("api-resources", "--categories=example", "-o", "name")

    collection = store.storage._collection(things.storage_key)
    following = asyncio.create_task(kubectl("get", "th", "-w", "--request-timeout=3s", "-o", "name"))
    await eventually(lambda: collection.watches)
    store.create(things, "default", thing("two"))
    store.delete(things, "default", "two")
    server.store.storage.close_watches()
    assert (await following).split() == ["thing.example.dev/one", "thing.example.dev/two", "thing.example.dev/two"]


async def test_wait_sees_conditions_and_deletion(kubectl: Run, server: SandboxApiServer) -> None:
    store, things = server.store, server.store.resource("example.dev", "v1", "things")
    store.create(things, "default", thing())
    collection = store.storage._collection(things.storage_key)
    ready = asyncio.create_task(kubectl("wait", "--for=condition=Ready", "th/one", "--timeout=20s"))
    await eventually(lambda: collection.watches)
    status = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    store.patch(things, "default", "one", status, Write(), subresource="status")
    assert "condition met" in await ready
    store.patch(things, "default", "one", {"metadata": {"finalizers": ["example.dev/x"]}}, Write())
    deletion = asyncio.create_task(kubectl("delete", "th", "one", "--timeout=20s"))
    await eventually(lambda: "deletionTimestamp" in store.get(things, "default", "one").obj["metadata"])
    await eventually(lambda: collection.watches)
    store.patch(things, "default", "one", {"metadata": {"finalizers": None}}, Write())
    assert "deleted" in await deletion


async def test_describe_scale_and_patch(kubectl: Run) -> None:
    await kubectl("apply", "-f", "-", stdin=MANIFESTS)
    assert "Mode:" in await kubectl("describe", "thing", "one")
    described = await kubectl("describe", "pod", "worker")
    assert "registry.example/main:1" in described
    assert "Selector:" in await kubectl("describe", "service", "front")
    await kubectl("scale", "thing", "one", "--replicas=6")
    await kubectl("patch", "thing", "one", "--type=merge", "-p", json.dumps({"spec": {"names": ["a"]}}))
    await kubectl("label", "thing", "one", "x=y")
    await kubectl("annotate", "thing", "one", "x=y")
    shown = json.loads(await kubectl("get", "thing", "-l", "x=y", "-o", "json"))["items"][0]
    assert (shown["spec"]["replicas"], shown["spec"]["names"]) == (6, ["a"])


async def test_logs_are_the_kubelets(kubectl: Run, server: SandboxApiServer) -> None:
    async def log(
        namespace: str, pod: str, container: str, tail_lines: int | None, follow: bool, /
    ) -> AsyncIterator[bytes]:
        yield f"{pod} {container} {tail_lines} {follow}\n".encode()

    server.log_provider = log
    await kubectl("apply", "-f", "-", stdin=MANIFESTS)
    assert await kubectl("logs", "worker", "--tail=3") == "worker main 3 False\n"
    assert await kubectl("logs", "-f", "worker") == "worker main None True\n"


async def test_events_stand_in_describe(kubectl: Run, server: SandboxApiServer) -> None:
    store = server.store
    one = store.create(store.resource("example.dev", "v1", "things"), "default", thing()).obj
    event = {
        "metadata": {"name": "one.1"},
        "involvedObject": {
            "apiVersion": "example.dev/v1",
            "kind": "Thing",
            "name": "one",
            "namespace": "default",
            "uid": one["metadata"]["uid"],
        },
        "reason": "MasterElected",
        "message": "epoch 3",
        "type": "Normal",
        "source": {"component": "example.dev/operator"},
        "lastTimestamp": "2026-11-20T00:00:00Z",
    }
    store.create(store.resource("", "v1", "events"), "default", event)
    described = await kubectl("describe", "thing", "one")
    assert "MasterElected" in described
    assert "epoch 3" in described
    assert "MasterElected" in await kubectl("get", "events")
    assert "MasterElected" in await kubectl("events", "--for", "thing/one")

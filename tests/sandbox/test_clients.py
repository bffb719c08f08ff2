"""The clients this project builds on, unmodified: the official one (typed, dynamic, Lease), pykube, and an operator of kopf."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import kopf
import kubernetes.client
import kubernetes.config
import kubernetes.dynamic
import kubernetes.watch
import pykube
import pytest
from kubernetes.leaderelection import leaderelection
from kubernetes.leaderelection.electionconfig import Config
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock

from kube_sandbox.api_server.kinds.builtin import PODS
from kube_sandbox.api_server.requests import Deletion, Selection, Write
from tests.parity.peer import thing
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kube_sandbox.api_server.server import SandboxApiServer


@pytest.fixture
def api_client(kubeconfig: Path) -> Any:
    return kubernetes.config.new_client_from_config(str(kubeconfig))


def name_of(item: kubernetes.client.V1ConfigMap | kubernetes.client.V1Namespace) -> str | None:
    assert item.metadata is not None
    return item.metadata.name


async def test_the_typed_client_creates_reads_and_conflicts(api_client: Any) -> None:
    def use() -> None:
        core = kubernetes.client.CoreV1Api(api_client)
        meta = kubernetes.client.V1ObjectMeta(name="c")
        made = core.create_namespaced_config_map(
            "default", kubernetes.client.V1ConfigMap(metadata=meta, data={"a": "1"})
        )
        assert made.data is not None
        made.data["a"] = "2"
        stale = kubernetes.client.V1ConfigMap(metadata=made.metadata, data={"a": "3"})
        core.replace_namespaced_config_map("c", "default", made)
        with pytest.raises(kubernetes.client.ApiException) as caught:
            core.replace_namespaced_config_map("c", "default", stale)
        assert caught.value.status == 409
        assert [name_of(item) for item in core.list_namespaced_config_map("default").items] == ["c"]
        assert name_of(core.list_namespace().items[0]) == "default"

    await asyncio.to_thread(use)


async def test_the_typed_client_watches(server: SandboxApiServer, api_client: Any) -> None:

    def watch() -> list[tuple[str, str]]:
        core, seen = kubernetes.client.CoreV1Api(api_client), []
        stream = kubernetes.watch.Watch()
        for event in stream.stream(core.list_namespaced_pod, "default", timeout_seconds=10):
            seen.append((event["type"], event["object"].metadata.name))
            if event["type"] == "DELETED":
                stream.stop()
        return seen

    server.store.create(
        PODS, "default", {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    )
    watching = asyncio.create_task(asyncio.to_thread(watch))
    while not server.store.storage._collection(PODS.storage_key).watches:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    server.store.delete(PODS, "default", "p", Deletion(grace_period_seconds=0))
    assert await watching == [("ADDED", "p"), ("DELETED", "p")]


async def test_the_dynamic_client_applies_server_side(api_client: Any) -> None:
    def use() -> None:
        dynamic = kubernetes.dynamic.DynamicClient(api_client)
        things = dynamic.resources.get(api_version="example.dev/v1", kind="Thing")

        def apply(manager: str, replicas: int, *, force: bool = False) -> Any:
            body = thing(replicas=replicas)
            return dynamic.server_side_apply(
                things, body=body, namespace="default", name="one", field_manager=manager, force_conflicts=force
            )

        assert apply("alice", 3).spec.replicas == 3
        with pytest.raises(kubernetes.dynamic.exceptions.ConflictError) as caught:
            apply("bob", 4)
        assert 'conflict with \\"alice\\"' in (caught.value.body or "")
        assert apply("bob", 4, force=True).spec.replicas == 4
        assert things.get(namespace="default", name="one").metadata.managedFields[-1].manager == "bob"
        assert (
            things.status.patch(
                namespace="default",
                name="one",
                body={"status": {"replicas": 2}},
                content_type="application/merge-patch+json",
            ).status.replicas
            == 2
        )

    await asyncio.to_thread(use)


async def test_the_official_lease_lock_is_taken_and_lost(server: SandboxApiServer, api_client: Any) -> None:
    leading = threading.Event()
    lock = LeaseLock("lock", "default", "me")
    lock.api_instance = kubernetes.client.CoordinationV1Api(api_client)
    config = Config(
        lock,
        lease_duration=4,
        renew_deadline=2,
        retry_period=1,
        onstarted_leading=leading.set,
        onstopped_leading=lambda: None,
    )
    election = asyncio.create_task(asyncio.to_thread(leaderelection.LeaderElection(config).run))
    assert await asyncio.to_thread(leading.wait, 10)
    leases = server.store.resource("coordination.k8s.io", "v1", "leases")
    held = server.store.get(leases, "default", "lock").obj
    assert held["spec"]["holderIdentity"] == "me"
    stolen = {
        "spec": {"holderIdentity": "other", "leaseDurationSeconds": 600, "renewTime": "2099-01-01T00:00:00.000000Z"}
    }
    server.store.patch(leases, "default", "lock", stolen, Write())
    async with asyncio.timeout(20):
        await election
    assert server.store.get(leases, "default", "lock").obj["spec"]["holderIdentity"] == "other"


async def test_pykube_creates_lists_patches_and_meets_conflicts(server: SandboxApiServer) -> None:
    class Thing(pykube.objects.NamespacedAPIObject):
        version = "example.dev/v1"
        endpoint = "things"
        kind = "Thing"

    def use() -> None:
        api = pykube.HTTPClient(pykube.KubeConfig.from_url(server.url))
        Thing(api, {**thing(), "metadata": {"name": "one", "namespace": "default"}}).create()
        found = Thing.objects(api, namespace="default").get(name="one")
        stale = Thing.objects(api, namespace="default").get(name="one")
        found.patch({"spec": {"replicas": 5}})
        assert found.obj["spec"]["replicas"] == 5
        found.patch({"status": {"replicas": 2}}, subresource="status")
        stale.obj["spec"]["replicas"] = 6
        stale.obj["metadata"]["labels"] = {"a": "b"}
        with pytest.raises(pykube.exceptions.HTTPError) as caught:
            stale.update(is_strategic=False)
        assert caught.value.code == 409
        found.delete()
        assert not list(Thing.objects(api, namespace="default"))

    await asyncio.to_thread(use)
    things = server.store.resource("example.dev", "v1", "things")
    server.store.create(things, "default", thing("again"), Write())


def _make_registry(url: str) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=url)

    @kopf.on.create("example.dev", "v1", "things", registry=registry)
    def create(body: kopf.Body, spec: kopf.Spec, **_: Any) -> dict[str, Any]:
        kopf.info(body, reason="ThingCreated", message=f"mode {spec['mode']}")
        return {"seen": True}

    @kopf.on.update("example.dev", "v1", "things", registry=registry)
    def update(patch: kopf.Patch, spec: kopf.Spec, **_: Any) -> None:
        patch.status["replicas"] = spec["replicas"]

    @kopf.on.delete("example.dev", "v1", "things", registry=registry)
    def delete(**_: Any) -> None:
        pass

    return registry


@pytest.fixture(params=["one namespace", "all namespaces"])
async def operator(server: SandboxApiServer, request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """A kopf operator in its own thread and loop: kopf cancels whatever else runs in its loop when it ends."""
    settings = kopf.OperatorSettings()
    settings.persistence.finalizer = "example.dev/finalizer"
    settings.posting.enabled = True
    settings.posting.level = 20
    settings.networking.request_timeout = 10
    scope: dict[str, Any] = {"clusterwide": True} if request.param == "all namespaces" else {"namespaces": ["default"]}
    stop, ready = threading.Event(), threading.Event()
    registry = _make_registry(server.url)

    def run() -> None:
        asyncio.run(
            kopf.operator(
                registry=registry, settings=settings, standalone=True, stop_flag=stop, ready_flag=ready, **scope
            )
        )

    thread = threading.Thread(target=run, name="kopf")
    thread.start()
    assert await asyncio.to_thread(ready.wait, 20)
    yield
    stop.set()
    await asyncio.to_thread(thread.join, 20)
    assert not thread.is_alive()


@pytest.mark.usefixtures("operator")
async def test_a_kopf_operator_handles_the_life_of_an_object(server: SandboxApiServer) -> None:
    store = server.store
    things = store.resource("example.dev", "v1", "things")
    store.create(things, "default", thing())

    def now() -> dict[str, Any]:
        return store.get(things, "default", "one").obj

    await eventually(lambda: "example.dev/finalizer" in now()["metadata"].get("finalizers", ()))
    await eventually(lambda: "kopf.zalando.org/last-handled-configuration" in now()["metadata"].get("annotations", {}))
    changed = {**now(), "spec": {**now()["spec"], "replicas": 5}}
    store.update(things, "default", "one", changed)
    await eventually(lambda: now().get("status", {}).get("replicas") == 5)

    events = store.resource("", "v1", "events")
    about = Selection("default", field_selector="involvedObject.name=one,reason=ThingCreated")
    found = await eventually(lambda: store.list_objects(events, about).items)
    assert found[0].obj["message"] == "mode Small"

    _, gone = store.delete(things, "default", "one")
    assert not gone, "the operator's finalizer holds it"
    await eventually(lambda: store.storage.get(things.storage_key, ("default", "one")) is None)

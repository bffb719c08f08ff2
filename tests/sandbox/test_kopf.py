"""An unmodified kopf operator against the embedded API: what kmock could not do."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import kopf
import pytest

from kube_sandbox.api_server.requests import Selection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kube_sandbox.api_server.server import SandboxApiServer


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
async def test_a_kopf_operator_handles_the_life_of_an_object(server: SandboxApiServer, thing: Any, until: Any) -> None:
    store = server.store
    things = store.resource("example.dev", "v1", "things")
    store.create(things, "default", thing())

    def now() -> dict[str, Any]:
        return store.get(things, "default", "one").obj

    await until(lambda: "example.dev/finalizer" in now()["metadata"].get("finalizers", ()))
    await until(lambda: "kopf.zalando.org/last-handled-configuration" in now()["metadata"].get("annotations", {}))
    changed = {**now(), "spec": {**now()["spec"], "replicas": 5}}
    store.update(things, "default", "one", changed)
    await until(lambda: now().get("status", {}).get("replicas") == 5)

    events = store.resource("", "v1", "events")
    about = Selection("default", field_selector="involvedObject.name=one,reason=ThingCreated")
    found = await until(lambda: store.list_objects(events, about).items)
    assert found[0].obj["message"] == "mode Small"

    _, gone = store.delete(things, "default", "one")
    assert not gone, "the operator's finalizer holds it"
    await until(lambda: store.storage.get(things.storage_key, ("default", "one")) is None)

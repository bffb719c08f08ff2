"""The HTTP layer as a plain client sees it, and ``python -m kube_sandbox`` as the tests of another operator use it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from kube_sandbox.api_server.errors import StatusError
from kube_sandbox.api_server.kinds.builtin import CUSTOM_RESOURCE_DEFINITIONS, PODS
from kube_sandbox.api_server.requests import Write
from kube_sandbox.api_server.server import SandboxApiServer
from kube_sandbox.client import PODS as POD_KIND
from kube_sandbox.client import ApiError, KubeClient, Resource
from kube_sandbox.kubelet.process import kill_leftovers
from tests.parity.peer import thing
from tests.real.parts import install
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import web


THINGS = "/apis/example.dev/v1/namespaces/default/things"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


@pytest.fixture
async def http(server: SandboxApiServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url, timeout=aiohttp.ClientTimeout(total=20)) as session:
        yield session


async def _answer(request: Any) -> tuple[int, Any]:
    async with request as response:
        return response.status, await response.json()


class Lines:
    """A watch being read, event by event."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def next(self) -> dict[str, Any] | None:
        async with asyncio.timeout(10):
            line = await self.response.content.readline()
        return json.loads(line) if line else None

    async def told(self) -> tuple[str, str]:
        event = await self.next()
        assert event is not None
        return event["type"], event["object"]["metadata"].get("name", "")


async def test_statuses_are_shaped_as_clients_expect(http: aiohttp.ClientSession) -> None:
    status, body = await _answer(http.get(f"{THINGS}/nobody"))
    assert status == 404
    assert body == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'things.example.dev "nobody" not found',
        "reason": "NotFound",
        "details": {"name": "nobody", "group": "example.dev", "kind": "things"},
        "code": 404,
    }
    async with http.get("/apis/nowhere.dev/v1/things") as response:
        assert (response.status, await response.text()) == (404, "404 page not found\n")
    assert (await _answer(http.post(f"{THINGS}/one", json=thing())))[0] == 405
    assert (await _answer(http.post(THINGS, data=b"{nonsense")))[1]["reason"] == "BadRequest"
    assert (await _answer(http.get(THINGS, params={"watch": "1", "timeoutSeconds": "x"})))[1]["message"] == (
        "timeoutSeconds: expected a whole number, got 'x'"
    )
    assert (await _answer(http.patch(f"{THINGS}/one", data=b"{}", headers={"Content-Type": "text/plain"})))[0] == 415
    status, body = await _answer(http.post(THINGS, json=thing(mode="Odd")))
    assert (status, body["details"]["causes"][0]["field"]) == (422, "spec.mode")


async def test_a_watch_follows_from_a_list(server: SandboxApiServer, http: aiohttp.ClientSession) -> None:
    store, things = server.store, server.store.resource("example.dev", "v1", "things")
    store.create(things, "default", thing("a"))
    _, listed = await _answer(http.get(THINGS))
    since = listed["metadata"]["resourceVersion"]
    query = {"watch": "1", "resourceVersion": since, "allowWatchBookmarks": "true"}
    async with http.get(THINGS, params=query) as response:
        lines = Lines(response)
        store.create(things, "default", thing("b"))
        assert await lines.told() == ("ADDED", "b")
        store.delete(things, "default", "a")
        assert await lines.told() == ("DELETED", "a")
        bookmark = await lines.next()
        assert bookmark is not None
        assert bookmark["type"] == "BOOKMARK"
        assert bookmark["object"]["metadata"]["resourceVersion"] == str(store.storage.revision)
        assert bookmark["object"]["kind"] == "Thing"


@pytest.mark.parametrize("since", ["1", "1000000"])
async def test_a_watch_from_the_forgotten_past_or_an_unknown_future_is_told_410(
    server: SandboxApiServer, http: aiohttp.ClientSession, since: str
) -> None:
    server.store.storage.forget_past()
    async with http.get(THINGS, params={"watch": "1", "resourceVersion": since}) as response:
        lines = Lines(response)
        event = await lines.next()
        assert event is not None
        assert event["type"] == "ERROR"
        assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
        assert await lines.next() is None


async def test_a_watch_ends_at_its_timeout_and_when_the_server_says_so(
    server: SandboxApiServer, http: aiohttp.ClientSession
) -> None:
    async with http.get(THINGS, params={"watch": "1", "timeoutSeconds": "1"}) as response:
        assert await Lines(response).next() is None
    async with http.get(THINGS, params={"watch": "1"}) as response:
        server.store.storage.close_watches()
        assert await Lines(response).next() is None


async def test_stopping_ends_watches_and_starting_again_keeps_objects(
    definition: dict[str, Any], tmp_path: Path
) -> None:
    first = SandboxApiServer()
    await first.start()
    first.store.create(CUSTOM_RESOURCE_DEFINITIONS, "", definition)
    first.store.create(first.store.resource("example.dev", "v1", "things"), "default", thing())
    async with aiohttp.ClientSession(first.url) as http, http.get(THINGS, params={"watch": "1"}) as response:
        lines = Lines(response)
        assert await lines.told() == ("ADDED", "one")
        await first.stop()
        assert await lines.next() is None
    await first.start()
    try:
        async with aiohttp.ClientSession(first.url) as http:
            assert (await _answer(http.get(f"{THINGS}/one")))[0] == 200
    finally:
        await first.stop()


async def test_tables_for_people(server: SandboxApiServer, http: aiohttp.ClientSession) -> None:
    store, things = server.store, server.store.resource("example.dev", "v1", "things")
    store.create(things, "default", thing())
    status = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    store.patch(things, "default", "one", status, Write(), subresource="status")
    _, table = await _answer(http.get(THINGS, headers={"Accept": TABLE}))
    assert table["kind"] == "Table"
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Replicas", "Ready", "Age"]
    assert table["rows"][0]["cells"][:3] == ["one", 3, "True"]
    assert table["rows"][0]["object"]["metadata"]["name"] == "one"
    async with http.get(THINGS, params={"watch": "1"}, headers={"Accept": TABLE}) as response:
        lines = Lines(response)
        await lines.next()
        store.patch(things, "default", "one", {"spec": {"replicas": 5}}, Write())
        changed = await lines.next()
        assert changed is not None
        assert changed["object"]["columnDefinitions"] == table["columnDefinitions"]
        assert changed["object"]["rows"][0]["cells"][1] == 5


async def test_logs_come_from_whoever_has_them(server: SandboxApiServer, http: aiohttp.ClientSession) -> None:
    containers = [{"name": name, "image": "x"} for name in ("a", "b")]
    server.store.create(PODS, "default", {"metadata": {"name": "p"}, "spec": {"containers": containers}})

    async def log(
        namespace: str, pod: str, container: str, tail_lines: int | None, follow: bool, /
    ) -> AsyncIterator[bytes]:
        yield f"{namespace}/{pod}/{container} {tail_lines} {follow}\n".encode()
        yield b"the end\n"

    server.log_provider = log
    url = "/api/v1/namespaces/default/pods/p/log"
    async with http.get(url, params={"container": "b", "tailLines": "5", "follow": "true"}) as response:
        assert await response.text() == "default/p/b 5 True\nthe end\n"
    status, body = await _answer(http.get(url))
    assert status == 400
    assert body["message"] == "a container name must be specified for pod p, choose one of: [a b]"
    assert (await _answer(http.get(url, params={"container": "z"})))[0] == 400


async def test_tests_can_make_the_api_fail(server: SandboxApiServer, http: aiohttp.ClientSession) -> None:
    asked: list[str] = []

    async def refuse_writes(request: web.BaseRequest) -> None:
        asked.append(request.method)
        if request.method == "POST":
            raise StatusError(503, "ServiceUnavailable", "not now")

    server.before_request = refuse_writes
    assert (await _answer(http.post(THINGS, json=thing())))[0] == 503
    assert (await _answer(http.get(THINGS)))[0] == 200
    assert asked == ["POST", "GET"]


async def test_what_the_api_tells_about_itself(http: aiohttp.ClientSession) -> None:
    assert (await _answer(http.get("/version")))[1]["minor"] == "35"
    async with http.get("/readyz") as response:
        assert await response.text() == "ok"
    _, groups = await _answer(http.get("/apis"))
    assert "example.dev" in {group["name"] for group in groups["groups"]}
    _, resources = await _answer(http.get("/apis/example.dev/v1"))
    assert [entry["name"] for entry in resources["resources"]] == ["things", "things/status", "things/scale"]
    _, index = await _answer(http.get("/openapi/v3"))
    _, document = await _answer(http.get(index["paths"]["apis/example.dev/v1"]["serverRelativeURL"]))
    parameters = document["paths"]["/apis/example.dev/v1/namespaces/{namespace}/things/{name}"]["patch"]["parameters"]
    assert "fieldValidation" in {parameter["name"] for parameter in parameters}


ROOT = Path(__file__).parents[2]
KIND = Resource("example.dev", "v1", "things", "Thing")
AT_HOME = {"name": "one", "namespace": "default"}
DEADLINE_SECONDS = 120.0


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kube_sandbox", *arguments],
        # Its root alone: nothing of the operator is within its reach.
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        stderr=subprocess.PIPE,
        text=True,
    )


REAL = pytest.param("kube-apiserver", marks=pytest.mark.real("etcd", "kube-apiserver"))


@pytest.fixture(params=["embedded", REAL])
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[KubeClient]:
    data = tmp_path / "data"
    arguments = ["--data-dir", str(data), "--crds", str(Path(__file__).parent / "crds"), "--image", "hello:*"]
    if request.param == "kube-apiserver":
        programs = tmp_path / "programs"
        programs.mkdir()
        for program in (install.etcd_program(), install.kubernetes_folder() / "kube-apiserver"):
            (programs / program.name).symlink_to(program)
        arguments += ["--api-server", str(programs)]
    process = start(*arguments)
    try:

        async def ready() -> bool:
            assert process.poll() is None, process.communicate()[1]
            return (data / "kubeconfig").exists()

        await eventually(ready, within_seconds=DEADLINE_SECONDS)
        async with KubeClient.from_kubeconfig(data / "kubeconfig") as client:
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0
    assert kill_leftovers(data / "api") == [], "etcd and kube-apiserver ended with it"


async def test_a_kind_and_a_pod_that_are_not_ours(client: KubeClient) -> None:
    await client.create(KIND, {"metadata": AT_HOME, "spec": {"mode": "Small"}})
    (thing,), _ = await client.list(KIND)
    assert thing["spec"] == {"mode": "Small", "replicas": 3}, "the default of its schema"
    with pytest.raises(ApiError, match="mode is immutable"):
        await client.patch(KIND, "one", {"spec": {"mode": "Big"}}, namespace="default")

    main = {"name": "main", "image": "hello:1", "command": ["sh", "-c", "echo hello; exec sleep 1000"]}
    await client.create(POD_KIND, {"metadata": AT_HOME, "spec": {"containers": [main]}})

    async def runs() -> int:
        found = await client.get(POD_KIND, "one", namespace="default")
        (status,) = found["status"].get("containerStatuses") or [{"state": {}}]
        return int(status["containerID"].removeprefix("process://")) if "running" in status["state"] else 0

    pid = await eventually(runs, within_seconds=DEADLINE_SECONDS)
    uid = (await client.get(POD_KIND, "one", namespace="default"))["metadata"]["uid"]
    await client.delete(POD_KIND, "one", namespace="default", grace_period_seconds=1, uid=uid)

    async def gone() -> bool:
        return not (await client.list(POD_KIND))[0]

    await eventually(gone, within_seconds=DEADLINE_SECONDS)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_options_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for arguments, says in (
        (["--data-dir", str(tmp_path / "file")], f"'{tmp_path / 'file'}'"),
        (["--data-dir", str(tmp_path), "--image", "a:*=/no/such"], "'/no/such' is no folder"),
        (["--data-dir", str(tmp_path), "--crds", str(tmp_path / "no")], f"'{tmp_path / 'no'}' is no folder"),
        (["--data-dir", str(tmp_path), "--api-server", str(tmp_path)], "expected the programs etcd, kube-apiserver"),
        ([], "--data-dir"),
    ):
        process = start(*arguments)
        error = process.communicate(timeout=DEADLINE_SECONDS)[1]
        assert (process.returncode, says in error, "Traceback" in error) == (2, True, False), error

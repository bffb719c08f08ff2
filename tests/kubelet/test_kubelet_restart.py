"""The kubelet may stop, start or die at any moment, and the API be down: it finds every leftover process, and its pods return."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.kube import ApiError, KubernetesApi
from brokergroup_operator.kube.resources import NODES, PODS
from kube_sandbox.api_server.server import SandboxApiServer
from kube_sandbox.client import KubeClient
from kube_sandbox.kubelet.files import FolderInUseError, read_container_pid
from kube_sandbox.kubelet.process import KUBELET_MARK, kill_leftovers
from tests.kubelet.node_under_test import NAMESPACE, Node, is_dead, is_ready, is_running, pod_object, state_of
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp.web import BaseRequest


ROOT = Path(__file__).parents[2]


async def test_a_restarted_kubelet_starts_its_pods_again_on_new_addresses(node: Node) -> None:
    uid, pid = await node.started("a")
    before = await node.until("a", is_ready)
    await node.restart()
    assert is_dead(pid)
    after = await node.until("a", lambda pod: is_ready(pod) and state_of(pod)["restartCount"] == 1)
    assert after["metadata"]["uid"] == uid
    assert after["status"]["podIP"] != before["status"]["podIP"]
    assert state_of(after)["lastState"]["terminated"]["exitCode"] == 128 + signal.SIGTERM


async def test_the_node_is_ready_until_its_kubelet_stops(node: Node) -> None:
    found = await node.api.get(NODES, "node-a")
    assert int(found["status"]["capacity"]["cpu"]) >= 1
    assert {entry["type"]: entry["status"] for entry in found["status"]["conditions"]} == {"Ready": "True"}
    await node.kubelet.stop()
    found = await node.api.get(NODES, "node-a")
    assert found["status"]["conditions"][0]["status"] == "False"


async def test_a_pod_that_is_over_is_not_run_again(node: Node) -> None:
    await node.create(pod_object("a", "echo once; exit 0", restartPolicy="Never"))
    await node.until("a", lambda pod: pod["status"]["phase"] == "Succeeded")
    await node.restart()
    await node.create(pod_object("b"))
    await node.until("b", is_ready)
    pod = await node.pod("a")
    assert pod is not None
    assert pod["status"]["phase"] == "Succeeded"
    assert node.output("a", start=0) == "once\n"
    assert node.output("a", start=1) == ""


async def test_pods_deleted_while_the_kubelet_was_away(node: Node) -> None:
    uid, _ = await node.started("a")
    await node.kubelet.stop()
    await node.delete("a")
    node.kubelet = node.new_kubelet()
    await node.kubelet.start()
    await node.until_gone("a", uid)


async def test_leftovers_are_found_by_their_mark_and_killed_and_no_others(tmp_path: Path) -> None:
    """Also a grandchild in its own session, which no list of process groups would show."""
    script = "setsid sleep 1000 & echo $!; exec sleep 1000"
    marked = subprocess.Popen(  # noqa: ASYNC220
        ["sh", "-c", script],
        env={**os.environ, KUBELET_MARK: str(tmp_path)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    other = subprocess.Popen(  # noqa: ASYNC220
        ["sleep", "1000"], env={**os.environ, KUBELET_MARK: str(tmp_path / "other")}, start_new_session=True
    )
    try:
        assert marked.stdout is not None
        grandchild = int(await asyncio.to_thread(marked.stdout.readline))
        killed = await asyncio.to_thread(kill_leftovers, tmp_path)
        assert sorted(killed) == sorted([marked.pid, grandchild])
        assert marked.wait() == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
        assert marked.stdout is not None
        marked.stdout.close()


def test_a_process_in_the_middle_of_its_exec_is_found_too(tmp_path: Path) -> None:
    """Its environment reads empty for that moment; one pass over /proc missed 11 of 300."""
    for attempt in range(60):
        folder = tmp_path / str(attempt)
        shell = subprocess.Popen(
            ["sh", "-c", "setsid sleep 1000 & echo $!; exec sleep 1000"],
            env={**os.environ, KUBELET_MARK: str(folder)},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert shell.stdout is not None
        with shell.stdout:
            grandchild = int(shell.stdout.readline())
            killed = kill_leftovers(folder)
        shell.kill()
        shell.wait()
        assert sorted(killed) == sorted([shell.pid, grandchild]), f"attempt {attempt}"


async def test_two_kubelets_on_one_data_folder_are_refused(node: Node) -> None:
    with pytest.raises(FolderInUseError, match=f"in use by process {os.getpid()} "):
        await node.new_kubelet().start()


async def test_pods_json_tells_the_process_ids(node: Node) -> None:
    await node.create(pod_object("a"))
    pod = await node.until("a", is_running)
    content = json.loads((node.data_dir / "pods.json").read_text())
    assert content["node"] == "node-a"
    (entry,) = content["pods"]
    assert (entry["name"], entry["podIP"]) == ("a", pod["status"]["podIP"])
    assert entry["containers"][0]["pid"] == node.pid("a")
    assert read_container_pid(node.data_dir, NAMESPACE, "a", "main") == node.pid("a")
    assert read_container_pid(node.data_dir, NAMESPACE, "b", "main") is None
    assert state_of(pod)["containerID"] == f"process://{node.pid('a')}"


async def test_a_kubelet_killed_outright_leaves_nothing_behind_after_its_next_start(node: Node, tmp_path: Path) -> None:
    """A kubelet in a process of its own, killed with SIGKILL while its pod runs; then the next one on the same folder."""
    await node.kubelet.stop()
    program = (
        "import asyncio, sys, pathlib\n"
        "from tests.kubelet.node_under_test import Node\n"
        "from kube_sandbox.client import KubeClient\n"
        "async def main():\n"
        "    kubeconfig, data_dir = map(pathlib.Path, sys.argv[1:])\n"
        "    async with KubeClient.from_kubeconfig(kubeconfig) as client:\n"
        "        node = Node(None, client, kubeconfig, data_dir)\n"
        "        await node.kubelet.start()\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    root = ROOT
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "operator")])}
    with (tmp_path / "kubelet.log").open("wb") as log:
        kubelet = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-c", program, str(node.kubeconfig), str(node.data_dir)],
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        await node.create(pod_object("a"))
        pod = await node.until("a", is_running)
        pid = int(state_of(pod)["containerID"].removeprefix("process://"))
    finally:
        kubelet.kill()
        kubelet.wait()
    assert not is_dead(pid)
    node.kubelet = node.new_kubelet()
    await node.kubelet.start()
    assert is_dead(pid)
    pod = await node.until("a", lambda pod: state_of(pod)["restartCount"] == 1 and is_running(pod))
    assert state_of(pod)["lastState"]["terminated"]["reason"] == "ContainerStatusUnknown"


class ApiThatGoesAway:
    """An embedded API that stops and comes back at the same address with the same objects, and a node on it."""

    node: Node

    def __init__(self) -> None:
        self.server = SandboxApiServer()

    async def leave(self) -> None:
        await self.server.stop()

    async def come_back(self) -> None:
        self.server = SandboxApiServer(port=self.server.port, store=self.server.store)
        await self.server.start()


@pytest.fixture
async def away(tmp_path: Path) -> AsyncIterator[ApiThatGoesAway]:
    away, kubeconfig = ApiThatGoesAway(), tmp_path / "kubeconfig"
    await away.server.start()
    away.server.write_kubeconfig(kubeconfig)
    async with KubernetesApi.from_kubeconfig(kubeconfig) as api, KubeClient.from_kubeconfig(kubeconfig) as client:
        away.node = Node(api, client, kubeconfig, tmp_path / "node")
        await away.node.kubelet.start()
        yield away
        await away.node.kubelet.stop()
    await away.server.stop()


async def test_a_container_that_dies_meanwhile_is_started_again_and_told_later(away: ApiThatGoesAway) -> None:
    node = away.node
    _, pid = await node.started("a")
    await away.leave()
    with pytest.raises(ApiError):
        await node.api.get(PODS, "a", namespace=NAMESPACE)
    os.kill(pid, signal.SIGKILL)

    await eventually(lambda: node.pid("a") not in (None, pid))
    await away.come_back()
    pod = await node.until("a", lambda pod: state_of(pod)["restartCount"] == 1 and is_running(pod))
    assert state_of(pod)["lastState"]["terminated"]["exitCode"] == 137


async def test_no_container_starts_before_its_address_is_in_the_api(away: ApiThatGoesAway) -> None:
    """Bound by hand while the kubelet's status posts are refused: it waits."""
    node = away.node

    def refuse(request: BaseRequest) -> None:
        if "/pods/" in request.path and request.path.endswith("/status"):
            raise ConnectionResetError("cut by the test")

    away.server.before_request = refuse
    await node.create(pod_object("a"))

    await node.until("a", lambda pod: pod["spec"].get("nodeName"))

    await eventually(lambda: any(worker.address is not None for worker in node.kubelet._workers.values()))
    assert node.pid("a") is None
    away.server.before_request = None
    pod = await node.until("a", is_ready)
    assert pod["status"]["podIP"]


async def test_a_deletion_meanwhile_is_carried_out_when_the_api_is_back(away: ApiThatGoesAway) -> None:
    node = away.node
    uid, pid = await node.started("a")
    await away.leave()
    away.server = SandboxApiServer(store=away.server.store)  # outside the kubelet's view
    await away.server.start()
    async with KubernetesApi.from_url(away.server.url) as elsewhere:
        await elsewhere.delete(PODS, "a", namespace=NAMESPACE)
    port = int(node.api.url.rpartition(":")[2])
    await away.server.stop()
    away.server = SandboxApiServer(port=port, store=away.server.store)
    await away.server.start()
    await node.until_gone("a", uid)
    assert is_dead(pid)

"""The sandbox as a whole: ready, logs, orderly end; and refusals of the machine, by which no pod and no process is lost."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import uvloop

from brokergroup_operator.kube import KubernetesApi
from brokergroup_operator.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, EVENTS, NODES, PODS
from kube_sandbox.client import ApiUnavailableError, KubeClient
from kube_sandbox.kubelet import Image, ImageCatalogue, network, process, process_kubelet
from kube_sandbox.kubelet.container import ProbeError, ProbeTarget, probe_once
from kube_sandbox.kubelet.files import NoSuchLogError
from kube_sandbox.kubelet.network import PodNetworkError
from kube_sandbox.kubelet.process import CONTAINER_MARK, KUBELET_MARK, ContainerProcess, ProcessSpec, kill_strays
from kube_sandbox.sandbox import read_definitions, run_sandbox, sandbox
from tests.kubelet.node_under_test import NAMESPACE, is_dead, is_running, pod_object, state_of
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kubelet.node_under_test import Node


IMAGE = {"image": "any:1"}
IMAGES = ImageCatalogue({"any:*": Image()})


async def test_whoever_sees_the_kubeconfig_may_begin(tmp_path: Path) -> None:
    stop = asyncio.Event()
    kubeconfig = tmp_path / "elsewhere" / "kubeconfig"
    running = asyncio.create_task(
        run_sandbox(data_dir=tmp_path / "data", images=IMAGES, kubeconfig_path=kubeconfig, stop=stop)
    )

    await eventually(lambda: running.done() or kubeconfig.exists())
    async with KubernetesApi.from_kubeconfig(kubeconfig) as api:
        (node,) = (await api.list(NODES)).items
        assert node["status"]["conditions"][0]["status"] == "True"
        await api.create(PODS, pod_object("a", container=IMAGE))

        async def started() -> int | None:
            pod = await api.get(PODS, "a", namespace=NAMESPACE)
            return int(state_of(pod)["containerID"].removeprefix("process://")) if is_running(pod) else None

        pid = await eventually(started)
    stop.set()
    await running
    assert is_dead(pid)


async def test_a_late_answer_to_a_definition_does_not_end_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine that is busy with something else."""
    apply = KubeClient.apply
    failed: list[tuple[Any, ...]] = []

    async def late_once(self: KubeClient, *arguments: Any, **keywords: Any) -> Any:
        applied = await apply(self, *arguments, **keywords)
        if not failed:
            failed.append(arguments)
            raise ApiUnavailableError("PATCH: TimeoutError")
        return applied

    monkeypatch.setattr(KubeClient, "apply", late_once)
    things = read_definitions(Path(__file__).parents[1] / "sandbox" / "crds")
    async with (
        sandbox(data_dir=tmp_path, images=ImageCatalogue({}), definitions=things) as running,
        KubernetesApi.from_kubeconfig(running.kubeconfig) as api,
    ):
        served = await api.list(CUSTOM_RESOURCE_DEFINITIONS)
    assert failed
    assert [item["metadata"]["name"] for item in served.items] == ["things.example.dev"]


async def test_logs_over_the_api(tmp_path: Path) -> None:
    async with (
        sandbox(data_dir=tmp_path, images=IMAGES) as running,
        KubernetesApi.from_kubeconfig(running.kubeconfig) as api,
        aiohttp.ClientSession() as session,
    ):
        await api.create(PODS, pod_object("a", "echo one; echo two", container=IMAGE, restartPolicy="Never"))

        async def ended() -> bool:
            return bool((await api.get(PODS, "a", namespace=NAMESPACE))["status"]["phase"] == "Succeeded")

        await eventually(ended)
        url = f"{running.server.url}/api/v1/namespaces/{NAMESPACE}/pods/a/log"
        async with session.get(url) as answer:
            assert await answer.text() == "one\ntwo\n"
        async with session.get(url, params={"tailLines": "1"}) as answer:
            assert await answer.text() == "two\n"


async def read(node: Node, tail_lines: int | None = None) -> str:
    chunks = [chunk async for chunk in node.kubelet.log_provider(NAMESPACE, "a", "main", tail_lines, follow=False)]
    return b"".join(chunks).decode()


async def test_whole_and_last_lines(node: Node) -> None:
    await node.create(pod_object("a", "seq 1 30000; exec sleep 1000"))
    await node.until_output("a", "\n30000\n")
    assert await read(node) == "".join(f"{number}\n" for number in range(1, 30001))
    assert await read(node, 2) == "29999\n30000\n"
    assert await read(node, 20000) == "".join(f"{number}\n" for number in range(10001, 30001))
    assert await read(node, 0) == ""
    assert len((await read(node, 10**6)).splitlines()) == 30000


async def test_following_ends_with_the_container_and_has_both_outputs(node: Node) -> None:
    script = "echo first; while [ ! -e /data/go ]; do sleep 0.02; done; echo last >&2"
    volumes = [{"name": "v", "hostPath": {"path": str(node.data_dir)}}]
    mounts = {"volumeMounts": [{"name": "v", "mountPath": "/data"}]}
    await node.create(pod_object("a", script, container=mounts, volumes=volumes, restartPolicy="Never"))
    await node.until("a", is_running)
    await node.until_output("a", "first")
    chunks = []
    async for chunk in node.kubelet.log_provider(NAMESPACE, "a", "main", None, follow=True):
        chunks.append(chunk)
        (node.data_dir / "go").touch()
    assert b"".join(chunks) == b"first\nlast\n"


async def test_a_container_that_never_started_has_no_log(node: Node) -> None:
    with pytest.raises(NoSuchLogError, match="does not run"):
        await read(node)


def spec(tmp_path: Path, script: str) -> ProcessSpec:
    return ProcessSpec(
        arguments=["sh", "-c", script],
        environment={"PATH": os.environ["PATH"], CONTAINER_MARK: str(tmp_path), KUBELET_MARK: str(tmp_path)},
        working_folder=tmp_path,
        log_file=tmp_path / "logs" / "0.log",
    )


def refusing(refusals: list[OSError], function: Any) -> Any:
    """The function, after it has refused so often."""

    def call(*arguments: Any, **options: Any) -> Any:
        if refusals:
            raise refusals.pop(0)
        return function(*arguments, **options)

    return call


async def test_the_end_of_a_container_is_told_when_its_rest_could_be_killed_after_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [
        PermissionError(errno.EPERM, "not permitted"),
        OSError(errno.EMFILE, "too many files"),
        TimeoutError("1 process survives SIGKILL"),
    ]
    monkeypatch.setattr(process, "kill_strays", refusing(refusals, kill_strays))
    container = ContainerProcess.start(spec(tmp_path, "exit 3"))
    exit_ = await asyncio.wait_for(container.wait(), 20)
    assert exit_.code == 3
    assert not refusals


async def test_the_end_of_a_container_is_seen_at_the_next_look_not_in_the_same_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[float] = []

    def look(_: str) -> list[int]:
        looked_at.append(time.monotonic())
        return []

    monkeypatch.setattr(process, "kill_strays", look)
    container = ContainerProcess.start(spec(tmp_path, "exec sleep 1000"))
    killed_at = time.monotonic()
    container.kill()
    await asyncio.wait_for(container.wait(), 20)
    assert looked_at[0] - killed_at >= process.RELIST_SECONDS


def test_one_process_that_may_not_be_killed_saves_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = {**os.environ, CONTAINER_MARK: str(tmp_path)}
    strays = [subprocess.Popen(["sleep", "1000"], env=mark) for _ in range(3)]
    monkeypatch.setattr(
        "kube_sandbox.kubelet.process.signal.pidfd_send_signal",
        refusing([PermissionError(errno.EPERM, "not permitted")], signal.pidfd_send_signal),
    )
    with pytest.raises(PermissionError):
        kill_strays(str(tmp_path))
    assert [stray.wait(10) for stray in strays[1:]] == [-signal.SIGKILL] * 2
    assert len(kill_strays(str(tmp_path))) == 1
    strays[0].wait(10)


async def test_a_process_without_a_pidfd_is_no_orphan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptors = Path("/proc/self/fd")
    mark = f"\0{CONTAINER_MARK}={tmp_path}\0".encode()

    def refused(*_: Any) -> Any:
        """The machine refuses once the program has started another process."""
        while len(process._marked_pids([mark])) < 2:
            time.sleep(0.01)
        raise OSError(errno.EMFILE, "too many files")

    with monkeypatch.context() as patch:
        patch.setattr("kube_sandbox.kubelet.process.os.pidfd_open", refused)
        before = len(os.listdir(descriptors))  # noqa: PTH208
        with pytest.raises(OSError, match="too many files"):
            ContainerProcess.start(spec(tmp_path, "sleep 1000 & exec sleep 1000"))
        assert len(os.listdir(descriptors)) == before  # noqa: PTH208
    try:
        # One that was killed is still there for a moment; one that was not sleeps on.
        await eventually(lambda: not process._marked_pids([mark]))
    finally:
        kill_strays(str(tmp_path))


LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


@pytest.fixture
def ended_before_it_is_fed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command has ended before its input could be written, as on a busy machine."""
    create = asyncio.create_subprocess_exec

    async def create_and_wait(*arguments: str, **options: Any) -> asyncio.subprocess.Process:
        process = await create(*arguments, **options)
        await process.wait()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", create_and_wait)


@LOOPS
@pytest.mark.usefixtures("ended_before_it_is_fed")
@pytest.mark.parametrize("stdin", ["", "link add bgk0 type bridge"])
def test_a_command_that_ends_without_reading_has_its_output(
    new_loop: Callable[[], asyncio.AbstractEventLoop], stdin: str
) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(network._run("echo", "[]", stdin=stdin)) == "[]\n"


@LOOPS
@pytest.mark.usefixtures("ended_before_it_is_fed")
def test_a_command_that_fails_is_told_with_what_it_was_given(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner, pytest.raises(PodNetworkError, match="link del bgk0"):
        runner.run(network._run("false", stdin="link del bgk0"))


@LOOPS
def test_a_batch_arrives_whole(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    batch = "\n".join(f"link del pod-{number}" for number in range(100))
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(network._run("cat", stdin=batch)) == batch


async def test_a_network_command_that_hangs_or_is_not_there_is_a_network_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "COMMAND_SECONDS", 0.2)
    with pytest.raises(PodNetworkError, match=r"sleep 1000 .*no answer within 0.2 s"):
        await network._run("sleep", "1000")
    with pytest.raises(PodNetworkError, match="no-such-program"):
        await network._run("no-such-program")


async def test_a_pod_whose_network_does_not_come_at_first_or_does_not_go_is_run_and_removed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach, detached = node.network.attach, []
    refusals = [PodNetworkError("ip: no answer within 10 s"), PodNetworkError("ip: no answer within 10 s")]

    async def late(uid: str) -> Any:
        if refusals:
            raise refusals.pop()
        return await attach(uid)

    async def never(uid: str) -> None:
        detached.append(uid)
        raise PodNetworkError("ip: no answer within 10 s")

    monkeypatch.setattr(node.network, "attach", late)
    monkeypatch.setattr(node.network, "detach", never)
    await node.create(pod_object("a"))
    pod = await node.until("a", is_running)
    await node.delete("a", 0)
    await node.until_gone("a", pod["metadata"]["uid"])
    await eventually(lambda: not os.listdir(node.data_dir / "pods"))  # noqa: PTH208
    assert detached == [pod["metadata"]["uid"]]


@pytest.mark.parametrize("port", ["70000", 70000, 0, "metrics", "²", ""])
async def test_a_port_that_is_none_is_said_with_those_that_are_known(port: int | str) -> None:
    async def run_command(_: list[str], __: float | None) -> bool:
        raise AssertionError

    target = ProbeTarget("127.0.0.1", {"web": 80, "admin": 81}, run_command)
    with pytest.raises(ProbeError, match=f"port is {port!r}, expected a number .*: admin, web"):
        await probe_once({"tcpSocket": {"port": port}}, target)


@pytest.mark.parametrize("kind", ["readinessProbe", "livenessProbe"])
async def test_a_probe_that_cannot_be_made_decides_nothing_and_is_told(node: Node, kind: str) -> None:
    probe = {"tcpSocket": {"port": "metrics"}, "periodSeconds": 1, "failureThreshold": 30}
    await node.create(pod_object("a", container={kind: probe}))
    await node.until("a", is_running)
    events = await eventually(lambda: _events_with(node, f"{kind} of main errored"))
    assert "port is 'metrics', expected" in events[0]["message"]
    os.kill(node.pid("a") or 0, signal.SIGKILL)
    pod = await node.until("a", lambda pod: is_running(pod) and state_of(pod)["restartCount"] == 1)
    assert state_of(pod)["ready"] is (kind == "livenessProbe")


async def _events_with(node: Node, text: str) -> list[Any]:
    return [event for event in (await node.api.list(EVENTS, namespace=NAMESPACE)).items if text in event["message"]]


async def test_stop_has_a_bound_when_a_container_will_not_end(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.create(pod_object("a"))
    await node.until("a", is_running)

    def survives(_: str) -> list[int]:
        raise TimeoutError("1 process survives SIGKILL")

    monkeypatch.setattr(process, "kill_strays", survives)
    monkeypatch.setattr(process_kubelet, "STOP_SECONDS", 1.0)
    pid = node.pid("a")
    async with asyncio.timeout(15):
        await node.kubelet.stop()
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)

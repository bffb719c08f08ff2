"""Containers of a pod: readiness follows the probe, liveness kills; two of them, as a broker and its fence are."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from brokergroup_operator.reconcile.render.containers import broker_container
from tests.kubelet.node_under_test import is_dead, is_ready, is_running, pod_object, state_of
from tests.reconcile import builders
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from brokergroup_operator.json_object import JsonObject
    from tests.kubelet.node_under_test import Node


POD_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
DATA: JsonObject = {"volumes": [{"name": "v", "emptyDir": {}}]}
MOUNT = {"volumeMounts": [{"name": "v", "mountPath": "/data"}]}


def volume_of(node: Node, name: str) -> Path:
    return next(node.data_dir.glob(f"pods/default_{name}_*/volumes/v"))


async def test_tcp_readiness_on_the_pods_own_address(node: Node) -> None:
    listen = (
        "import os, socket, time\n"
        "while not os.path.exists(os.environ['GO']): time.sleep(0.02)\n"
        "s = socket.create_server((os.environ['POD_IP'], 10911))\n"
        "print('open', flush=True)\n"
        "while True: s.accept()[0].close()\n"
    )
    probe = {"tcpSocket": {"port": "listen"}, "periodSeconds": 1}
    container: JsonObject = {
        **MOUNT,
        "command": ["python3", "-c", listen],
        "env": [POD_IP, {"name": "GO", "value": "/data/go"}],
        "ports": [{"name": "listen", "containerPort": 10911}],
        "readinessProbe": probe,
    }
    await node.create(pod_object("a", container=container, **DATA))
    pod = await node.until("a", is_running)
    assert not is_ready(pod)
    (volume_of(node, "a") / "go").touch()
    pod = await node.until("a", is_ready)
    assert state_of(pod)["ready"] is True
    assert state_of(pod)["restartCount"] == 0


async def test_exec_readiness_comes_and_goes(node: Node) -> None:
    probe = {"exec": {"command": ["test", "-e", "/data/ready"]}, "periodSeconds": 1, "failureThreshold": 1}
    script = "touch /data/ready; exec sleep 1000"
    await node.create(pod_object("a", script, container={**MOUNT, "readinessProbe": probe}, **DATA))
    await node.until("a", is_ready)
    ready = volume_of(node, "a") / "ready"
    ready.unlink()
    pod = await node.until("a", lambda pod: not is_ready(pod))
    assert is_running(pod)
    ready.touch()
    await node.until("a", is_ready)


async def test_http_readiness(node: Node) -> None:
    container: JsonObject = {
        "command": ["sh", "-c", "exec python3 -m http.server --bind $POD_IP 8080"],
        "env": [POD_IP],
        "readinessProbe": {"httpGet": {"port": 8080, "path": "/"}, "periodSeconds": 1},
    }
    await node.create(pod_object("a", container=container))
    await node.until("a", is_ready)


async def test_a_failed_liveness_probe_restarts_the_container(node: Node) -> None:
    probe = {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1}
    await node.create(pod_object("a", container={"livenessProbe": probe}))
    pod = await node.until("a", lambda pod: state_of(pod)["restartCount"] >= 1)
    assert state_of(pod)["lastState"]["terminated"]["exitCode"] == 137


async def test_a_broker_whose_disk_hangs_is_restarted_although_its_port_answers(node: Node) -> None:
    """A FIFO that no process reads stands in for what the probe writes: opening it never ends, as a write to such a disk."""
    listen = (
        "import os, socket\n"
        "s = socket.create_server((os.environ['POD_IP'], 10911))\n"
        "while True: s.accept()[0].close()\n"
    )
    rendered = broker_container(builders.group().spec, builders.SETTINGS)
    container: JsonObject = {
        **MOUNT,
        "command": ["python3", "-c", listen],
        "env": [POD_IP, {"name": "STORE_DIR", "value": "/data"}],
        "readinessProbe": {"tcpSocket": {"port": 10911}, "periodSeconds": 1},
        "livenessProbe": rendered["livenessProbe"] | {"periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 2},
    }
    await node.create(pod_object("a", container=container, **DATA))
    await node.until("a", lambda pod: is_ready(pod) and (volume_of(node, "a") / ".disk-probe").exists())
    hung = volume_of(node, "a") / ".disk-probe"
    os.mkfifo(hung.with_name("hung"))
    hung.with_name("hung").replace(hung)

    pod = await node.until("a", lambda pod: state_of(pod)["restartCount"] >= 1)
    assert state_of(pod)["lastState"]["terminated"]["exitCode"] == 137


SHARED: dict[str, Any] = {"volumeMounts": [{"name": "run", "mountPath": "/run/shared"}]}
VOLUMES = [{"name": "run", "emptyDir": {}}]
POD_UID = {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}


def two(script: str, beside: str, *, container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod of ``main`` and ``beside``, which share a folder."""
    pod = pod_object("a", script, container={**SHARED, **(container or {})}, volumes=VOLUMES, **spec)
    second = {"name": "beside", "image": "test:1", "command": ["sh", "-c", beside], "env": [POD_UID], **SHARED}
    pod["spec"]["containers"].append(second)
    return pod


async def test_a_killed_container_starts_again_and_the_other_runs_on(node: Node) -> None:
    await node.create(two("exec sleep 1000", "exec sleep 1000"))
    before = await node.until("a", is_ready)
    main, beside = node.pid("a"), node.pid("a", "beside")
    assert main is not None
    assert beside is not None
    os.kill(main, signal.SIGKILL)
    after = await node.until("a", lambda pod: state_of(pod)["restartCount"] == 1 and is_running(pod))
    assert node.pid("a") not in (None, main)
    assert node.pid("a", "beside") == beside
    assert state_of(after, "beside")["restartCount"] == 0
    ended = state_of(after)["lastState"]["terminated"]
    assert (ended["exitCode"], ended["signal"], ended["reason"]) == (137, 9, "Error")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["podIP"] == before["status"]["podIP"]


async def test_a_pod_is_ready_when_both_are(node: Node) -> None:
    probe = {"exec": {"command": ["sh", "-c", "test -e /run/shared/up"]}, "periodSeconds": 1}
    await node.create(
        two("exec sleep 1000", "sleep 0.3; touch /run/shared/up; exec sleep 1000", container={"readinessProbe": probe})
    )
    pod = await node.until("a", is_ready)
    assert all(state_of(pod, name)["ready"] for name in ("main", "beside"))


async def test_a_pod_killed_without_grace_has_both_terminated(node: Node) -> None:
    await node.create(two("trap '' TERM; while :; do sleep 1; done", "trap '' TERM; while :; do sleep 1; done"))
    await node.until("a", is_ready)
    pids = [node.pid("a"), node.pid("a", "beside")]
    await node.hold("a")
    await node.delete("a", 0)
    pod = await node.until(
        "a", lambda pod: all("terminated" in state_of(pod, name)["state"] for name in ("main", "beside"))
    )
    assert all(pid is not None and is_dead(pid) for pid in pids)
    await node.release("a", pod["metadata"]["uid"])


async def test_a_hook_waits_for_what_the_other_container_writes(node: Node) -> None:
    """The drain of a master: SIGTERM is held back until the fence says that the role is gone."""
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "until [ -e /run/shared/gone ]; do sleep 0.05; done"]}}}
    script = (
        "trap '[ -e /run/shared/gone ] && echo role gone first; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    )
    # The one beside lives until main is dead: it ignores SIGTERM, takes its time, and ends by itself.
    beside = "trap 'sleep 0.5; touch /run/shared/gone; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    created = await node.create(two(script, beside, container={"lifecycle": hook}, terminationGracePeriodSeconds=20))
    await node.until_output("a", "up")
    await node.until_output("a", "up", "beside")
    await node.delete("a")
    await node.until_gone("a", created["metadata"]["uid"])
    assert "role gone first" in node.output("a")


async def test_a_hook_may_only_sleep(node: Node) -> None:
    script = "trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    hook = {"preStop": {"sleep": {"seconds": 1}}}
    created = await node.create(pod_object("a", script, container={"lifecycle": hook}))
    await node.until_output("a", "up")
    await node.delete("a")
    pod = await node.until("a", lambda pod: "deletionTimestamp" in pod["metadata"])
    assert "asked" not in node.output("a")
    await node.until_gone("a", pod["metadata"]["uid"])
    assert "asked" in node.output("a")
    assert created["metadata"]["uid"] == pod["metadata"]["uid"]


async def test_a_fence_finds_the_broker_of_its_own_pod_only(node: Node) -> None:
    """Here ``/proc`` shows all of this machine: two pods, of which one loses its controller, which was never there."""
    marks = [POD_UID, {"name": "BROKERGROUP_CONTAINER", "value": "broker"}]
    find = (
        "import os, time\n"
        "from brokergroup_operator.fence.processes import BrokerProcesses\n"
        "brokers = BrokerProcesses(os.environ['POD_UID'])\n"
        "while not os.path.exists('/run/shared/kill'): time.sleep(0.05)\n"
        "brokers.search(0.0)\n"
        "print('killed', *brokers.kill(0.0), flush=True)\n"
        "time.sleep(1000)\n"
    )
    for name in ("a", "b"):
        pod = two("exec sleep 1000", "", container={"env": marks})
        pod["metadata"]["name"] = name
        pod["spec"]["containers"][1]["command"] = ["python3", "-c", find]
        await node.create(pod)
        await node.until(name, is_ready)
    main, other = node.pid("a"), node.pid("b")
    [folder] = node.data_dir.glob("pods/*a_*/volumes/run")
    (folder / "kill").touch()
    await node.until_output("a", f"killed {main}", "beside")

    await eventually(lambda: node.pid("a") not in (None, main))
    assert node.pid("b") == other

"""Readiness follows the probe; liveness kills; start-up comes first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kubelet.node_under_test import is_ready, is_running, pod_object, state_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kubelet.node_under_test import JsonObject, Node

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

"""A pod's life: bound, given an address, started, restarted, ended."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.kube.resources import PODS
from brokergroup_operator.kube.settings import settings_from_kubeconfig
from tests.kubelet.node_under_test import (
    DEADLINE_SECONDS,
    NAMESPACE,
    eventually,
    is_ready,
    pod_object,
    state_of,
)

if TYPE_CHECKING:
    from tests.kubelet.node_under_test import Node


async def test_a_pod_is_bound_started_and_ready(node: Node) -> None:
    await node.create(pod_object("a", "echo hello; exec sleep 1000"))
    pod = await node.until("a", is_ready)
    assert pod["spec"]["nodeName"] == "node-a"
    assert pod["status"]["phase"] == "Running"
    assert pod["status"]["podIP"].startswith("127.")
    assert pod["status"]["podIPs"] == [{"ip": pod["status"]["podIP"]}]
    assert pod["status"]["hostIP"] == "127.0.0.1"
    assert state_of(pod)["restartCount"] == 0
    assert await node.until_output("a", "hello")


async def test_the_address_is_in_the_api_before_the_first_container_starts(node: Node) -> None:
    """The container looks at its own pod through the API and finds there what POD_IP tells it."""
    authorization = settings_from_kubeconfig(node.kubeconfig).authorization()
    headers = {} if authorization is None else {"Authorization": authorization}
    look = (
        "import os, ssl, urllib.request, json\n"
        f"url, headers = '{node.api.url}/api/v1/namespaces/{NAMESPACE}/pods/a', {headers!r}\n"
        "request = urllib.request.Request(url, headers=headers)\n"
        "context = ssl._create_unverified_context() if url.startswith('https') else None\n"
        "pod = json.load(urllib.request.urlopen(request, context=context))\n"
        "print('same' if pod['status']['podIP'] == os.environ['POD_IP'] else 'other', flush=True)\n"
    )
    container = {
        "command": ["python3", "-c", look],
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
    }
    await node.create(pod_object("a", container=container, restartPolicy="Never"))
    pod = await node.until("a", lambda pod: pod["status"]["phase"] in ("Succeeded", "Failed"))
    assert node.output("a") == "same\n"
    assert pod["status"]["phase"] == "Succeeded"


async def test_exit_codes_and_back_off(node: Node) -> None:
    await node.create(pod_object("a", "exit 3"))
    pod = await node.until("a", lambda pod: state_of(pod)["restartCount"] >= 2 and "waiting" in state_of(pod)["state"])
    assert state_of(pod)["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert state_of(pod)["lastState"]["terminated"]["exitCode"] == 3
    assert not is_ready(pod)


async def test_init_containers_run_in_order_before_the_others(node: Node) -> None:
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/data"}], "image": "test:1"}
    init = [
        {"name": "one", "command": ["sh", "-c", "echo one >> /data/order"], **mount},
        {"name": "two", "command": ["sh", "-c", "echo two >> /data/order"], **mount},
    ]
    await node.create(
        pod_object(
            "a", "cat /data/order; exec sleep 1000", container=mount, initContainers=init,
            volumes=[{"name": "v", "emptyDir": {}}],
        )
    )  # fmt: skip
    pod = await node.until("a", is_ready)
    assert await node.until_output("a", "one\ntwo\n")
    assert [entry["state"]["terminated"]["exitCode"] for entry in pod["status"]["initContainerStatuses"]] == [0, 0]


async def test_an_init_container_that_fails_keeps_the_others_waiting(node: Node) -> None:
    init = [{"name": "one", "image": "test:1", "command": ["false"]}]
    await node.create(pod_object("a", initContainers=init))
    pod = await node.until(
        "a", lambda pod: (pod["status"].get("initContainerStatuses") or [{}])[0].get("restartCount", 0) > 1
    )
    assert pod["status"]["phase"] == "Pending"
    assert "waiting" in state_of(pod)["state"]
    assert node.output("a") == ""


async def test_an_unknown_image_is_said_and_waited_for(node: Node) -> None:
    await node.create(pod_object("a", container={"image": "nobody/knows:1"}))
    pod = await node.until(
        "a", lambda pod: state_of(pod)["state"].get("waiting", {}).get("reason") == "ImagePullBackOff"
    )
    assert "'nobody/knows:1'" in state_of(pod)["state"]["waiting"]["message"]
    assert "test:*" in state_of(pod)["state"]["waiting"]["message"]


async def test_conditions_of_others_are_kept(node: Node) -> None:
    _, pid = await node.started("a")
    foreign = {"type": "example.dev/gate", "status": "True"}
    pod = await node.api.get(PODS, "a", namespace=NAMESPACE)
    patch = {"status": {"conditions": [*pod["status"]["conditions"], foreign]}}
    await node.api.patch(PODS, "a", patch, namespace=NAMESPACE, subresource="status")

    async def kubelet_has_seen_it() -> bool:
        return "example.dev/gate" in str(node.kubelet._pods.objects[(NAMESPACE, "a")])

    await eventually(kubelet_has_seen_it)
    os.kill(pid, signal.SIGKILL)
    pod = await node.until("a", lambda pod: state_of(pod)["restartCount"] == 1 and is_ready(pod))
    assert ("example.dev/gate", "True") in [(entry["type"], entry["status"]) for entry in pod["status"]["conditions"]]


async def test_a_kubelet_that_cannot_go_on_says_so(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has stopped listening must not look alive."""

    def breaks(_: object) -> None:
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(node.kubelet._pods, "_on_change", breaks)
    await node.create(pod_object("a"))
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert isinstance(await node.kubelet.failed(), KeyError)


ONCE_MORE = "if [ -e /data/tried ]; then exit 0; fi; touch /data/tried; exit 1"


@pytest.mark.parametrize(
    ("policy", "command", "phase", "ended", "restarts"),
    [
        ("Never", ["sh", "-c", "exit 0"], "Succeeded", (0, "Completed"), 0),
        ("Never", ["sh", "-c", "exit 7"], "Failed", (7, "Error"), 0),
        ("Never", ["no-such-program"], "Failed", (128, "StartError"), 0),
        ("OnFailure", ["sh", "-c", ONCE_MORE], "Succeeded", (0, "Completed"), 1),
    ],
)
async def test_restart_policies(
    node: Node, policy: str, command: list[str], phase: str, ended: tuple[int, str], restarts: int
) -> None:
    container = {"command": command, "volumeMounts": [{"name": "v", "mountPath": "/data"}]}
    volumes = [{"name": "v", "emptyDir": {}}]
    await node.create(pod_object("a", container=container, restartPolicy=policy, volumes=volumes))
    pod = await node.until("a", lambda pod: pod["status"]["phase"] == phase)
    state = state_of(pod)["state"]["terminated"]
    assert (state["exitCode"], state["reason"]) == ended
    assert state_of(pod)["restartCount"] == restarts
    assert ("no-such-program" in state.get("message", "")) is (command == ["no-such-program"])

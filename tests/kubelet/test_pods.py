"""A pod's life: binding, address, start, restart; and its end: SIGTERM, grace period, the fence, the frozen process."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.kube.resources import PODS
from brokergroup_operator.kube.settings import settings_from_kubeconfig
from kube_sandbox.kubelet.process_kubelet import MINIMUM_GRACE_SECONDS
from tests.kubelet.node_under_test import NAMESPACE, Node, is_dead, is_ready, pod_object, state_of
from tests.support.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from brokergroup_operator.kube import KubernetesApi
    from kube_sandbox.client import KubeClient


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


@pytest.mark.parametrize("path", ["/dev/termination-log", "/data/last-words"])
async def test_what_a_container_writes_as_it_ends_is_its_termination_message(node: Node, path: str) -> None:
    script = f"printf '%5000d' 7 > {path}; exit 3"
    container = {"terminationMessagePath": path} if path != "/dev/termination-log" else {}
    await node.create(pod_object("a", script, container=container, restartPolicy="Never"))
    pod = await node.until("a", lambda pod: pod["status"]["phase"] == "Failed")
    assert state_of(pod)["state"]["terminated"]["message"] == " " * 4096


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

    await eventually(lambda: "example.dev/gate" in str(node.kubelet._pods.objects[(NAMESPACE, "a")]))
    os.kill(pid, signal.SIGKILL)
    pod = await node.until("a", lambda pod: state_of(pod)["restartCount"] == 1 and is_ready(pod))
    assert ("example.dev/gate", "True") in [(entry["type"], entry["status"]) for entry in pod["status"]["conditions"]]


async def test_a_kubelet_that_cannot_go_on_says_so(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kubelet that has stopped watching must not look alive."""

    def breaks(_: object) -> None:
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(node.kubelet._pods, "_on_change", breaks)
    await node.create(pod_object("a"))
    async with asyncio.timeout(PATIENCE_SECONDS):
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


TELLS_SIGTERM = "trap 'echo got SIGTERM; exit 0' TERM; echo up; while :; do sleep 0.05; done"
DEAF = "trap '' TERM; echo up; while :; do sleep 0.05; done"


async def test_deletion_sends_sigterm_and_the_object_goes(node: Node) -> None:
    uid, pid = await node.started("a", TELLS_SIGTERM)
    await node.delete("a")
    await node.until_gone("a", uid)
    assert is_dead(pid)
    assert "got SIGTERM" in node.output("a")


async def test_a_second_deletion_shortens_the_grace_period(node: Node) -> None:
    uid, pid = await node.started("a", DEAF, terminationGracePeriodSeconds=10_000)
    await node.delete("a")
    await node.until("a", lambda pod: "deletionTimestamp" in pod["metadata"])
    assert not is_dead(pid)
    await node.delete("a", 1)
    await node.until_gone("a", uid)
    assert is_dead(pid)


async def test_a_pod_that_is_deleted_without_grace_has_the_kubelets_minimum(
    api: KubernetesApi, client: KubeClient, kubeconfig: Path, tmp_path: Path
) -> None:
    """The real kubelet takes 2 s for a pod that does not end by itself, whatever grace is asked for."""
    node = Node(api, client, kubeconfig, tmp_path / "patient", minimum_grace_seconds=MINIMUM_GRACE_SECONDS)
    await node.kubelet.start()
    try:
        mount = {"volumeMounts": [{"name": "v", "mountPath": "/data"}]}
        ends_late = "trap 'sleep 0.5; echo in time > /data/said; exit 0' TERM; echo up; while :; do sleep 0.05; done"
        created = await node.create(
            pod_object("a", ends_late, container=mount, volumes=[{"name": "v", "hostPath": {"path": str(tmp_path)}}])
        )
        await node.until_output("a", "up")
        await node.delete("a", 0)
        await node.until_gone("a", created["metadata"]["uid"])

        await eventually((tmp_path / "said").exists)
    finally:
        await node.kubelet.stop()


async def test_the_fence_kills_and_reports_terminated_while_the_finalizer_holds(node: Node) -> None:
    uid, pid = await node.started("a", DEAF, terminationGracePeriodSeconds=10_000)
    os.kill(pid, signal.SIGSTOP)
    await node.hold("a")
    await node.delete("a", 0)
    # The kubelet writes the state at once, the phase with the next report.
    pod = await node.until("a", lambda pod: pod["status"]["phase"] == "Failed")
    assert state_of(pod)["state"]["terminated"]["exitCode"] == 137
    assert state_of(pod)["state"]["terminated"]["signal"] == signal.SIGKILL
    assert is_dead(pid)
    assert not is_ready(pod)
    await node.release("a", uid)


async def test_a_hook_that_waits_has_a_second_of_a_deletion_without_grace_and_then_comes_sigterm(node: Node) -> None:
    """And two seconds more to SIGKILL: a fence that deletes a master whose hook waits is confirmed after three."""
    node.minimum_grace_seconds = MINIMUM_GRACE_SECONDS  # the shell needs time to hear of it
    await node.restart()
    hook = {"lifecycle": {"preStop": {"exec": {"command": ["sleep", "1000"]}}}}
    uid, _ = await node.started("a", TELLS_SIGTERM, container=hook)
    await node.hold("a")
    await node.delete("a", 0)
    pod = await node.until("a", lambda pod: "terminated" in state_of(pod)["state"])
    assert state_of(pod)["state"]["terminated"]["exitCode"] == 0
    assert "got SIGTERM" in node.output("a")
    await node.release("a", uid)


async def test_the_fence_reports_a_container_terminated_that_was_waiting_to_restart(node: Node) -> None:
    created = await node.create(pod_object("a", "exit 3"))
    # Not while it runs again: the deletion would end that run by a signal.
    await node.until("a", lambda pod: state_of(pod)["restartCount"] >= 1 and "waiting" in state_of(pod)["state"])
    await node.hold("a")
    await node.delete("a", 0)
    pod = await node.until(
        "a", lambda pod: "terminated" in state_of(pod)["state"] and "deletionTimestamp" in pod["metadata"]
    )
    assert state_of(pod)["state"]["terminated"]["exitCode"] == 3
    await node.release("a", created["metadata"]["uid"])


async def test_a_frozen_container_dies_of_an_ordinary_deletion_too(node: Node) -> None:
    uid, pid = await node.started("a", TELLS_SIGTERM)
    os.kill(pid, signal.SIGSTOP)
    await node.delete("a", 1)
    await node.until_gone("a", uid)
    assert is_dead(pid)


async def test_children_are_dead_when_the_container_is_said_to_be_also_one_in_a_session_of_its_own(node: Node) -> None:
    """No process group contains it; the fence's confirmation must cover it as well."""
    await node.create(pod_object("a", "sleep 1000 & echo child $!; setsid sleep 1000 & echo $! up; exec sleep 1000"))
    output = await node.until_output("a", "up")
    await node.until("a", is_ready)
    children = [int(word) for word in output.split() if word.isdigit()]
    assert [is_dead(child) for child in children] == [False, False]
    await node.hold("a")
    await node.delete("a", 0)
    pod = await node.until("a", lambda pod: "terminated" in state_of(pod)["state"])
    assert [is_dead(child) for child in children] == [True, True]
    await node.release("a", pod["metadata"]["uid"])


async def test_a_successor_starts_only_when_its_predecessor_is_dead(node: Node) -> None:
    """A pod deleted by force may be recreated at once on the same claim: two processes must never have it open."""
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/data"}]}
    host = {"volumes": [{"name": "v", "hostPath": {"path": str(node.data_dir)}}]}
    script = "trap '' TERM; exec 9>>/data/one-at-a-time; flock -n 9 || { echo two at a time; exit 1; }; echo up; exec sleep 1000"
    await node.create(pod_object("a", script, container=mount, **host))
    before = await node.until("a", is_ready)
    await node.until_output("a", "up")
    await node.delete("a", 0)
    second = await node.create(pod_object("a", script, container=mount, **host))
    pod = await node.until("a", is_ready)
    assert pod["metadata"]["uid"] == second["metadata"]["uid"]
    assert pod["status"]["podIP"] != before["status"]["podIP"]
    assert state_of(pod)["restartCount"] == 0

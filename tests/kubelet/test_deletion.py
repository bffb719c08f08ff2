"""How pods end: SIGTERM and the grace period, the fence, the object that vanished, the frozen process."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from kube_sandbox.kubelet.process_kubelet import MINIMUM_GRACE_SECONDS
from tests.kubelet.node_under_test import Node, eventually, is_dead, is_ready, pod_object, state_of

if TYPE_CHECKING:
    from pathlib import Path

    from brokergroup_operator.kube import KubernetesApi
    from kube_sandbox.client import KubeClient

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

        async def said() -> bool:
            return (tmp_path / "said").exists()

        await eventually(said)
    finally:
        await node.kubelet.stop()


async def test_the_fence_kills_and_reports_terminated_while_the_finalizer_holds(node: Node) -> None:
    uid, pid = await node.started("a", DEAF, terminationGracePeriodSeconds=10_000)
    os.kill(pid, signal.SIGSTOP)
    await node.hold("a")
    await node.delete("a", 0)
    # The state is told as soon as it is so, the phase with the next report.
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
    await node.until("a", lambda pod: state_of(pod)["restartCount"] >= 1)
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
    """No process group holds it; the fence's word must be true of it as well."""
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
    """A pod deleted by force may be made again at once, on the same claim: two processes must never have it open."""
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

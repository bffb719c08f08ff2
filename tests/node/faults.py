"""Faults of a broker: its process is found by the pod's cgroup."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brokergroup_operator.api.names import PORT_HA
from tests.node.kubectl import environment, get, kubectl
from tests.node.processes import NodeError, Process, command, command_line, process_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    # A fault of a pod with a broker of this implementation.
    Fault = Callable[[dict[str, Any], str], None]

BROKER = {
    # A Proxy in local mode has the broker in its process, a container several.
    "Java": re.compile(r"java .*(Broker(Container)?Startup|ProxyStartup .*-pm local)"),
    "Python": re.compile(r"brokergroup[^ ]* replica|brokergroup_operator\S* replica"),
}


def pod_pids(pod: dict[str, Any]) -> list[int]:
    """All processes of a pod, by its UID in their cgroups."""
    uid, found = pod["metadata"]["uid"], []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "cgroup").read_text(encoding="utf-8")
            except OSError:
                continue
            if f"pod{uid}" in text:
                found.append(int(entry.name))
    return sorted(found)


def broker_process(pod: dict[str, Any], implementation: str) -> Process:
    """The broker itself, not a shell or a launcher in front of it: the last of those that match."""
    lines = {pid: command_line(pid) for pid in pod_pids(pod)}
    matching = [pid for pid, line in lines.items() if BROKER[implementation].search(line)]
    process = process_of(matching[-1]) if matching else None
    if process is None:
        raise NodeError(f"pod {pod['metadata']['name']} has no broker among its processes: {lines}")
    return process


def freeze(pod: dict[str, Any], implementation: str) -> None:
    broker_process(pod, implementation).send(signal.SIGSTOP)


def kill(pod: dict[str, Any], implementation: str) -> None:
    broker_process(pod, implementation).send(signal.SIGKILL)


def delete(pod: dict[str, Any], implementation: str) -> None:
    kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")


def delete_by_force(pod: dict[str, Any], implementation: str) -> None:
    kubectl("delete", "pod", pod["metadata"]["name"], "--force", "--grace-period=0", "--wait=false")


@contextlib.contextmanager
def draining(node: str, seconds: float) -> Iterator[None]:
    """kubectl drain of a node until the block ends, then uncordon. The drain itself may not end: where a group's second pod stays
    until the first is back, that one waits for its node.
    """
    options = ["--ignore-daemonsets", "--delete-emptydir-data", "--force", f"--timeout={seconds:g}s"]
    words = ["kubectl", "drain", node, *options]
    drain = subprocess.Popen(words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        drain.terminate()
        drain.wait()
        kubectl("uncordon", node)


def refuse_links(pod: dict[str, Any], implementation: str) -> None:
    """Every packet to or from an HA port is refused in the pod's own network, which ends with the pod."""
    ports = [port for container in pod["spec"]["containers"] for port in container.get("ports", [])]
    ha_port = str(next(port["containerPort"] for port in ports if port["name"] == PORT_HA))
    enter = ("nsenter", f"--net=/proc/{broker_process(pod, implementation).pid}/ns/net", "nft", "add")
    command(*enter, "table", "inet", "links")
    for hook, way in (("output", "dport"), ("input", "sport")):
        command(*enter, "chain", "inet", "links", hook, f"{{ type filter hook {hook} priority 0 ; }}")
        command(*enter, "rule", "inet", "links", hook, "tcp", way, ha_port, "reject", "with", "tcp", "reset")


def user_of(pid: int) -> int:
    """As which number of the machine a process runs; -1 for one that is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return -1
    return int(re.search(r"^Uid:\s+\d+\s+(\d+)", text, re.MULTILINE)[1])  # type: ignore[index]


def pod_named(name: str, namespace: str = "default") -> dict[str, Any]:
    found: dict[str, Any] = get("-n", namespace, "pod", name)
    return found

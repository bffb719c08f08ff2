"""The state of brokers and control plane at a failed check, stored beside the operator's records."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from tests.node import faults
from tests.node.kubectl import kubectl_run
from tests.node.places import nodes, state_folder
from tests.node.processes import NodeError
from tests.support.lane_runner import RESULTS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.node.bench import Group

RECORDS = RESULTS / "two-real-nodes"
# A JVM writes its threads within milliseconds; on a busy machine this is enough for a hundred of them.
THREADS_SECONDS = 1.0
# Linux' pressure statistics: they distinguish a stall of the API server from a busy disk.
PRESSURE = ("cpu", "io", "memory")


def keep_brokers_labelled(folder: Path, label: str, implementation: str) -> None:
    """Store the same for brokers outside the bench's groups, before they are deleted."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(NodeError, json.JSONDecodeError):
        for pod in json.loads(kubectl_run("get", "pods", "-l", label, "-o", "json").stdout)["items"]:
            keep_broker(folder, pod["metadata"]["name"], pod["metadata"]["uid"], implementation)


def keep_what_runs(folder: Path, groups: list[Group]) -> None:
    """Store each broker's output with its threads (`kill -3`) and its log, the groups' objects, and the machine's pressure."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind in PRESSURE:
        with contextlib.suppress(OSError):
            shutil.copyfile(f"/proc/pressure/{kind}", folder / f"pressure-{kind}")
    with contextlib.suppress(subprocess.TimeoutExpired):
        told = kubectl_run("get", "rmq,brokergroup,brokergroupstate,pods,events", "-o", "json")
        (folder / "objects.json").write_text(told.stdout or told.stderr, encoding="utf-8")
    for group in groups:
        with contextlib.suppress(NodeError, json.JSONDecodeError):
            for pod in group.pods():
                keep_broker(folder, pod["metadata"]["name"], pod["metadata"]["uid"], group.implementation)


def keep_broker(folder: Path, name: str, uid: str, implementation: str) -> None:
    pod = {"metadata": {"name": name, "uid": uid}}
    with contextlib.suppress(NodeError, OSError):
        broker = faults.broker_process(pod, implementation)
        if implementation == "Java":
            broker.send(signal.SIGQUIT)
            time.sleep(THREADS_SECONDS)
    for node in nodes():
        for log in node.folder.glob(f"pod-logs/*_{name}_{uid}/*/*.log"):
            shutil.copyfile(log, folder / f"{name}-{log.parent.name}-{log.stem}.log")
        for log in node.folder.glob(f"kubelet/pods/{uid}/volumes/*/*/**/rocketmqlogs/broker.log"):
            shutil.copyfile(log, folder / f"{name}-rocketmq.log")


def keep_control_plane(folder: Path) -> None:
    """Store the logs of etcd, the API server and the kubelets."""
    folder.mkdir(parents=True, exist_ok=True)
    for log in (state_folder() / "logs").glob("*.log"):
        shutil.copyfile(log, folder / log.name)

"""Every operator pod's log and incident log, kept after the pod is gone.

Both are files on the nodes. A second name is given to each, so that the kubelet may remove the pod and the text stays. The new
names lie beside the old ones: the kubelet's folder is a mount of its own, and no name leads from one mount into another.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

import metric_names
from tests.node.kubectl import get
from tests.node.places import nodes

if TYPE_CHECKING:
    from pathlib import Path

POLL_SECONDS = 0.5
METRICS_PORT = 9879
KEPT = "operator-records"


@dataclass
class OperatorRecords:
    """The records of one namespace's operator pods."""

    namespace: str
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            self.collect()

    def collect(self) -> None:
        """Give a name of ours to each file that has none yet."""
        for node in nodes():
            for log in node.folder.glob(f"pod-logs/{self.namespace}_*/*/*.log"):
                pod = log.parent.parent.name.split("_")
                keep(log, node.folder / KEPT / f"{pod[1]}_{pod[2]}_{log.stem}.log")
                incidents = f"pods/{pod[2]}/volumes/kubernetes.io~empty-dir/incidents/incidents.jsonl"
                keep(node.folder / "kubelet" / incidents, node.folder / "kubelet" / KEPT / f"{pod[1]}_{pod[2]}.jsonl")

    def log_lines(self) -> list[tuple[str, str]]:
        """Pod and line, of all pods that there ever were."""
        self.collect()
        return [
            (file.name.split("_")[0], line.split(" ", 3)[-1])
            for node in nodes()
            for file in sorted((node.folder / KEPT).glob("*.log"))
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines()
        ]

    def incidents(self, group: str) -> list[dict[str, Any]]:
        """Failovers and switchovers of a group, over all pods."""
        self.collect()
        found = [
            json.loads(line)
            for node in nodes()
            for file in sorted((node.folder / "kubelet" / KEPT).glob("*.jsonl"))
            for line in file.read_text(encoding="utf-8").splitlines()
        ]
        return [one for one in found if one["name"] == group and one["kind"] in ("failover", "switchover")]

    def copy_to(self, folder: Path) -> None:
        """Copy all records to a folder that outlives the nodes, to find out why a check failed."""
        folder.mkdir(parents=True, exist_ok=True)
        for node in nodes():
            for file in (*(node.folder / KEPT).glob("*.log"), *(node.folder / "kubelet" / KEPT).glob("*.jsonl")):
                shutil.copyfile(file, folder / file.name)

    def failovers_total(self, broker_name: str) -> Counter[str]:
        """Return the number of failovers by outcome, over all present pods."""
        counts: Counter[str] = Counter()
        for pod in get("-n", self.namespace, "pods")["items"]:
            for sample in metrics_of(pod):
                if sample.name == metric_names.FAILOVERS_TOTAL and sample.labels["broker_group"] == broker_name:
                    counts[sample.labels["outcome"]] += int(sample.value)
        return counts


def keep(source: Path, name: Path) -> None:
    """Give a file a second name; nothing where it has it, or is not there yet."""
    name.parent.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError, FileNotFoundError):
        os.link(source, name)


def metrics_of(pod: dict[str, Any]) -> list[Any]:
    """A pod's samples; none from one that does not answer."""
    address = pod["status"].get("podIP")
    try:
        with urllib.request.urlopen(f"http://{address}:{METRICS_PORT}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, OSError):
        return []
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]

"""Runs Spark's pods as processes on this machine, in place of the real API server's missing kubelet.

A container is the image's entry point with the arguments and the environment of the pod's own manifest. A ConfigMap that is mounted
becomes a folder, and its mount path is that folder wherever it is named. All is on loopback: the name of a driver's Service
and its fixed ports are of no use here. The first executor is never started: its node is lost, as far as Spark can tell.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from tests.real.parts.kubectl import Kubectl

ROOT = Path(__file__).resolve().parents[2]
# For a JVM that is over in seconds: its full compiler would only cost time.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
LOOPBACK = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.port": "0",
    "spark.driver.blockManager.port": "0",
}
_PASSED_ON = ("PATH", "HOME", "JAVA_HOME", "TMPDIR")


def process_environment(**more: str) -> dict[str, str]:
    """Return the environment that an image would set, without this process's own."""
    kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {**kept, "PYTHONPATH": str(ROOT), "JAVA_TOOL_OPTIONS": SHORT_LIVED, **more}


def entry_point(*words: str) -> list[str]:
    return [sys.executable, "-m", "sla_reports.pod_entrypoint", *words]


@dataclass
class SparkPods:
    """Starts what appears in a namespace; `with` it."""

    kubectl: Kubectl
    namespace: str
    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    over: set[str] = field(default_factory=set)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    failure: Exception | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="spark-pods")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join()
        for process in self.processes.values():
            process.kill()
            process.wait()

    def log(self, role: str) -> str:
        """Return the logs of all pods of a role."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob(f"{role}-*.log")))

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.3):
                for pod in self._get("pods", "--selector=spark-role")["items"]:
                    self._look_at(pod)
        except Exception as error:  # noqa: BLE001 - told by the test, which waits for something else
            self.failure = error

    def _get(self, *words: str) -> Any:
        return self.kubectl.get(*words, "--namespace", self.namespace)

    def _look_at(self, pod: dict[str, Any]) -> None:
        name, role = pod["metadata"]["name"], pod["metadata"]["labels"]["spark-role"]
        if name in self.lost or name in self.over:
            return
        if name in self.processes:
            if (code := self.processes[name].poll()) is not None:
                self.over.add(name)
                self._tell(pod, "Failed" if code else "Succeeded", {"terminated": {"exitCode": code}})
        elif role == "executor" and not self.lost:
            self.lost.append(name)
            self._tell(pod, "Failed", {"terminated": {"exitCode": 137}})
        else:
            self._start(pod, role)

    def _start(self, pod: dict[str, Any], role: str) -> None:
        name = pod["metadata"]["name"]
        [container] = pod["spec"]["containers"]
        folders = self._mounted(pod, container)
        if folders is None:
            return
        own = {"status.podIP": "127.0.0.1", "metadata.name": name}
        environment = {
            one["name"]: one["value"] if "value" in one else own[one["valueFrom"]["fieldRef"]["fieldPath"]]
            for one in container["env"]
        }
        environment["SPARK_LOCAL_DIRS"] = str(self.folder / f"local-{name}")
        words = [_placed(word, folders) for word in container["args"]]
        if role == "driver":
            words[1:1] = [word for item in LOOPBACK.items() for word in ("--conf", "=".join(item))]
        placed = {key: _placed(value, folders) for key, value in environment.items()}
        with (self.folder / f"{role}-{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                entry_point(*words), env=process_environment(**placed), cwd=self.folder, stdout=log, stderr=log
            )
        self._tell(pod, "Running", {"running": {"startedAt": "2026-01-01T00:00:00Z"}})

    def _mounted(self, pod: dict[str, Any], container: dict[str, Any]) -> dict[str, Path] | None:
        """The mount paths of ConfigMaps, with folders that hold what is in them.

        None: one is not there yet. Spark makes a driver's pod before what it mounts; a kubelet waits for that.
        """
        maps = {one["name"]: one["configMap"] for one in pod["spec"]["volumes"] if "configMap" in one}
        folders = {
            one["mountPath"]: self.folder / pod["metadata"]["name"] / one["name"]
            for one in container["volumeMounts"]
            if one["name"] in maps
        }
        there = {item["metadata"]["name"]: item["data"] for item in self._get("configmaps")["items"]}
        if any(one["name"] not in there for one in maps.values()):
            return None
        for mount in container["volumeMounts"]:
            if mount["mountPath"] in folders:
                told = maps[mount["name"]]
                data = there[told["name"]]
                names = {one["key"]: one["path"] for one in told.get("items", [])} or {key: key for key in data}
                folder = folders[mount["mountPath"]]
                folder.mkdir(parents=True)
                for key, name in names.items():
                    (folder / name).write_text(_placed(data[key], folders))
        return folders

    def _tell(self, pod: dict[str, Any], phase: str, state: dict[str, Any]) -> None:
        container = pod["spec"]["containers"][0]
        told = {"name": container["name"], "image": container["image"], "imageID": "here", "restartCount": 0}
        told |= {"ready": phase == "Running", "state": state}
        address = {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
        patch = json.dumps({"status": {"phase": phase, **address, "containerStatuses": [told]}})
        name = pod["metadata"]["name"]
        done = self.kubectl.run(
            "patch", "pod", name, "--namespace", self.namespace, "--subresource=status", "--type=merge", "-p", patch
        )
        # Spark may have deleted it by now: then it is no longer needed.
        if done.returncode != 0 and "NotFound" not in done.stderr:
            raise AssertionError(done.stderr)


def _placed(text: str, folders: dict[str, Path]) -> str:
    for path, folder in folders.items():
        text = text.replace(path, str(folder))
    return text

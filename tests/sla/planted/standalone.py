"""A real standalone cluster of Spark on this machine: a master and two workers, each a process of its own."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from sla_reports.class_archive import archive_options
from sla_reports.pod_entrypoint import SPARK_HOME
from tests.real.parts.process import RealProcess, start

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[3]
# For JVMs that live a minute: the full compiler would only cost time.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
WORKERS = 2
_STARTED_WITHIN_S = 180.0
_ADDRESS = re.compile(r"Starting Spark master at (spark://\S+)")
_PASSED_ON = ("PATH", "HOME", "JAVA_HOME", "TMPDIR")


def process_environment(**more: str) -> dict[str, str]:
    """Return the environment of every process of a cluster and its driver; executors inherit it from their worker."""
    kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    # Each JVM would also print `JAVA_TOOL_OPTIONS`.
    return {**kept, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1", **more}


@dataclass
class StandaloneCluster:
    """A cluster for a `with` block: its address is known, and all workers have registered."""

    folder: Path
    url: str = ""
    processes: dict[str, RealProcess] = field(default_factory=dict)

    def __enter__(self) -> Self:
        try:
            self._start("master", "org.apache.spark.deploy.master.Master", "--port", "0")
            self.url = self._said(_ADDRESS, 1)[0]
            for number in range(WORKERS):
                work = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / f"work-{number}")]
                self._start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *work, self.url)
            self._said(re.compile("Registering worker"), WORKERS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # Workers end their executors on SIGTERM.
        for process in reversed(self.processes.values()):
            process.stop(30)

    def settings(self) -> Mapping[str, str]:
        """Return an application's settings: one executor on each worker, and no task before both run."""
        options = " ".join(filter(None, (SHORT_LIVED, archive_options())))
        return {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": options,
            "spark.executor.extraJavaOptions": options,
            "spark.executor.memory": "640m",
            "spark.executor.cores": "1",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "180s",
            "spark.ui.port": "0",
        }

    def _start(self, name: str, program: str, *words: str) -> None:
        command = [str(SPARK_HOME / "bin" / "spark-class"), program, "--host", "127.0.0.1", "--webui-port", "0", *words]
        environment = process_environment(SPARK_DAEMON_MEMORY="256m", SPARK_DAEMON_JAVA_OPTS=SHORT_LIVED)
        self.processes[name] = start(name, command, log=self.folder / f"{name}.log", env=environment)

    def _said(self, wanted: re.Pattern[str], times: int) -> list[str]:
        """Return the matches in the master's log once there are this many."""
        master = self.processes["master"]

        def found() -> list[str]:
            return wanted.findall(master.log.read_text(errors="replace"))

        master.wait_until(
            lambda: len(found()) >= times, what=f"{wanted.pattern}, {times} times", deadline_seconds=_STARTED_WITHIN_S
        )
        return found()
